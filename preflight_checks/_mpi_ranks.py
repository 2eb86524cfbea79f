"""A small all-reduce by the real mpirun, of all ranks, and of pairs of hosts when that fails."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from preflight_checks._probes import FOLDER
from trainer_agent.gang.pairs import Meeting, blame, next_round
from trainer_agent.guarded import run_guarded
from trainer_agent.hostfile import Hostfile, render
from trainer_agent.mpi.census import Arrival, Census, expected
from trainer_agent.mpi.prepare import module
from trainer_agent.mpi.words import plain
from trainer_agent.wrappers import find_real

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer_agent.gang.pairs import Blame
    from trainer_agent.guarded import Ended
    from trainer_agent.mpi.plan import Plan
    from trainer_agent.mpi.workers import Workers

# Six ranks start in 1 to 3 s on two busy cores; a cold Python on a network file system takes longer.
ALL_S, EACH_S, PAIR_S = 20.0, 0.1, 10.0
MOST_ALL_S = 300.0
PAIRS_S = 90.0  # for all rounds
AT_A_TIME = 8  # mpiruns
LIBRARIES = {
    "openmpi": ("libmpi.so.40", "libmpi.so"),
    "mpich": ("libmpi.so.12", "libmpich.so.12", "libmpi.so"),
    "intel": ("libmpi.so.12", "libmpi.so"),
}


@dataclass(frozen=True)
class Run:
    """
    What came of an all-reduce.

    Args:
        census: the ranks that started.
        right: by rank, whether its sum was right, for those that came so far.
        problem: what was wrong in words, empty when nothing was.
    """

    census: Census
    right: dict[int, bool]
    problem: str
    seconds: float

    @property
    def wrong_hosts(self) -> list[str]:
        """The hosts whose ranks got a wrong sum."""
        return sorted({self.census.host(rank) for rank, right in self.right.items() if not right})


def all_s(hosts: Hostfile) -> float:
    """Return the seconds for all ranks together."""
    return min(MOST_ALL_S, ALL_S + EACH_S * sum(entry.slots for entry in hosts.entries))


def add_up(plan: Plan, workers: Workers, hosts: Hostfile, *, timeout_s: float) -> Run:
    """Run an all-reduce on these hosts."""
    program = (plan.python, "-IS", "-c", (FOLDER / "mpi_probe.py").read_text(), plan.implementation.kind)
    asked = replace(plan.asked, parts=plain((*program, *_libraries(plan))).parts)
    chosen = replace(plan, asked=asked, hosts=hosts, verified=False)
    addressed = hosts.with_addresses({entry.name: workers.addresses[entry.name] for entry in hosts.entries})
    path = Path(workers.place.hostfile).with_name("hostfile." + "-".join(str(e.line) for e in hosts.entries)[:100])
    path.write_text(render(addressed, plan.implementation.kind))
    place = replace(workers.place, hostfile=str(path))
    how, began = module(chosen), time.monotonic()
    ended = run_guarded(how.argv(chosen, place), environ=how.env(chosen, place), timeout_s=timeout_s)
    wanted = expected(hosts, {e.name: workers.addresses[e.name] for e in hosts.entries}, count=None, placed=False)
    return _judged(Census(wanted), ended, time.monotonic() - began)


def find_culprits(plan: Plan, workers: Workers) -> tuple[Blame, list[str]]:
    """Let pairs of hosts add up, round by round; return who is to blame by the number of the host, and the names."""
    names = list(plan.hosts.names)
    meetings: list[Meeting] = []
    deadline = time.monotonic() + PAIRS_S
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        while time.monotonic() < deadline and (pairs := next_round(range(len(names)), meetings)):
            number = 1 + max((meeting.round for meeting in meetings), default=-1)
            passed = pool.map(lambda pair: _pair(plan, workers, pair), pairs)
            meetings += [Meeting(*pair, number, ok) for pair, ok in zip(pairs, passed, strict=True)]
    return blame(meetings), names


def _pair(plan: Plan, workers: Workers, pair: tuple[int, int]) -> bool:
    entries = tuple(replace(plan.hosts.entries[number], slots=1) for number in pair)
    run = add_up(plan, workers, Hostfile(entries), timeout_s=PAIR_S)
    return not run.problem


def _judged(census: Census, ended: Ended, seconds: float) -> Run:
    done: dict[int, bool] = {}
    for said in _lines(ended.stdout):
        if said["stage"] == "start":
            census.add(Arrival(said["rank"], said["size"], said["host"], ""))
        elif said["stage"] == "done":
            done[said["rank"]] = said["right"]
    return Run(census, done, _problem(census, done, ended), round(seconds, 3))


def _problem(census: Census, done: dict[int, bool], ended: Ended) -> str:
    """Return what is wrong, the most telling thing first."""
    if not all(done.values()):
        return "the sum is wrong"
    if 0 < census.size == len(done) and not census.wrong():
        return ""  # how they part does not matter: some libraries hang in MPI_Finalize
    if ended.timed_out:
        late = sorted({census.host(rank) for rank in census.come if rank not in done})
        return f"no answer after {ended.duration_s:.0f} s from ranks on {', '.join(late) or 'any host'}"
    if ended.code:
        return f"mpirun {ended.end}: {ended.last_words}"
    wrong = census.wrong() if census.come else None
    return wrong.message if wrong else f"{len(done)} of {census.size} ranks had an answer"


def _lines(text: str) -> list[dict[str, Any]]:
    """Return what the ranks said; mpirun and its libraries may have words of their own between."""
    found = []
    for line in text.splitlines():
        _, brace, rest = line.partition('{"stage"')
        try:
            said = json.loads(brace + rest)
        except ValueError:
            continue
        found.append(said)
    return found


def _libraries(plan: Plan) -> Sequence[str]:
    """Return where the library may be: beside mpirun, else where the linker finds it."""
    program = find_real(plan.asked.program, plan.environ)
    names = LIBRARIES[plan.implementation.kind]
    if not program:
        return names
    beside = [Path(program).parent.parent / "lib", Path(program).resolve().parent.parent / "lib"]
    return [*(str(folder / name) for folder in dict.fromkeys(beside) for name in names), *names]
