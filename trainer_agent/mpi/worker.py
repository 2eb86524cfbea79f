"""
Run sshd as its parent, as PID 1 of a worker must: reap orphans, and give the ranks of this pod time when it is deleted.

Were sshd itself PID 1, the ranks would be killed together with it, without a signal before that.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from trainer_agent.errors import FatalError, RetryError
from trainer_agent.log import get_logger
from trainer_agent.mpi.sshd import banner
from trainer_agent.process import (
    REAP_SECONDS,
    TERMINATION_SIGNALS,
    adopt_orphans,
    children_left,
    describe_status,
    ended_children,
    kill_descendants,
    signal_name,
    spawn,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from psutil import Process

LOOPBACK = "127.0.0.1"
START_S = 10.0
BANNER_S = 0.5
# Daemons and sessions have nothing to save; the pod's grace is ours and 5 s.
END_S = 2.0
POLL_S = 0.1
# Without a deadline sigtimedwait still wants a number of seconds.
NO_DEADLINE_S = 3600.0
# What MPI implementations start on a host, each rank as its child: Open MPI 4, Open MPI 5, MPICH and Intel MPI.
# Intel's bstrap proxy is the parent of a pmi proxy. Linux keeps 15 characters of a name.
DAEMONS = ("orted", "prted", "hydra_pmi_proxy", "hydra_bstrap_pr")
# What the kubelet's probes and waiting launchers leave in sshd's log, every few seconds as long as the pod lives.
OF_PROBES = re.compile(
    rb"(error: )?(kex_exchange_identification|banner exchange|send_error): .*"
    rb"|Connection (closed|reset) by \S+ port \d+"
)


def serve(
    argv: Sequence[str], env: Mapping[str, str], *, port: int, grace_s: float, on_ready: Callable[[str], None]
) -> int:
    """
    Run sshd until somebody stops us, then let the ranks end; return the exit code, 128 + n for signal n.

    Args:
        grace_s: seconds that the ranks have from their SIGTERM on.
        on_ready: called with sshd's version when it answers.

    Raises:
        FatalError: sshd cannot be started.
        RetryError: it does not answer, or has ended by itself.
    """
    return _Worker(argv, port=port, grace_s=grace_s).run(env, on_ready)


class _Worker:
    def __init__(self, argv: Sequence[str], *, port: int, grace_s: float) -> None:
        self.argv = argv
        self.port = port
        self.grace_s = grace_s
        self.sshd = 0
        self.status: int | None = None
        self.signum = 0
        self.words: _Words | None = None

    def run(self, env: Mapping[str, str], on_ready: Callable[[str], None]) -> int:
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, {*TERMINATION_SIGNALS, signal.SIGCHLD})
        try:
            adopt_orphans()
            self._start(env)
            if version := self._answer():
                on_ready(version)
            while not self._is_over:
                self._step(NO_DEADLINE_S)
            died = None if self.signum else self._death()
            self._stop()
        finally:
            end_descendants()
            while signal.sigtimedwait(TERMINATION_SIGNALS, 0):
                pass  # who is impatient changes nothing
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)
        if died:
            raise died
        return 128 + self.signum

    @property
    def _is_over(self) -> bool:
        return bool(self.signum) or self.status is not None

    def _start(self, env: Mapping[str, str]) -> None:
        read, write = os.pipe()
        try:
            process = spawn(self.argv, env=env, stderr=write)
        except OSError as error:
            os.close(read)
            hint = "name the program with --sshd"
            raise FatalError("mpi-sshd-missing", f"cannot start {self.argv[0]}: {error.strerror}", hint=hint) from error
        finally:
            os.close(write)
        self.sshd = process.pid
        process.returncode = 0  # we reap it ourselves, with everybody else's orphans
        self.words = _Words(read)
        self.words.start()

    def _answer(self) -> str | None:
        """Return what sshd says first, None when it has ended or somebody stops us."""
        deadline = time.monotonic() + START_S
        while not self._is_over:
            if said := banner(LOOPBACK, self.port, timeout_s=BANNER_S):
                return said
            if time.monotonic() >= deadline:
                raise self._silence()
            self._step(POLL_S)
        return None

    def _step(self, seconds: float) -> None:
        """Wait for a signal and take it; of those that stop us only the first counts."""
        info = signal.sigtimedwait({*TERMINATION_SIGNALS, signal.SIGCHLD}, seconds)
        if info is None:
            return
        if info.si_signo == signal.SIGCHLD:
            self._reap()
        else:
            self.signum = self.signum or info.si_signo

    def _reap(self) -> None:
        for pid, status in ended_children():
            if pid == self.sshd:
                self.status = status

    def _stop(self) -> None:
        """Let nobody in any more, ask the ranks to end, and wait for them."""
        if self.status is None:
            os.kill(self.sshd, signal.SIGTERM)  # to it alone: its sessions live on
        deadline = time.monotonic() + self.grace_s
        asked = ask(set())
        if self.signum or asked:
            reason = signal_name(self.signum) if self.signum else "sshd has ended"
            get_logger().info("stopping", reason=reason, ranks=len(asked), grace_s=self.grace_s)
        while (left := [rank for rank in asked if lives(rank)]) and time.monotonic() < deadline:
            self._step(min(POLL_S, self.grace_s))
            asked |= ask(asked)  # a daemon may have been about to start some
        if left:
            get_logger().warning("the grace is over, killing", ranks=len(left), grace_s=self.grace_s)
        elif asked:
            get_logger().info("all ranks have ended", ranks=len(asked))

    def _silence(self) -> RetryError:
        return RetryError(
            "mpi-sshd-silent",
            f"sshd does not answer on {LOOPBACK}:{self.port} within {START_S:g} s{self._last_words()}",
            hint="look at the CPU limit and the memory limit of the pod",
        )

    def _death(self) -> RetryError:
        if self.words:
            self.words.join(REAP_SECONDS)  # its sessions may hold standard error open
        return RetryError(
            "mpi-sshd-ended",
            f"sshd {_in_words(self.status)}{self._last_words()}",
            hint="look at its lines above; killed by SIGKILL means most often that the pod had too little memory",
        )

    def _last_words(self) -> str:
        words = self.words.last if self.words else ()
        return f"; its last words: {' / '.join(words)}" if words else ""


def ask(already: set[Process]) -> set[Process]:
    """Send SIGTERM to the ranks below us but those that were asked before; return them."""
    import psutil

    new = ranks() - already
    for rank in new:
        with suppress(psutil.Error):
            rank.send_signal(signal.SIGTERM)
    return new


def ranks() -> set[Process]:
    """Return the processes that MPI's daemons have started below us; not what these have started in turn."""
    import psutil

    below = {process.pid: process for process in psutil.Process().children(recursive=True)}
    daemons = {pid for pid, process in below.items() if _name(process) in DAEMONS}
    found = set()
    for pid in below.keys() - daemons:
        with suppress(psutil.NoSuchProcess):
            if below[pid].ppid() in daemons and lives(below[pid]):
                found.add(below[pid])
    return found


