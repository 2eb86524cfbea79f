"""
Run a command as its parent, as PID 1 of a container must: forward signals, reap orphans, keep our own grace.

Signals are blocked and taken one by one with sigtimedwait, so none is lost between two lines of code.
"""

from __future__ import annotations

import os
import select
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
    ended_children,
    exit_code,
    hand_terminal,
    heeded,
    holds_terminal,
    kill_descendants,
    signal_name,
    spawn,
    take_terminal,
    terminal_group,
    was_stopped,
    write_whole,
)
from trainer_agent.shells import BelowShells, is_shell, living, parent, tell, words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

STOPPING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
FORWARDED = {*STOPPING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGWINCH}
# Without a deadline sigtimedwait still wants a number of seconds.
NO_DEADLINE_S = 3600.0
# Who is below a shell may end, or have to be told, without a signal to us.
LOOK_S = 0.2
# What a script's trap should have told hears of the end from us when so much of the grace is left, in seconds at most.
LAST_CALL, LAST_CALL_S = 0.2, 5.0
# Orphans may hold standard error open after the command has ended; after this we leave them to it.
DRAIN_SECONDS = 2.0
# An event of torchrun holds a failing rank's whole message on one line, escaped three times over.
LONGEST_LINE = 4 << 20
# A prompt has no line end: this long it may be held back, except where an event may begin.
PROMPT_S = 0.2
EVENT_BEGINS = b"{"


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
        self.below = BelowShells()
        self.terminal = terminal_group() >= 0
        self.lent = False  # whether the command has had the terminal from us
        self.status: int | None = None
        self.signum = 0
        self.last_call = self.deadline = float("inf")
        self.killed = False
        self.reaped = 0

    def run(self, argv: Sequence[str], env: Mapping[str, str]) -> Ended:
        waited = {*heeded(FORWARDED), signal.SIGCHLD}
        # While the terminal is the command's, one with `stty tostop` would stop us at the next line of the log.
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, {*waited, signal.SIGTTOU})
        started, self.lent = time.monotonic(), holds_terminal()
        try:
            adopt_orphans()
            pump = self._start(argv, env)
            if self.companion:
                self.companion.start(self.child)
            while self.status is None or living(self.below.awaited):
                self._step(waited)
            self._sweep()
            if pump:
                pump.join(DRAIN_SECONDS)
        finally:
            if self.lent:
                take_terminal()
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)
        return Ended(exit_code(self.status), self.signum, self.killed, self.reaped, time.monotonic() - started)

    def _start(self, argv: Sequence[str], env: Mapping[str, str]) -> threading.Thread | None:
        self.child, pump = start(argv, env=env, feed=self.feed, terminal=self.lent)
        if pump:
            pump.start()
        return pump

    def _step(self, waited: set[signal.Signals]) -> None:
        longest = LOOK_S if self.below.awaited else NO_DEADLINE_S
        due = min(self.last_call, self.deadline) - time.monotonic()
        info = signal.sigtimedwait(waited, min(longest, max(0.0, due)))
        self.below.tell_late(time.monotonic())
        if time.monotonic() >= self.last_call:
            self._tell_last()
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

        A shell hands nothing on: what it waits for gets a stopping signal, too, and may outlive it.
        """
        if signum == signal.SIGCONT and self.terminal:
            self._continue()
        elif signum not in STOPPING:
            self._send(signum)
        else:
            now = time.monotonic()
            if not self.signum:
                self.signum = signum
                self.last_call = now + self.grace_s - min(LAST_CALL_S, LAST_CALL * self.grace_s)
            self.deadline = min(self.deadline, now + self.grace_s)
            if not (self.companion and self.companion.stop(signum)):
                self.below.look(self.child, signum)
                self._send(signum)
                self._send_group(signal.SIGCONT)  # who is stopped would hear of it when the grace is over
            get_logger().info("stopping", signal=signal_name(signum), grace_s=self.grace_s)

    def _send(self, signum: int) -> None:
        tell((self.child, *self.below.told), signum)

    def _send_group(self, signum: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.child, signum)

    def _pause(self) -> None:
        """
        Ctrl-Z stops the command's group alone: be stopped with ours, so that the user's shell has the terminal again.

        Where nobody could have us go on, as in a container, the kernel does not stop us, and the command goes on; of an
        init process it does not know that.
        """
        if self.lent:
            take_terminal()
            self.lent = False
        if parent(os.getpgrp()) != 1 or is_shell(words(1)):
            os.kill(0, signal.SIGTSTP)
        self._continue()

    def _continue(self) -> None:
        """Let the command go on: with the terminal after `fg`, without it after `bg`."""
        if holds_terminal():
            hand_terminal(self.child)
            self.lent = True
        self._send_group(signal.SIGCONT)

    def _reap(self) -> None:
        if self.terminal and was_stopped(self.child):
            self._pause()
        for pid, status in ended_children():
            self.below.forget(pid)
            if pid == self.child:
                self.status = status
            else:
                self.reaped += 1

    def _tell_last(self) -> None:
        self.last_call = float("inf")
        if late := self.below.tell_last():
            message = "the script's trap has not reached these, or they need long: telling them before the grace ends"
            programs = [f"{name} (pid {pid})" for pid, name in late.items()]
            get_logger().warning(message, programs=programs, grace_s=self.grace_s)

    def _kill(self) -> None:
        self.killed = True
        self.deadline = float("inf")
        self.below = BelowShells()  # who is not ours to kill is not awaited for ever
        kill_descendants()
        get_logger().warning("the grace is over, killing", grace_s=self.grace_s)

    def _sweep(self) -> None:
        """Nothing that the command started may outlive it: as PID 1 the kernel sees to that, elsewhere we do."""
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        kill_descendants()
        self._reap()


def start(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    feed: Callable[[bytes], bool] | None,
    stdin: int | None = None,
    terminal: bool = False,
) -> tuple[int, threading.Thread | None]:
    """
    Start a command that the caller reaps; return its pid and what reads its standard error for `feed`.

    That thread is to be started when nothing is forked any more, and ends when nobody can write there any more.

    Raises:
        FatalError: the kernel refused.
    """
    read, write = os.pipe() if feed else (-1, -1)
    try:
        process = spawn(argv, env=env, stdin=stdin, stderr=write if feed else None, terminal=terminal)
    except OSError as error:
        if feed:
            os.close(read)
        raise cannot_start(argv, error) from error
    finally:
        if feed:
            os.close(write)
    process.returncode = 0  # with everybody else's orphans
    return process.pid, threading.Thread(target=_pump, args=(read, feed), daemon=True) if feed else None


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
                write_whole(sys.stderr.fileno(), line)
    finally:
        os.close(read)


def _lines(read: int) -> Iterator[bytes]:
    """
    Yield lines, and at once what ends in a carriage return: a progress bar may not end its line for an hour.

    What has no end for a moment, as a prompt, is yielded in pieces.
    """
    held, since = bytearray(), 0.0
    poll = select.poll()
    poll.register(read, select.POLLIN)
    while True:
        waiting = held and not held.startswith(EVENT_BEGINS)
        left = max(0.0, since + PROMPT_S - time.monotonic()) if waiting else None
        if not poll.poll(None if left is None else 1000 * left):
            yield bytes(held)
            held.clear()
        elif chunk := os.read(read, 1 << 16):
            for part in chunk.splitlines(keepends=True):
                since = since if held else time.monotonic()
                held += part
                if part.endswith((b"\n", b"\r")) or len(held) >= LONGEST_LINE:
                    yield bytes(held)
                    held.clear()
        else:
            break
    if held:
        yield bytes(held)
