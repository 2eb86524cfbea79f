"""Rounds of pairs, until it is known who is at fault; then of rails, to tell which of its devices."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trainer_agent.errors import Severity
from trainer_agent.gang import rules, speeds
from trainer_agent.gang.compare import hosts
from trainer_agent.gang.course import LATE_S
from trainer_agent.gang.meetings import SLOW, Round, Rounds, late
from trainer_agent.gang.pairs import blame, next_round
from trainer_agent.gang.verdict import RAIL, Charge
from trainer_agent.policy import Suspect

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trainer_agent.gang.course import Turns, Work
    from trainer_agent.gang.leader import Leader
    from trainer_agent.gang.pairs import Meeting

# With three nodes each has to meet both others before anybody can be compared.
FEW, ROUNDS_OF_FEW = 3, 3
# A meeting that hangs is not waited for longer than so many times what the slowest that passed took, at least so long.
# After a failure ranks are new: with gloo that costs them nothing, with NCCL a CUDA context and a first communicator,
# which takes seconds on a node of eight GPUs, more where the driver is slow; those that passed had both.
PATIENCE, LEAST_S = 4.0, {"gloo": 3.0, "nccl": 20.0}
# No round begins after so many times what one may take, which is enough for faults that always show: on machines that
# have no time for their nodes more rounds bring more failures, not more certainty.
ENOUGH = 6.0
TIMED = 3  # rounds that are timed when something has failed, and nobody was slow: then rates are not what matters


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
        while self._goes_on(len(ranks)):
            pairs = next_round(ranks, self._unexplained(), seed=leader.plan.seed)
            if not pairs:
                break
            yield from self._meet(pairs)
            if leader.phase != "localisation" and _failed(self.rounds.well()):
                leader.begin("localisation")
        leader.minutes.pairs = self.rounds.rows()
        yield from self._devices(self._charge(), ranks)

    def _goes_on(self, count: int) -> bool:
        plan = self.leader.plan
        if self.leader.now - self.began > ENOUGH * (plan.pair.timeout_s + LATE_S):
            return False
        wanted = plan.screen if count > FEW else min(plan.screen, 1) * ROUNDS_OF_FEW
        if count == 2 and not self.trouble:
            return False
        return bool(self.trouble) or _failed(self.rounds.well()) or len(self.rounds.done) < wanted

    def _unexplained(self) -> list[Meeting]:
        """
        Return the meetings that the next round is to explain: who fails comes before who is slow.

        One reason does not make the other more probable: a node that lost a partner, and was slow with two others as
        the machines were busy, has not failed three times. But what a very slow node does may take until a deadline.
        """
        meetings, slow = self.rounds.meetings(), _bad(self._slow())
        others = [meeting for meeting in meetings if not slow & {meeting.a, meeting.b}]
        return meetings if _failed(others) else self.rounds.well()

    def _slow(self) -> list[speeds.Straggler]:
        """Return the nodes that are slow; one that is so now and then has no fault."""
        accused = blame(self.rounds.timed()).nodes
        return [each for each in speeds.stragglers(self.rounds.rates(), self.rounds.hosts) if each.node in accused]

    def _meet(self, pairs: Sequence[tuple[int, int]]) -> Turns[None]:
        yield from self.leader.run_task("pairs", self._work(), pairs=[list(pair) for pair in pairs])
        one = self._take_down(pairs)
        passed = {node for m in one.right if m.passed for node in (m.a, m.b)}
        self.longest = max([self.longest, *(one.reports[node]["after_s"] for node in passed)])

    def _take_down(self, pairs: Sequence[tuple[int, int]]) -> Round:
        one = Round(len(self.rounds.done), tuple(pairs), dict(self.leader.reports), self.leader.plan.per_node)
        self.rounds.done.append(one)
        return one

    def _work(self) -> Work:
        work = self.leader.plan.pair
        if self.trouble and len(self.rounds.done) >= TIMED and not _failed(self.rounds.timed()):
            work = replace(work, sizes=())
        least = max(LEAST_S[self.leader.plan.backend], PATIENCE * self.longest)
        return replace(work, timeout_s=min(work.timeout_s, least)) if self.longest else work

    def _charge(self) -> list[int]:
        """Write down who is at fault; return those nodes."""
        found, slow = blame(self.rounds.meetings()), self._slow()
        well = {node.rank for node in self.leader.roll.here} - set(found.nodes)
        for node in found.nodes:
            self._broken(node, well)
        slow = [each for each in slow if each.node not in found.nodes]
        for each in slow:
            self._straggler(each)
        left = _bad(slow)  # who is very slow explains what took too long, and nothing else
        for node in sorted(left):
            if not all(late(row["why"]) for row in self._failures({node}, well)):
                self._broken(node, well)
        for link in sorted(set(blame(self.rounds.timed()).links) - set(found.links)):
            self._link(link, SLOW, Severity.WARNING)
        for a, b in (link for link in found.links if not left & set(link)):
            self._link((a, b), self._failures({a}, {b})[0]["why"], Severity.ERROR)
        self._undetermined([pair for pair in found.undetermined if not left & set(pair)])
        return sorted([*found.nodes, *(each.node for each in slow)])

    def _failures(self, nodes: set[int], others: set[int]) -> list[dict[str, Any]]:
        """Return the rows of tests that went wrong, however fast, between one of some nodes and one of others."""
        wrong = (row for row in self.leader.minutes.pairs if row["why"] not in ("", SLOW))
        pairs = [(row, (row["a"], row["b"])) for row in wrong]
        return [row for row, (a, b) in pairs if (a in nodes and b in others) or (b in nodes and a in others)]

    def _broken(self, node: int, well: set[int]) -> None:
        """Accuse a node, by what it did with `well`, which are not accused, rather than with others."""
        leader = self.leader
        tests = sum(node in (row["a"], row["b"]) for row in leader.minutes.pairs)
        failures = self._failures({node}, {each.rank for each in leader.roll.here})
        why = min((row["why"] for row in self._failures({node}, well) or failures), key=late)
        text = f"{leader.roll.name(node)} failed in {len(failures)} of {tests} tests with others: {why}"
        leader.charge("collective", rules.NODE_FAULT, text, culprits=(node,), trouble=self.trouble)
        self.found = True

    def _link(self, pair: tuple[int, int], why: str, severity: Severity) -> None:
        text = f"{self.leader.roll.names(pair)} always fail with each other, and with nobody else: {why}"
        self.leader.link("collective", rules.LINK_FAULT, pair, text, severity=severity)
        self.found |= severity is Severity.ERROR

    def _undetermined(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Write down what nobody can tell: pairs that share a node are one riddle."""
        for riddle in _joined(pairs):
            rows = self._failures(riddle, riddle)
            text = f"one of {self.leader.roll.names(sorted(riddle))}, or what is between them: {rows[0]['why']}"
            self.leader.charge("collective", rules.UNDETERMINED, text, between=tuple(sorted(riddle)), failed=len(rows))
            self.found = True

    def _straggler(self, one: speeds.Straggler) -> None:
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

    def _devices(self, nodes: Sequence[int], ranks: Sequence[int]) -> Turns[None]:
        """Find out which rail of a node at fault it is, where only some fail."""
        plan = self.leader.plan
        if plan.per_node < 2 or not nodes:
            return
        others = [m for m in self.rounds.well() if m.a not in nodes and m.b not in nodes]
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


def _bad(slow: Iterable[speeds.Straggler]) -> set[int]:
    """Return the nodes that are too slow to work with."""
    return {each.node for each in slow if each.severity is Severity.ERROR}


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
