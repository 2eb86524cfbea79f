"""
The head of a data cache, by Arrow Flight's own server: `python flight.py ROWS WORKERS` prints its port.

It is a process of its own: gRPC's threads do not survive the forks of the agent under test.
`refusing_head` is one that answers every call with a gRPC status, such as Kubeflow's OUT_OF_RANGE for an empty table,
which no Python handler can raise.
"""

import socket
import subprocess
import sys
import threading
from contextlib import contextmanager

OUT_OF_RANGE, UNAVAILABLE = 11, 14
SETTINGS, HEADERS, PING, DATA = 4, 1, 6, 0
ACK = END_STREAM = 1


@contextmanager
def flight_head(*, rows=10, workers=2):
    """Yield the port of a head that has so many rows."""
    command = [sys.executable, __file__, str(rows), str(workers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield int(process.stdout.readline())
        finally:
            process.terminate()


@contextmanager
def refusing_head(*codes, message="Invalid partition range"):
    """Yield the port of a head that answers each connection's calls with the next gRPC status, the last for ever."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept():
        for number in range(1 << 30):
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            code = codes[min(number, len(codes) - 1)]
            threading.Thread(target=_refuse, args=(connection, code, message), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    with listener:
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@contextmanager
def silent_head():
    """Yield the port of a head that accepts connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def _refuse(connection, code, message):
    """Speak as much HTTP/2 (RFC 9113) as a gRPC client needs to be refused."""
    with connection, connection.makefile("rb") as stream:
        stream.read(len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
        connection.sendall(_frame(SETTINGS, 0, 0))
        while head := stream.read(9):
            kind, flags, number = head[3], head[4], int.from_bytes(head[5:9])
            body = stream.read(int.from_bytes(head[:3]))
            if kind in {SETTINGS, PING} and not flags & ACK:
                connection.sendall(_frame(kind, ACK, 0, body if kind == PING else b""))
            if kind in {DATA, HEADERS} and flags & END_STREAM:
                fields = {"content-type": "application/grpc", "grpc-status": str(code), "grpc-message": message}
                block = b"\x88" + b"".join(_field(*field) for field in fields.items())
                connection.sendall(_frame(HEADERS, END_STREAM | 4, number, block))


def _frame(kind, flags, number, body=b""):
    return len(body).to_bytes(3) + bytes([kind, flags]) + number.to_bytes(4) + body


def _field(name, value):
    """Return a field that is not indexed (RFC 7541, 6.2.2)."""
    return b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in (name, value))


def _main(rows, workers):
    import pyarrow as pa
    from pyarrow import flight

    class Head(flight.FlightServerBase):
        def get_flight_info(self, _, descriptor):
            index, total = (int(part) for part in descriptor.path)
            each = -(-rows // total)
            first, last = index * each, min((index + 1) * each, rows) - 1
            places = range(workers) if last >= first else ()
            endpoints = [flight.FlightEndpoint(f"{first}-{last}", [f"grpc://127.0.0.1:{9000 + i}"]) for i in places]
            return flight.FlightInfo(pa.schema([]), descriptor, endpoints, -1, -1)

    with Head("grpc://127.0.0.1:0") as head:
        sys.stdout.write(f"{head.port}\n")
        sys.stdout.flush()
        head.serve()


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]))
