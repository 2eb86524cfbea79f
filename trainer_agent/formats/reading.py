"""How a report is read by people: what comes first, and text without traps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainer_agent.check import Status
from trainer_agent.errors import Severity
from trainer_agent.report import worst_first

if TYPE_CHECKING:
    from collections.abc import Sequence

SEVERITIES = [str(s) for s in (Severity.ERROR, Severity.WARNING, Severity.INFO)]
MOST_SUSPECTS = 20  # a node with all its GPUs and NICs; a gang may have hundreds
MEANINGS = {
    "pass": "Go: nothing stands against training on this node.",
    "warn": "Go, but read the warnings.",
    "retry": "Do not train here now: the same pod again, or another node, may pass.",
    "fatal": "Do not start: another node would not help.",
}


def visible(text: object, *, keep: str = "") -> str:
    r"""Return text whose control characters can be seen (`\x1b`), as they could steer a terminal or break XML."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in shown)


def findings_of(check: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the findings of a check, errors first."""
    return sorted(check["findings"], key=lambda f: SEVERITIES.index(f["severity"]))


def cause(data: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None] | None:
    """Return the check to look at first and its worst finding; None when nothing is wrong."""
    for check in worst_first(data["checks"]):
        if check["status"] in (Status.FAIL, Status.ERROR, Status.WARN):
            return check, next(iter(findings_of(check)), None)
    return None


def counted(checks: Sequence[dict[str, Any]]) -> str:
    """Return how many checks there are of each status, such as `1 fail, 7 pass`."""
    statuses = [c["status"] for c in worst_first(checks)]
    return ", ".join(f"{statuses.count(s)} {visible(s)}" for s in dict.fromkeys(statuses))
