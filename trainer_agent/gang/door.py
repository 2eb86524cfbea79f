"""
A door on every node: whoever knocks hears what this node knows, also when rank 0 and its meeting place are gone.

It tells a node that is out of reach from one that is gone, and passes the verdict on to nodes that lost rank 0.
"""

from __future__ import annotations

import errno
import json
import math
import os
import selectors
import socket
import struct
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from trainer_agent.isolation import Children, run_all
from trainer_agent.process import write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GUESTS = 64  # knock at the same time; a stranger that stays is sent away after GUEST_S
GUEST_S = 2.0
KNOCK_S = 1.5
LOOKUP_S = 2.5
TELL_S = 2.0
MOST_BYTES = 16 << 20  # the verdict of some thousand nodes
BACKLOG = 128


class Door:
    """
    Tells the status of this node on a port until it is closed; a port that is taken keeps it shut.

    It is a process of its own, as this one may be waiting for somebody else.
    """

    def __init__(self, port: int) -> None:
        read, self.write = os.pipe()
        os.set_blocking(self.write, False)
        self.untold = b""
        self.children = Children()
        self.children.start(partial(_keep, port, read, self.write), math.inf)
        os.close(read)

    def tell(self, status: Mapping[str, Any]) -> None:
        """Set what is told from now on; what the door does not take within `TELL_S` goes before what is told next."""
        self.untold = write_whole(self.write, self.untold + f"{json.dumps(status)}\n".encode(), within_s=TELL_S)

    def close(self) -> None:
        """Close it."""
        if self.write >= 0:
            os.close(self.write)
            self.write = -1
            self.children.__exit__()


@dataclass
class _Guest:
    """One that knocked: what is still to be sent, and until when."""

    left: memoryview
    deadline: float = field(default_factory=lambda: time.monotonic() + GUEST_S)


def _keep(port: int, news: int, ours: int) -> None:
    """In the child: answer knocks until there is no more news."""
    os.close(ours)
    listener = _listen(port)
    if listener is None:
        return
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(news, selectors.EVENT_READ)
    status, rest = b"{}", b""
    guests: dict[socket.socket, _Guest] = {}
    while True:
        for key, _ in selector.select(0.5 if guests else None):
            if key.fileobj is listener:
                with suppress(OSError):
                    guest, _address = listener.accept()
                    guest.settimeout(0)
                    guests[guest] = _Guest(memoryview(status))
                    selector.register(guest, selectors.EVENT_WRITE)
            elif key.fd == news:
                chunk = os.read(news, 1 << 20)
                if not chunk:
                    return
                *lines, rest = (rest + chunk).split(b"\n")
                status = lines[-1] if lines else status
            elif isinstance(key.fileobj, socket.socket):
                _serve(guests[key.fileobj], key.fileobj)
        _send_away(guests, selector)


def _listen(port: int) -> socket.socket | None:
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):  # noqa: S104  # pods reach each other
        with suppress(OSError):
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind((address, port))
            listener.listen(BACKLOG)
            listener.settimeout(0)
            return listener
    return None


def _serve(guest: _Guest, sock: socket.socket) -> None:
    try:
        guest.left = guest.left[sock.send(guest.left) :]
    except BlockingIOError:
        return
    except OSError:
        guest.left = memoryview(b"")


def _send_away(guests: dict[socket.socket, _Guest], selector: selectors.BaseSelector) -> None:
    """Close the connections of those that have heard everything, of those that stay too long, and of too many."""
    now = time.monotonic()
    for number, (sock, guest) in enumerate(list(guests.items())):
        if not guest.left or now > guest.deadline or number >= GUESTS:
            selector.unregister(sock)
            sock.close()
            del guests[sock]


# Each tells more than those before it.
ANSWERS = ("nameless", "unresolved", "silent", "refuses", "mute", "falters", "answers")
REACHED = frozenset(ANSWERS[3:])


@dataclass(frozen=True)
class Knock:
    """
    What came of knocking.

    Args:
        answer: `answers`, `falters` (it answers over a way that loses packets), `mute` (it took the connection and said
            nothing), `refuses`, `silent`, `unresolved`, or `nameless` when no name server answered.
        status: what it told.
    """

    answer: str
    status: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reached(self) -> bool:
        """Whether the way there and back works."""
        return self.answer in REACHED

    @property
    def words(self) -> str:
        """Return it in words, after `its pod`."""
        return {
            "answers": "answers",
            "falters": "answers over a way that loses packets",
            "mute": "takes connections and says nothing",
            "refuses": "is there, and nobody listens",
            "silent": "does not answer",
            "unresolved": "has a name that does not resolve",
            "nameless": "cannot be looked for, as no name server answers",
        }[self.answer]


def knock(names: Mapping[int, str], port: int, *, tries: int = 1) -> dict[int, Knock]:
    """
    Knock at the doors of nodes, given by rank as names or addresses, all at the same time.

    Args:
        tries: how often, at the same time; a network that loses packets may lose those of one knock.
    """
    calls = [(partial(_knock, rank, name, port), LOOKUP_S + KNOCK_S) for rank, name in names.items()]
    answers = run_all(calls * tries)
    heard = [Knock("nameless") if answer.error else answer.value for answer in answers]
    return {rank: _best(heard[number :: len(calls)]) for number, rank in enumerate(names)}


def _best(heard: Sequence[Knock]) -> Knock:
    """Return what tells most; a good network, and a process that is stuck, are the same every time."""
    best = max(heard, key=lambda one: ANSWERS.index(one.answer))
    if all(one.answer == best.answer for one in heard):
        return best
    return {"mute": Knock("silent"), "answers": replace(best, answer="falters")}.get(best.answer, best)


def _knock(rank: int, name: str, port: int) -> Knock:
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        if isinstance(error, UnicodeError):
            return Knock("unresolved")
        unknown = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))
        return Knock("unresolved" if error.errno in unknown else "nameless")
    return _once(rank, str(found[0][4][0]), port)


def _once(rank: int, address: str, port: int) -> Knock:
    deadline = time.monotonic() + KNOCK_S
    try:
        with socket.create_connection((address, port), timeout=KNOCK_S) as sock:
            heard = _heard(rank, sock, deadline)
            return _best([heard, Knock("silent")]) if _sent_again(sock) else heard
    except ConnectionRefusedError:
        return Knock("refuses")
    except OSError as error:
        return Knock("refuses" if error.errno == errno.ECONNRESET else "silent")


def _sent_again(sock: socket.socket) -> bool:
    """Whether packets of a connection were lost: tcpi_total_retrans of tcp_info (linux/tcp.h)."""
    with suppress(OSError, struct.error):
        return bool(struct.unpack_from("I", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 100)[0])
    return False


def _heard(rank: int, sock: socket.socket, deadline: float) -> Knock:
    data = bytearray()
    try:
        while len(data) < MOST_BYTES:
            sock.settimeout(max(0.01, deadline - time.monotonic()))
            chunk = sock.recv(1 << 16)
            if not chunk:
                break
            data += chunk
        status = json.loads(data)
    except (OSError, ValueError):
        return Knock("mute")
    # Nodes that share an address share a port, which only one of them has.
    return Knock("answers", status) if isinstance(status, dict) and status.get("rank") == rank else Knock("mute")
