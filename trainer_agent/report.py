"""The report of a preflight, saved and read again, and its compact form for the termination log."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer_agent import __version__
from trainer_agent.check import Status
from trainer_agent.errors import Action, FatalError
from trainer_agent.termination import TERMINATION_BYTES, fit, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from trainer_agent.check import CheckResult
    from trainer_agent.policy import Suspect, Verdict

SCHEMA = "trainer-agent.preflight/v1"
DEVICES = ("gpus", "nics")  # the lists in the evidence of a finding that name devices
BROKE = "broke"
SEVERITIES = ("error", BROKE, "warning", "info")
MOST_RANKS = 16  # of a set in the compact form; a pair has two
WORST_FIRST = (Status.FAIL, Status.ERROR, Status.WARN, Status.PASS, Status.SKIP)


@dataclass(frozen=True)
class Report:
    """Everything that one preflight found out. Times are seconds; `started_at` is ISO 8601 in UTC."""

    verdict: Verdict
    action: Action
    hostname: str
    node_rank: int
    nnodes: int
    suspects: Sequence[Suspect]
    checks: Sequence[CheckResult]
    started_at: str
    duration_s: float
    gang: Mapping[str, Any] | None = None  # what all nodes found out together, where they did

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form, schema `trainer-agent.preflight/v1`."""
        return {
            "schema": SCHEMA,
            "verdict": str(self.verdict),
            "exit_code": int(self.verdict.exit_code),
            "action": str(self.action),
            "node": {"hostname": self.hostname, "rank": self.node_rank, "nnodes": self.nnodes},
            "suspects": [asdict(s) for s in self.suspects],
            "checks": [c.as_dict() for c in self.checks],
            **({} if self.gang is None else {"gang": dict(self.gang)}),
            "started_at": self.started_at,
            "duration_s": round(self.duration_s, 3),
            "versions": {
                "trainer-agent": __version__,
                "python": platform.python_version(),
                "kernel": platform.release(),
            },
        }


def load(path: str) -> dict[str, Any]:
    """
    Return a saved report.

    Raises:
        FatalError: the file cannot be read, or holds something else.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FatalError(
            "report-unreadable",
            f"{path} is not a readable JSON report: {error}",
            hint="pass the file that --report-file wrote",
        ) from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise FatalError(
            "report-schema",
            f"{path} has schema {found!r}, wanted {SCHEMA!r}",
            hint="pass the file that --report-file wrote",
        )
    return data


def show(path: str, write: Callable[[dict[str, Any]], str]) -> str:
    """
    Return a saved report as `write` puts it.

    Raises:
        FatalError: the file cannot be read, or holds something else, or not all that a report has.
    """
    data = load(path)
    try:
        return write(data)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise FatalError(
            "report-damaged",
            f"{path} has the right schema, but not its fields: {type(error).__name__}: {error}",
            hint="pass the file that --report-file wrote, unchanged",
        ) from error


def worst_first(checks: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """
    Return the checks by status; among failures those that name a broken device, then by the weight of their action.

    A broken device can be the reason of other failures, even of those that look like a wrong configuration.
    """
    statuses, actions = [str(s) for s in WORST_FIRST], [str(a) for a in reversed(Action)]
    return sorted(checks, key=lambda c: (statuses.index(c["status"]), not _device(c), actions.index(c["action"])))


def _device(check: dict[str, Any]) -> bool:
    """Whether a check found a GPU or a NIC for which another node is wanted."""
    named = (f["evidence"].get(name) for f in check["findings"] if f["severity"] == "error" for name in DEVICES)
    return check["action"] == Action.RESCHEDULE and any(named)


def compact(data: dict[str, Any], *, limit: int = TERMINATION_BYTES) -> str:
    """Return verdict, suspects and findings, worst first, as JSON of at most `limit` bytes."""
    findings = [(c, f) for c in worst_first(data["checks"]) for f in c["findings"] or _without_findings(c)]
    findings.sort(key=lambda pair: SEVERITIES.index(pair[1]["severity"]))
    said = [
        {"check": c["name"], "code": f["code"], "message": f["message"], **({"hint": f["hint"]} if f["hint"] else {})}
        for c, f in findings
    ]
    head = {k: data[k] for k in ("verdict", "exit_code", "action", "node")}
    gang = _compact_gang(data["gang"], limit // 4) if "gang" in data else {}
    return fit({**head, **gang}, data["suspects"], said, limit=limit)


def _compact_gang(gang: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """Return who is to blame in about `limit` bytes: as many of the sets that are undetermined as there is room for."""
    summary, left = shorten(gang["summary"], limit // 2), list(gang["undetermined"])
    shown: list[dict[str, Any]] = []
    while left:
        one = {"ranks": left[0]["ranks"][:MOST_RANKS], "reason": shorten(left[0]["reason"], limit // 8)}
        if len(json.dumps([*shown, one])) > limit // 2:
            break
        shown.append(one)
        del left[0]
    more = {"undetermined_left_out": len(left)} if left else {}
    return {"blame": gang["blame"], "gang": {"summary": summary, "undetermined": shown, **more}}


def _without_findings(check: dict[str, Any]) -> list[dict[str, str]]:
    """A check that broke has a message only; it weighs more than a warning."""
    broke = {"code": "check-broke", "message": check["message"], "hint": "", "severity": BROKE}
    return [broke] if check["status"] == "error" else []


def write_whole(path: str | Path, text: str) -> None:
    """
    Write a file so that nobody ever sees half of it; what is no regular file, such as /dev/stdout, is written into.

    Raises:
        FatalError: it cannot be written.
    """
    target = Path(path)
    try:
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8", errors="replace")
        else:
            _replace(Path(os.path.realpath(target)), text)  # unlike resolve(), it never raises
    except OSError as error:
        raise FatalError(
            "not-writable", f"cannot write {path}: {error.strerror}", hint="give a path on a writable volume"
        ) from error


def _replace(target: Path, text: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(fd, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        Path(name).chmod(0o644)
        Path(name).replace(target)
    finally:
        Path(name).unlink(missing_ok=True)  # gone already when all went well
