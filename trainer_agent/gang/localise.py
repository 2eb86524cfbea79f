"""Rounds of pairs, until it is known who is at fault; then of rails, to tell which of its devices."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trainer_agent.errors import Severity
from trainer_agent.gang import rules, speeds
from trainer_agent.gang.compare import hosts
from trainer_agent.gang.course import LATE_S
from trainer_agent.gang.meetings import Round, Rounds, problem
from trainer_agent.gang.pairs import blame, next_round
from trainer_agent.gang.verdict import RAIL, Charge
from trainer_agent.policy import Suspect

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainer_agent.gang.course import Turns, Work
    from trainer_agent.gang.leader import Leader
    from trainer_agent.gang.pairs import Blame, Meeting

# With three nodes each has to meet both others before anybody can be compared.
FEW, ROUNDS_OF_FEW = 3, 3
# A meeting that hangs is not waited for longer than so many times what the slowest that passed took, at least so long.
# After a failure ranks are new: with gloo that costs them nothing, with NCCL a CUDA context and a first communicator,
# which takes seconds on a node of eight GPUs, more where the driver is slow; those that passed had both.
PATIENCE, LEAST_S = 4.0, {"gloo": 3.0, "nccl": 20.0}
# No round begins after so many times what one may take, which is enough for faults that always show: on machines that
# have no time for their nodes more rounds bring more failures, not more certainty.
ENOUGH = 6.0
TIMED = 3  # rounds that are timed when something has failed: then the rates are not what matters


class Localiser:
    """
    The part of rank 0 that finds out who it was.

    Args:
        trouble: what the collective of all ranks said; empty when it went well, and pairs only show who is slow.
    """

    def __init__(self, leader: Leader, *, trouble: str) -> None:
        self.leader = leader
        self.trouble = trouble
        marks = {node.rank: node.hello["marks"] for node in leader.roll.here}
        self.rounds = Rounds(hosts(marks))
        self.found = False
        self.longest = 0.0
        self.began = leader.now

    def run(self, ranks: Sequence[int]) -> Turns[None]:
        """Let pairs meet, and write down what they show."""
        leader = self.leader
        if self.trouble:
            leader.begin("localisation")
        elif len(ranks) == 2:  # they have just met
            self._take_down([(ranks[0], ranks[1])])
        meetings = self.rounds.meetings()
        while self._goes_on(len(ranks), meetings):
            pairs = next_round(ranks, meetings, seed=leader.plan.seed)
            if not pairs:
                break
            yield from self._meet(pairs)
            meetings = self.rounds.meetings()
            if leader.phase != "localisation" and _failed(meetings):
                leader.begin("localisation")
        leader.minutes.pairs = self.rounds.rows()
        found = blame(meetings)
        self._charge(found)
        yield from self._devices(found.nodes, ranks, meetings)

    def _goes_on(self, count: int, meetings: Sequence[Meeting]) -> bool:
        plan = self.leader.plan
        if self.leader.now - self.began > ENOUGH * (plan.pair.timeout_s + LATE_S):
            return False
        wanted = plan.screen if count > FEW else min(plan.screen, 1) * ROUNDS_OF_FEW
        if count == 2 and not self.trouble:
            return False
        return bool(self.trouble) or _failed(meetings) or len(self.rounds.done) < wanted

    def _meet(self, pairs: Sequence[tuple[int, int]]) -> Turns[None]:
        yield from self.leader.run_task("pairs", self._work(), pairs=[list(pair) for pair in pairs])
        one = self._take_down(pairs)
        passed = {node for pair in pairs if not problem(one.reports, pair) for node in pair}
        self.longest = max([self.longest, *(one.reports[node]["after_s"] for node in passed)])

    def _take_down(self, pairs: Sequence[tuple[int, int]]) -> Round:
        one = Round(len(self.rounds.done), tuple(pairs), dict(self.leader.reports), self.leader.plan.per_node)
        self.rounds.done.append(one)
        return one

    def _work(self) -> Work:
        work = self.leader.plan.pair
        if self.trouble and len(self.rounds.done) >= TIMED:
            work = replace(work, sizes=())
        least = max(LEAST_S[self.leader.plan.backend], PATIENCE * self.longest)
        return replace(work, timeout_s=min(work.timeout_s, least)) if self.longest else work

    def _charge(self, found: Blame) -> None:
        leader = self.leader
        slow = {straggler.node: straggler for straggler in speeds.stragglers(self.rounds.rates(), self.rounds.hosts)}
        for node in found.nodes:
            rows = [row for row in leader.minutes.pairs if node in (row["a"], row["b"])]
            failures = [row for row in rows if not row["passed"]]
            own = [row for row in failures if not {row["a"], row["b"]} <= set(found.nodes)] or failures
            broken = [row for row in own if row["why"] != "slow"]
            if not broken:
                if node in slow:  # else it is slow now and then, which is no fault
                    self._slow(slow[node])
                continue
            share = f"{len(failures)} of {len(rows)} tests with others"
            text = f"{leader.roll.name(node)} failed in {share}: {broken[0]['why']}"
            leader.charge("collective", rules.NODE_FAULT, text, culprits=(node,), trouble=self.trouble)
            self.found = True
        for a, b in found.links:
            why = next(row["why"] for row in leader.minutes.pairs if (row["a"], row["b"]) == (a, b))
            text = f"{leader.roll.names([a, b])} always fail with each other, and with nobody else: {why}"
            severity = Severity.WARNING if why == "slow" else Severity.ERROR
            leader.link("collective", rules.LINK_FAULT, (a, b), text, severity=severity)
            self.found |= severity is Severity.ERROR
        self._undetermined(found)

    def _undetermined(self, found: Blame) -> None:
        """Write down what nobody can tell: pairs that share a node are one riddle."""
        for riddle in _joined(found.undetermined):
            pairs = [row for row in self.leader.minutes.pairs if {row["a"], row["b"]} <= riddle and not row["passed"]]
            if all(row["why"] == "slow" for row in pairs):
                continue  # slow now and then is no fault
            names = self.leader.roll.names(sorted(riddle))
            text = f"one of {names}, or what is between them: {pairs[0]['why']}"
            self.leader.charge("collective", rules.UNDETERMINED, text, between=tuple(sorted(riddle)), failed=len(pairs))
            self.found = True

    def _slow(self, one: speeds.Straggler) -> None:
        error = one.severity is Severity.ERROR
        limit = speeds.BAD if error else speeds.PASS
        usual = one.best_gbps / one.ratio if one.ratio else 0.0
        text = (
            f"{self.leader.roll.name(one.node)} is slow: its best rate is {one.best_gbps:.3f} GB/s, "
            f"{one.ratio:.0%} of the median of all nodes, {usual:.3f}; wanted {limit:.0%} at least"
        )
        rule = rules.STRAGGLER if error else rules.SLOWER
        culprits = (one.node,) if error else ()
        self.leader.charge("collective", rule, text, culprits=culprits, ratio=round(one.ratio, 4), node=one.node)
        self.found |= error

    def _devices(self, nodes: Sequence[int], ranks: Sequence[int], meetings: Sequence[Meeting]) -> Turns[None]:
        """Find out which rail of a node at fault it is, where only some fail."""
        plan = self.leader.plan
        if plan.per_node < 2 or not nodes:
            return
        others = [m for m in meetings if m.a not in nodes and m.b not in nodes]
        failed = {rank for m in others if not m.passed for rank in (m.a, m.b)}
        partners = [rank for rank in ranks if rank not in failed and rank not in nodes]
        pairs = list(zip(nodes, partners, strict=False))
        if not pairs:
            return
        yield from self.leader.run_task("rails", plan.pair, pairs=[list(pair) for pair in pairs])
        for node, partner in pairs:
            rows = _rails(self.leader.reports, node, partner)
            bad = [row for row in rows if not row["ok"]]
            if bad and len(bad) < plan.per_node:
                self._device(node, bad)

    def _device(self, node: int, bad: Sequence[Mapping[str, Any]]) -> None:
        numbers = [row["number"] for row in bad]
        ids = [row["uuid"] or f"{RAIL}{row['number']}" for row in bad]
        name, count = self.leader.roll.name(node), self.leader.plan.per_node
        text = f"{name}: of its {count} rails fail {', '.join(map(str, numbers))} ({', '.join(ids)})"
        suspects = tuple(Suspect("gpu", each, node, text) for each in ids)
        finding = rules.DEVICE_FAULT.found(text, rails=numbers)
        self.leader.minutes.charges.append(Charge("collective", finding, (node,), (), suspects))


def _failed(meetings: Sequence[Meeting]) -> bool:
    return any(not meeting.passed for meeting in meetings)


def _rails(reports: Mapping[int, Mapping[str, Any]], node: int, partner: int) -> list[dict[str, Any]]:
    """Return for each rank of a node whether the rail between it and its like on a partner works."""
    ours, theirs = ({row["number"]: row for row in reports.get(n, {"ranks": []})["ranks"]} for n in (node, partner))
    return [
        {
            "number": number,
            "ok": bool(row["ok"] and theirs.get(number, {}).get("ok")),
            "uuid": row.get("uuid", ""),
        }
        for number, row in sorted(ours.items())
    ]


def _joined(pairs: Sequence[tuple[int, int]]) -> list[set[int]]:
    """Return the sets of nodes that are connected by pairs."""
    found: list[set[int]] = []
    for pair in pairs:
        touching = [one for one in found if one & set(pair)]
        found = [one for one in found if one not in touching] + [set(pair).union(*touching)]
    return found
