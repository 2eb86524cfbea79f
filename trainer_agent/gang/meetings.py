"""What the tasks brought: from the reports of the nodes to rates, rows, and who has failed with whom."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from trainer_agent.gang.pairs import Meeting
from trainer_agent.gang.speeds import Rate, busbw_gbps, judge

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

# What torch names the answer of NCCL (NCCLUtils.cpp) that does not depend on the machine: wrong settings, or, in
# NCCL's init.cc, versions that differ. They are the names of ncclResult_t, not prose.
# The last one is of mnnvl.cc (2.27 to 2.30): a pod on GB200 without a ComputeDomain has no IMEX channel.
CONFIGURATION = ("ncclInvalidUsage", "ncclInvalidArgument", "nvidia-caps-imex-channels")
# Heuristic: NCCL keeps about 10 MB of /dev/shm for each rank, and more for what it sends to its neighbours; containers
# have 64 MiB by default.
SHM_PER_RANK = 64 << 20
# How ranks end that lost their peer: torchrun ends them, or a library of theirs gives up.
AFTERMATH = (-signal.SIGTERM, -signal.SIGABRT)

SLOW, IN_TIME = "slow", "in time"  # why a meeting failed that only took too long: the word, and the end of the words

Reports = dict[int, dict[str, Any]]


@dataclass(frozen=True)
class Round:
    """The pairs of one round of tests, and what their nodes reported, by rank."""

    number: int
    pairs: tuple[tuple[int, int], ...]
    reports: Reports
    per_node: int

    @cached_property
    def right(self) -> list[Meeting]:
        """One meeting for each pair: right and in time, however fast."""
        return [Meeting(a, b, self.number, not problem(self.reports, (a, b))) for a, b in self.pairs]

    @cached_property
    def rates(self) -> list[Rate]:
        """What the pairs reached that came to an end."""
        found = [(a, b, self._gbps(a, b)) for a, b in self.pairs]
        return [Rate(a, b, self.number, gbps) for a, b, gbps in found if gbps is not None]

    def _gbps(self, a: int, b: int) -> float | None:
        return pair_gbps(self.reports.get(a), self.reports.get(b), ranks=2 * self.per_node)


@dataclass
class Rounds:
    """All rounds so far; `hosts` are boot ids by rank, as far as known."""

    hosts: Mapping[int, str]
    done: list[Round] = field(default_factory=list)

    def rates(self) -> list[Rate]:
        """Return what the pairs reached that came to an end."""
        return [rate for one in self.done for rate in one.rates]

    def right(self) -> list[Meeting]:
        """Return one meeting for each pair of each round: right and in time, however fast."""
        return [meeting for one in self.done for meeting in one.right]

    def timed(self) -> list[Meeting]:
        """Return one meeting for each that was right, in time and measured: fast enough."""
        fast = {(m.a, m.b, m.round): m.passed for m in judge(self.rates(), self.hosts).meetings}
        right = [(m.a, m.b, m.round) for m in self.right() if m.passed]
        return [Meeting(*key, fast[key]) for key in right if key in fast]

    def well(self) -> list[Meeting]:
        """Return one meeting for each pair of each round: right, in time, and fast enough where that was measured."""
        slow = {(m.a, m.b, m.round) for m in self.timed() if not m.passed}
        return [replace(m, passed=m.passed and (m.a, m.b, m.round) not in slow) for m in self.right()]

    def meetings(self) -> list[Meeting]:
        """
        Return one meeting for each pair of each round: whether something went wrong.

        One that was only slow passes, unless its pair has gone wrong, too, and was never well, though both were with
        others: a link that loses some packets may lose so many that nothing comes in time.
        """
        right, well = self.right(), [m for m in self.well() if m.passed]
        pairs, nodes = {(m.a, m.b) for m in well}, {node for m in well for node in (m.a, m.b)}
        never = {(m.a, m.b) for m in right if not m.passed and nodes >= {m.a, m.b}} - pairs
        return [replace(m, passed=m.passed and (m.a, m.b) not in never) for m in right]

    def rows(self) -> list[dict[str, Any]]:
        """Return the part `pairs` of the report."""
        rates = {(rate.a, rate.b, rate.round): rate.gbps for rate in self.rates()}
        return [
            {
                "a": m.a,
                "b": m.b,
                "round": m.round,
                "passed": m.passed,
                "gbps": round(gbps, 4) if (gbps := rates.get((m.a, m.b, m.round))) is not None else None,
                "why": "" if m.passed else self.why(m),
            }
            for m in self.well()
        ]

    def why(self, meeting: Meeting) -> str:
        """Return why a meeting failed."""
        reports = next(one.reports for one in self.done if one.number == meeting.round)
        return problem(reports, (meeting.a, meeting.b)) or SLOW


def problem(reports: Mapping[int, Mapping[str, Any]], nodes: Iterable[int]) -> str:
    """Return the worst that nodes reported of a task, in words; nothing when all of them were right and in time."""
    found = []
    for node in nodes:
        report = reports.get(node)
        if report is None:
            found.append((1, f"node {node} reported nothing {IN_TIME}"))
        elif not report["ok"]:
            found += [(weight, f"node {node}: {text}") for weight, text in map(_words, report["ranks"]) if text]
    return max(found, key=lambda pair: pair[0], default=(0, ""))[1]


def late(why: str) -> bool:
    """Whether a meeting failed only as it took too long, by the reason that `Rounds.why` gives."""
    return why == SLOW or why.endswith(IN_TIME)


def _words(row: Mapping[str, Any]) -> tuple[int, str]:
    """Return how telling the report of a rank is, and what it says."""
    if row.get("wrong"):
        wrong = row["wrong"][0]
        return 4, f"{wrong['of']} gave {wrong['differ']} wrong numbers of {wrong['of_numbers']}"
    if died(row):
        return 3, f"its rank was killed by signal {-row['code']} in stage {row.get('stage', 'start')}"
    if row.get("error"):
        return 2, f"{row['error']} in stage {row.get('stage', 'start')}: {row.get('text', '')}".rstrip(": ")
    if row.get("hung"):
        return 1, f"nothing came after stage {row.get('stage', 'start')} {IN_TIME}"
    return (1, f"its rank ended with exit code {row['code']}") if row.get("code") else (0, "")


def died(row: Mapping[str, Any]) -> bool:
    """Whether a rank was ended by a signal that neither we nor its libraries sent."""
    return (row.get("code") or 0) < 0 and row["code"] not in AFTERMATH


def misconfigured(row: Mapping[str, Any]) -> bool:
    """Whether NCCL refused its settings."""
    return any(name in f"{row.get('error', '')} {row.get('text', '')}" for name in CONFIGURATION)


def short_of_shm(row: Mapping[str, Any], *, ranks: int) -> bool:
    """Whether a rank may have failed for shared memory: there is too little in /dev/shm for the ranks of its node."""
    return "shm_free" in row and row["shm_free"] < ranks * SHM_PER_RANK


def pair_gbps(a: Mapping[str, Any] | None, b: Mapping[str, Any] | None, *, ranks: int) -> float | None:
    """Return the bus bandwidth of the largest all-reduce of two nodes in GB/s."""
    rows = [row for row in timings([a, b], ranks=ranks) if row["of"] == "all-reduce"]
    return max(rows, key=lambda row: row["bytes"])["busbw_gbps"] if a and b and rows else None


def timings(reports: Sequence[Mapping[str, Any] | None], *, ranks: int) -> list[dict[str, Any]]:
    """Return for each collective and size the seconds of the slowest rank, and the bus bandwidth in GB/s."""
    slowest: dict[tuple[str, int], float] = {}
    for row in _ranks(reports):
        for timing in row["timings"]:
            key = timing["of"], timing["bytes"]
            slowest[key] = max(slowest.get(key, 0.0), timing["seconds"])
    return [
        {
            "of": of,
            "bytes": size,
            "seconds": round(seconds, 6),
            "busbw_gbps": round(busbw_gbps(of, ranks, size, seconds), 4),
        }
        for (of, size), seconds in slowest.items()
        if seconds > 0
    ]


def _ranks(reports: Iterable[Mapping[str, Any] | None]) -> Iterator[Mapping[str, Any]]:
    for report in reports:
        if report:
            yield from report["ranks"]
