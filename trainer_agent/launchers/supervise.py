"""
Run a command as its parent, as PID 1 of a container must: forward signals, reap orphans, keep our own grace.

Signals are blocked and taken one by one with sigtimedwait, so none is lost between two lines of code.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from trainer_agent.errors import FatalError
from trainer_agent.log import get_logger
from trainer_agent.process import (
    adopt_orphans,
    catches,
    descendants,
    ended_children,
    exit_code,
    holds_terminal,
    is_alive,
    kill_descendants,
    signal_name,
    spawn,
    take_terminal,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

STOPPING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
FORWARDED = {*STOPPING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGWINCH}
SHELLS = {"sh", "bash", "dash", "ash", "zsh", "ksh"}
# Without a deadline sigtimedwait still wants a number of seconds.
NO_DEADLINE_S = 3600.0
# Orphans may hold standard error open after the command has ended; after this we leave them to it.
DRAIN_SECONDS = 2.0
# An event of torchrun holds a failing rank's whole message on one line, escaped three times over.
LONGEST_LINE = 4 << 20


@dataclass(frozen=True)
class Ended:
    """
    How a supervised command ended.

    Args:
        code: the shell's exit code, 128 + n for signal n.
        signum: the first stopping signal that was forwarded to it, 0 for none.
        killed: whether it outlived the grace and was killed.
        reaped: orphans collected meanwhile.
    """

    code: int
    signum: int
    killed: bool
    reaped: int
    elapsed_s: float


class Companion(Protocol):
    """Somebody who can end the command more gently than a signal to it."""

    def start(self, pid: int) -> None:
        """Learn that the command has started."""

    def stop(self, signum: int) -> bool:
        """Pass a stopping signal on; return whether that is enough, so that the command needs none."""


def supervise(
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    grace_s: float,
    feed: Callable[[bytes], bool] | None = None,
    companion: Companion | None = None,
) -> Ended:
    """
    Run a command to its end.

    Args:
        grace_s: seconds between a stopping signal and SIGKILL.
        feed: gets every line of its standard error and returns whether to print it.

    Raises:
        FatalError: the command cannot be started.
    """
    return _Supervisor(grace_s, feed, companion).run(argv, env)


class _Supervisor:
    def __init__(self, grace_s: float, feed: Callable[[bytes], bool] | None, companion: Companion | None) -> None:
        self.grace_s = grace_s
        self.feed = feed
        self.companion = companion
        self.child = 0
        self.shell = False
        self.awaited: list[int] = []  # what a shell left behind that was told to end
        self.status: int | None = None
        self.signum = 0
        self.deadline = float("inf")
        self.killed = False
        self.reaped = 0

    def run(self, argv: Sequence[str], env: Mapping[str, str]) -> Ended:
        waited = {*FORWARDED, signal.SIGCHLD}
        # While the terminal is the command's, one with `stty tostop` would stop us at the next line of the log.
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, {*waited, signal.SIGTTOU})
        started, terminal = time.monotonic(), holds_terminal()
        try:
            adopt_orphans()
            pump = self._start(argv, env, terminal=terminal)
            if self.companion:
                self.companion.start(self.child)
            while self.status is None or any(is_alive(pid) for pid in self.awaited):
                self._step(waited)
            self._sweep()
            if pump:
                pump.join(DRAIN_SECONDS)
        finally:
            if terminal:
                take_terminal()
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)
        return Ended(exit_code(self.status), self.signum, self.killed, self.reaped, time.monotonic() - started)

    def _start(self, argv: Sequence[str], env: Mapping[str, str], *, terminal: bool) -> threading.Thread | None:
        read, write = os.pipe() if self.feed else (-1, -1)
        try:
            process = spawn(argv, env=env, stderr=write if self.feed else None, terminal=terminal)
        except OSError as error:
            if self.feed:
                os.close(read)
            raise cannot_start(argv, error) from error
        finally:
            if self.feed:
                os.close(write)
        self.child, self.shell = process.pid, is_shell(argv)
        process.returncode = 0  # we reap it ourselves, with everybody else's orphans
        if not self.feed:
            return None
        pump = threading.Thread(target=_pump, args=(read, self.feed), daemon=True)
        pump.start()
        return pump

    def _step(self, waited: set[signal.Signals]) -> None:
        left = min(NO_DEADLINE_S, max(0.0, self.deadline - time.monotonic()))
        info = signal.sigtimedwait(waited, left)
        if info is None:
            if time.monotonic() >= self.deadline:
                self._kill()
        elif info.si_signo == signal.SIGCHLD:
            self._reap()
        else:
            self._forward(info.si_signo)

    def _forward(self, signum: int) -> None:
        """
        To the command only: a shot into the group would kill data-loader workers in the middle of a checkpoint.

        A shell without a trap hands nothing on: what it waits for gets a stopping signal, too, and outlives it.
        """
        if signum in STOPPING:
            get_logger().info("stopping", signal=signal_name(signum), grace_s=self.grace_s)
            self.signum = self.signum or signum
            self.deadline = min(self.deadline, time.monotonic() + self.grace_s)
            if self.companion and self.companion.stop(signum):
                return
            if self.shell and not catches(self.child, signum):
                self.awaited += descendants(self.child, recursive=False)
        for pid in (self.child, *self.awaited):
            with suppress(ProcessLookupError):
                os.kill(pid, signum)

    def _reap(self) -> None:
        for pid, status in ended_children():
            if pid == self.child:
                self.status = status
            else:
                self.reaped += 1

    def _kill(self) -> None:
        get_logger().warning("the grace is over, killing", grace_s=self.grace_s)
        self.killed = True
        self.deadline = float("inf")
        kill_descendants()

    def _sweep(self) -> None:
        """Nothing that the command started may outlive it: as PID 1 the kernel sees to that, elsewhere we do."""
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        kill_descendants()
        self._reap()


def is_shell(argv: Sequence[str]) -> bool:
    """Return whether a command is a shell with a script of its own."""
    return argv[0].rpartition("/")[2] in SHELLS


def cannot_start(argv: Sequence[str], error: OSError) -> FatalError:
    """Return the error for a command that the kernel refused."""
    return FatalError(
        "command-not-started",
        f"cannot start {argv[0]!r}: {error.strerror}",
        hint="check the command after `--`, and that the training image has it on PATH",
    )


def _pump(read: int, feed: Callable[[bytes], bool]) -> None:
    """Copy standard error line by line."""
    try:
        for line in _lines(read):
            if feed(line):
                with suppress(OSError):
                    sys.stderr.buffer.write(line)
                    sys.stderr.buffer.flush()
    finally:
        os.close(read)


def _lines(read: int) -> Iterator[bytes]:
    """Yield lines, and at once what ends in a carriage return: a progress bar may not end its line for an hour."""
    parts: list[bytes] = []
    while chunk := os.read(read, 1 << 16):
        for part in chunk.splitlines(keepends=True):
            parts.append(part)
            if part.endswith((b"\n", b"\r")) or sum(map(len, parts)) >= LONGEST_LINE:
                yield b"".join(parts)
                parts = []
    if parts:
        yield b"".join(parts)
