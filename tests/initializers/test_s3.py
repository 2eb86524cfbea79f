"""s3:// against a server that checks signatures and permissions (moto), and one that knows no ranges (rclone)."""

import socket
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from demo import wait_for

from trainer_agent.errors import FatalError
from trainer_agent.initializers import NoRangesError, TransientError, open_source
from trainer_agent.initializers.s3 import S3Source

DATA = {
    "a.txt": b"alpha",
    "deep/b.bin": bytes(range(256)) * 4096,
    "with space and ü.txt": b"umlaut",
    "empty": b"",
}
KEY, SECRET = "RCLONEKEY", "rclone-secret"


def source(rest, environ):
    return S3Source(rest, environ, patience_s=0.0)


def caught_from(kind, rest, environ):
    """Return what listing raises."""
    with pytest.raises(kind) as caught:
        list(source(rest, environ).entries())
    assert environ.get("SECRET_ACCESS_KEY", "none") not in f"{caught.value.message} {caught.value.hint}"
    return caught.value


@pytest.mark.parametrize("rest", ["bucket/data", "bucket/data/"])
def test_a_prefix_is_a_path(s3, contents, rest):
    """`data` means `data/…`, not `data-old/…` nor `data2.txt`; directory markers are no files."""
    assert contents(source(rest, s3)) == DATA


def test_whoever_pays_signs_it(s3, contents):
    """A server that checks signatures takes it."""
    assert contents(source("bucket/data", {**s3, "AWS_REQUEST_PAYER": "requester"})) == DATA


def test_the_frame_opens_it(s3):
    """By its scheme; the address may be shown, and nothing is pinned to a commit."""
    opened = open_source("s3://bucket/data/", s3)

    assert (opened.uri, opened.revision) == ("s3://bucket/data/", "")


def test_a_single_object(s3, contents):
    """A URI may name one object."""
    assert contents(source("bucket/single.bin", s3)) == {"single.bin": b"one object"}


def test_a_directory_goes_before_an_object_of_the_same_name(s3, contents):
    """No file system can hold both, and most who write a prefix mean what is below it."""
    assert contents(source("bucket/both", s3)) == {"inside": b"inside"}


@pytest.mark.parametrize("rest", ["bucket/nothing", "bucket/dat", "bucket/data/a.txt/x", "bucket/data/marker"])
def test_nothing_there_is_an_empty_list(s3, rest):
    """What that means is for the frame to say."""
    assert list(source(rest, s3).entries()) == []


def test_a_bucket_alone_is_everything(s3):
    """As boto3 lists it, whatever the keys are made of."""
    listed = [(e.path, e.key, e.size, f'"{e.version}"') for e in source("bucket", s3).entries()]

    assert listed == [(o["Key"], o["Key"], o["Size"], o["ETag"]) for o in by_boto3(s3) if o["Key"] != "data/marker/"]
    assert len(listed) > 20


def test_keys_may_hold_anything(s3):
    """Each object of nasty/ holds its own name; keys with dot segments are read in test_s3_reading.py."""
    src = source("bucket/nasty", s3)
    readable = [e for e in src.entries() if not {".", ".."} & set(e.path.split("/"))]

    bodies = [b"".join(map(bytes, src.read(e, 0, e.size))) for e in readable]
    assert [e.path.encode() for e in readable] == bodies
    assert len(readable) == 13


def test_a_range_is_a_range(s3):
    """`[start, stop)`, as in Python."""
    src = source("bucket/data/deep", s3)
    (entry,) = src.entries()

    assert b"".join(map(bytes, src.read(entry, 300, 400_000))) == DATA["deep/b.bin"][300:400_000]


def test_checksums_of_moto(s3):
    """boto3 put a CRC32 there; it comes with the bytes of what is read whole, else it is asked for."""
    src = source("bucket/data", s3)
    entries = list(src.entries())[:2]
    list(src.read(entries[0], 0, entries[0].size))
    bodies = [DATA[entry.path] for entry in entries]

    assert [src.checksum(e) for e in entries] == [f"crc32:{zlib.crc32(body):08x}" for body in bodies]


