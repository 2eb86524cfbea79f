"""
What can go wrong, and the exit code each kind ends with.

AgentError
├── FatalError          exit 30: another node would not help
│   └── ConfigurationError   settings that contradict themselves
└── RetryError          exit 20: transient, or this node is unfit

`Terminated` is no error: it is SIGTERM, SIGINT or SIGHUP arriving in our own code.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EXHAUSTED = {errno.ENOSPC, errno.EDQUOT, errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}


class ExitCode(IntEnum):
    """Exit codes of every command, after Kubeflow's KEP-3416."""

    PASS = 0
    USAGE = 2
    WARN = 10
    RETRY = 20
    FATAL = 30
    BUG = 70


class Severity(StrEnum):
    """How bad one finding is. Only `error` fails a check."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Action(StrEnum):
    """What whoever started the job should do, mildest first."""

    CONTINUE = "continue"
    RETRY = "retry"
    RESCHEDULE = "reschedule"
    STOP = "stop"


@dataclass(frozen=True)
class Finding:
    """
    One thing that is not as it should be.

    Args:
        code: kebab-case, never changes once released.
        message: the measured value and the wanted one.
        hint: the next action, or a command.
        action: what a failing finding asks for; warnings always continue.
        evidence: the raw values behind the message, JSON-serialisable.
    """

    code: str
    message: str
    severity: Severity = Severity.ERROR
    hint: str = ""
    action: Action = Action.STOP
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return one line: code, message and hint."""
        return f"{self.message} [{self.code}]" + (f". {self.hint}" if self.hint else "")


class AgentError(Exception):
    """Something that ends the program with a message and one of our exit codes, never with a traceback."""

    exit_code = ExitCode.RETRY

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel between processes whatever the constructor takes."""
        return _restored, (type(self), self.args, dict(self.__dict__))


def _restored(kind: type[AgentError], args: tuple[Any, ...], state: dict[str, Any]) -> AgentError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class RetryError(AgentError):
    """Transient, or this node is unfit: the same pod again, or elsewhere, may pass."""

    exit_code = ExitCode.RETRY


class FatalError(AgentError):
    """Another node would not help: configuration, versions, credentials."""

    exit_code = ExitCode.FATAL


def exhausted(error: Exception) -> RetryError | None:
    """Return what to say of something of this machine that is used up; None for any other error."""
    no_thread = isinstance(error, RuntimeError) and "start new thread" in str(error)  # all that Python says of it
    used_up = isinstance(error, OSError) and error.errno in EXHAUSTED
    if not (no_thread or used_up or isinstance(error, MemoryError)):
        return None
    hint = (
        "look at the limits of memory, files and processes (ulimit, pids.max), and at the free space of what standard "
        "output goes to"
    )
    return RetryError("system-exhausted", f"the system refuses: {str(error) or 'memory'}", hint=hint)


class ConfigurationError(FatalError):
    """Settings that contradict themselves; takes the findings and states all of them at once."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        first = findings[0]
        super().__init__(first.code, "; ".join(f.message for f in findings), hint=first.hint)
        self.findings = tuple(findings)


class Terminated(BaseException):
    """SIGTERM, SIGINT or SIGHUP arrived while our own code was running."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum
