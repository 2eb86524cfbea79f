"""Signals, process groups and descendants: what it takes to end every process that we start."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from trainer_agent.errors import Terminated

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# A process in uninterruptible sleep (state D) ignores SIGKILL; after this we leave it behind.
REAP_SECONDS = 1.0
TERMINATION_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def catch_termination() -> None:
    """Make SIGTERM, SIGINT and SIGHUP raise `Terminated`, also when this is PID 1."""

    def raise_terminated(signum: int, _frame: object) -> NoReturn:
        raise Terminated(signum)

    for signum in TERMINATION_SIGNALS:
        signal.signal(signum, raise_terminated)


def die_with_parent(signum: int = signal.SIGKILL) -> None:
    """Ask the kernel to send `signum` to this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signum))


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants, as PID 1 is by nature."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


@contextmanager
def termination_held() -> Iterator[None]:
    """Hold SIGTERM, SIGINT and SIGHUP back: Python swallows what a handler raises while its hooks run after a fork."""
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, TERMINATION_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def wait_for(pid: int, seconds: float) -> int | None:
    """Return the wait status of `pid`, or None when it has not ended after `seconds`."""
    deadline = time.monotonic() + seconds
    pause = 0.0005
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        if time.monotonic() >= deadline:
            return None
        time.sleep(pause)
        pause = min(pause * 2, 0.05)


def kill_group(pid: int) -> None:
    """Kill a child and everything in its group."""
    for kill in (os.killpg, os.kill):  # the group may not exist yet, just after the fork
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def describe_status(status: int | None) -> str:
    """Return a wait status in words."""
    if status is None:
        return "does not end"
    code = os.waitstatus_to_exitcode(status)
    return f"killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code} and no answer"


def signal_name(signum: int) -> str:
    """Return `SIGKILL` for 9, and `signal 77` for a number without a name."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def ending(code: int) -> str:
    """Return in words how a process ended: with an exit code, or -n for signal n."""
    return f"was killed by {signal_name(-code)}" if code < 0 else f"exited with code {code}"


def exit_code(status: int) -> int:
    """Return the shell's exit code for a wait status: 128 + n for signal n."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def holds_terminal() -> bool:
    """Return whether standard input is a terminal that our process group may read from."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def take_terminal() -> None:
    """Make our process group the one that may read from the terminal; where there is none any more, do nothing."""
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])  # else the kernel stops who is not that group
    with suppress(OSError):
        os.tcsetpgrp(0, os.getpgrp())
    signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    terminal: bool = False,
) -> subprocess.Popen[bytes]:
    """
    Start a command in a process group of its own that gets SIGTERM when this process dies.

    Args:
        terminal: hand our terminal over, as the kernel stops a group that reads from one that is another's.
    """
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))
        if terminal:  # here, as tini does: our own parent may be about to give it to us
            take_terminal()
        signal.pthread_sigmask(signal.SIG_SETMASK, [])

    with termination_held():
        return subprocess.Popen(  # the command is the user's; no thread runs yet when we fork
            list(argv),
            env=dict(env),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            process_group=0,
            preexec_fn=prepare,  # noqa: PLW1509  # no thread runs yet
        )


def descendants(pid: int | None = None, *, recursive: bool = True) -> list[int]:
    """Return the pids of all living descendants of a process, of this one by default; or of its children alone."""
    import psutil

    found = []
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=recursive):
            with suppress(psutil.NoSuchProcess):  # it ended between the two questions
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.pid)
    return found


def is_alive(pid: int) -> bool:
    """Return whether a process has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def catches(pid: int, signum: int) -> bool:
    """Return whether a process has a handler of its own for a signal (SigCgt of /proc/PID/status)."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (signum - 1) & 1)
    return False


def ended_children() -> Iterator[tuple[int, int]]:
    """Reap the children that have ended, adopted ones too; yield pid and wait status of each."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended


def children_left() -> bool:
    """Reap the children that have ended; return whether others live."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def kill_descendants(signum: int = signal.SIGKILL) -> None:
    """Send `signum` to every descendant of this process."""
    for pid in descendants():
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)
