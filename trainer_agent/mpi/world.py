"""
The ranks of a job and their launcher: who is here, the word to begin, the word to end, and how each one ended.

Every rank has a connection to us (rank_shim.py). One thread serves them all, without blocking: a stranger who connects
and says nothing, or nonsense, costs a socket and delays nobody.
"""

from __future__ import annotations

import hmac
import json
import os
import resource
import secrets
import selectors
import signal
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from trainer_agent.log import get_logger
from trainer_agent.mpi.census import Arrival, Census, placed
from trainer_agent.process import signal_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trainer_agent.errors import Finding
    from trainer_agent.mpi.census import Expected

LOOK_S = 0.2
LINE_BYTES = 4096
BACKLOG = 4096
# A connection whose host is gone ends after 60 s, which outlasts a restart of the network plugin: idle seconds,
# seconds between probes, probes.
KEEPALIVE = ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 4))
# mpirun ends the other ranks of a job when one has failed; MPICH's does not when that one never called MPI_Init.
FAILED_S = 2.0
# Ranks are killed this long before mpirun would be, so that mpirun still sees them end.
KILL_MARGIN_S = 2.0
TEARDOWN_S = 60.0  # from the end of the last rank; Open MPI 5's mpirun may then hang for ever
TERM_MARGIN_S = 5.0  # from SIGTERM to that, for ranks that are first told by another signal
LEAVE_S = 1.0  # what killed ranks take to say so
MPIRUN_S = 5.0  # from SIGTERM to SIGKILL for an mpirun whose ranks never came
CLOSE_S = 1.0  # for what ranks said before mpirun ended; strangers may go on for ever
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass
class Member:
    """One connection; `rank` is None until it has said who it is; `told` says that mpirun or we told it to end."""

    link: socket.socket
    address: str
    heard: bytes = b""
    rank: int | None = None
    ended: int | None = None
    told: bool = False


@dataclass(frozen=True)
class Loss:
    """A rank that ended badly first: its exit code, -n for signal n, None when nothing more was heard of it."""

    rank: int
    host: str
    code: int | None


