"""Connect to HOST PORT again and again with nonsense of every kind; print a line of JSON for each connection."""

import collections
import itertools
import json
import os
import socket
import ssl
import struct
import sys
import time

HALF_OPEN = 64  # connections are kept; the oldest is closed for the next
PAUSE_S = 0.01
ANSWER_S = 0.2


def tls_hello() -> bytes:
    """Return what a TLS client says first."""
    sent = ssl.MemoryBIO()
    context = ssl.create_default_context()
    try:
        context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="example.com").do_handshake()
    except ssl.SSLWantReadError:
        return sent.read()
    raise AssertionError("a handshake without an answer")


SAID = {
    "http": b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n",
    "tls": tls_hello(),
    "random": os.urandom(65_536),
    "huge length, 4 bytes": struct.pack(">I", 2**32 - 1) + b"x" * 64,
    "huge length, 8 bytes": struct.pack("<Q", 2**62) + b"x" * 64,
    "endless line": b'{"' + b"a" * (1 << 20),
    "deep json": b"[" * 100_000 + b"\n",
    "wrong json": b'{"rank": "x", "nnodes": -1e999, "": null}\n[]\n7\n\xff\n',
    "nothing": b"",
}
RESET, SILENT, HALF = "reset", "half-open, silent", "half-open, half a request"


def main(host: str, port: int) -> None:
    """Go through the kinds for ever."""
    kept: collections.deque[socket.socket] = collections.deque(maxlen=HALF_OPEN)
    for kind in itertools.cycle([*SAID, RESET, SILENT, HALF]):
        try:
            outcome = say(host, port, kind, kept)
        except OSError as error:
            outcome = error.strerror or str(error)
        print(json.dumps({"kind": kind, "outcome": outcome}), flush=True)
        time.sleep(PAUSE_S)


def say(host: str, port: int, kind: str, kept: "collections.deque[socket.socket]") -> str:
    """Make one connection; return what came of it."""
    connection = socket.create_connection((host, port), timeout=1)
    if kind in {SILENT, HALF}:
        connection.sendall(b"POST / HTTP/1.1\r\nContent-Le" if kind == HALF else b"")
        if len(kept) == HALF_OPEN:
            kept.popleft().close()
        kept.append(connection)
        return "open"
    with connection:
        if kind == RESET:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return "reset"
        connection.sendall(SAID[kind])
        connection.shutdown(socket.SHUT_WR)
        return answer(connection)


def answer(connection: socket.socket) -> str:
    """Return what the other side does within a moment."""
    connection.settimeout(ANSWER_S)
    try:
        return f"{len(connection.recv(65_536))} bytes"
    except TimeoutError:
        return "no answer"


main(sys.argv[1], int(sys.argv[2]))
