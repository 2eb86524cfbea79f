"""
Find out why a training run failed: which rank first, how, and its last words.

torchrun itself exits 1 whatever happened. What it knows it says in events (`--event-log-handler console`, one JSON
object a line on standard error; from torch 2.8 on), in one log line for the rank it saw fail first, and in an error
file when the script uses @record.
"""

from __future__ import annotations

import json
import re
import signal
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer_agent.process import ending

if TYPE_CHECKING:
    from pathlib import Path

EVENT = b'{"name": "torchelastic.'
TORCHRUN_LINE = re.compile(
    rb"^[IWEF]\d{4} [\d:.]+ \d+ torch/distributed/|^\[?(INFO|WARNING|ERROR):torch\.distributed"
    # Said by every store whose peer has no name for its address, as pods have none: nobody's last words.
    rb"|^\[W\d{4} [\d:.]+ socket\.cpp:\d+\] \[c10d\]"
)
FIRST_FAILURE = re.compile(rb"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)")
TRACEBACK = "Traceback (most recent call last):"
# Exceptions of a rendezvous that nobody joined, by the names torch gives them.
RENDEZVOUS_ERRORS = (
    "DistStoreError",
    "DistNetworkError",
    "RendezvousTimeoutError",
    "RendezvousConnectionError",
    "RendezvousClosedError",
)
KEPT_BYTES = 64 * 1024
SIGTERM, SIGKILL = 15, 9
# torchrun looks at its ranks every 0.1 s; what dies within this time of the first death may be its cause.
SAME_MOMENT_S = 5.0


@dataclass(frozen=True)
class Failure:
    """
    The first failing rank.

    Args:
        rank: its number in the whole job, None where nobody says it, as torchrun up to 2.7 does not.
        local_rank: its number on this node, None where the command has no ranks.
        exit_code: the rank's own, negative for a signal.
        error: its last words, the end of its traceback.
    """

    rank: int | None
    local_rank: int | None
    exit_code: int
    error: str = ""

    @property
    def code(self) -> int:
        """The shell's exit code."""
        return 128 - self.exit_code if self.exit_code < 0 else self.exit_code

    def __str__(self) -> str:
        """Return who failed and how, in words."""
        local = f"local rank {self.local_rank}"
        who = local if self.rank is None else f"rank {self.rank} ({local})"
        return f"{'the command' if self.local_rank is None else who} {ending(self.exit_code)}"


