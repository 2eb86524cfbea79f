"""Look at another node from this one: `probe.py WHAT HOST PORT …`; each kind says below what it prints."""

import socket
import sys
import time


def ask(host: str, port: str, text: str, wait_s: str) -> None:
    """Send a datagram; print `answered`, or `silent` when the time is over."""
    with socket.socket(type=socket.SOCK_DGRAM) as asking:
        asking.settimeout(float(wait_s))
        asking.sendto(text.encode(), (host, int(port)))
        try:
            print("answered" if asking.recv(65_536).decode() == text else "garbled")
        except TimeoutError:
            print("silent")


def connect(host: str, port: str, wait_s: str) -> None:
    """Make a connection; print `connected` or the error."""
    try:
        socket.create_connection((host, int(port)), timeout=float(wait_s))
    except OSError as error:
        print(error.strerror or error)
    else:
        print("connected")


def talk(host: str, port: str) -> None:
    """Keep one connection; print after every byte whether it came back in 0.4 s, until an error."""
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.settimeout(0.4)
        while True:
            connection.sendall(b"x")
            try:
                print("came back" if connection.recv(65_536) else "closed", flush=True)
            except TimeoutError:
                print("nothing", flush=True)
            except OSError as error:
                print(error.strerror, flush=True)
                return
            time.sleep(0.02)


def pour(host: str, port: str, size: str) -> None:
    """Send so many bytes to a drain; print the seconds until it has them all."""
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        start = time.monotonic()
        connection.sendall(bytes(int(size)))
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
        print(time.monotonic() - start)


def drain(host: str, port: str) -> None:
    """Take what one connection sends, and close it."""
    with socket.create_server((host, int(port))) as listener:
        print("ready", flush=True)
        connection, _address = listener.accept()
        with connection:
            while connection.recv(65_536):
                pass


def shower(host: str, port: str, count: str) -> None:
    """Send so many datagrams, to nobody."""
    with socket.socket(type=socket.SOCK_DGRAM) as sending:
        for _ in range(int(count)):
            sending.sendto(b"x", (host, int(port)))


def names(*hosts: str) -> None:
    """Look a name up again and again; print `known` or `unknown` whenever that changes."""
    last = ""
    while True:
        try:
            socket.gethostbyname(hosts[0])
            now = "known"
        except OSError:
            now = "unknown"
        if now != last:
            print(now, flush=True)
        last = now
        time.sleep(0.02)


KINDS = {f.__name__: f for f in (ask, connect, talk, pour, drain, shower, names)}
KINDS[sys.argv[1]](*sys.argv[2:])
