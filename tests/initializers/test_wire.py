"""Our own wire: answers arrive as they are, and what only the connection's end would end is left to others."""

import socket
import ssl
import threading
import time
from contextlib import suppress

import pytest
from authority import server_context

from trainer_agent.initializers import wire as wire_module
from trainer_agent.initializers.wire import (
    BUFFER_BYTES,
    WINDOW_BYTES,
    ConnectTimeoutError,
    CutError,
    UnframedError,
    Wire,
)

BODY = bytes(range(256)) * 4096  # 1 MiB, several buffers


def plain(body, *headers):
    head = ["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", 'ETag: "e"', *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


class Server:
    """Answers the n-th request with the n-th of `answers`, b"" by closing; None hangs."""

    def __init__(self, *answers, tls=None):
        self.answers = list(answers)
        self.tls = tls
        self.connections = 0
        self.requests = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.netloc = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while self.answers:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            with (
                suppress(OSError),  # the client has gone
                self.tls.wrap_socket(connection, server_side=True) if self.tls else connection as wrapped,
            ):
                self.serve(wrapped)

    def serve(self, connection):
        while self.answers:
            request = b""
            while b"\r\n\r\n" not in request:
                received = connection.recv(65536)
                if not received:
                    return
                request += received
            self.requests.append(request.decode("latin-1"))
            answer = self.answers.pop(0)
            if answer is None:
                connection.recv(1)  # until the client goes
                return
            connection.sendall(answer)
            if not answer or b"Connection: close" in answer:
                return

    def close(self):
        self.listener.close()


@pytest.fixture
def serve(tmp_path):
    """Return a function that starts a server and returns it with a wire to it."""
    servers = []

    def start(*answers, tls=False, stall_s=5.0):
        context = server_context(tmp_path / "certificate") if tls else None
        trusted = ssl.create_default_context(cafile=tmp_path / "certificate") if tls else None
        server = Server(*answers, tls=context)
        servers.append(server)
        return server, Wire(f"{'https' if tls else 'http'}://{server.netloc}", tls=trusted, stall_s=stall_s)

    yield start
    for server in servers:
        server.close()


def read(wire, target="/o", **headers):
    answer = wire.ask("GET", f"http://somewhere{target}", headers)
    try:
        return b"".join(map(bytes, answer.pieces()))
    finally:
        answer.close()


@pytest.mark.parametrize("size", [0, 1, 1000, BUFFER_BYTES - 60, BUFFER_BYTES, BUFFER_BYTES + 1, len(BODY)])
def test_bodies_of_any_size_arrive_on_one_connection(serve, size):
    """Whatever part of them came with the head."""
    server, wire = serve(*[plain(BODY[:size])] * 3)

    assert [read(wire) for _ in range(3)] == [BODY[:size]] * 3
    assert server.connections == 1


@pytest.mark.parametrize("far_s, wide", [(0.0, True), (1e9, False)], ids=["far", "near"])
@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_what_a_far_server_sends_need_not_wait(serve, monkeypatch, tls, far_s, wide):
    """The kernel takes more of it before anybody reads; the last bytes of a body are told as ever."""
    monkeypatch.setattr(wire_module, "FAR_S", far_s)
    server, wire = serve(plain(b"abc"), plain(b"abc"), tls=tls)
    assert read(wire) == b"abc"
    answer = wire.ask("GET", "http://somewhere/o", {})
    options = socket.SO_RCVBUF, socket.SO_RCVLOWAT
    window, least = (answer._connection.socket.getsockopt(socket.SOL_SOCKET, option) for option in options)

    assert (b"".join(map(bytes, answer.pieces())), server.connections) == (b"abc", 1)
    assert (window >= WINDOW_BYTES, least) == (wide, 1)


def test_what_is_sent_and_what_is_told(serve):
    """The request line, the host and the headers; the answer's headers by whatever letters."""
    server, wire = serve(plain(b"abc", "X-Amz-Checksum-CRC64NVME:  AAAA "))
    answer = wire.ask("GET", "http://h/bucket/a%20b c?x=\xfc#y", {"If-Match": '"e"'})

    assert b"".join(map(bytes, answer.pieces())) == b"abc"
    assert (answer.status, answer.headers.get("ETag"), answer.headers.get("x-amz-checksum-CRC64nvme")) == (
        200,
        '"e"',
        "AAAA",
    )
    assert "Content-length" in answer.headers
    assert server.requests[0].split("\r\n") == [
        "GET /bucket/a%20b%20c?x=%C3%BC HTTP/1.1",
        f"Host: {server.netloc}",
        "Accept-Encoding: identity",
        'If-Match: "e"',
        "",
        "",
    ]


def test_headers_of_one_name_are_one_list(serve):
    """As a proxy's own `Link` beside the server's; what is only told twice is told once."""
    _server, wire = serve(plain(b"abc", 'Link: <a>; rel="next"', 'link: <b>; rel="help"', "Content-Length: 3"))
    answer = wire.ask("GET", "http://h/o", {})

    assert b"".join(map(bytes, answer.pieces())) == b"abc"
    assert ('<a>; rel="next", <b>; rel="help"', "3") == (answer.headers["Link"], answer.headers["Content-Length"])


@pytest.mark.parametrize("status", ["206 Partial Content", "302 Found", "404 Not Found", "503 Slow Down", "200"])
def test_any_status_is_an_answer(serve, status):
    """What it means is the caller's to say; an error's body can be read, and the connection is used again."""
    server, wire = serve(plain(b"why").replace(b"200 OK", status.encode()), plain(b"next"))
    answer = wire.ask("GET", "http://h/o", {})

    assert (answer.status, answer.error_body()) == (int(status[:3]), b"why")
    answer.close()
    assert (read(wire), server.connections) == (b"next", 1)


def test_of_an_error_only_the_beginning_is_read(serve):
    """Its rest ends the connection."""
    server, wire = serve(plain(BODY), plain(b"next"))
    answer = wire.ask("GET", "http://h/o", {})
    assert answer.error_body() == BODY[:65536]
    answer.close()

    assert (read(wire), server.connections) == (b"next", 2)


@pytest.mark.parametrize(
    "origin,sent",
    [
        ("http://h", "h"),
        ("http://H:80", "h"),
        ("http://h:443", "h:443"),
        ("https://h:443", "h"),
        ("https://h:80", "h:80"),
        ("http://user:password@h:81", "h:81"),
        ("http://[::1]:9000", "[::1]:9000"),
    ],
)
def test_the_host_is_named_as_it_is_signed(origin, sent):
    """Small, and without the scheme's own port."""
    assert Wire(origin, tls=None, stall_s=1).netloc == sent


def test_nobody_need_ask_for_more_than_the_last_piece(serve):
    """Whoever has counted the bytes stops there, and the connection is used again."""
    server, wire = serve(*[plain(BODY)] * 2)
    for _ in range(2):
        left = len(BODY)
        answer = wire.ask("GET", "http://h/o", {})
        for piece in answer.pieces():
            left -= len(piece)
            if not left:
                break
        answer.close()

    assert server.connections == 1


def test_a_body_that_is_left_ends_the_connection(serve):
    """Its rest must not be taken for the next answer."""
    server, wire = serve(plain(BODY), plain(b"next"))
    answer = wire.ask("GET", "http://h/o", {})
    next(answer.pieces())
    answer.close()

    assert (read(wire), server.connections) == (b"next", 2)


def test_a_connection_that_the_server_closed_meanwhile_is_replaced(serve):
    """As servers do with idle ones."""
    server, wire = serve(plain(b"one"), b"", plain(b"two"))

    assert (read(wire), read(wire), server.connections) == (b"one", b"two", 2)


def test_a_server_that_says_close_is_believed(serve):
    """The next request goes over another connection."""
    server, wire = serve(plain(b"one", "Connection: close"), plain(b"two"))

    assert (read(wire), read(wire), server.connections) == (b"one", b"two", 2)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def in_chunks(body, size, *, extension=b"", trailers=b""):
    pieces = (body[at : at + size] for at in range(0, len(body), size))
    chunks = (b"%x%s\r\n%s\r\n" % (len(piece), extension, piece) for piece in pieces)
    return CHUNKED + b"".join(chunks) + b"0\r\n" + trailers + b"\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        in_chunks(BODY, 65536),
        in_chunks(BODY, len(BODY)),
        in_chunks(BODY, 300_001, extension=b";name=value"),
        in_chunks(BODY, 1000, trailers=b"X-Checksum: 1\r\nX-Other: 2\r\n"),
    ],
    ids=["small", "one", "extension", "trailers"],
)
def test_chunks_are_put_together(serve, answer):
    """Of any size, and the connection is used again."""
    server, wire = serve(answer, answer, plain(b"next"))

    assert [read(wire), read(wire), read(wire)] == [BODY, BODY, b"next"]
    assert server.connections == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"5\r\nabc",
        b"5\r\nabcde",
        b"3\r\nabcde\r\n0\r\n\r\n",
        b"3\r\nabc\r\n0\r\n",
        b"three\r\nabc\r\n0\r\n\r\n",
        b"-3\r\nabc\r\n0\r\n\r\n",
        b"\r\n",
        b"0" * BUFFER_BYTES,
    ],
)
def test_damaged_chunks_are_a_cut_body(serve, body):
    """Nothing is guessed, and the connection is not used again."""
    server, wire = serve(CHUNKED.replace(b"\r\n", b"\r\nConnection: close\r\n", 1) + body, plain(b"next"))
    with pytest.raises(CutError):
        read(wire)

    assert (read(wire), server.connections) == (b"next", 2)


