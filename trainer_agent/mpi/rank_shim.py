"""
What mpirun starts for every rank: it tells the launcher that it is here, and runs the user's program when told to.

    python -IS -c <this text> PROGRAM ARGUMENT...

Sent as text, with what it imports of ours in its place (`plan.rank_program`), so that a worker needs Python alone, 3.8
or newer. The user's program is a child in a process group of its own, so that a signal to the group of the rank comes
to it once, through us. When mpirun kills us, a guard kills that group, as mpirun cannot know of it.

Signals are blocked and taken one by one, as only that says who sent them: our parent is mpirun's daemon.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import sys
import threading
import time
from contextlib import suppress

from trainer_agent.shells import BelowShells, living, tell

VARIABLE = "TRAINER_AGENT_RANKS"  # address, port and secret of the launcher
CONNECT_S = 60.0
# A launcher whose node is gone is noticed after 60 s: idle seconds, seconds between probes, probes.
KEEPALIVE = ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 4))
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
TAKEN = (*PASSED_ON, signal.SIGCHLD)
POLL_S = 0.05  # nobody tells us when a process of another parent ends
NO_DEADLINE_S = 3600.0
STOPPED = 128 + signal.SIGTERM
NOT_STARTED = 127  # as shells say it
PR_SET_PDEATHSIG = 1


def number(*names: str) -> int:
    """Return the first of these variables that is a number, -1 without."""
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), -1)


class Rank:
    """One rank: the connection to the launcher, and the user's program."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self.parent = os.getppid()
        self.child = self.guard = self.lifeline = 0
        self.heard = b""
        self.stopping = self.terminated = False
        self.below = BelowShells()
        self.leave = threading.Event()
        self.shooting = threading.Lock()

    def say(self, **facts: object) -> None:
        """Tell the launcher something, as long as there is one."""
        with suppress(OSError):
            self.link.sendall(json.dumps(facts).encode() + b"\n")

    def order(self) -> list[str]:
        """Return the launcher's next order in words, none when it is gone."""
        while b"\n" not in self.heard:
            more = b""
            with suppress(OSError):
                more = self.link.recv(4096)
            if not more:
                return []
            self.heard += more
        line, _, self.heard = self.heard.partition(b"\n")
        return line.decode().split()

    def start(self, argv: list[str]) -> None:
        """Start the user's program."""
        libc = ctypes.CDLL(None)
        lifeline, self.lifeline = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, TAKEN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would take away how the program has ended
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))  # without its daemon nobody could end the rank
        self.child = os.fork()
        if not self.child:
            become(libc, argv)
        self.guard = os.fork()
        if not self.guard:
            stand_guard(self.child, lifeline, self.link)
        os.close(lifeline)

    def wait(self) -> int:
        """Return how the program has ended, -n for signal n, when nothing of its group is left; it stays a zombie."""
        found = None
        while not found or living(self.below.awaited):
            info = signal.sigtimedwait(TAKEN, POLL_S if self.below.awaited else NO_DEADLINE_S)
            if info and info.si_signo != signal.SIGCHLD:
                self.pass_on(info.si_signo, by_mpi=info.si_pid == self.parent)
            with self.shooting:
                self.below.tell_late(time.monotonic())
            found = os.waitid(os.P_PID, self.child, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        with suppress(PermissionError):  # it may have become another user's
            os.killpg(self.child, signal.SIGKILL)
        os.write(self.lifeline, b"done")
        os.waitpid(self.guard, 0)
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def end(self, code: int) -> None:
        """End as the program has ended, so that mpirun sees what we saw."""
        os.waitpid(self.child, 0)  # not before: a late signal must not meet another process of its number
        if code < 0:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program's own core is the one to look at
            if code != -signal.SIGKILL:
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [-code])
        os._exit(abs(code) + 128 * (code < 0))

    def pass_on(self, signum: int, *, by_mpi: bool) -> None:
        """Hand on a signal that did not come from the launcher, and let it know."""
        self.stopping |= signum in ENDING
        self.say(signalled=signum, by_mpi=by_mpi)
        self.shoot(signum, ending=signum in ENDING)

    def shoot(self, signum: int, *, ending: bool) -> None:
        """
        Send the program a signal; SIGTERM once, though launcher and worker may both be told to end.

        A shell hands nothing on: what it waits for gets a signal to end, too, and may outlive it.
        """
        with self.shooting:
            if signum == signal.SIGTERM and self.terminated:
                return
            self.terminated |= signum == signal.SIGTERM
            if ending:
                self.below.look(self.child, signum)
            killing = signum == signal.SIGKILL
            tell((self.child, *living(self.below.awaited if killing else self.below.told)), signum)
            if killing:  # who is not ours to kill is not awaited for ever
                self.below = BelowShells()
        os.kill(os.getpid(), signal.SIGCHLD)  # the main thread has somebody to look after

    def obey(self) -> None:
        """Do what the launcher says until it says nothing more."""
        while order := self.order():
            if order == ["leave"]:
                self.leave.set()
            else:
                signum, stop = int(order[1]), order[0] == "stop"
                self.stopping |= stop
                self.shoot(signum, ending=stop or signum in ENDING)
        self.leave.set()


def become(libc: ctypes.CDLL, argv: list[str]) -> None:
    """In the child: become the user's program, which must not outlive us."""
    libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    os.setpgid(0, 0)
    for signum in (*PASSED_ON, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TAKEN)
    try:
        os.execvp(argv[0], argv)  # noqa: S606  # becoming the user's program is the job
    except OSError as error:
        sys.stderr.write(f"cannot start {argv[0]!r} on {socket.gethostname()}: {error.strerror}\n")
        sys.stderr.flush()
    os._exit(NOT_STARTED)


def stand_guard(child: int, lifeline: int, link: socket.socket) -> None:
    """In a process of its own: wait for our parent's end; where it was killed, say so and kill its program's group."""
    os.setsid()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  # pathlib would double what a rank costs to start
        if int(name) not in (lifeline, link.fileno()):  # whoever waits for the end of one of these must not wait for us
            with suppress(OSError):
                os.close(int(name))
    if not os.read(lifeline, 4):
        with suppress(OSError):
            link.send(b'{"killed": true}\n')
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
    os._exit(0)


def main(argv: list[str]) -> None:
    """Say who we are, wait for the word, run the program, say how it ended."""
    if VARIABLE not in os.environ:
        sys.exit(f"{VARIABLE} is not set on {socket.gethostname()}: mpirun did not hand it on; use --no-verify")
    host, port, token = os.environ.pop(VARIABLE).split()
    try:
        link = socket.create_connection((host, int(port)), CONNECT_S)
    except OSError as error:
        sys.exit(f"{socket.gethostname()} cannot reach the launcher at {host} port {port}: {error}")
    link.settimeout(None)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        link.setsockopt(socket.IPPROTO_TCP, option, value)
    rank = Rank(link)
    who = number("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
    size = number("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
    rank.say(token=token, rank=who, size=size, host=socket.gethostname())
    order = rank.order()
    if order != ["go"]:
        sys.exit(STOPPED if order else 1)
    rank.start(argv)
    threading.Thread(target=rank.obey, daemon=True).start()
    code = rank.wait()
    rank.say(ended=code)
    if rank.stopping:  # mpirun kills all others as soon as one has ended, in the middle of their checkpoints
        rank.leave.wait()
    rank.end(code)


if __name__ == "__main__":
    main(sys.argv[1:])
