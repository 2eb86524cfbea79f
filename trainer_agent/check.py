"""
What a check is.

A check is a function from a `Context` to an `Outcome`. Everything it can find is declared beforehand as a `Rule`,
so that `trainer-agent checks NAME` can explain it and no code appears that is not documented.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from trainer_agent.bundle import training_python
from trainer_agent.errors import Action, Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trainer_agent.accelerators import Accelerators
    from trainer_agent.cgroup import Limits
    from trainer_agent.errors import AgentError
    from trainer_agent.host import Host
    from trainer_agent.topology import Topology

PROFILES = ("quick", "standard", "deep")


class Status(StrEnum):
    """What became of a check. `error` means that the check itself broke or ran out of time."""

    PASS = "pass"  # noqa: S105  # a status, not a password
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"
    ERROR = "error"


class Skip(Exception):  # noqa: N818  # it is an outcome, not an error
    """Raised by a check that has nothing to look at; the message is the reason."""


@dataclass(frozen=True)
class Rule:
    """
    One thing that a check can find.

    Args:
        code: kebab-case, never changes once released.
        when: the condition in words, with its threshold and unit.
        hint: the next action.
        severity: `warning` or `error`; `info` only informs.
        action: what a failure asks for.
        source: where the threshold comes from.
    """

    code: str
    when: str
    hint: str
    severity: Severity = Severity.ERROR
    action: Action = Action.STOP
    source: str = ""

    def found(self, message: str, **evidence: Any) -> Finding:
        """Return a finding of this rule; `message` holds the measured value and the wanted one."""
        action = self.action if self.severity is Severity.ERROR else Action.CONTINUE
        return Finding(self.code, message, self.severity, self.hint, action, evidence)


@dataclass(frozen=True)
class Options:
    """
    What the command line says to the checks.

    Args:
        profile: `quick`, `standard` or `deep`.
        storage: paths that must be writable.
        optional_storage: paths that should be.
        require_kube_api: whether the API server must answer.
        rendezvous_timeout_s: how long a peer's name may take to appear.
        budget_s: seconds for all checks together; for one that runs alone, what is left of them.
        running: names of the checks that run; empty when that is not known.
        python: the interpreter of the training environment, which has torch; empty for `bundle.training_python`.
        gang: whether all nodes of the job meet.
        scope: `node` where other nodes are to be left alone, else `gang`.
    """

    profile: str = "standard"
    storage: tuple[str, ...] = ()
    optional_storage: tuple[str, ...] = ()
    require_kube_api: bool = False
    rendezvous_timeout_s: float = 60.0
    budget_s: float = 60.0
    running: tuple[str, ...] = ()
    python: str = ""
    gang: bool = False
    scope: str = "gang"


@dataclass(frozen=True)
class Context:
    """
    Everything a check may look at.

    Args:
        environ: the environment variables.
        accelerators: the GPUs or other devices that a training process would see here.
        nproc: processes on this node as `launch` would decide; 1 when it would refuse.
        refusal: why `launch` would refuse to start here, None when it would not.
    """

    environ: Mapping[str, str]
    topology: Topology
    limits: Limits
    accelerators: Accelerators
    host: Host
    options: Options = field(default_factory=Options)
    nproc: int = 1
    refusal: AgentError | None = None

    @property
    def python(self) -> str:
        """The interpreter that has torch, as far as it is known."""
        return self.options.python or training_python(self.environ)


@dataclass(frozen=True)
class Outcome:
    """
    What a check found.

    Args:
        message: one line with what was measured.
        findings: none means that all is well.
        measurements: numbers for the report, by name with the unit at its end (`free_bytes`, `lookup_ms`).
    """

    message: str
    findings: tuple[Finding, ...] = ()
    measurements: Mapping[str, Any] = field(default_factory=dict)

    @property
    def status(self) -> Status:
        """The worst finding decides."""
        severities = {f.severity for f in self.findings}
        if Severity.ERROR in severities:
            return Status.FAIL
        return Status.WARN if Severity.WARNING in severities else Status.PASS

    @property
    def action(self) -> Action:
        """What the findings ask for; warnings always continue."""
        asked = [f.action for f in self.findings if f.severity is Severity.ERROR]
        return max(asked, key=list(Action).index, default=Action.CONTINUE)


@dataclass(frozen=True)
class Check:
    """
    A check and what users may know of it.

    Args:
        name: kebab-case; the file is named after it.
        question: what it answers.
        rules: everything it can find.
        function: the check itself.
        timeout_s: when it is killed and reported as `error`; a function of the context where it depends.
        profile: the cheapest profile that runs it.
        waits_for_nodes: whether it waits for other nodes; the budget of a preflight then does not cut its `timeout_s`.
        alone_s: for a check that keeps GPUs or CPUs busy, the seconds that it needs: it runs after the others, by
            itself, and is skipped when less is left of the budget. 0 for a check that only looks.
        thresholds: the numbers that can be set otherwise, as they are here: `{name: {"value": …, "origin": …}}`.
        finds_anything: whether its findings need no rules, as those of a program of `--checks-dir`.
        program: of a check in which all nodes take part: the file that the training environment's Python runs to meet
            them. Its function then only says why there is nobody to meet.
    """

    name: str
    question: str
    rules: tuple[Rule, ...]
    function: Callable[[Context], Outcome]
    timeout_s: float | Callable[[Context], float] = 5.0
    profile: str = "quick"
    waits_for_nodes: bool = False
    alone_s: float = 0.0
    thresholds: Callable[[Context], Mapping[str, Mapping[str, Any]]] | None = None
    finds_anything: bool = False
    program: str = ""

    def deadline_s(self, context: Context) -> float:
        """Return the seconds that the check may take here."""
        return self.timeout_s(context) if callable(self.timeout_s) else self.timeout_s


def check(
    name: str,
    *,
    rules: tuple[Rule, ...],
    timeout_s: float | Callable[[Context], float] = 5.0,
    profile: str = "quick",
    waits_for_nodes: bool = False,
    alone_s: float = 0.0,
    thresholds: Callable[[Context], Mapping[str, Mapping[str, Any]]] | None = None,
    program: str = "",
) -> Callable[[Callable[[Context], Outcome]], Check]:
    """Make a check of a function; the first line of its docstring is the question that it answers."""

    def make(function: Callable[[Context], Outcome]) -> Check:
        question = (function.__doc__ or "").strip().partition("\n")[0]
        return Check(
            name,
            question,
            rules,
            function,
            timeout_s,
            profile,
            waits_for_nodes,
            alone_s,
            thresholds,
            program=program,
        )

    return make


@dataclass(frozen=True)
class CheckResult:
    """One row of the report, as the schema `trainer-agent.preflight/v1` has it."""

    name: str
    status: Status
    message: str
    action: Action = Action.CONTINUE
    duration_s: float = 0.0
    findings: tuple[Finding, ...] = ()
    measurements: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "name": self.name,
            "status": str(self.status),
            "action": str(self.action),
            "duration_s": round(self.duration_s, 3),
            "message": self.message,
            "findings": [finding_as_dict(f) for f in self.findings],
            "measurements": dict(self.measurements),
        }


def finding_as_dict(finding: Finding) -> dict[str, Any]:
    """Return the JSON form of a finding."""
    return {
        "code": finding.code,
        "severity": str(finding.severity),
        "message": finding.message,
        "hint": finding.hint,
        "evidence": dict(finding.evidence),
    }
