"""Logs: JSON lines when nobody watches, readable ones on a terminal, on standard error, without secrets."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from trainer_agent.env import redact, secrets_in

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

FORMATS = ("auto", "json", "console")


def _import_structlog() -> Any:
    """Import structlog without rich, which it imports where it is installed: 40 ms for tracebacks we do not print."""
    hidden = "rich" not in sys.modules
    if hidden:
        sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        import structlog
    finally:
        if hidden:
            del sys.modules["rich"]
    return structlog


structlog = _import_structlog()


def configure(environ: Mapping[str, str], *, form: str = "auto") -> None:
    """Send every log line to standard error in `form`: `json`, `console`, or `auto` (console on a terminal)."""
    terminal = sys.stderr.isatty()
    console = form == "console" or (form == "auto" and terminal)
    secrets = secrets_in(environ)

    def mask(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        return {k: redact(v, secrets) if isinstance(v, str) else v for k, v in event.items()}

    if console:
        last = [
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
            structlog.dev.ConsoleRenderer(
                colors=terminal, pad_event_to=0, exception_formatter=structlog.dev.plain_traceback
            ),
        ]
    else:
        last = [
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ]
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, structlog.processors.add_log_level, mask, *last],
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


def get_logger() -> Any:
    """Return a logger with structlog's methods."""
    return structlog.get_logger()
