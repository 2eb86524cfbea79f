"""
A proxy that breaks what a test tells it to, between the agent and one server on loopback, and remembers what passed.

    with FaultProxy(port) as proxy:
        proxy.add(Fault("GET /bucket/data/big", reset_after=1_000_000))
        proxy.endpoint, proxy.log, proxy.served("/data/big"), proxy.twice()

Requests go on unchanged, Host included, so that signatures hold, each on a connection of its own.
"""

import fcntl
import math
import re
import select
import socket
import struct
import termios
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from breakage import PIECE_BYTES, STEP_S, Exchange, Fault, Pace, covered

# What waits for the client on our side counts as sent, so let it be little.
SEND_BUFFER_BYTES = 128 << 10
PATIENCE_S = 30.0
BODILESS = frozenset({204, 304})


class FaultProxy:
    """
    The proxy, on a free port of loopback; a context manager.

    Args:
        upstream: the server's port.
        bytes_per_s: most that all bodies together flow.

    Attributes:
        log: every exchange.
    """

    def __init__(self, upstream, *, bytes_per_s=math.inf):
        self.upstream = upstream
        self.pace = Pace(bytes_per_s)
        self.log = []
        self.released = threading.Event()
        self._changed = threading.Condition()
        self._faults = []
        self._sockets = set()
        self._listener = None
        self._port = 0

    def __enter__(self):
        self.up()
        return self

    def __exit__(self, *_):
        self.down()

    @property
    def endpoint(self):
        """The address."""
        return f"http://127.0.0.1:{self._port}"

    def up(self):
        """Listen, after `down` on the same port."""
        self._listener = socket.create_server(("127.0.0.1", self._port), backlog=256)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), name="breaker", daemon=True).start()

    def down(self):
        """Be gone, as a server that was killed: every connection ends, new ones are refused."""
        with self._changed:
            listener, self._listener = self._listener, None
            left = list(self._sockets)
        if listener:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes who accepts
            listener.close()
        for one in left:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def add(self, *faults):
        """Add faults; of several that match a request, the first counts."""
        with self._changed:
            self._faults += faults

    def clear(self):
        """Forget all faults, and let go on what stalls."""
        with self._changed:
            self._faults = []
        self.released.set()

    def seen(self, match=""):
        """Return the exchanges whose `METHOD path?query` matches."""
        with self._changed:
            return [e for e in self.log if re.search(match, e.line)]

    def served(self, match=""):
        """Return how many bytes of objects went out."""
        return sum(e.bytes for e in self.seen(match))

    def twice(self, match=""):
        """Return how many of those had gone out before."""
        spans = {}
        for exchange in self.seen(match):
            spans.setdefault(exchange.path, []).append(exchange.span)
        return self.served(match) - sum(map(covered, spans.values()))

    def wait(self, condition, within=PATIENCE_S):
        """Wait until something about the log is true; return whether it became so."""
        with self._changed:
            return self._changed.wait_for(condition, within)

    def begin(self, exchange):
        """Note a request; return the fault that it meets."""
        with self._changed:
            self.log.append(exchange)
            self._changed.notify_all()
            return next((f for f in self._faults if f.hits(exchange)), None)

    def count(self, exchange, size):
        """Note that bytes of a body went out."""
        with self._changed:
            exchange.sent += size
            self._changed.notify_all()

    def track(self, one):
        """Have `down` end a socket; one that comes later is refused."""
        with self._changed:
            if self._listener is None:
                raise ConnectionAbortedError
            self._sockets.add(one)

    def forget(self, one):
        """Undo `track`."""
        with self._changed:
            self._sockets.discard(one)

    def _accept(self, listener):
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_Connection(self, client).serve, name="breaker", daemon=True).start()


class _EndError(Exception):
    """The client's connection ends here."""