class World:
    """
    All ranks of a job, as the launcher knows them.

    Args:
        wanted: who has to come before the user's program starts.
        start_s: seconds for that, from the start of mpirun.
        grace_s: seconds from the word to end to SIGKILL.
        first: what ranks get at the word to end; another one than SIGTERM is followed by that before the grace is over.
        teardown_s: seconds that mpirun may take to end when all ranks have.
    """

    def __init__(
        self,
        wanted: Expected,
        *,
        start_s: float,
        grace_s: float,
        first: int = signal.SIGTERM,
        teardown_s: float = TEARDOWN_S,
    ) -> None:
        self.census = Census(wanted)
        self.start_s = start_s
        self.grace_s = grace_s
        self.first = first
        self.teardown_s = teardown_s
        self.token = secrets.token_hex(16)
        self.listener = _listen()
        self.port = self.listener.getsockname()[1]
        self.began = self.running = False
        self.late = False
        self.problem: Finding | None = None
        self.loss: Loss | None = None
        self.members: dict[int, Member] = {}  # by the descriptor of the connection
        self.ranks: dict[int, Member] = {}
        self.mpirun = 0
        self.started = 0.0
        self.closing = 0.0
        self.stopping = self.failing = self.hung = False
        self.deleted = ""  # the host whose ranks were told to end first, where it was not us who told them
        self.due: list[tuple[float, Callable[[], None]]] = []
        self.selector = selectors.DefaultSelector()
        self.asked, self.ask = socket.socketpair()
        self.thread = threading.Thread(target=self._serve, daemon=True)

    def variable(self, address: str) -> str:
        """Return what a rank has to know to find us."""
        return f"{address} {self.port} {self.token}"

    def start(self, pid: int) -> None:
        """Begin to listen to the ranks of an mpirun that has just started."""
        self.mpirun, self.started, self.running = pid, time.monotonic(), True
        _allow_many_files()
        for sock in (self.listener, self.asked):
            sock.settimeout(0)
            self.selector.register(sock, selectors.EVENT_READ)
        self.thread.start()

    def stop(self, signum: int) -> bool:
        """Tell all ranks to end; return False where mpirun has to be told, as not all are here."""
        with suppress(OSError):
            self.ask.send(bytes([signum]))
        return self.began

    def close(self) -> None:
        """Hear no more; what was said until now stays. Ranks that mpirun has left behind are told to end."""
        self.closing = time.monotonic() + CLOSE_S
        self.running = False
        if self.thread.is_alive():
            with suppress(OSError):
                self.ask.send(b"\0")
            self.thread.join()
        self._tell_all(signal.SIGTERM)
        for sock in (self.listener, self.asked, self.ask, *(member.link for member in self.members.values())):
            sock.close()
        self.selector.close()

    @property
    def ended_well(self) -> bool:
        """Whether every rank was heard to end with 0."""
        return self.began and all(member.ended == 0 for member in self.ranks.values())

    @property
    def unheard(self) -> list[tuple[int, str]]:
        """The ranks that have not ended with 0, as far as we have heard, and their hosts."""
        return [(rank, self.census.host(rank)) for rank, member in sorted(self.ranks.items()) if member.ended != 0]

    def _serve(self) -> None:
        while self.running or (time.monotonic() < self.closing and self._pending()):
            for key, _ in self.selector.select(LOOK_S):
                if key.fileobj is self.listener:
                    self._accept()
                elif key.fileobj is self.asked:
                    self._obey()
                else:
                    self._read(self.members[key.fd])
            if self.running:
                self._look_at_the_clock()

    def _pending(self) -> bool:
        """Whether a rank may still say how it ended, or somebody has said what we have not read; mpirun has ended."""
        if self.began and any(member.rank is not None and member.ended is None for member in self.members.values()):
            return True
        return bool([key for key, _ in self.selector.select(0) if key.fileobj is not self.asked])

    def _accept(self) -> None:
        with suppress(OSError):
            link, address = self.listener.accept()
            link.settimeout(0)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in KEEPALIVE:
                link.setsockopt(socket.IPPROTO_TCP, option, value)
            self.members[link.fileno()] = Member(link, address[0].removeprefix("::ffff:"))
            self.selector.register(link, selectors.EVENT_READ)

    def _obey(self) -> None:
        """Tell the ranks what the main thread was told."""
        for signum in filter(None, self.asked.recv(64)):
            self._stop(signum)

    def _stop(self, signum: int) -> None:
        """Let all ranks save what they have; none leaves before the last one, as mpirun would then kill the others."""
        self._tell_all(self.first if signum == signal.SIGTERM else signum, order="stop")
        if not self.stopping:
            self.stopping = True
            left = max(0.0, self.grace_s - KILL_MARGIN_S)
            if self.first != signal.SIGTERM:
                self._later(max(0.0, left - TERM_MARGIN_S), partial(self._tell_all, signal.SIGTERM))
            self._later(left, partial(self._tell_all, signal.SIGKILL))
            self._later(left + LEAVE_S, self._dismiss)
        self._dismiss_if_all_ended()

    def _dismiss_if_all_ended(self) -> None:
        if self.stopping and not any(
            member.rank is not None and member.ended is None for member in self.members.values()
        ):
            self._dismiss()

    def _dismiss(self) -> None:
        for member in self.members.values():
            if member.rank is not None:
                _tell(member, "leave")

    def _tell_all(self, signum: int, *, order: str = "signal") -> None:
        for member in self.members.values():
            if member.rank is not None and member.ended is None:
                member.told = True
                _tell(member, f"{order} {signum}")

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self.due.append((time.monotonic() + seconds, action))

    def _read(self, member: Member) -> None:
        try:
            more = member.link.recv(LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            more = b""
        member.heard += more
        *lines, member.heard = member.heard.split(b"\n")
        if not all(self._hear(member, line) for line in lines) or len(member.heard) > LINE_BYTES:
            more = b""
        if not more:
            self._gone(member)

    def _hear(self, member: Member, line: bytes) -> bool:
        """Take what a rank says; return False for what no rank of ours would say."""
        try:
            said: Mapping[str, Any] = json.loads(line)
            if member.rank is None:
                return self._welcome(member, said)
            if "ended" in said:
                self._ended(member, int(said["ended"]))
            if "killed" in said:
                self._killed(member)
            if "signalled" in said:
                self._signalled(member, int(said["signalled"]), by_mpi=bool(said["by_mpi"]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            return False
        return True

    def _welcome(self, member: Member, said: Mapping[str, Any]) -> bool:
        if self.began or not hmac.compare_digest(str(said["token"]).encode(), self.token.encode()):
            return False  # who comes after all others is told nothing, and so ends
        arrival = Arrival(int(said["rank"]), int(said["size"]), str(said["host"]), member.address)
        member.rank = arrival.rank
        self.ranks.setdefault(arrival.rank, member)
        self.census.add(arrival)
        if self.problem or self.late or self.stopping:
            _tell(member, f"signal {signal.SIGTERM}")
        elif self.census.full:
            self._begin()
        return True

    def _begin(self) -> None:
        self.problem = self.census.wrong()
        if self.problem:
            self._end_mpirun()
            return
        self.began = True
        seconds = round(time.monotonic() - self.started, 2)
        get_logger().info(
            "all ranks are here", world_size=self.census.size, placed=placed(self.census.count()), seconds=seconds
        )
        for member in self.ranks.values():
            _tell(member, "go")

    def _ended(self, member: Member, code: int) -> None:
        member.ended = code
        if code and self.loss is None and not member.told:
            self._lose(member, code)
        if self.ended_well:
            self._later(self.teardown_s, self._end_hung)
        self._dismiss_if_all_ended()

    def _end_hung(self) -> None:
        self.hung = True
        get_logger().warning("mpirun does not end although all ranks have", seconds=self.teardown_s)
        self._end_mpirun()

    def _signalled(self, member: Member, signum: int, *, by_mpi: bool) -> None:
        """
        A rank was told to end by others than us.

        By mpirun, which ends a job that has failed, as one whose daemon was killed, and says why; or because its pod is
        being deleted, and the job ends with it.
        """
        if signum in ENDING and by_mpi and not self.stopping:
            member.told = True
            self._end_the_others()
            _tell(member, "leave")
        elif signum in ENDING and not self.stopping and self.loss is None:
            self.deleted = self.census.host(member.rank or 0)
            name = signal_name(signum)
            get_logger().warning("ranks are told to end on their host", host=self.deleted, signal=name)
            self._stop(signal.SIGTERM)
        elif not self.stopping:  # mpirun ends a job that has failed
            _tell(member, "leave")

    def _gone(self, member: Member) -> None:
        del self.members[member.link.fileno()]
        self.selector.unregister(member.link)
        member.link.close()
        if member.rank is None or member.ended is not None:
            return
        if not self.began:
            self.census.gone.add(member.rank)
        elif self.loss is None and not member.told:
            self._lose(member, None)
        self._dismiss_if_all_ended()

    def _lose(self, member: Member, code: int | None) -> None:
        rank = member.rank or 0
        self.loss = Loss(rank, self.census.host(rank), code)
        self._end_the_others()

    def _killed(self, member: Member) -> None:
        """Somebody killed the shim, and its host lives: mpirun does that when it ends a job, and knows why."""
        member.ended = -signal.SIGKILL
        self._end_the_others()
        self._dismiss_if_all_ended()

    def _end_the_others(self) -> None:
        if not (self.stopping or self.failing):  # else they have been told to end
            self.failing = True
            self._later(FAILED_S, partial(self._tell_all, signal.SIGTERM))
            self._later(FAILED_S + self.grace_s, partial(self._tell_all, signal.SIGKILL))
            self._later(FAILED_S + self.grace_s + MPIRUN_S, self._end_mpirun)

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        for due in [entry for entry in self.due if entry[0] <= now]:
            self.due.remove(due)
            due[1]()
        if not (self.began or self.problem or self.late) and now > self.started + self.start_s:
            self.late = True
            self._end_mpirun()

    def _end_mpirun(self) -> None:
        """End an mpirun that did not do what it should; MPICH 4's hangs for ever where a host refuses ssh."""
        self._tell_all(signal.SIGTERM)
        _kill(self.mpirun, signal.SIGTERM)
        self._later(MPIRUN_S, partial(_kill, self.mpirun, signal.SIGKILL))


def _tell(member: Member, order: str) -> None:
    with suppress(OSError):  # a rank that is gone is noticed when it is read
        member.link.send(order.encode() + b"\n")


def _kill(pid: int, signum: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signum)


def _allow_many_files() -> None:
    """One connection for each rank may be more than the soft limit, which is 1024 on many machines."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _listen() -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
    return socket.create_server(("", 0), backlog=BACKLOG)
