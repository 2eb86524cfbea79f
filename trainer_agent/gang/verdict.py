"""One verdict for all nodes, and what it means for each: rows of the report, blame, suspects."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from trainer_agent.check import CheckResult, Outcome, Status, finding_as_dict
from trainer_agent.errors import Action, Finding, Severity
from trainer_agent.policy import Suspect, decide

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trainer_agent.policy import Verdict

RAIL = "rail "  # how a GPU is called whose UUID is not known
CHECKS = ("roll-call", "consistency", "collective")
PHASES = {name: name for name in CHECKS} | {"localisation": "collective"}  # the check whose time a phase is


@dataclass(frozen=True)
class Charge:
    """
    A finding of the gang.

    Args:
        check: the row of the report that it belongs to.
        culprits: ranks of the nodes that did it; none when it is nobody's, or not known whose.
        between: ranks of which it is one, and nothing tells which.
        suspects: devices and links beside the nodes.
    """

    check: str
    finding: Finding
    culprits: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    suspects: tuple[Suspect, ...] = ()

    @property
    def riddle(self) -> bool:
        """Whether nothing tells which of several nodes it was; where a link is at fault, it is neither of its nodes."""
        return bool(self.between) and not self.suspects

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "check": self.check,
            **finding_as_dict(self.finding),
            "action": str(self.finding.action),
            "culprits": list(self.culprits),
            "between": list(self.between),
        }


@dataclass
class Minutes:
    """
    What rank 0 writes down on the way: charges, what was measured, and how long each phase took.

    Args:
        messages, skipped: by the name of a check, what came of it, or why it was left out.
        lingers: whether nodes may ask others for the verdict, as they cannot reach rank 0.
    """

    charges: list[Charge] = field(default_factory=list)
    differences: list[dict[str, Any]] = field(default_factory=list)
    collective: dict[str, Any] | None = None
    pairs: list[dict[str, Any]] = field(default_factory=list)
    phases: list[dict[str, Any]] = field(default_factory=list)
    messages: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    lingers: bool = False


def weigh(charges: Iterable[Charge]) -> tuple[Verdict, Action]:
    """Return verdict and action for the gang as a whole."""
    whole = Outcome("", tuple(charge.finding for charge in charges))
    return decide([CheckResult("gang", whole.status, "", whole.action)])


def section(
    minutes: Minutes, nodes: Sequence[Mapping[str, Any]], *, nnodes: int, attempt: str, epoch: int, written_by: int
) -> dict[str, Any]:
    """
    Return the verdict as all nodes get it: the section `gang` of the report, and the charges.

    Args:
        nodes: those of the job, and those that came with a rank that it does not have.
    """
    verdict, action = weigh(minutes.charges)
    charges = sorted(minutes.charges, key=lambda c: list(Severity).index(c.finding.severity), reverse=True)
    errors = [charge for charge in charges if charge.finding.severity is Severity.ERROR]
    hostnames = {node["rank"]: node["hostname"] or f"rank {node['rank']}" for node in nodes}
    suspects = _suspects(errors, hostnames)
    return {
        "attempt": attempt,
        "epoch": epoch,
        "written_by": written_by,
        "nnodes": nnodes,
        "verdict": str(verdict),
        "action": str(action),
        "blame": "none",
        "summary": _summary(charges, minutes),
        "nodes": list(nodes),
        "differences": minutes.differences,
        "collective": minutes.collective,
        "pairs": minutes.pairs,
        "suspects": [vars(suspect) for suspect in suspects],
        "undetermined": [{"ranks": list(c.between), "reason": c.finding.message} for c in errors if c.riddle],
        "avoid": _avoid(suspects, nodes),
        "phases": minutes.phases,
        "charges": [charge.as_dict() for charge in charges],
        "messages": minutes.messages,
        "skipped": minutes.skipped,
        "lingers": minutes.lingers,
    }


def _summary(charges: Sequence[Charge], minutes: Minutes) -> str:
    """Return the worst that was found; when nothing was, that all is well."""
    if charges and charges[0].finding.severity is not Severity.INFO:
        return charges[0].finding.message
    return "; ".join(minutes.messages[check] for check in CHECKS if check in minutes.messages)


def _suspects(errors: Iterable[Charge], hostnames: Mapping[int, str]) -> list[Suspect]:
    found: dict[tuple[str, str], Suspect] = {}
    for charge in errors:
        ids = [(hostnames.get(rank, f"rank {rank}"), rank) for rank in charge.culprits]
        named = [Suspect("node", name, rank, charge.finding.message) for name, rank in ids]
        for suspect in (*named, *charge.suspects):
            found.setdefault((suspect.kind, suspect.id), suspect)
    return list(found.values())


def _avoid(suspects: Iterable[Suspect], nodes: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return where the job should not run again: names of machines, of pods where these are not known, and GPUs."""
    listed = list(suspects)
    ranks = {suspect.node_rank for suspect in listed if suspect.kind == "node"}
    hosts = [node["node"] or node["hostname"] for node in nodes if node["rank"] in ranks]
    return {
        "hostnames": [h for h in hosts if h],
        "gpus": [s.id for s in listed if s.kind == "gpu" and not s.id.startswith(RAIL)],
    }