class _Connection:
    """A connection of the client's."""

    def __init__(self, proxy, client):
        self.proxy = proxy
        self.client = client

    def serve(self):
        """Answer one request after the other."""
        with suppress(OSError, _EndError), self.client, self.client.makefile("rb") as reader:
            self.proxy.track(self.client)
            try:
                while head := Head.read(reader):
                    self._exchange(head, reader.read(head.length or 0))
            finally:
                self.proxy.forget(self.client)

    def _exchange(self, head, body):
        method, target, _ = head.first.split(" ", 2)
        exchange = Exchange(method, target, head.headers.get("range", ""))
        fault = self.proxy.begin(exchange) or Fault("")
        if fault.latency_s:
            fault.done += 1
            self._hold(time.monotonic() + fault.latency_s)
        if fault.answer:
            fault.done += 1
            self._answer(exchange, fault.answer)
            return
        with socket.create_connection(("127.0.0.1", self.proxy.upstream), PATIENCE_S) as server:
            self.proxy.track(server)
            try:
                server.sendall(head.raw + body)
                with server.makefile("rb", buffering=PIECE_BYTES) as reader:
                    self._pass_on(exchange, fault, reader)
            finally:
                self.proxy.forget(server)

    def _answer(self, exchange, answer):
        exchange.status, exchange.ours = answer.status, True
        headers = {"Content-Length": str(len(answer.body)), **answer.headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        body = b"" if exchange.method == "HEAD" else answer.body
        self.proxy.count(exchange, len(body))
        self.client.sendall(f"HTTP/1.1 {answer.status} Scripted\r\n{head}\r\n".encode() + body)

    def _pass_on(self, exchange, fault, reader):
        head = Head.read(reader)
        if head is None:
            raise _EndError
        exchange.status = int(head.first.split(" ")[1])
        if exchange.method == "HEAD" or exchange.status in BODILESS:
            self.client.sendall(head.raw)
            return
        if head.chunked:
            # Lists only: the client may have them in one piece.
            head, reader = head.unchunked(reader)
        self.client.sendall(head.raw)
        size = math.inf if head.length is None else head.length
        if fault.end < size:
            self._body(exchange, fault, reader, fault.end)
            self._break(fault)
        self._body(exchange, fault, reader, size)
        if head.length is None:
            raise _EndError

    def _body(self, exchange, fault, reader, stop):
        """Pass on the body as far as byte `stop`."""
        own = Pace(fault.bytes_per_s)
        step = min(PIECE_BYTES, own.step, self.proxy.pace.step)
        while exchange.sent < stop:
            at = exchange.sent
            piece = reader.read1(int(min(step, stop - at)))
            if not piece:
                raise _EndError
            if fault.flip is not None and at <= fault.flip < at + len(piece):
                piece = bytearray(piece)
                piece[fault.flip - at] ^= 1
                fault.done += 1
            time.sleep(max(own.wait_s(len(piece)), self.proxy.pace.wait_s(len(piece))))
            # Counted first: whoever has the last byte may look at once.
            self.proxy.count(exchange, len(piece))
            self.client.sendall(piece)

    def _break(self, fault):
        """Do to the connection what the fault says; return when the rest shall follow."""
        fault.done += 1
        if fault.end == fault.stall_after:
            self._hold(math.inf)
            return
        if fault.end == fault.reset_after:
            _drain(self.client)
            self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise _EndError

    def _hold(self, until):
        """Say nothing until then, or until released."""
        gone = select.poll()
        gone.register(self.client, select.POLLRDHUP)
        while time.monotonic() < until and not self.proxy.released.is_set():
            if gone.poll(STEP_S * 1e3):
                raise _EndError


@dataclass(frozen=True)
class Head:
    """First line and headers of a message."""

    raw: bytes
    first: str
    headers: dict[str, str]

    @classmethod
    def read(cls, reader):
        """Return the next head, None at the end."""
        raw = b""
        while line := reader.readline():
            raw += line
            if line == b"\r\n":
                first, *lines = raw.decode("latin-1").split("\r\n")
                pairs = (one.partition(":") for one in lines if one)
                return cls(raw, first, {name.strip().lower(): value.strip() for name, _, value in pairs})
        return None

    @property
    def length(self):
        """How long the body is, None where the end of the connection ends it."""
        text = self.headers.get("content-length")
        return int(text) if text is not None else None

    @property
    def chunked(self):
        """Whether the body comes in chunks."""
        return "chunked" in self.headers.get("transfer-encoding", "").lower()

    def unchunked(self, reader):
        """Return head and body of the same message with a Content-Length."""
        body = b""
        while size := int(reader.readline().partition(b";")[0], 16):
            body += reader.read(size)
            reader.readline()
        raw = re.sub(rb"(?i)transfer-encoding:[^\r]*", b"Content-Length: %d" % len(body), self.raw)
        return Head(raw, self.first, {**self.headers, "content-length": str(len(body))}), _Whole(body)


class _Whole:
    """A body that is there already, read as one that comes."""

    def __init__(self, body):
        self._left = memoryview(body)

    def read1(self, size):
        """Return the next bytes."""
        piece, self._left = self._left[:size], self._left[size:]
        return bytes(piece)


def _drain(one):
    """Wait until the client's kernel has all that was sent: a reset throws away the rest."""
    waiting, deadline = bytearray(4), time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        fcntl.ioctl(one, termios.TIOCOUTQ, waiting)
        if not any(waiting):
            return
        time.sleep(0.001)