@pytest.mark.parametrize(
    "method,answer",
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"),
        ("HEAD", CHUNKED),
        ("HEAD", b"HTTP/1.1 404 Not Found\r\n\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n"),
    ],
)
def test_some_answers_have_no_body(serve, method, answer):
    """Whatever they announce; the connection is used again."""
    server, wire = serve(answer, plain(b"next"))
    asked = wire.ask(method, "http://h/o", {})
    assert list(asked.pieces()) == []
    asked.close()

    assert (read(wire), server.connections) == (b"next", 1)
    assert server.requests[0].startswith(f"{method} /o ")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
    ],
)
def test_what_is_framed_in_another_way_is_left_to_a_whole_client(serve, answer):
    """On another connection."""
    server, wire = serve(answer, plain(b"next"))
    with pytest.raises(UnframedError):
        read(wire)

    assert (read(wire), server.connections) == (b"next", 2)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nConnection: close", b"x" * (BUFFER_BYTES + 1)])
def test_no_head_is_no_answer(serve, answer):
    """The connection ended in it, or it never ends."""
    server, wire = serve(answer, plain(b"next"))
    with pytest.raises(CutError):
        read(wire)

    assert (read(wire), server.connections) == (b"next", 2)


def test_a_cut_body_is_told(serve):
    """What came before has been passed on."""
    _, wire = serve(plain(BODY, "Connection: close")[:-1000])
    pieces = []
    with pytest.raises(CutError):
        pieces.extend(bytes(piece) for piece in wire.ask("GET", "http://h/o", {}).pieces())

    assert b"".join(pieces) == BODY[:-1000]


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
@pytest.mark.parametrize("answer", [None, plain(BODY)[:-1000]], ids=["head", "body"])
def test_a_stall_is_given_up(serve, answer, tls):
    """After the seconds that were given."""
    _, wire = serve(answer, None, tls=tls, stall_s=0.3)
    began = time.monotonic()
    with pytest.raises(TimeoutError if tls else BlockingIOError):
        read(wire)

    assert 0.2 < time.monotonic() - began < 20


