"""The termination message: JSON of at most 4,096 bytes, where `kubectl describe pod` shows it."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer_agent.env import redact_all, secrets_in
from trainer_agent.errors import AgentError, FatalError
from trainer_agent.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Kubernetes cuts a termination message at 4,096 bytes (and all of a pod's together at 12 kB).
TERMINATION_BYTES = 4096
TERMINATION_LOG = "/dev/termination-log"
# The pod's default terminationGracePeriodSeconds is 30; 5 s are left for what comes after us.
GRACE_S = 25.0
LENGTHS = (1280, 640, 320, 160, 120, 80)  # of texts, in characters; 65 of them name a GPU


def fit(head: dict[str, Any], suspects: list[Any], findings: list[Any], *, limit: int) -> str:
    """
    Return `head` with suspects and findings as JSON of at most `limit` bytes, the worst first.

    What there is no room for goes in this order: the hints of the mildest, the middle of long texts, the mildest
    findings, the last suspects. How many are left out is said.
    """
    for plan in _plans(len(suspects), len(findings), limit):
        message = {**head, **plan.kept("suspects", suspects), **plan.kept("findings", findings)}
        if _size(_json(message)) <= limit:
            break
    return _within(message, limit)


@dataclass(frozen=True)
class _Plan:
    """How much of everything is said."""

    suspects: int
    findings: int
    hints: int
    longest: int

    def kept(self, name: str, entries: list[Any]) -> dict[str, Any]:
        """Return the first entries, and how many are missing."""
        count: int = getattr(self, name)
        missing = len(entries) - count
        shown = [self._short(number, entry) for number, entry in enumerate(entries[:count])]
        left = {"left_out" if name == "findings" else f"{name}_left_out": missing} if missing else {}
        return ({name: shown} if entries or name == "suspects" else {}) | left

    def _short(self, number: int, entry: dict[str, Any]) -> dict[str, Any]:
        kept = {key: value for key, value in entry.items() if key != "hint" or number < self.hints}
        return {key: _without_middle(value, self.longest) for key, value in kept.items()}


def _plans(suspects: int, findings: int, limit: int) -> Iterator[_Plan]:
    """Yield ways to say it, the fullest first."""
    most = limit // 20  # no entry is shorter than 20 bytes, so that thousands of them cost nothing
    suspects, findings = min(suspects, most), min(findings, most)
    for hints in range(findings, -1, -1):
        yield _Plan(suspects, findings, hints, limit)
    for longest in LENGTHS:
        yield _Plan(suspects, findings, 0, longest)
    for count in range(findings - 1, 0, -1):
        yield _Plan(suspects, count, 0, LENGTHS[-1])
    for count in range(suspects - 1, 0, -1):
        yield _Plan(count, min(1, findings), 0, LENGTHS[-1])


def _without_middle(value: Any, longest: int) -> Any:
    """Return a text of at most `longest` characters: it begins with who, and ends with what was wanted."""
    if not isinstance(value, str) or len(value) <= longest:
        return value
    half = longest // 2
    return f"{value[: longest - half - 1]}\u2026{value[-half:]}"


def with_tail(message: dict[str, Any], key: str, *, limit: int = TERMINATION_BYTES) -> str:
    """Return `message` as JSON of at most `limit` bytes; text under `key` loses its beginning, the end says most."""
    while (excess := _size(_json(message)) - limit) > 0 and message.get(key):
        message = {**message, key: message[key][max(1, excess // 6) :]}  # one character takes six bytes at most
    return _within(message, limit)


def _within(message: dict[str, Any], limit: int) -> str:
    """Return `message` as JSON of at most `limit` bytes: its longest texts are cut until it fits."""
    text, longest = _json(message), limit
    while _size(text) > limit and longest > 16:  # verdicts and actions are shorter, and must stay whole
        longest //= 2
        text = _json(_cut(message, longest))
    return text


def _cut(value: Any, longest: int) -> Any:
    if isinstance(value, str):
        return value[:longest]
    if isinstance(value, dict):
        return {k: _cut(v, longest) for k, v in value.items()}
    return [_cut(v, longest) for v in value] if isinstance(value, list) else value


def _json(data: dict[str, Any]) -> str:
    # Variables and file names may hold bytes that are no UTF-8; Python's stand-ins for them cannot be written.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="replace").decode()


def _size(text: str) -> int:
    return len(text.encode())


def shorten(text: str, limit: int) -> str:
    """Return at most `limit` bytes of `text`, cut at a character."""
    return text.encode(errors="replace")[:limit].decode(errors="ignore")


def tell(path: str | None, text: str) -> None:
    """Write `text` to `path`, by default where the kubelet reads it if that exists; a failure is only logged."""
    target = path or (TERMINATION_LOG if Path(TERMINATION_LOG).exists() else None)
    try:
        if target:
            write_termination(target, text)
    except FatalError as error:
        get_logger().warning(error.message)


def tell_error(path: str | None, error: AgentError, environ: Mapping[str, str]) -> None:
    """Tell why we give up, without the secrets of the environment."""
    facts = {"exit_code": int(error.exit_code), "code": error.code, "reason": error.message, "hint": error.hint}
    tell(path, with_tail(redact_all(facts, secrets_in(environ)), "error"))


@contextmanager
def failures_told(path: str | None, environ: Mapping[str, str]) -> Iterator[None]:
    """Tell why we give up, if we do."""
    try:
        yield
    except AgentError as error:
        tell_error(path, error, environ)
        raise


def write_termination(path: str | Path, text: str) -> None:
    """Write in place: the kubelet mounts that file, so it can be neither replaced nor removed."""
    try:
        Path(path).write_text(shorten(text, TERMINATION_BYTES), encoding="utf-8")
    except OSError as error:
        raise FatalError("not-writable", f"cannot write the termination message to {path}: {error.strerror}") from error
