"""From results to one verdict, its exit code and its action. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from trainer_agent.check import CheckResult, Status
from trainer_agent.errors import Action, ExitCode, Severity

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from trainer_agent.errors import Finding


class Verdict(StrEnum):
    """What a report says in one word."""

    PASS = "pass"  # noqa: S105  # a verdict, not a password
    WARN = "warn"
    RETRY = "retry"
    FATAL = "fatal"

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of this verdict."""
        return {"pass": ExitCode.PASS, "warn": ExitCode.WARN, "retry": ExitCode.RETRY, "fatal": ExitCode.FATAL}[self]


@dataclass(frozen=True)
class Suspect:
    """Who did it: `kind` is node, gpu, nic or link, `id` its UUID, its address or whatever name it has."""

    kind: str
    id: str
    node_rank: int
    reason: str


def ignore(results: Iterable[CheckResult], names: Collection[str]) -> list[CheckResult]:
    """Demote the failures of the named checks to warnings; `all` names every check."""
    return [_demoted(r) if r.name in names or "all" in names else r for r in results]


def _demoted(result: CheckResult) -> CheckResult:
    if result.status not in (Status.FAIL, Status.ERROR):
        return result
    findings = tuple(
        replace(f, severity=Severity.WARNING, action=Action.CONTINUE) if f.severity is Severity.ERROR else f
        for f in result.findings
    )
    message = f"{result.message} (failure ignored by --ignore {result.name})"
    return replace(result, status=Status.WARN, action=Action.CONTINUE, message=message, findings=findings)


def decide(results: Sequence[CheckResult]) -> tuple[Verdict, Action]:
    """
    Return the verdict and the action: stop beats reschedule beats retry.

    A check that broke is a warning: it says nothing about the node, and a gate that cries wolf is switched off.
    """
    failed = [r.action for r in results if r.status is Status.FAIL]
    if failed:
        worst = max(failed, key=list(Action).index)
        return (Verdict.FATAL if worst is Action.STOP else Verdict.RETRY), worst
    if any(r.status in (Status.WARN, Status.ERROR) for r in results):
        return Verdict.WARN, Action.CONTINUE
    return Verdict.PASS, Action.CONTINUE


def suspects(results: Iterable[CheckResult], *, hostname: str, node_rank: int) -> list[Suspect]:
    """
    Name this node when a failure asks to go elsewhere, then its GPUs and NICs that failures name, the worst first.

    A failure that names other nodes is theirs, not this one's. A fault of the configuration is nobody's.
    """
    found = [f for r in results if r.status is Status.FAIL for f in r.findings if f.action is Action.RESCHEDULE]
    others = [Suspect("node", *node, f.message) for f in found for node in _other_nodes(f)]
    return [*_own([f for f in found if not _other_nodes(f)], hostname, node_rank), *others]


def _other_nodes(finding: Finding) -> list[tuple[str, int]]:
    """Return name and rank of the nodes that a finding names."""
    listed = finding.evidence.get("nodes")
    named = [n for n in listed if isinstance(n, dict)] if isinstance(listed, list) else []
    return [(str(n["name"]), n["node_rank"]) for n in named if n.get("name") and isinstance(n.get("node_rank"), int)]


def _own(asked: Sequence[Finding], hostname: str, node_rank: int) -> list[Suspect]:
    """Return this node and its devices."""
    if not asked:
        return []
    reasons: dict[_Device, list[str]] = {}
    for finding in asked:
        for device in _devices(finding):
            reasons.setdefault(device, []).append(_about(device, finding.message))
    named = sorted(reasons, key=lambda device: -len(reasons[device]))
    plain = [f.message for f in asked if not _devices(f)]
    whole = [*plain, *([f"of its devices {_listed(named)}"] if named else [])]
    return [
        Suspect("node", hostname, node_rank, "; ".join(whole)),
        *(Suspect(d.kind, d.id, node_rank, f"{d.title}: {'; '.join(reasons[d])}") for d in named),
    ]


def with_gang(found: Sequence[Suspect], gang: Iterable[Mapping[str, Any]]) -> list[Suspect]:
    """Return the suspects of a node and those of its gang, each once; what a node says of itself says more."""
    known = {(suspect.kind, suspect.id) for suspect in found}
    return [*found, *(Suspect(**suspect) for suspect in gang if (suspect["kind"], suspect["id"]) not in known)]


@dataclass(frozen=True)
class _Device:
    """A device that a finding names, and how people call it."""

    kind: str
    id: str
    title: str


def _devices(finding: Finding) -> list[_Device]:
    found = []
    for name, device in (("gpus", _gpu), ("nics", _nic)):
        listed = finding.evidence.get(name)
        found += [device(names) for names in listed if isinstance(names, dict)] if isinstance(listed, list) else []
    return found


def _gpu(names: dict[str, Any]) -> _Device:
    index = names.get("index", "?")
    return _Device("gpu", str(names.get("uuid") or names.get("pci") or index), f"GPU {index}")


def _nic(names: dict[str, Any]) -> _Device:
    device, port = names.get("device", "?"), names.get("port")
    title = f"{device} port {port}" if port is not None else str(device)
    return _Device("nic", str(device) if port is None else f"{device}:{port}", title)


def _about(device: _Device, message: str) -> str:
    """Return a message without the names that it begins with, where `device` is one of them."""
    names, colon, text = message.partition(": ")
    return text if colon and (device.id in names or device.title in names) else message


def _listed(devices: Sequence[_Device]) -> str:
    return ", ".join(device.title for device in devices)
