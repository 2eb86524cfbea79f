"""s3:// against a server that does what no real one does on request: the bytes."""

import hashlib

import pytest
from authority import server_context
from hostile_s3 import BODY, Fault, HostileS3, Thing, opened

from trainer_agent.errors import FatalError, RetryError
from trainer_agent.initializers import ChangedError, Entry, NoRangesError, TransientError
from trainer_agent.initializers.s3 import S3Source


def read(server, start=0, stop=1024, **environ):
    """Read a range of the first entry."""
    source, (entry, *_) = opened(server, **environ)
    return b"".join(map(bytes, source.read(entry, start, stop)))


def test_a_whole_file_is_asked_for_without_a_range(server):
    """A server that knows no ranges can serve it too; If-Match pins the version."""
    assert read(server) == BODY
    assert server.requests()[-1] == ("/bucket/d/f", None)
    assert server.seen[-1].headers["if-match"] == f'"{hashlib.md5(BODY).hexdigest()}"'


def test_a_range_is_asked_for_as_one(server):
    """With both ends."""
    assert read(server, 10, 20) == BODY[10:20]
    assert server.requests()[-1] == ("/bucket/d/f", "bytes=10-19")


@pytest.mark.parametrize(
    "key", ["a//b", "/lead", "a/./b", "a/../../b", "..", "new\nline\x01", "end\udcff", "a b+%2F", "\u65e5\u672c", "x."]
)
def test_any_key_can_be_read(key):
    """The path below the prefix is exactly the key's."""
    with HostileS3({f"d/{key}": key.encode("utf-8", "surrogateescape"), "d/other": b""}) as server:
        source, entries = opened(server)
        (entry,) = [e for e in entries if e.path != "other"]

        assert entry.path == key
        body = b"".join(map(bytes, source.read(entry, 0, entry.size)))
        assert body == key.encode("utf-8", "surrogateescape")


@pytest.mark.parametrize("if_match", [False, True])
@pytest.mark.parametrize("span", [(0, 1024), (0, 100)])
def test_a_file_that_changed_is_noticed(server, if_match, span):
    """By the server, or by its ETag where the server ignores If-Match."""
    source, (entry,) = opened(server)
    server.objects["d/f"] = Thing(BODY[::-1])
    server.if_match = if_match

    with pytest.raises(ChangedError) as caught:
        list(source.read(entry, *span))

    assert caught.value.code == "source-changed"


def test_a_file_of_another_size_is_noticed(server):
    """Where no ETag tells, the size in Content-Range does."""
    source, _ = opened(server)

    with pytest.raises(ChangedError, match="it has 1,024 bytes, and 2,048 were listed"):
        list(source.read(Entry("f", 2048, "d/f"), 0, 100))


def test_a_file_that_is_gone_has_changed(server):
    """It was listed."""
    source, (entry,) = opened(server)
    del server.objects["d/f"]

    with pytest.raises(ChangedError):
        list(source.read(entry, 0, 10))


def test_a_range_beyond_the_end_means_a_change(server):
    """416: it has become shorter."""
    source, _ = opened(server)

    with pytest.raises(ChangedError, match="answer 416"):
        list(source.read(Entry("f", 9999, "d/f"), 5000, 6000))


def test_ranges_that_are_ignored_are_told_apart(server):
    """200 to a range; the whole file is then asked for without one."""
    server.ranges = False

    with pytest.raises(NoRangesError):
        read(server, 10, 20)
    assert read(server) == BODY


def test_a_cut_body_is_worth_a_retry(server):
    """What came before has been passed on."""
    source, (entry,) = opened(server)
    server.faults["d/f"] = [Fault(cut=100)]
    pieces = source.read(entry, 0, entry.size)

    with pytest.raises(TransientError) as caught:
        b"".join(pieces)

    assert caught.value.code == "source-unavailable"
    assert "not-for-logs" not in repr(caught.value.__cause__)


