"""What happens to a file of a Hub when something goes wrong while it is read."""

import random
import traceback
from concurrent.futures import ThreadPoolExecutor

import pytest
from hub import Hub

from trainer_agent.initializers import ChangedError, Entry, NoRangesError, TransientError
from trainer_agent.initializers.hf import HubSource

DATASET = "datasets/org/name"
BIG = random.Random(7).randbytes(3 << 20)
FILES = {"a.txt": b"alpha", "big.bin": BIG}


@pytest.fixture
def hub():
    with Hub() as server:
        server.repository(DATASET).commit(FILES)
        yield server


@pytest.fixture
def repo(hub):
    return hub.repos[DATASET]


@pytest.fixture
def source(hub):
    """Return a function that opens the repository."""
    return lambda: HubSource("org/name", {"HF_ENDPOINT": hub.endpoint})


def read(source, entry, start, stop):
    return b"".join(map(bytes, source.read(entry, start, stop)))


def entry_of(source, path):
    return next(e for e in source.entries() if e.path == path)


def test_expired_signature_is_renewed_once_for_all(hub, source):
    """In mid-file: what was located before no longer counts."""
    opened = source()
    entry = entry_of(opened, "big.bin")
    begun = read(opened, entry, 0, 1 << 20)
    hub.expire()
    with ThreadPoolExecutor(4) as pool:
        rest = list(pool.map(lambda i: read(opened, entry, i << 20, (i + 1) << 20), [1, 2, 1, 2]))

    assert begun + rest[0] + rest[1] == BIG
    assert 2 == len(hub.requests("HEAD .*/resolve/"))
    assert {403, 206} == {r.status for r in hub.requests("cdn GET")}


def test_expired_signature_costs_no_attempt(hub, source):
    opened = source()
    entry = entry_of(opened, "big.bin")
    read(opened, entry, 0, 100)
    hub.expire()

    assert BIG[100:200] == read(opened, entry, 100, 200)


def test_signature_that_is_always_refused_is_worth_a_retry(hub, source):
    hub.signed_s = -1.0
    opened = source()
    entry = entry_of(opened, "big.bin")

    for a, b in [(0, 100), (0, entry.size)]:
        with pytest.raises(TransientError) as caught:
            read(opened, entry, a, b)
        assert "Signature" not in f"{caught.value} {caught.value.__cause__}"
        assert "cdn-refused" == caught.value.code


@pytest.mark.parametrize("path,cut", [("a.txt", (0, 5)), ("big.bin", (0, 1000))])
def test_busy_server_is_told(hub, source, path, cut):
    a, b = cut
    opened = source()
    entry = entry_of(opened, path)
    hub.fault("/resolve/", status=429, headers={"Retry-After": "7"})

    with pytest.raises(TransientError, match="429") as caught:
        read(opened, entry, a, b)
    assert (True, 7.0) == (caught.value.busy, caught.value.retry_after_s)
    assert FILES[path][a:b] == read(opened, entry, a, b)


@pytest.mark.parametrize("cut", [(0, 100), (0, len(BIG))], ids=["range", "whole"])
def test_signature_is_in_no_traceback(hub, source, cut):
    opened = source()
    entry = entry_of(opened, "big.bin")
    hub.fault("cdn GET", status=500)

    with pytest.raises(TransientError) as caught:
        read(opened, entry, *cut)
    shown = "".join(traceback.format_exception(caught.value))
    assert hub.requests("cdn GET .*Signature=")
    assert "Signature=" not in shown


def test_cut_body_is_worth_a_retry(hub, source):
    opened = source()
    entry = entry_of(opened, "big.bin")
    hub.fault("cdn GET", cut=300_000)
    got = []

    with pytest.raises(TransientError):
        got.extend(bytes(p) for p in opened.read(entry, 0, 1 << 20))
    so_far = b"".join(got)
    assert so_far == BIG[: len(so_far)]
    assert BIG[len(so_far) : 1 << 20] == read(opened, entry, len(so_far), 1 << 20)


def test_server_without_ranges_is_told_apart(hub, source):
    opened = source()
    entry = entry_of(opened, "big.bin")
    hub.fault("cdn GET", whole=True, times=2)

    with pytest.raises(NoRangesError):
        read(opened, entry, 5, 10)
    assert BIG == read(opened, entry, 0, entry.size)


@pytest.mark.parametrize("content_range", ["bytes 5-8/3145728", "bytes 0-4/*", "", "nonsense"])
def test_other_range_than_asked_for_is_no_answer(hub, source, content_range):
    opened = source()
    entry = entry_of(opened, "big.bin")
    hub.fault("cdn GET", status=206, headers={"Content-Range": content_range}, body=b"12345")

    with pytest.raises(TransientError, match="asked for bytes 5-9"):
        read(opened, entry, 5, 10)


def test_total_of_a_range_may_be_unknown(hub, source):
    opened = source()
    entry = entry_of(opened, "big.bin")
    hub.fault("cdn GET", status=206, headers={"Content-Range": "bytes 5-9/*"}, body=BIG[5:10])

    assert BIG[5:10] == read(opened, entry, 5, 10)


@pytest.mark.parametrize("start,stop", [(0, 5), (1, 3)])
def test_redirect_may_name_a_file_as_it_is(hub, source, start, stop):
    """In UTF-8, as nginx does; what is encoded stays so."""
    opened = source()
    entry = entry_of(opened, "a.txt")
    location = f"{hub.cdn}/ü 1%20a+b?x=%2F&y=a/b".encode().decode("latin-1")
    hub.fault("/resolve/", status=302, headers={"Location": location})
    answer = {"status": 206, "headers": {"Content-Range": f"bytes {start}-{stop - 1}/5"}}
    hub.fault("cdn GET", body=b"alpha"[start:stop], **(answer if start else {"status": 200}))

    assert b"alpha"[start:stop] == read(opened, entry, start, stop)
    assert ["/%C3%BC%201%20a+b?x=%2F&y=a/b"] == [request.target for request in hub.requests("cdn GET")]


def test_redirects_of_a_file_end(hub, source):
    opened = source()
    entry = entry_of(opened, "a.txt")
    hub.fault("/resolve/", status=302, headers={"Location": "?again"}, times=99)

    with pytest.raises(TransientError, match="more than 5 redirects"):
        read(opened, entry, 0, entry.size)


def test_other_size_than_listed_is_a_change(source):
    opened = source()
    listed = entry_of(opened, "a.txt")
    wrong = Entry(listed.path, 6, listed.key)

    for start, stop in [(0, 6), (1, 3)]:
        with pytest.raises(ChangedError):
            read(opened, wrong, start, stop)
    with pytest.raises(TransientError):
        read(opened, Entry(listed.path, 600, listed.key), 500, 600)


def test_commit_that_vanishes_is_worth_a_new_list(repo, source):
    """Somebody rewrote the history while we were reading: the next attempt of the pod lists anew."""
    opened = source()
    listed = {e.path: e for e in opened.entries()}
    repo.commits.clear()

    for path in ["a.txt", "big.bin"]:
        with pytest.raises(ChangedError):
            read(opened, listed[path], 0, 3)


def test_silent_server_is_given_up(hub, source):
    opened = source()
    opened.api.http.stall_s = 0.2
    entry = entry_of(opened, "a.txt")
    hub.fault("/resolve/", hang=True)

    with pytest.raises(TransientError):
        read(opened, entry, 0, entry.size)
