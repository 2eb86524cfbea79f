"""The report of a preflight: JSON for machines, text for people, a compact form for the termination log."""

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
from trainer_agent.errors import FatalError
from trainer_agent.termination import TERMINATION_BYTES, fit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer_agent.check import CheckResult
    from trainer_agent.errors import Action
    from trainer_agent.policy import Suspect, Verdict

SCHEMA = "trainer-agent.preflight/v1"
WORST_FIRST = (Status.FAIL, Status.ERROR, Status.WARN, Status.PASS, Status.SKIP)
COLOURS = {"pass": "32", "warn": "33", "fail": "31", "error": "35", "skip": "2"}


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
    try:
        render(data)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise FatalError(
            "report-damaged",
            f"{path} has the right schema, but not its fields: {type(error).__name__}: {error}",
            hint="pass the file that --report-file wrote, unchanged",
        ) from error
    return data


def render(data: dict[str, Any], *, colour: bool = False) -> str:
    """Return a report as text for a terminal, the culprit first, with a hint under each finding."""
    node = data["node"]
    where = f"node {node['rank']} of {node['nnodes']} ({node['hostname']})"
    title = _paint(f"preflight {data['verdict'].upper()}", data["verdict"], colour=colour)
    suspects = [f"  suspect: {s['kind']} {s['id']}: {s['reason']}" for s in data["suspects"]]
    lines = [f"{title}  {where}  {data['duration_s']:.1f} s", *suspects, ""]
    width = max((len(c["name"]) for c in data["checks"]), default=0)
    order = [str(s) for s in WORST_FIRST]
    for check in sorted(data["checks"], key=lambda c: order.index(c["status"])):
        status = _paint(check["status"].upper().ljust(5), check["status"], colour=colour)
        lines.append(f"{status}  {check['name'].ljust(width)}  {check['message']}")
        lines += [line for finding in check["findings"] for line in _finding_lines(finding)]
    lines += ["", _footer(data)]
    return "\n".join(lines) + "\n"


def _finding_lines(finding: dict[str, Any]) -> list[str]:
    hint = [f"         -> {finding['hint']}"] if finding["hint"] else []
    return [f"       {finding['severity']}: {finding['message']} [{finding['code']}]", *hint]


def _footer(data: dict[str, Any]) -> str:
    failed = [c["name"] for c in data["checks"] if c["status"] in ("fail", "error")]
    if failed:
        return f"action: {data['action']}. To go on in spite of a check: --ignore {','.join(failed)}"
    return f"action: {data['action']}"


def _paint(text: str, status: str, *, colour: bool) -> str:
    code = COLOURS.get({"retry": "fail", "fatal": "fail"}.get(status, status))
    return f"\033[{code}m{text}\033[0m" if colour and code else text


def compact(data: dict[str, Any], *, limit: int = TERMINATION_BYTES) -> str:
    """Return verdict, suspects and findings, worst first, as JSON of at most `limit` bytes."""
    findings = [
        {"check": c["name"], "code": f["code"], "message": f["message"], "hint": f["hint"]}
        for status in WORST_FIRST
        for c in data["checks"]
        if c["status"] == str(status)
        for f in c["findings"] or _without_findings(c)
    ]
    head = {k: data[k] for k in ("verdict", "exit_code", "action", "node")}
    return fit(head, data["suspects"], findings, limit=limit)


def _without_findings(check: dict[str, Any]) -> list[dict[str, str]]:
    """A check that broke has a message only."""
    return [{"code": "check-broke", "message": check["message"], "hint": ""}] if check["status"] == "error" else []


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