def test_nothing_is_tried_twice(server):
    """Attempts are counted by the frame alone."""
    source, (entry,) = opened(server)
    server.faults["d/f"] = [Fault(503, "SlowDown")]

    with pytest.raises(TransientError):
        list(source.read(entry, 0, 10))
    assert len(server.requests()) == 2, "one list, one attempt"


def test_a_busy_server_says_how_long(server):
    """503 SlowDown with Retry-After."""
    server.faults["d/f"] = [Fault(503, "SlowDown", headers={"Retry-After": "7"})]

    with pytest.raises(TransientError) as caught:
        read(server)

    assert (caught.value.busy, caught.value.retry_after_s) == (True, 7.0)
    assert caught.value.message == f"{server.endpoint}/bucket/d/f answers 503 (SlowDown)"


@pytest.mark.parametrize(
    "fault,kind,code",
    [
        (Fault(403, "AccessDenied", "User u may not"), FatalError, "source-refused"),
        (Fault(403, "InvalidObjectState"), FatalError, "object-archived"),
        (Fault(403, "SignatureDoesNotMatch"), FatalError, "source-refused"),
        (Fault(401), FatalError, "source-refused"),
        (Fault(400, "KMS.DisabledException"), FatalError, "source-refused"),
        (Fault(400, "ExpiredToken"), FatalError, "credentials-expired"),
        (Fault(400, "RequestTimeout"), TransientError, "source-unavailable"),
        (Fault(500, body=b"<html>oops"), TransientError, "source-unavailable"),
        (Fault(501, "NotImplemented"), FatalError, "source-refused"),
        (Fault(404, "NoSuchBucket"), FatalError, "source-not-found"),
    ],
    ids=lambda value: getattr(value, "code", None) or getattr(value, "__name__", None),
)
def test_what_a_refusal_tells(server, fault, kind, code):
    """What may pass is transient, what will not is fatal, and no secret is shown."""
    server.faults["d/f"] = [fault]

    with pytest.raises(kind) as caught:
        read(server)

    assert caught.value.code == code
    assert "d/f" in caught.value.message or code == "credentials-expired"
    assert "not-for-logs" not in f"{caught.value.message} {caught.value.hint}"


def test_a_server_s_reason_is_shown_without_keys(server):
    """Amazon's says which user may not do what; some servers repeat the keys."""
    server.faults["d/f"] = [Fault(403, "AccessDenied", "AKIDTEST with not-for-logs may not read")]

    with pytest.raises(FatalError) as caught:
        read(server)

    assert (
        caught.value.message == f"{server.endpoint} refuses s3://bucket/d/f: AccessDenied (*** with *** may not read)"
    )
    assert caught.value.hint == "let ACCESS_KEY_ID and SECRET_ACCESS_KEY do s3:ListBucket and s3:GetObject here"


def test_a_list_s_refusal_is_told_when_the_object_is_refused_too(server):
    """The list's answer has a text, a HEAD's has none."""
    server.faults = {"list": [Fault(403, "AccessDenied", "may not list")], "d": [Fault(403)]}

    with pytest.raises(FatalError, match="may not list"):
        opened(server)


def test_an_object_that_is_refused_is_not_an_empty_list(server):
    """Nothing below the prefix, and the object of this name may not be read."""
    server.faults = {"x": [Fault(403)]}

    with pytest.raises(FatalError, match="refuses s3://bucket/x: 403"):
        opened(server, "bucket/x")


@pytest.mark.parametrize(
    "date,off", [("Thu, 01 Jan 2026 00:00:00 GMT", r"\+[0-9,]{9,} s"), ("noon", "more than 15 minutes")]
)
def test_a_clock_that_is_off(server, date, off):
    """By how much, as the server's date tells; this node is unfit, and trying again here would not help."""
    server.faults["d/f"] = [Fault(403, "RequestTimeTooSkewed", headers={"Date": date})]

    with pytest.raises(RetryError, match=rf"this node's clock is off by {off}") as caught:
        read(server)

    assert not isinstance(caught.value, TransientError)


