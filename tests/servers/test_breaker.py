"""Each fault of the proxy does what it says, and nothing else changes."""

import http.client
import time

import pytest
from breakage import Answer, Fault, covered, s3_error
from breaker import FaultProxy
from plain_s3 import PlainS3, read_directory

BODY = bytes(range(256)) * 2000


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Return a bucket with one file."""
    directory = tmp_path_factory.mktemp("tiny")
    (directory / "file").write_bytes(BODY)
    with PlainS3(read_directory(directory)) as server:
        yield server


@pytest.fixture
def proxy(server):
    """Return the proxy in front of it."""
    with FaultProxy(server.server_port) as proxy:
        yield proxy


@pytest.fixture
def ask(proxy):
    """Return a function that asks for the file on a kept connection; (status, body)."""
    connection = http.client.HTTPConnection(proxy.endpoint.removeprefix("http://"), timeout=10)

    def ask(method="GET", target="/bucket/file", **headers):
        connection.request(method, target, headers={name.replace("_", "-"): text for name, text in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read()

    yield ask
    connection.close()


def test_nothing_changes_without_a_fault(ask, proxy):
    """Ranges, HEAD, lists and refusals pass on one connection; the log says what went out."""
    assert (200, BODY) == ask()
    assert (206, BODY[10:20]) == ask(Range="bytes=10-19")
    assert (200, b"") == ask("HEAD")
    assert (412, True) == (ask(If_Match='"x"')[0], b"Listed" not in ask(target="/bucket?list-type=2")[1])

    seen = [(e.method, e.path, e.range, e.status, e.bytes) for e in proxy.log]
    assert seen[:2] == [("GET", "/bucket/file", "", 200, len(BODY)), ("GET", "/bucket/file", "bytes=10-19", 206, 10)]
    assert (len(BODY) + 10, 10) == (proxy.served("file"), proxy.twice())


def test_host_arrives_as_it_was_sent(proxy, ask, server):
    """A signature covers it."""
    proxy.add(Fault("", answer=Answer(200, b"ours"), skip=1))

    assert (200, BODY) == ask(Host="bucket.example:9")
    assert (200, b"ours") == ask()


def test_reset(ask, proxy):
    """All bytes before it arrive, and then a reset instead of an end."""
    proxy.add(Fault("GET /bucket/file", reset_after=300_000))

    with pytest.raises(ConnectionResetError):
        ask()
    assert proxy.log[0].sent == 300_000


def test_cut(ask, proxy):
    """The connection ends as if that were all."""
    proxy.add(Fault("file", cut_after=1000))

    with pytest.raises(http.client.IncompleteRead) as cut:
        ask()
    assert BODY[:1000] == cut.value.partial


def test_flip(ask, proxy):
    """One bit, of the body's byte."""
    proxy.add(Fault("file", flip=5))

    _, body = ask()

    assert [5] == [i for i, (a, b) in enumerate(zip(BODY, body, strict=True)) if a != b]
    assert (body[5] ^ BODY[5]).bit_count() == 1


def test_stall_until_released(ask, proxy):
    """Nothing more comes; then everything does."""
    proxy.add(Fault("file", stall_after=1000))
    connection = http.client.HTTPConnection(proxy.endpoint.removeprefix("http://"), timeout=0.3)
    connection.request("GET", "/bucket/file")
    answer = connection.getresponse()
    assert BODY[:1000] == answer.read(1000)

    with pytest.raises(TimeoutError):
        answer.read1(1)
    connection.close()
    proxy.clear()
    assert (200, BODY) == ask()


def test_answers_of_our_own(ask, proxy):
    """Instead of the server's, as often as wanted, and only for what matches."""
    proxy.add(Fault("^GET", ranged=True, skip=1, times=2, answer=s3_error(429, "SlowDown", Retry_After="1")))

    statuses = [ask(Range="bytes=0-9")[0] for _ in range(4)]

    assert [206, 429, 429, 206] == statuses
    assert (200, BODY) == ask()
    assert proxy.served() == 20 + len(BODY)


def test_latency_and_rate(ask, proxy):
    """The first byte waits, and the body flows evenly."""
    proxy.add(Fault("", latency_s=0.1), Fault("", bytes_per_s=len(BODY) / 0.3))

    started = time.monotonic()
    ask("HEAD")
    between = time.monotonic()
    ask()

    assert 0.1 <= between - started < 10
    assert 0.28 <= time.monotonic() - between < 10


def test_down_and_up(proxy, ask):
    """Connections end and new ones are refused, until it is up again at the same address."""
    ask()
    proxy.down()
    with pytest.raises((ConnectionError, http.client.RemoteDisconnected)):
        ask()
    with pytest.raises(ConnectionRefusedError):
        http.client.HTTPConnection(proxy.endpoint.removeprefix("http://"), timeout=1).connect()

    proxy.up()

    assert (200, BODY) == ask()


@pytest.mark.parametrize(
    "spans,size", [([], 0), ([(0, 10), (5, 15)], 15), ([(5, 6), (0, 2)], 3), ([(0, 9), (2, 4)], 9)]
)
def test_covered(spans, size):
    """Overlaps count once."""
    assert size == covered(spans)