def test_nobody_there():
    """Refused is refused."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    with pytest.raises(ConnectionRefusedError):
        read(Wire(f"http://127.0.0.1:{port}", tls=None, stall_s=1))


@pytest.mark.parametrize("headers", [{"X": "a\r\nY: b"}, {"X\n": "a"}])
def test_nothing_can_be_slipped_into_a_request(serve, headers):
    """A value with a newline would be two headers."""
    server, wire = serve(plain(b""))
    with pytest.raises(ValueError, match=r"^$"):
        wire.ask("GET", "http://h/", headers)

    assert server.requests == []


def test_each_thread_has_a_connection_of_its_own(serve):
    """Answers never mix."""
    server, wire = serve(plain(b"one"), plain(b"two"))
    answers = [read(wire)]
    thread = threading.Thread(target=lambda: answers.append(read(wire)))
    # The server serves one connection after the other, so this one's has to end first.
    wire._kept.connection.close()
    thread.start()
    thread.join(60)

    assert (answers, server.connections) == ([b"one", b"two"], 2)


def test_tls(serve):
    """Large bodies come through, on one connection."""
    server, wire = serve(plain(BODY), plain(BODY), tls=True)

    assert [read(wire), read(wire)] == [BODY, BODY]
    assert server.connections == 1


def test_a_handshake_that_stalls_is_told(monkeypatch):
    """Somebody accepts, and says nothing."""
    monkeypatch.setattr(wire_module, "CONNECT_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        wire = Wire(f"https://127.0.0.1:{listener.getsockname()[1]}", tls=ssl.create_default_context(), stall_s=5)
        with pytest.raises(ConnectTimeoutError):
            read(wire)


def test_a_stranger_is_not_trusted(tmp_path):
    """The handshake ends it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        context = server_context(tmp_path / "certificate")

        def answer():
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                context.wrap_socket(connection, server_side=True).close()

        thread = threading.Thread(target=answer)
        thread.start()
        wire = Wire(f"https://127.0.0.1:{listener.getsockname()[1]}", tls=ssl.create_default_context(), stall_s=5)
        with pytest.raises(ssl.SSLCertVerificationError):
            read(wire)
        thread.join(60)