def test_a_range_of_unknown_size(server):
    """`*` is allowed."""
    server.faults["d/f"] = [Fault(206, body=BODY[10:20], headers={"Content-Range": "bytes 10-19/*"})]

    assert read(server, 10, 20) == BODY[10:20]


def test_a_range_that_was_not_asked_for(server):
    """206, with other bytes."""
    server.faults["d/f"] = [Fault(206, body=BODY[:10], headers={"Content-Range": "bytes 0-9/1024"})]

    with pytest.raises(TransientError, match="asked for bytes 10-19, the server sends 'bytes 0-9/1024'"):
        read(server, 10, 20)


@pytest.mark.parametrize("payer", ["requester", "true"])
def test_whoever_reads_pays(server, payer):
    """List, HEAD and GET say so, and sign it."""
    server.requester_pays = True
    server.objects["d/big"] = Thing(BODY, etag="c" * 32 + "-2", parts=512)
    source, entries = opened(server, AWS_REQUEST_PAYER=payer)

    for entry in entries:
        source.checksum(entry)
    assert read(server, AWS_REQUEST_PAYER=payer) == BODY
    assert {"GET", "HEAD"} == {seen.method for seen in server.seen}
    assert all("x-amz-request-payer" in seen.headers["authorization"] for seen in server.seen)


@pytest.mark.parametrize("host, told", [("s3.amazonaws.com", True), ("minio", False)])
def test_whoever_does_not_pay_is_told_how(server, host, told):
    """By Amazon's service, where the answer does not tell; others do not know it."""
    server.requester_pays = True

    with pytest.raises(FatalError) as caught:
        opened(server, ENDPOINT=f"http://{host}", HTTP_PROXY=server.endpoint)

    assert caught.value.hint == (
        "let ACCESS_KEY_ID and SECRET_ACCESS_KEY do s3:ListBucket and s3:GetObject here"
        + "; where whoever reads is to pay, set AWS_REQUEST_PAYER=requester" * told
    )


def test_nobody_is_told_to_become_somebody(server):
    """Without credentials nothing is signed, and a refusal says so."""
    server.environ = {"ENDPOINT": server.endpoint}
    server.faults["list"] = [Fault(403, "AccessDenied")]
    server.faults["d"] = [Fault(403)]

    with pytest.raises(FatalError) as caught:
        opened(server)

    assert {seen.access_key for seen in server.seen} == {""}
    assert caught.value.hint == "no credentials were found: give ACCESS_KEY_ID and SECRET_ACCESS_KEY, or a role"


def test_nobody_reads_what_is_public(server):
    """Nothing is signed."""
    server.environ["AWS_NO_SIGN_REQUEST"] = "true"

    assert read(server) == BODY
    assert {seen.access_key for seen in server.seen} == {""}


def test_an_object_that_may_be_read_but_not_listed(server):
    """Common for public objects: HEAD finds it."""
    server.faults["list"] = [Fault(403, "AccessDenied")]
    _, entries = opened(server, "bucket/d/f")

    assert [(e.path, e.size, e.version) for e in entries] == [("f", 1024, hashlib.md5(BODY).hexdigest())]


@pytest.mark.parametrize("length", [None, "", "1024, 1024", "many"])
@pytest.mark.parametrize("ranges", [True, False])
def test_a_head_that_does_not_tell_the_size(server, length, ranges):
    """A GET does, be it of the first byte only; some gateways leave out what is not to be sent."""
    server.faults["d/f"] = [Fault(200, body=b"", headers={"Content-Length": length})]
    server.ranges = ranges
    source, (entry,) = opened(server, "bucket/d/f")

    assert (entry.size, b"".join(map(bytes, source.read(entry, 0, 1024)))) == (1024, BODY)


