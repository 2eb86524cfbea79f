"""Signals, process groups and descendants: what it takes to end every process that we start."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

from trainer_agent.errors import Terminated
from trainer_agent.shells import file_of, living

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# A process in uninterruptible sleep (state D) ignores SIGKILL; after this we leave it behind.
REAP_SECONDS = 1.0
TERMINATION_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def catch_termination() -> None:
    """Make SIGTERM, SIGINT and SIGHUP raise `Terminated`, also when this is PID 1; what we are to ignore stays so."""

    def raise_terminated(signum: int, _frame: object) -> NoReturn:
        raise Terminated(signum)

    for signum in heeded(TERMINATION_SIGNALS):
        signal.signal(signum, raise_terminated)


def heeded(signals: Iterable[signal.Signals]) -> set[signal.Signals]:
    """Return those of some signals that whoever started us does not have us ignore, as nohup does; PID 1 needs all."""
    return {signum for signum in signals if os.getpid() == 1 or signal.getsignal(signum) is not signal.SIG_IGN}


def hear_of_children() -> None:
    """Have SIGCHLD come, and ended children stay until we ask, whatever whoever started us ignores or blocks."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])


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


def terminal_group() -> int:
    """Return the process group that may read from the terminal at standard input, -1 where there is none."""
    try:
        return os.tcgetpgrp(0)
    except OSError:
        return -1


def holds_terminal() -> bool:
    """Return whether standard input is a terminal that our process group may read from."""
    return terminal_group() == os.getpgrp()


def hand_terminal(group: int) -> None:
    """Make a process group the one that may read from the terminal; where there is none any more, do nothing."""
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])  # else the kernel stops who is not that group
    with suppress(OSError):
        os.tcsetpgrp(0, group)
    signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def take_terminal() -> None:
    """Make our own process group the one that may read from the terminal."""
    hand_terminal(os.getpgrp())


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

    A standard input that is /dev/null is opened anew, for reading and writing as containers have it: what a shell has
    in its background can be told by one for reading alone.

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
            stdin=subprocess.DEVNULL if stdin is None and file_of(os.getpid(), 0) == os.devnull else stdin,
            stdout=stdout,
            stderr=stderr,
            process_group=0,
            preexec_fn=prepare,  # noqa: PLW1509  # no thread runs yet
        )


def descendants(pid: int | None = None) -> list[int]:
    """Return the pids of all living descendants of a process, of this one by default."""
    import psutil

    found = []
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it ended between the two questions
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.pid)
    return found


def is_alive(pid: int) -> bool:
    """Return whether a process has not ended."""
    return bool(living([pid]))


def was_stopped(pid: int) -> bool:
    """Return whether a child has been stopped, as by Ctrl-Z, since we asked last."""
    try:
        return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG) is not None
    except ChildProcessError:
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


def write_whole(fd: int, data: bytes, *, within_s: float | None = None) -> bytes:
    """
    Write all of it and return what is left, where the kernel refuses: a full disk or a lost reader is nobody's end.

    Args:
        within_s: give up after so many seconds, as a reader may never read; without it, wait as a pipe does.
    """
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    at_once = select.PIPE_BUF if within_s is not None else len(data)  # so much a pipe with room takes without waiting
    deadline = time.monotonic() + (within_s or 0.0)
    left = memoryview(data)
    with suppress(OSError):
        while left:
            if not poll.poll(None if within_s is None else 1000 * max(0.0, deadline - time.monotonic())):
                break
            with suppress(BlockingIOError):  # somebody who has this file, too, wants no waiting
                left = left[os.write(fd, left[:at_once]) :]
    return bytes(left)


def kill_descendants(signum: int = signal.SIGKILL) -> None:
    """Send `signum` to every descendant of this process."""
    for pid in descendants():
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)
