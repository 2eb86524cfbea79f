"""
Calls in children that can be killed.

Code that may hang (a driver, a dead NFS server, a name server, somebody else's check) runs in a forked child with a
deadline: `isolated`, or several side by side with `run_all` or `Children`. Programs run in `trainer_agent.guarded`.
"""

from __future__ import annotations

import math
import os
import pickle
import select
import selectors
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Self

from trainer_agent.errors import AgentError, Terminated, exhausted
from trainer_agent.process import (
    REAP_SECONDS,
    TERMINATION_SIGNALS,
    adopt_orphans,
    children_left,
    descendants,
    describe_status,
    die_with_parent,
    is_alive,
    kill_descendants,
    kill_group,
    termination_held,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

# A signal between Python's last look and the system call is seen only when the call returns.
LONGEST_SLEEP_S = 0.25


class IsolatedError(Exception):
    """The function in the child did not return a value."""


class TimedOutError(IsolatedError):
    """The child was killed at its deadline."""

    def __init__(self, timeout_s: float, *, hung: bool = False) -> None:
        self.hung = hung
        extra = "; it does not die either (state D: it waits for a device or a file server)" if hung else ""
        super().__init__(f"no answer within {round(timeout_s, 2):g} s{extra}")


class CrashedError(IsolatedError):
    """The child ended without an answer: a signal, an exit, or an exception (then `trace` holds its traceback)."""

    def __init__(self, reason: str, *, trace: str = "") -> None:
        super().__init__(reason)
        self.trace = trace


@dataclass(frozen=True)
class Answer:
    """What became of one isolated call: a value, or the error instead of it, and how long it took."""

    value: Any
    error: IsolatedError | None
    duration_s: float


class _Child:
    """A function running in a forked process."""

    def __init__(self, function: Callable[[], Any], timeout_s: float, *, default_signals: bool = True) -> None:
        self.timeout_s = timeout_s
        self.started = time.monotonic()
        self.data = b""
        self.fd, write = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.fd)
            _serve(function, write, default_signals=default_signals)
        os.close(write)

    @property
    def complete(self) -> bool:
        return len(self.data) >= 8 and len(self.data) - 8 >= int.from_bytes(self.data[:8])

    @property
    def left_s(self) -> float:
        return self.started + self.timeout_s - time.monotonic()

    def feed(self) -> bool:
        """Take what the child wrote; return whether it has finished."""
        chunk = os.read(self.fd, 1 << 16)
        self.data += chunk
        return self.complete or not chunk

    def listen(self, deadline: float) -> None:
        """Take what the child writes until it has finished, or `deadline` on the monotonic clock."""
        while (left := deadline - time.monotonic()) > 0:
            if select.select([self.fd], [], [], min(LONGEST_SLEEP_S, left))[0] and self.feed():
                return

    def close(self) -> int | None:
        """Kill the child with everything in its group; return its wait status, None when it does not die."""
        fd, self.fd = self.fd, -1
        if fd >= 0:  # a signal may have ended an earlier attempt
            os.close(fd)
        if not self.complete:
            status = wait_for(self.pid, 0.05 if self.left_s > 0 else 0)
            if status is not None:
                kill_group(self.pid)
                return status
        # They are its children as long as it lives, also those with a session of their own.
        others = () if self.complete else descendants(self.pid)
        kill_group(self.pid)
        status = wait_for(self.pid, REAP_SECONDS)
        _end(others)
        return status

    def answer(self) -> Answer:
        late = not self.complete and self.left_s <= 0
        status = self.close()
        duration = time.monotonic() - self.started
        if self.complete:
            kind, value, trace = _unpack(self.data[8:])
            return Answer(value, None if kind == "value" else CrashedError(value, trace=trace), duration)
        if late:
            return Answer(None, TimedOutError(self.timeout_s, hung=status is None), duration)
        return Answer(None, CrashedError(describe_status(status)), duration)


class Children:
    """
    Calls in forked children, side by side; those that still run at the end of the `with` block are killed.

    `start` gives each a number; `next` waits for one to answer.
    """

    def __init__(self) -> None:
        self.running: dict[int, _Child] = {}
        self.started = 0
        self.selector = selectors.DefaultSelector()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for child in self.running.values():
            with suppress(ChildProcessError):
                child.close()
        self.selector.close()

    def start(self, function: Callable[[], Any], timeout_s: float) -> int:
        """Start a call that is killed after `timeout_s` seconds; return its number."""
        with termination_held():
            child = _Child(function, timeout_s)
            number = self.started
            self.running[number] = child
            self.started += 1
        self.selector.register(child.fd, selectors.EVENT_READ, number)
        return number

    @property
    def pids(self) -> list[int]:
        """The processes of the calls that have not ended."""
        return [child.pid for child in self.running.values()]

    def wait(self, seconds: float) -> None:
        """Wait until a call has something to say, at most so long."""
        self.selector.select(seconds)

    def ended(self) -> tuple[int, Answer] | None:
        """Return the number and the answer of a call that has ended, None when there is none."""
        ready = {key.data for key, _ in self.selector.select(0)}
        for number, child in self.running.items():
            if (number in ready and child.feed()) or child.left_s <= 0:
                self.selector.unregister(child.fd)
                answer = child.answer()
                del self.running[number]
                return number, answer
        return None

    def next(self) -> tuple[int, Answer]:
        """Return the number and the answer of the next call that ends."""
        while (ended := self.ended()) is None:
            self.wait(min(LONGEST_SLEEP_S, max(0.0, min(c.left_s for c in self.running.values()))))
        return ended


