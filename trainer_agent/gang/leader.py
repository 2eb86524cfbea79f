"""
What rank 0 does: call the roll, compare the nodes, have them meet, and write the verdict.

It is told what the nodes say and what time it is, and answers with what everybody should do next: no clock, no socket
and no store of its own, so that thousands of nodes can be simulated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainer_agent.errors import Severity
from trainer_agent.gang import absent, compare, rates, rules
from trainer_agent.gang.course import SHOWN, Concluded, Course, Lost, Replaced
from trainer_agent.gang.localise import Localiser
from trainer_agent.gang.meetings import SHM_PER_RANK, died, misconfigured, problem, short_of_shm, timings
from trainer_agent.gang.verdict import Charge, Minutes, section

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trainer_agent.gang.course import Plan, Turns
    from trainer_agent.gang.roll import Node

# Nodes that disagree on their number may not all come; so long the others may take to be counted.
DISAGREE_S = 3.0
DOORS = 9  # on the board: rank 0, and eight others, for nodes that lose rank 0
SKEW_WARN_S, SKEW_S = 1.0, 30.0


class Leader(Course):
    """The course of events on rank 0."""

    def __init__(self, plan: Plan, names: Callable[[int], str]) -> None:
        super().__init__(plan, names)
        self.began: float | None = None
        self.verdict: dict[str, Any] | None = None
        self.events = self._events()

    def turn(self, now: float) -> None:
        """Go on as far as it goes at this time, which is monotonic, in seconds."""
        self.now = now
        if self.began is None:
            self.began = self.phase_began = now
        if self.verdict is None:
            next(self.events, None)

    @property
    def board(self) -> dict[str, Any]:
        """What everybody should know and do now."""
        missing = [node.rank for node in self.roll.missing]
        return {
            "phase": self.phase,
            "here": len(self.roll.here),
            "missing": missing[:SHOWN],
            "task": self.task,
            "doors": {str(node.rank): node.hello["address"] for node in self.roll.here[:DOORS]},
            "verdict": self.verdict is not None,
        }

    def _events(self) -> Turns[None]:
        try:
            while not (yield from self._is_over()):
                self.minutes = Minutes(phases=self.minutes.phases)
                self.begin("roll-call")
        except Lost:
            yield from absent.gone(self)
        except Concluded:
            pass
        self.task = None
        self.begin("verdict")
        self._clocks()
        first = min((node.arrived for node in self.roll.all if node.arrived is not None), default=0.0)
        nodes = [self._row(node, first) for node in self.roll.all]
        plan = self.plan
        self.verdict = section(self.minutes, nodes, nnodes=plan.nnodes, attempt=plan.attempt, epoch=1, written_by=0)

    def _is_over(self) -> Turns[bool]:
        """Go through all phases; return whether they count."""
        try:
            yield from self._phases()
        except Replaced:
            self.task, self.void = None, False
            return False
        return True

    def _phases(self) -> Turns[None]:
        yield from self._roll_call()
        self.begin("consistency")
        self._consistency()
        if self.plan.collective:
            self.minutes.skipped["collective"] = self.plan.collective
            return
        self.begin("collective")
        yield from self._collective()

    # ---- who is here

    def _roll_call(self) -> Turns[None]:
        yield from self.until(self._all_told, (self.began or 0.0) + self.plan.gang_timeout_s)
        if self._failed():
            yield from absent.failed(self)
        if self._disagree():
            yield from self.until(lambda: not self.roll.missing, self.now + DISAGREE_S)
            self._consistency()
        if self.roll.missing:
            yield from absent.never_came(self)
        arrived = [node.arrived for node in self.roll.here if node.arrived is not None]
        text = f"all {self.plan.nnodes} nodes are here, within {max(arrived) - min(arrived):.1f} s"
        self.minutes.messages["roll-call"] = text

    def _all_told(self) -> bool:
        return not self.roll.missing or self._disagree() or self._failed()

    def _failed(self) -> bool:
        return any(node.failed for node in self.roll.come)

    def _disagree(self) -> bool:
        return bool(self.roll.others) or len({(n.hello["nnodes"], n.hello["nproc"]) for n in self.roll.come}) > 1

    # ---- whether they fit together

    def _consistency(self) -> None:
        """Compare the nodes; stop where they cannot work together."""
        nodes = self.roll.come
        marks = {node.rank: self._marks(node) for node in nodes}
        found = compare.differences(marks)
        shared = () if self.plan.consistency else compare.shared_hosts(marks)
        self.minutes.differences = [difference.as_dict() for difference in found]
        if self.plan.consistency:
            self.minutes.skipped["consistency"] = self.plan.consistency
        # What is left out shows no findings, and a job of another shape than its nodes think must not pass.
        check = "roll-call" if self.plan.consistency else "consistency"
        for finding in compare.findings(found, shared, {node.rank: node.hostname for node in nodes}):
            self.minutes.charges.append(Charge(check, finding))
        if self._found_errors():
            raise Concluded
        text = f"{len(found)} differences between {len(marks)} nodes" if found else f"all {len(marks)} nodes are alike"
        self.minutes.messages["consistency"] = text

    def _marks(self, node: Node) -> dict[str, Any]:
        """Return what is compared; without the check only what nothing works without."""
        fingerprint = {} if self.plan.consistency else node.hello["marks"]
        return fingerprint | {name: node.hello[name] for name in ("nnodes", "nproc")}

    def _found_errors(self) -> bool:
        return any(charge.finding.severity is Severity.ERROR for charge in self.minutes.charges)

    def _clocks(self) -> None:
        for node in self.roll.here:
            skew = max(0.0, abs(node.offset_s or 0.0) - node.doubt_s)  # at least
            text = f"the clock of {self.roll.name(node.rank)} is {skew:.1f} s from that of rank 0"
            if skew > SKEW_S:
                self.charge("roll-call", rules.CLOCK_APART, f"{text}, wanted {SKEW_S:g} s at most", offset_s=skew)
            elif skew > SKEW_WARN_S:
                self.charge("roll-call", rules.CLOCK_SKEWED, f"{text}, wanted {SKEW_WARN_S:g} s at most", offset_s=skew)

    # ---- whether they work together

    def _collective(self) -> Turns[None]:
        ranks = [node.rank for node in self.roll.here]
        trouble = yield from self._together(ranks)
        localiser = Localiser(self, trouble=trouble)
        yield from localiser.run(ranks)
        if trouble and not localiser.found:
            yield from self._again(ranks, trouble)
        rates.judge(self)

    def _together(self, ranks: Sequence[int]) -> Turns[str]:
        """Run the collective of all ranks; return what went wrong, in words."""
        yield from self.run_task("all", self.plan.all_ranks, members=list(ranks))
        rows = [row for report in self.reports.values() for row in report["ranks"]]
        self._unfit(rows)
        trouble = problem(self.reports, ranks)
        count = len(ranks) * self.plan.per_node
        measured = timings(list(self.reports.values()), ranks=count)
        words = trouble or f"{count} ranks with {self.plan.backend}: right numbers{_fastest(measured)}"
        self.minutes.messages["collective"] = words
        self.minutes.collective = {
            "backend": self.plan.backend,
            "ranks": count,
            "transport": next((row["transport"] for row in rows if row.get("transport")), ""),
            "passed": not trouble,
            "rows": measured,
            "message": words,
        }
        self._settings(rows)
        self._died()
        self._shared_memory(rows)
        return trouble

    def _again(self, ranks: Sequence[int], first: str) -> Turns[None]:
        """Every pair works: see whether all together do now."""
        self.begin("collective")
        trouble = yield from self._together(ranks)
        if trouble:
            text = f"the collective of all nodes failed twice ({trouble}), and every pair that was tried works"
            self.charge("collective", rules.UNEXPLAINED, text, between=tuple(ranks), first=first)
        else:
            text = f"the collective of all nodes failed once ({first}), then every pair worked, and it passed"
            self.charge("collective", rules.FLAKY, text)

    def _unfit(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            if row.get("unfit"):
                self.minutes.skipped["collective"] = row["unfit"]
                raise Concluded

    def _settings(self, rows: Sequence[Mapping[str, Any]]) -> None:
        bad = next((row for row in rows if misconfigured(row)), None)
        if bad:
            self.charge("collective", rules.MISCONFIGURED, f"{bad.get('error')}: {bad.get('text')}", stage=bad["stage"])
            raise Concluded

    def _died(self) -> None:
        """Name the nodes whose ranks were killed: the others only lost their peer."""
        killed = {node: row for node, report in self.reports.items() for row in report["ranks"] if died(row)}
        for node, row in sorted(killed.items()):
            text = f"{self.roll.name(node)}: {problem(self.reports, [node]).partition(': ')[2]}"
            self.charge("collective", rules.RANK_DIED, text, culprits=(node,), number=row["number"])
        if killed:
            raise Concluded

    def _shared_memory(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Accuse nobody of what a volume of the pod mends; wrong numbers say more."""
        per_node = self.plan.per_node
        told = [(n, row) for n, report in sorted(self.reports.items()) for row in report["ranks"]]
        short = [(n, row["shm_free"]) for n, row in told if short_of_shm(row, ranks=per_node)]
        if short and not any(row.get("wrong") for row in rows):
            node, free = short[0]
            text = f"ncclSystemError on {self.roll.name(node)}, whose /dev/shm has {free >> 20} MiB free"
            wanted = f"wanted {SHM_PER_RANK >> 20} MiB for each of {per_node} ranks"
            self.charge("collective", rules.SHM_SMALL, f"{text}, {wanted}", shm_free_bytes=free)
            raise Concluded

    def _row(self, node: Node, first: float) -> dict[str, Any]:
        return {
            "rank": node.rank,
            "hostname": self.hostname(node.rank),
            "node": node.hello.get("node", ""),
            "address": node.hello.get("address", ""),
            "arrived_s": None if node.arrived is None else round(node.arrived - first, 3),
            "state": node.state,
            "note": node.note,
            "clock_offset_s": node.offset_s,
        }


def _fastest(rows: Sequence[Mapping[str, Any]]) -> str:
    best = max(rows, key=lambda row: row["busbw_gbps"], default=None)
    return f", {best['of']} {best['busbw_gbps']:.2f} GB/s" if best else ""