class Autopsy:
    """Read along with standard error, and say afterwards what happened."""

    def __init__(self, *, elastic_agent: bool, error_file: Path | None = None) -> None:
        self.elastic_agent = elastic_agent
        self.error_file = error_file
        self.run_id: object = None
        self.workers_started = False
        self.rendezvous_error = ""
        self.failed: list[dict[str, Any]] = []
        self.observed_pid = 0
        self.observed_at = 0.0
        self.observed: dict[str, Any] | None = None  # the last that torchrun saw fail first
        self.tail: deque[bytes] = deque()
        self.tail_bytes = 0

    def feed(self, line: bytes) -> bool:
        """Take one line; return whether the user should see it."""
        if self.elastic_agent and line.startswith(EVENT):
            return not self._event(line)
        first = FIRST_FAILURE.search(line) if self.elastic_agent else None
        if first:
            self.observed_pid, self.observed_at = int(first[3]), time.monotonic()
            self.observed = {"rank": None, "local_rank": int(first[2]), "exit_code": int(first[1])}
        if not self.observed_pid and not (self.elastic_agent and TORCHRUN_LINE.match(line)):
            self._keep(line)
        return True

    def failure(self, code: int) -> Failure:
        """Return the first failure of a command that ended with `code`, the shell's exit code."""
        own = 128 - code if code - 128 in signal.valid_signals() else code  # 255 is no signal, but exit(-1)
        worker = self._culprit() or (self.observed if self.observed_pid else None)
        if worker is None:
            return Failure(None, None, own, self._last_words())
        return Failure(
            worker["rank"], worker["local_rank"], worker["exit_code"] or own, self._recorded() or self._last_words()
        )

    @property
    def never_met(self) -> str:
        """Why the nodes never met, when that is why no rank was started; else empty."""
        if self.workers_started or self.observed or not self.elastic_agent:
            return ""
        # A c10d store that never answers fails before there is an agent to make an event of it.
        return self.rendezvous_error or _rendezvous_error(self._last_words())

    def _event(self, line: bytes) -> bool:
        try:
            event = json.loads(line)
            data = event["metadata"]
            details = json.loads(data["metadata"])
            if self._is_ours(data.get("run_id")):
                self._note(event["source"], data, details)
        except (ValueError, KeyError, TypeError, IndexError, RecursionError):
            return False  # not what we know: let the user see it
        return True

    def _is_ours(self, run_id: object) -> bool:
        """Whether an event is our torchrun's, which speaks first: one that a rank starts inherits the event log."""
        self.run_id = self.run_id or run_id
        if run_id != self.run_id:
            self.observed_pid = 0  # that failure was the other torchrun's
        return run_id == self.run_id

    def _note(self, source: str, data: dict[str, Any], details: dict[str, Any]) -> None:
        if source == "WORKER" and data["state"] == "START":
            self.workers_started = True
            self.failed = []  # a restart: earlier failures are history
            self.observed_pid = 0
        elif source == "WORKER" and data["state"] == "FAILED":
            code, pid = int(details["exit_code"][0] or 0), details["worker_pid"][0]
            self.failed.append(
                {"rank": data["global_rank"], "local_rank": details["local_rank"][0], "exit_code": code, "pid": pid}
            )
        elif source == "AGENT" and data["state"] == "FAILED" and not self.workers_started:
            self.rendezvous_error = _rendezvous_error(str(data["raw_error"] or ""))

    def _culprit(self) -> dict[str, Any] | None:
        """
        Return the worker that failed first.

        torchrun names one, but a rank killed by the system and a rank that then lost its connection die in the same
        moment: the killed one is the cause. SIGTERM is torchrun's own, and SIGKILL too after its shutdown timeout.
        """
        observed = next((w for w in self.failed if w["pid"] == self.observed_pid), None)
        quick = self.observed_at and time.monotonic() - self.observed_at < SAME_MOMENT_S
        if quick or observed is None:
            killed = [w for w in self.failed if w["exit_code"] < 0 and w["exit_code"] != -SIGTERM]
            if killed:
                return killed[0]
        exited = [w for w in self.failed if w["exit_code"] > 0]
        return observed or next(iter(exited or self.failed), None)

    def _keep(self, line: bytes) -> None:
        self.tail.append(line[-KEPT_BYTES:])
        self.tail_bytes += len(self.tail[-1])
        while self.tail_bytes > KEPT_BYTES:
            self.tail_bytes -= len(self.tail.popleft())

    def _last_words(self) -> str:
        text = b"".join(self.tail).decode(errors="replace").strip()
        start = text.rfind(TRACEBACK)
        return text[start:] if start >= 0 else "\n".join(text.splitlines()[-20:])

    def _recorded(self) -> str:
        """Return what @record wrote, empty without it."""
        try:
            message = json.loads(self.error_file.read_text())["message"] if self.error_file else ""
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return ""
        if not isinstance(message, dict):
            return str(message)
        extra = message.get("extraInfo")
        callstack = extra.get("py_callstack") if isinstance(extra, dict) else None
        return str(callstack or message.get("message") or "")


def _rendezvous_error(trace: str) -> str:
    """Return the last line of a traceback when it is an exception of the rendezvous, else nothing."""
    last = trace.strip().splitlines()[-1:]
    return last[0] if last and last[0].partition(":")[0].rpartition(".")[2] in RENDEZVOUS_ERRORS else ""
