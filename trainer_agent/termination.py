"""The termination message: JSON of at most 4,096 bytes, where `kubectl describe pod` shows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trainer_agent.errors import FatalError
from trainer_agent.log import get_logger

# Kubernetes cuts a termination message at 4,096 bytes (and all of a pod's together at 12 kB).
TERMINATION_BYTES = 4096
TERMINATION_LOG = "/dev/termination-log"


def fit(head: dict[str, Any], suspects: list[Any], findings: list[Any], *, limit: int) -> str:
    """Return `head` with as many suspects and findings, from the first, as `limit` bytes of JSON hold."""
    # No entry is shorter than 20 bytes, so that thousands of them cost nothing.
    suspect_count, count = min(len(suspects), limit // 20), min(len(findings), limit // 20)
    while True:
        message = {**head, "suspects": suspects[:suspect_count]}
        if suspect_count < len(suspects):
            message["suspects_left_out"] = len(suspects) - suspect_count
        if findings:
            message["findings"] = findings[:count]
        if count < len(findings):
            message["left_out"] = len(findings) - count
        if _size(_json(message)) <= limit or max(suspect_count, count) <= 1:
            return _within(message, limit)
        count, suspect_count = (count - 1, suspect_count) if count > 1 else (count, suspect_count - 1)


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


def write_termination(path: str | Path, text: str) -> None:
    """Write in place: the kubelet mounts that file, so it can be neither replaced nor removed."""
    try:
        Path(path).write_text(shorten(text, TERMINATION_BYTES), encoding="utf-8")
    except OSError as error:
        raise FatalError("not-writable", f"cannot write the termination message to {path}: {error.strerror}") from error