def test_a_wrong_secret_is_refused(s3):
    """The server checks the signature, and the message says which variables to look at."""
    error = caught_from(FatalError, "bucket/data", {**s3, "SECRET_ACCESS_KEY": "x" * 40})

    assert error.code == "source-refused"
    assert error.message.startswith(f"{s3['ENDPOINT']} refuses s3://bucket: SignatureDoesNotMatch (")
    assert error.hint == "check ACCESS_KEY_ID and SECRET_ACCESS_KEY, and ENDPOINT"


def test_an_unknown_key_is_refused(s3):
    """Amazon's own names of the variables are understood, and named."""
    own = {"ENDPOINT": s3["ENDPOINT"], "AWS_ACCESS_KEY_ID": "AKIDNOBODY", "AWS_SECRET_ACCESS_KEY": "x" * 40}
    error = caught_from(FatalError, "bucket/data", own)

    assert "InvalidAccessKeyId" in error.message
    assert error.hint == "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and ENDPOINT"


def test_a_bucket_that_is_not_there(s3):
    """The message has the bucket and the server."""
    error = caught_from(FatalError, "no-such-bucket/x", s3)

    assert (error.code, error.message) == (
        "source-not-found",
        f"s3://no-such-bucket does not exist at {s3['ENDPOINT']}: NoSuchBucket",
    )


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "http://no-such-host.invalid"])
def test_a_server_that_is_not_there_is_worth_a_retry(s3, endpoint):
    """Connection refused and an unknown name may pass."""
    error = caught_from(TransientError, "bucket/data", {**s3, "ENDPOINT": endpoint})

    assert error.code == "source-unavailable"
    assert endpoint in error.message


def test_opening_is_cheap():
    """With fixed keys no module of roles, metadata or HTTP is loaded before the first byte."""
    code = (
        "import sys; from trainer_agent.initializers.s3 import S3Source\n"
        "S3Source('bucket/x', {'ACCESS_KEY_ID': 'k', 'SECRET_ACCESS_KEY': 's'})\n"
        "heavy = {'urllib3', 'awscrt', 'botocore', 'trainer_agent.initializers.s3_roles'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)

    assert done.stdout.strip() == "[]"


@pytest.fixture(scope="module")
def rclone(tmp_path_factory):
    """Return the variables for rclone's server, which checks signatures and holds DATA."""
    root = tmp_path_factory.mktemp("rclone")
    for path, body in DATA.items():
        file = root / "bucket" / "dir" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(body)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    program = Path(sys.executable).with_name("rclone")
    command = [program, "serve", "s3", "--auth-key", f"{KEY},{SECRET}", "--addr", f"127.0.0.1:{port}", root]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            wait_for(port, server)
            yield {"ENDPOINT": f"http://127.0.0.1:{port}", "ACCESS_KEY_ID": KEY, "SECRET_ACCESS_KEY": SECRET}
        finally:
            server.terminate()


def test_rclone_agrees_on_signatures(rclone, contents):
    """A second verifier, written by other people."""
    assert contents(source("bucket/dir", rclone)) == DATA


def test_rclone_refuses_a_wrong_secret(rclone):
    """So it does verify."""
    error = caught_from(FatalError, "bucket/dir", {**rclone, "SECRET_ACCESS_KEY": "wrong-secret"})

    assert "SignatureDoesNotMatch" in error.message


def test_a_server_without_ranges_is_told_apart(rclone):
    """rclone's sends the whole file for a range, with 200."""
    src = source("bucket/dir/deep", rclone)
    (entry,) = src.entries()

    with pytest.raises(NoRangesError, match="answers a range with 200"):
        list(src.read(entry, 0, 1000))


def by_boto3(s3):
    """Return all objects of the bucket as boto3 lists them."""
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=s3["ENDPOINT"],
        region_name=s3["REGION"],
        aws_access_key_id=s3["ACCESS_KEY_ID"],
        aws_secret_access_key=s3["SECRET_ACCESS_KEY"],
    )
    pages = client.get_paginator("list_objects_v2").paginate(Bucket="bucket")
    return [o for page in pages for o in page["Contents"]]
