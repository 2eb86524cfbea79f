"""
The tools of rank 0: what it knows, what it has everybody do, what it writes down, and how it waits.

Everything that takes time is a generator that yields as long as it has to wait, and is asked again a moment later.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from trainer_agent.gang.peers import short
from trainer_agent.gang.roll import LOST_S, Roll
from trainer_agent.gang.verdict import Charge, Minutes
from trainer_agent.policy import Suspect

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainer_agent.check import Rule
    from trainer_agent.errors import Severity
    from trainer_agent.gang.speeds import Row

# After the first failure of a collective the others may still say what they saw.
AFTER_FAILURE_S = 2.0
LATE_S = 3.0  # for a report to arrive after the deadline of its task
SHOWN = 16  # missing nodes on the board
# So often the agent of a node may give way to a younger one at work, and all begins anew; one that is started again and
# again holds nobody up.
REPLACED = 3

T = TypeVar("T")
Turns = Generator[None, None, T]


@dataclass(frozen=True)
class Work:
    """
    What the ranks do in a task.

    Args:
        sizes: of the buffers whose exchange is timed, in bytes.
        seconds: for each of these.
        timeout_s: for the whole task.
    """

    sizes: tuple[int, ...]
    seconds: float
    timeout_s: float


@dataclass(frozen=True)
class Plan:
    """
    What is to be done, by the settings of rank 0.

    Args:
        job: what rank 0 is called in it; see `peers.job_of`.
        backend, per_node: of the ranks: `nccl` with one for each GPU, or `gloo` with one.
        all_ranks, pair: what they do together, and in twos.
        screen: rounds of pairs for a gang in which nothing has failed.
        consistency, collective: why these are left out; empty when they are not.
        history: what the job has measured earlier.
    """

    nnodes: int
    attempt: str = ""
    job: str = ""
    gang_timeout_s: float = 600.0
    backend: str = "gloo"
    per_node: int = 1
    all_ranks: Work = Work((), 0.0, 10.0)
    pair: Work = Work((), 0.0, 5.0)
    screen: int = 0
    consistency: str = ""
    collective: str = ""
    history: tuple[Row, ...] = ()
    seed: int = 0


class Concluded(Exception):  # noqa: N818  # an outcome, no error
    """Everything that can be said has been written down."""


class Lost(Exception):  # noqa: N818  # an outcome, no error
    """Nodes that had come have gone."""


class Replaced(Exception):  # noqa: N818  # an outcome, no error
    """A node's agent has given way to a younger one while it was at work: what came of that tells nothing."""


class Course:
    """
    What rank 0 has in hand.

    Args:
        names: what a node is called that has never come, by its rank: a name to look up, or nothing.
    """

    def __init__(self, plan: Plan, names: Callable[[int], str]) -> None:
        self.plan = plan
        self.names = names
        self.roll = Roll(plan.nnodes)
        self.minutes = Minutes()
        self.now = 0.0
        self.phase, self.phase_began = "roll-call", 0.0
        self.task: dict[str, Any] | None = None
        self.tasks = 0
        self.posted = 0.0
        self.reports: dict[int, dict[str, Any]] = {}
        self.first_failure: float | None = None
        self.replaced: list[int] = []
        self.void = False

    def hear(self, said: dict[str, Any], *, now: float, wall: float) -> None:
        """Take in what a node says."""
        self.now = now
        if said["kind"] == "hello":
            if self.roll.hello(said, now=now, wall=wall) and self.task:
                self.replaced.append(said["rank"])
                self.void |= self.replaced.count(said["rank"]) <= REPLACED
        elif self.task and said.get("task") == self.task["id"]:
            self.reports[said["rank"]] = said | {"after_s": now - self.posted}
            if not said.get("ok", True) and self.first_failure is None:
                self.first_failure = now

    def charge(
        self,
        check: str,
        rule: Rule,
        message: str,
        *,
        culprits: tuple[int, ...] = (),
        between: tuple[int, ...] = (),
        severity: Severity | None = None,
        **evidence: Any,
    ) -> None:
        """Write down a finding."""
        rule = replace(rule, severity=severity) if severity else rule
        self.minutes.charges.append(Charge(check, rule.found(message, **evidence), culprits, between))

    def called(self, rank: int) -> str:
        """Return what a message calls a node, also one that has never come."""
        name = self.hostname(rank)
        return f"node {rank} ({name})" if name else f"node {rank}"

    def hostname(self, rank: int) -> str:
        """Return what a node calls itself, or most probably would if it were there; nothing when that is not known."""
        return self.roll.hostname(rank) or short(self.names(rank))

    def link(
        self, check: str, rule: Rule, pair: tuple[int, int], message: str, *, severity: Severity | None = None
    ) -> None:
        """Write down that a link is at fault, which is not the fault of either of its nodes."""
        a, b = sorted(pair)
        names = [self.hostname(rank) or f"rank {rank}" for rank in (a, b)]
        suspect = Suspect("link", f"{names[0]} - {names[1]}", a, message)
        rule = replace(rule, severity=severity) if severity else rule
        finding = rule.found(message, ranks=[a, b])
        self.minutes.charges.append(Charge(check, finding, (), (a, b), (suspect,)))

    def run_task(self, kind: str, work: Work, **which: Any) -> Turns[None]:
        """Have the nodes do a task, until all of its nodes have reported, or it is too late for that."""
        nodes = {node for pair in which.get("pairs", ()) for node in pair} | set(which.get("members", ()))
        shared = {"backend": self.plan.backend, "per_node": self.plan.per_node, "numbers": 1 << 16}
        self.post({"kind": kind, **shared, **vars(work), **which})
        end = self.now + work.timeout_s + LATE_S

        def over() -> bool:
            failed = kind == "all" and self.first_failure is not None
            return nodes <= self.reports.keys() or (failed and self.now > (self.first_failure or 0) + AFTER_FAILURE_S)

        yield from self.until(over, end)
        silent = [self.roll.nodes[node] for node in nodes - self.reports.keys()]
        since = self.now
        yield from self.until(lambda: all(node.beat_at > since for node in silent), since + 2 * LOST_S)

    def post(self, task: dict[str, Any]) -> None:
        """Give a task to everybody."""
        self.tasks += 1
        self.posted = self.now
        self.task = {"id": f"{task['kind']}-{self.tasks}", **task}
        self.reports, self.first_failure = {}, None

    def until(self, done: Callable[[], bool], deadline: float) -> Turns[None]:
        """Let time pass until something is so, or until `deadline`; stop when nodes are lost, or replaced at work."""

        def lost_or_done() -> bool:
            if self.roll.lose(self.now):
                raise Lost
            if self.void:
                raise Replaced
            return done()

        yield from self.wait(lost_or_done, deadline)

    def wait(self, done: Callable[[], bool], deadline: float) -> Turns[None]:
        """Let time pass until something is so, or until `deadline`, whoever is lost."""
        while not done() and self.now < deadline:
            yield

    def begin(self, following: str) -> None:
        """Begin a phase; how long the one before took is for the report."""
        seconds = round(self.now - self.phase_began, 3)
        self.minutes.phases.append({"name": self.phase, "seconds": seconds})
        self.phase, self.phase_began = following, self.now