def _end(pids: Iterable[int]) -> None:
    """Kill what is left of `pids` after the guards among them had time to end their own programs."""
    deadline = time.monotonic() + REAP_SECONDS
    while (left := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.005)
    for pid in left:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def run_all(functions: Sequence[tuple[Callable[[], Any], float]]) -> list[Answer]:
    """Run (function, timeout in seconds) pairs side by side, each in a child; return their answers in order."""
    with Children() as children:
        for function, timeout_s in functions:
            children.start(function, timeout_s)
        answers = dict(children.next() for _ in functions)
    return [answers[number] for number in sorted(answers)]


def isolated(function: Callable[[], Any], *, timeout_s: float) -> Any:
    """
    Return what `function` returns in a forked child.

    Raises:
        TimedOutError: no answer in time; the child and its process group are killed.
        CrashedError: the child ended without an answer.
    """
    answer = run_all([(function, timeout_s)])[0]
    if answer.error:
        raise answer.error
    return answer.value


def contained(function: Callable[[], Any], *, grace_s: float, timeout_s: float = math.inf) -> Any:
    """
    Return what `function` returns in a forked child that takes its threads and its memory with it.

    A termination signal is passed on; after `grace_s` seconds the child is killed.

    Raises:
        AgentError: as `function` raised it.
        TimedOutError: no answer in time; the child and its process group are killed.
        CrashedError: the child ended without an answer.
    """
    child = None
    try:
        with termination_held():
            child = _Child(lambda: _outcome(function), timeout_s, default_signals=False)
        # What was held back comes here, where the child hears of it.
        child.listen(child.started + timeout_s)
    except Terminated as error:
        if child:
            with suppress(ProcessLookupError):
                os.kill(child.pid, error.signum)
            child.listen(time.monotonic() + grace_s)
        raise
    finally:
        if child:
            answer = child.answer()
    if answer.error:
        raise answer.error
    kind, value = answer.value
    if kind == "error":
        raise value
    return value


def _outcome(function: Callable[[], Any]) -> tuple[str, Any]:
    try:
        return "value", function()
    except AgentError as error:
        return "error", error
    except Exception as error:
        if known := exhausted(error):
            return "error", known
        raise


def _serve(function: Callable[[], Any], write: int, *, default_signals: bool) -> NoReturn:
    """In the child: run `function`, send its value, end without running anybody's clean-up code."""
    code = 1
    with suppress(BaseException):  # nothing may travel up into a copy of the parent's stack
        os.setpgid(0, 0)
        die_with_parent()
        for signum in TERMINATION_SIGNALS if default_signals else ():
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, TERMINATION_SIGNALS)
        os.dup2(2, 1)  # standard output carries only what was asked for
        adopt_orphans()
        reply = _call(function)
        if children_left():  # a daemon that it started, or what a command of its left behind
            kill_descendants()
        _send(write, reply)
        code = 0
    os._exit(code)


def _call(function: Callable[[], Any]) -> tuple[str, Any, str]:
    try:
        return "value", function(), ""
    except SystemExit as error:
        return "crash", f"called sys.exit({error.code})", ""
    except Exception as error:  # noqa: BLE001  # whatever a check raises is that check's failure
        return "crash", f"{type(error).__name__}: {error}", traceback.format_exc()


def _send(write: int, reply: tuple[str, Any, str]) -> None:
    try:
        data = pickle.dumps(reply)
    except Exception as error:  # noqa: BLE001  # pickling runs the result's own code
        data = pickle.dumps(("crash", f"its result cannot be sent: {error}", ""))
    view = memoryview(len(data).to_bytes(8) + data)
    while view:
        view = view[os.write(write, view) :]


def _unpack(data: bytes) -> tuple[str, Any, str]:
    """Return what our own child packed; an object that does not come out whole is the child's failure too."""
    try:
        kind, value, trace = pickle.loads(data)  # noqa: S301
    except Exception as error:  # noqa: BLE001  # unpickling runs the result's own code
        return "crash", f"its result cannot be read: {type(error).__name__}: {error}", ""
    return kind, value, trace
