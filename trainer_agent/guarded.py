"""
Run a program that is not ours so that nothing of it stays: no child, no orphan, no endless output.

A guard, forked for each program, adopts whatever the program leaves behind and ends it. It notices when its own parent
is gone, even by SIGKILL, so that a preflight that is killed leaves no process either.
"""

from __future__ import annotations

import math
import os
import pickle
import select
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Self

from trainer_agent.process import (
    REAP_SECONDS,
    TERMINATION_SIGNALS,
    adopt_orphans,
    children_left,
    descendants,
    die_with_parent,
    kill_descendants,
    kill_group,
    termination_held,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import IO, Any

OUTPUT_BYTES = 1 << 20
END_S = 3.0  # what it takes at most to end a program and all that it left behind, and a little more
TAIL_BYTES = 4096
CHUNKS = 16  # 1 MiB, the most that a pipe holds
LOOK_S = 0.1
MIB = 1 << 20


@dataclass(frozen=True)
class Ended:
    """
    How a program ended.

    Args:
        code: its exit code, -n when signal n ended it, None when it does not end even when it is killed.
        stdout: all that it wrote; `stderr` only the end of it.
        problem: why it was killed, in words; empty when it ended by itself.
        timed_out: whether that was because its time was up.
        salvaged: what was read of its files, as they are gone.
    """

    code: int | None
    stdout: str
    stderr: str
    problem: str
    timed_out: bool
    duration_s: float
    salvaged: Any = None

    @property
    def end(self) -> str:
        """Return how it ended by itself where that was no good end: its exit code or signal in words, or nothing."""
        if not self.code:
            return ""
        return f"ended with exit code {self.code}" if self.code > 0 else f"was killed by signal {-self.code}"

    @property
    def last_words(self) -> str:
        """Return the last line of standard error."""
        return self.stderr.strip().rpartition("\n")[2]

    @property
    def last_line(self) -> str:
        """Return the last line of standard output."""
        return self.stdout.strip().rpartition("\n")[2]


@dataclass(frozen=True)
class _Task:
    argv: Sequence[str]
    environ: Mapping[str, str]
    timeout_s: float = math.inf
    cwd: str | None = None
    memory_bytes: float | None = None
    scratch: str | None = None
    salvage: Callable[[], object] = lambda: None
    stdin: int = subprocess.DEVNULL
    stdout: int = subprocess.PIPE
    fds: tuple[int, ...] = ()

    @property
    def given(self) -> list[int]:
        """The files of ours that the program gets."""
        return [fd for fd in (self.stdin, self.stdout, *self.fds) if fd >= 0]


def run_guarded(
    argv: Sequence[str],
    *,
    environ: Mapping[str, str],
    timeout_s: float,
    memory_bytes: float | None = None,
    cwd: str | None = None,
    scratch: str | None = None,
    salvage: Callable[[], object] = lambda: None,
) -> Ended:
    """
    Run a program to its end, or kill it with all its descendants after `timeout_s` seconds.

    It is killed, too, when it writes more than 1 MiB to standard output, or when its processes together hold more
    than `memory_bytes` of memory of their own. Should the kernel run out of memory, it takes this program first.

    Args:
        scratch: a directory to remove when the program has ended, also where nobody waits for it any more.
        salvage: reads before that what is of use in it.

    Raises:
        OSError: the program cannot be started.
    """
    with Guarded(_Task(argv, environ, timeout_s, cwd, memory_bytes, scratch, salvage)) as program:
        return program.wait(timeout_s + END_S)


def start_guarded(
    argv: Sequence[str], *, environ: Mapping[str, str], stdin: int, stdout: int, fds: tuple[int, ...] = ()
) -> Guarded:
    """Start a program that we talk with; it gets these files, and `fds` under their own numbers."""
    return Guarded(_Task(argv, environ, stdin=stdin, stdout=stdout, fds=fds))


class Guarded:
    """
    A program that runs under its guard, until it ends, or `end` is called, or we are gone.

    The guard may hang, too: it waits for the program's file to be opened, on a dead file server for ever.
    """

    def __init__(self, task: _Task) -> None:
        self.began = time.monotonic()
        self.ended: Ended | None = None
        self.error: OSError | None = None
        lifeline, self.lifeline = os.pipe()
        self.answer, answer = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        with termination_held():
            self.guard = os.fork()
            if self.guard == 0:
                _guard(lifeline, answer, task)
        os.close(lifeline)
        os.close(answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        with suppress(OSError):
            self.end()

    def wait(self, limit_s: float = END_S) -> Ended:
        """
        Return how it ended; when nothing is known after `limit_s` seconds, it is killed together with its guard.

        Raises:
            OSError: it could not be started.
        """
        if self.error:
            raise self.error
        if self.ended is None:
            self.ended = self._found(limit_s)
        return self.ended

    def end(self) -> Ended | None:
        """End it, and everything that it started; return how it ended, None when that is not known."""
        lifeline, self.lifeline = self.lifeline, -1
        if lifeline < 0:
            return self.ended
        deadline = time.monotonic() + END_S
        os.close(lifeline)  # the guard ends what still runs
        try:
            return self.wait(END_S)
        finally:  # a guard that does not die either, in state D, is left behind: it holds nothing of ours
            os.close(self.answer)
            if wait_for(self.guard, deadline - time.monotonic()) is None:
                self._kill()
                wait_for(self.guard, REAP_SECONDS)

    def _found(self, limit_s: float) -> Ended:
        data = self._answer(limit_s)
        if data is None:
            self._kill()
            problem = (
                f"no answer within {round(limit_s, 2):g} s, nor from its guard: it may wait for a file server (state D)"
            )
            return Ended(None, "", "", problem, timed_out=True, duration_s=time.monotonic() - self.began)
        found = pickle.loads(data) if data else OSError("its guard was killed")  # noqa: S301  # our own child packed it
        if isinstance(found, OSError):
            self.error = found
            raise found
        (code, out, err, problem, timed_out), salvaged = found
        return Ended(code, _text(out), _text(err), problem, timed_out, time.monotonic() - self.began, salvaged)

    def _answer(self, limit_s: float) -> bytes | None:
        """Return all that the guard says, None when it does not come to its end in time."""
        data, deadline = b"", time.monotonic() + limit_s
        poll = select.poll()  # select takes no file above 1023
        poll.register(self.answer, select.POLLIN)
        while (left := deadline - time.monotonic()) > 0:
            if poll.poll(1000 * min(LOOK_S, left)):
                chunk = os.read(self.answer, 1 << 20)
                if not chunk:
                    return data
                data += chunk
        return None

    def _kill(self) -> None:
        """Kill the guard and all below it; what has not left the guard's group yet is in that, too."""
        for pid in (*descendants(self.guard), self.guard):
            kill_group(pid)


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _guard(lifeline: int, answer: int, task: _Task) -> NoReturn:
    """In the fork: run the program apart from our parent's group and files, and send what comes of it."""
    with suppress(BaseException):  # nothing may travel up into a copy of the parent's stack
        os.setsid()
        adopt_orphans()
        for signum in TERMINATION_SIGNALS:
            signal.signal(signum, signal.SIG_IGN)
        keep_only(lifeline, answer, *task.given)
        found: object
        try:
            found = _run(task, lifeline), task.salvage()
        except OSError as error:
            found = error
        if task.scratch:
            import shutil

            shutil.rmtree(task.scratch, ignore_errors=True)
        with os.fdopen(answer, "wb") as reply:
            pickle.dump(found, reply)
    os._exit(0)


def keep_only(*fds: int) -> None:
    """Close all files but these: whoever waits for the end of our parent's pipes must not wait for us."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in {0, 1, 2} - set(fds):
        os.dup2(null, standard)
    for entry in list(Path("/proc/self/fd").iterdir()):  # the limit of open files may be a billion
        if int(entry.name) not in (0, 1, 2, *fds):
            with suppress(OSError):  # the one that listed them
                os.close(int(entry.name))


def _run(task: _Task, lifeline: int) -> tuple[int | None, bytes, bytes, str, bool]:
    program = subprocess.Popen(
        list(task.argv),
        env=dict(task.environ),
        cwd=task.cwd,
        stdin=task.stdin,
        stdout=task.stdout,
        stderr=subprocess.PIPE,
        pass_fds=task.fds,
        process_group=0,
        preexec_fn=_prepare,  # noqa: PLW1509  # no thread runs here
    )
    for fd in task.given:  # so that it hears of our parent's end, and our parent of its end
        os.close(fd)
    watch = _Watch(program, lifeline)
    problem = watch.until_end(task.timeout_s, task.memory_bytes)
    problem += _end(program)
    watch.drain()
    return program.returncode, bytes(watch.out), bytes(watch.err), problem, watch.timed_out


def _prepare() -> None:
    """In the program before it starts: die with the guard, be the first that the kernel kills for memory."""
    die_with_parent()
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


class _Watch:
    """Collects what a program writes until it ends, or until there is a reason to end it."""

    def __init__(self, program: subprocess.Popen[bytes], lifeline: int) -> None:
        self.program = program
        self.lifeline = lifeline
        self.timed_out = False
        self.out, self.err = bytearray(), bytearray()
        self.selector = selectors.DefaultSelector()
        for stream in (program.stdout, program.stderr):
            if stream:
                os.set_blocking(stream.fileno(), False)
                self.selector.register(stream, selectors.EVENT_READ)
        self.selector.register(lifeline, selectors.EVENT_READ)
        with suppress(OSError):  # a kernel older than 5.3; then we look every 0.1 s
            self.selector.register(os.pidfd_open(program.pid), selectors.EVENT_READ)

    def until_end(self, timeout_s: float, memory_bytes: float | None) -> str:
        """Return why the program must be killed, nothing when it has ended."""
        deadline = time.monotonic() + timeout_s
        while self.program.poll() is None:
            left = deadline - time.monotonic()
            if left <= 0:
                self.timed_out = True
                return f"no answer within {round(timeout_s, 2):g} s"
            ready = [key.fileobj for key, _ in self.selector.select(min(LOOK_S, left))]
            if self.lifeline in ready:
                return "nobody waits for it any more"
            self.drain()
            if len(self.out) > OUTPUT_BYTES:
                return f"it wrote more than {OUTPUT_BYTES >> 20} MiB to standard output"
            if memory_bytes is not None and _memory_bytes() > memory_bytes:
                return f"it took more than {memory_bytes / MIB:.0f} MiB of memory"
        return ""

    def drain(self) -> None:
        """Take what has been written, and no more of it than is wanted."""
        while (chunk := self._chunk(self.program.stdout)) and len(self.out) <= OUTPUT_BYTES:
            self.out += chunk
        for _ in range(CHUNKS):  # somebody may write faster than we read, and the deadline counts
            self.err += self._chunk(self.program.stderr)
            del self.err[:-TAIL_BYTES]

    def _chunk(self, stream: IO[bytes] | None) -> bytes:
        """Return what is there now, and listen no longer to what has ended."""
        if stream is None:
            return b""
        try:
            chunk = os.read(stream.fileno(), 1 << 16)
        except BlockingIOError:
            return b""
        if not chunk:
            with suppress(KeyError):
                self.selector.unregister(stream)
        return chunk


def _memory_bytes() -> int:
    """Return what all our descendants hold and do not share."""
    import psutil

    total = 0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            held = process.memory_info()
            total += held.rss - held.shared
    return total


def _end(program: subprocess.Popen[bytes]) -> str:
    """Kill the program and all that it left behind; return what is wrong when something does not die."""
    deadline = time.monotonic() + REAP_SECONDS
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(program.pid, signal.SIGKILL)
    while time.monotonic() < deadline:
        program.poll()
        if program.returncode is not None and not children_left():
            return ""
        kill_descendants()
        time.sleep(0.005)
    stuck = f" in {_waits_in(program.pid)}" if program.returncode is None else ""
    return f"; something of it does not die when killed (state D: it waits for a device or a file server{stuck})"


def _waits_in(pid: int) -> str:
    """Return the kernel function that a process sleeps in."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/wchan").read_text().strip("0") or "the kernel"
    return "the kernel"