@pytest.mark.parametrize(
    "headers", [{}, {"Content-Length": None, "Transfer-Encoding": "chunked"}], ids=["plain", "chunked"]
)
def test_an_empty_object_whose_size_a_head_does_not_tell(server, headers):
    """It has no first byte, and is refused (416)."""
    server.objects["d/f"] = Thing(b"")
    whole = [Fault(200, body=b"0\r\n\r\n", headers=headers)] if headers else []
    server.faults["d/f"] = [Fault(200, body=b"", headers={"Content-Length": None}), Fault(416, "InvalidRange"), *whole]
    source, (entry,) = opened(server, "bucket/d/f")

    assert (entry.size, b"".join(map(bytes, source.read(entry, 0, 0)))) == (0, b"")


def test_an_object_of_which_no_range_is_given_is_not_taken_for_an_empty_one(server):
    """A server may refuse a range for reasons of its own."""
    server.faults["d/f"] = [Fault(200, body=b"", headers={"Content-Length": None}), Fault(416, "InvalidRange")]

    with pytest.raises(ChangedError, match="answer 416"):
        opened(server, "bucket/d/f")


def test_a_size_that_nobody_tells(server):
    """It is not taken for an empty file."""
    head = Fault(200, body=b"", headers={"Content-Length": None})
    chunked = Fault(200, body=b"0\r\n\r\n", headers={"Content-Length": None, "Transfer-Encoding": "chunked"})
    server.faults["d/f"] = [head, chunked]

    with pytest.raises(TransientError) as caught:
        opened(server, "bucket/d/f")

    assert caught.value.code == "source-garbled"
    assert caught.value.message == "s3://bucket/d/f: the server does not tell how many bytes it has"


def test_a_length_that_is_no_number_is_no_change(server):
    """What arrives is counted anyway."""
    source, (entry,) = opened(server)
    server.objects["d/f"].headers["Content-Length"] = "1024, 1024"
    server.faults["d/f"] = [Fault(cut=1024), Fault(cut=1024)]  # the second is for the whole client

    assert b"".join(map(bytes, source.read(entry, 0, 1024))) == BODY


def test_keys_of_the_process_are_never_mixed_in(server, monkeypatch):
    """Only what the command was given counts, and its keys stay together."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-somebody-else")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")

    assert read(server) == BODY
    assert server.seen[-1].access_key == "AKIDTEST"
    assert "x-amz-security-token" not in server.seen[-1].headers


def test_a_body_stays_as_it_is_stored(server):
    """An object that was uploaded compressed is not unpacked."""
    server.objects["d/f"] = Thing(BODY, headers={"Content-Encoding": "gzip"})

    assert read(server) == BODY


def test_virtual_hosts(server, monkeypatch):
    """The bucket is part of the host's name; the server stands in for the world's name servers as a proxy."""
    monkeypatch.setenv("HTTP_PROXY", server.endpoint)
    environ = {
        "ENDPOINT": "http://s3.example.test",
        "AWS_S3_ADDRESSING_STYLE": "virtual",
        "HTTP_PROXY": server.endpoint,
    }

    assert read(server, 5, 9, **environ) == BODY[5:9]
    assert {seen.headers["host"] for seen in server.seen} == {"bucket.s3.example.test"}


@pytest.mark.parametrize("variable", ["AWS_CA_BUNDLE", "SSL_CERT_FILE"])
def test_an_authority_of_one_s_own(tmp_path, variable):
    """Clusters have their own; it is trusted once it is named, and nothing before."""
    authority = tmp_path / "certificate"
    with HostileS3({"d/f": BODY}, tls=server_context(authority)) as server:
        assert read(server, **{variable: str(authority)}) == BODY
        with pytest.raises(FatalError) as caught:
            opened(server)

    assert caught.value.code == "certificate-refused"


def test_an_authority_that_is_not_there():
    """Said at once, and only where it is needed."""
    environ = {"AWS_CA_BUNDLE": "/no/such.pem"}
    S3Source("bucket", {**environ, "ENDPOINT": "http://127.0.0.1:9"})
    with pytest.raises(FatalError, match=r"AWS_CA_BUNDLE=/no/such\.pem cannot be read"):
        next(S3Source("bucket", environ).entries())