def seen_by(verdict: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """Return the section of the report of one node."""
    inner = ("charges", "messages", "skipped", "lingers")
    return {name: value for name, value in verdict.items() if name not in inner} | {"blame": blame(verdict, rank)}


def blame(verdict: Mapping[str, Any], rank: int) -> str:
    """Return who did it, seen from one node: `none`, `self`, `peer` or `undetermined`."""
    errors = [charge for charge in verdict["charges"] if charge["severity"] == Severity.ERROR]
    if any(rank in charge["culprits"] for charge in errors):
        return "self"
    if any(charge["culprits"] for charge in errors):
        return "peer"
    if any(rank in charge["between"] for charge in errors):
        return "undetermined"
    return "peer" if any(charge["between"] for charge in errors) else "none"


def results(verdict: Mapping[str, Any], rank: int) -> dict[str, CheckResult]:
    """Return the gang's rows of the report of one node, by the name of the check."""
    return {check: _result(verdict, check, rank) for check in CHECKS}


def _result(verdict: Mapping[str, Any], check: str, rank: int) -> CheckResult:
    if check in verdict["skipped"]:
        return CheckResult(check, Status.SKIP, verdict["skipped"][check])
    findings = tuple(_finding(charge, rank) for charge in verdict["charges"] if charge["check"] == check)
    if not findings and check not in verdict["messages"]:
        return CheckResult(check, Status.SKIP, "the nodes did not come so far")
    outcome = Outcome(verdict["messages"].get(check) or findings[0].message, findings, _measured(verdict, check))
    seconds = sum(phase["seconds"] for phase in verdict["phases"] if PHASES.get(phase["name"]) == check)
    return CheckResult(check, outcome.status, outcome.message, outcome.action, seconds, findings, outcome.measurements)


def _measured(verdict: Mapping[str, Any], check: str) -> dict[str, Any]:
    measured: dict[str, Any] = {"nodes": verdict["nnodes"]} if check == "roll-call" else {}
    if check == "collective" and verdict["collective"]:
        measured = {name: verdict["collective"][name] for name in ("backend", "ranks", "transport", "rows")}
    return measured


def _finding(charge: Mapping[str, Any], rank: int) -> Finding:
    """Return a charge as a finding of one node: nothing is wrong with a node that only waited for another."""
    finding = Finding(
        charge["code"],
        charge["message"],
        Severity(charge["severity"]),
        charge["hint"],
        Action(charge["action"]),
        {**charge["evidence"], "culprits": charge["culprits"], "undetermined": charge["between"]},
    )
    concerned = rank in charge["culprits"] or rank in charge["between"]
    if finding.action is Action.RESCHEDULE and not concerned:
        return replace(finding, action=Action.RETRY)
    return finding
