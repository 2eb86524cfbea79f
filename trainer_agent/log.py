"""Logs: JSON lines when nobody watches, readable ones on a terminal, on standard error, without secrets."""

from __future__ import annotations

import importlib
import io
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from trainer_agent.env import redact, redact_all, secrets_in, wants_colour
from trainer_agent.process import write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping
    from typing import TextIO


PATIENCE_S = 1.0


class _Later(ModuleType):
    """Stands for a module until somebody uses it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


def _import_structlog() -> Any:
    """
    Import structlog without what it imports and we do not use, which is more than half of its 80 ms.

    rich, where it is installed, is for tracebacks that we do not print; asyncio is for loggers that are awaited.
    """
    kept_away: dict[str, ModuleType | None] = {"rich": None, "asyncio": _Later("asyncio")}
    absent = {name: module for name, module in kept_away.items() if name not in sys.modules}
    sys.modules.update(absent)  # type: ignore[arg-type]  # None is how Python marks a module that is not there
    try:
        import structlog
    finally:
        for name in absent:
            del sys.modules[name]
    return structlog


structlog = _import_structlog()


def configure(environ: Mapping[str, str], *, form: str = "auto") -> None:
    """Send every log line to standard error in `form`: `json`, `console`, or `auto` (console on a terminal)."""
    console = form == "console" or (form == "auto" and sys.stderr.isatty())
    secrets = secrets_in(environ)

    def mask(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        return {k: _masked(v, secrets) for k, v in event.items()}

    if console:
        last = [
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
            structlog.dev.ConsoleRenderer(
                colors=wants_colour(sys.stderr, environ),
                pad_event_to=0,
                exception_formatter=structlog.dev.plain_traceback,
            ),
        ]
    else:
        last = [
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _in_order,
            structlog.processors.JSONRenderer(),
        ]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,  # before the mask: a traceback shows values too
            mask,
            *last,
        ],
        logger_factory=structlog.WriteLoggerFactory(_unbuffered(sys.stderr)),
        cache_logger_on_first_use=False,
    )


class _Unbuffered:
    """
    Standard error for the log: a line that cannot be written is lost, and nothing else is.

    What a buffer keeps of it would be tried again when the program ends, and be its exit code. One who does not read
    is waited for once, until he reads again: what we log about comes first.
    """

    def __init__(self, fd: int, encoding: str) -> None:
        self.fd = fd
        self.encoding = encoding
        self.patience_s = PATIENCE_S
        self.torn = False

    def write(self, text: str) -> None:
        """Write all of it, or as much as can be, on lines of its own."""
        data = b"\n" * self.torn + text.encode(self.encoding, errors="backslashreplace")
        left = write_whole(self.fd, data, within_s=self.patience_s)
        self.patience_s = 0.0 if left else PATIENCE_S
        if written := data[: len(data) - len(left)]:
            self.torn = not written.endswith(b"\n")

    def flush(self) -> None:
        """There is nothing left."""


def _unbuffered(stream: TextIO) -> TextIO:
    """Return the log's own way to a file, or the stream as it is where it has none."""
    try:
        return _Unbuffered(stream.fileno(), stream.encoding)  # type: ignore[return-value]  # it has what structlog uses
    except io.UnsupportedOperation:
        return stream


def _in_order(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Put first what a person looks for first."""
    return {**{name: event[name] for name in ("timestamp", "level", "event") if name in event}, **event}


def _masked(value: Any, secrets: list[str]) -> Any:
    """Return a logged value without secrets; what is no JSON is printed by its repr, so that is what must be clean."""
    clean = redact_all(value, secrets)
    shown = repr(clean)
    return clean if redact(shown, secrets) == shown else redact(shown, secrets)


def get_logger() -> Any:
    """Return a logger with structlog's methods."""
    return structlog.get_logger()