def lives(process: Process) -> bool:
    """Return whether a process has not ended; its daemon may reap it later."""
    import psutil

    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def end_descendants() -> None:
    """Ask all that is left below us to end, then kill it."""
    for signum, seconds in ((signal.SIGTERM, END_S), (signal.SIGKILL, REAP_SECONDS)):
        kill_descendants(signum)
        deadline = time.monotonic() + seconds
        while children_left() and time.monotonic() < deadline:
            time.sleep(0.01)


class _Words(threading.Thread):
    """Passes on what sshd and its sessions say, without what probes make them say."""

    def __init__(self, read: int) -> None:
        super().__init__(daemon=True)
        self.read = read
        self.last: deque[str] = deque(maxlen=3)

    def run(self) -> None:
        with os.fdopen(self.read, "rb") as lines:
            for line in lines:
                text = line.rstrip(b"\r\n")
                if OF_PROBES.fullmatch(text):
                    continue
                self.last.append(text.decode(errors="replace"))
                with suppress(OSError):
                    sys.stderr.buffer.write(text + b"\n")
                    sys.stderr.buffer.flush()


def _name(process: Process) -> str:
    import psutil

    try:
        return process.name()[:15]
    except psutil.NoSuchProcess:
        return ""


def _in_words(status: int | None) -> str:
    return describe_status(status).removesuffix(" and no answer")
