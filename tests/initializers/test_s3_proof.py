"""s3:// against a server that does what no real one does on request: what proves the bytes."""

import hashlib
import itertools
import os

import pytest
from fetching import bring, tree
from hostile_s3 import BODY, HostileS3, Thing, crc_header, opened

from trainer_agent.errors import FatalError
from trainer_agent.initializers import HIDDEN, ChangedError, record
from trainer_agent.initializers.fetch import Bounds
from trainer_agent.initializers.s3 import S3Source

AMAZON = {"Server": "AmazonS3"}
BIG = (8 << 20) + 5
UNEVEN = (5 << 20, (3 << 20) - 5, 10)
# Between the first and the last they add up as if they were equal.
SEEMING = (2 << 20, 3 << 20, 1 << 20, 2 << 20, 5)


def fetched(server, destination):
    """Fetch `d`, one file at a time; return the files, and what the record says of them."""
    source = S3Source("bucket/d", server.environ, patience_s=0.0)
    bring(source, destination, bounds=Bounds(streams=1, timeout_s=30))
    return tree(destination), record.read(destination / HIDDEN).files


def of_parts(body, sizes):
    """Return the ETag of an upload in parts."""
    ends = list(itertools.accumulate(sizes))
    parts = [hashlib.md5(body[end - size : end]).digest() for size, end in zip(sizes, ends, strict=True)]
    return f"{hashlib.md5(b''.join(parts)).hexdigest()}-{len(sizes)}"


def test_a_checksum_of_a_large_file_comes_from_its_headers():
    """One HEAD; the server must be asked to tell."""
    crc = crc_header("crc64nvme", bytes(range(8)))
    with HostileS3({"big": Thing(b"x", headers={"Content-Length": str(BIG), **crc}, size=BIG)}) as server:
        source, (entry,) = opened(server, "bucket")

        assert source.checksum(entry) == "crc64nvme:0001020304050607"
        assert server.seen[-1].headers["x-amz-checksum-mode"] == "ENABLED"


def test_parts_are_measured_when_nothing_better_is_known():
    """A multipart ETag means something with the size of the parts."""
    body = bytes(BIG)
    with HostileS3({"big": Thing(body, etag=f"{'a' * 32}-2", parts=5 << 20)}) as server:
        source, (entry,) = opened(server, "bucket")

        assert source.checksum(entry) == f"md5-parts:5242880:{'a' * 32}-2"


@pytest.mark.parametrize("etag", [f"{'a' * 32}-2", "opaque"])
def test_an_etag_that_means_nothing_is_no_checksum(etag):
    """No parts, or no MD5."""
    with HostileS3({"big": Thing(bytes(BIG), etag=etag), "small": Thing(b"", etag=etag)}) as server:
        source, entries = opened(server, "bucket")

        assert [source.checksum(e) for e in entries] == ["", ""]


@pytest.mark.parametrize("sizes", [UNEVEN, (2 << 20, 5 << 20, (1 << 20) + 5), SEEMING, (BIG,)], ids=str)
def test_parts_of_any_size_prove_an_object(sizes, tmp_path):
    """s3fs, pyarrow and whoever composes objects upload such; right bytes are right, and a wrong one shows."""
    body = os.urandom(BIG)
    thing = Thing(body, etag=of_parts(body, sizes), parts=sizes, headers=AMAZON)
    with HostileS3({"d/big": thing}) as server:
        whole, _ = fetched(server, tmp_path / "whole")
        thing.body = body[:-1] + bytes([body[-1] ^ 1])
        with pytest.raises(FatalError) as caught:
            fetched(server, tmp_path / "damaged")

    assert (whole, caught.value.code) == ({"big": body}, "checksum-differs")


def test_an_etag_of_one_part_counts_where_the_server_says_that_there_is_one(tmp_path):
    """MinIO of 2019 says nothing of parts, and its ETag is random."""
    etag = f"{'7' * 32}-1"
    with HostileS3({"d/1": Thing(b"right bytes", etag=etag)}) as server:
        files, _ = fetched(server, tmp_path / "random")
    right = Thing(b"right bytes, the longer ones", etag=of_parts(b"right bytes, the longer ones", [28]), parts=28)
    things = {"d/0": right, "d/1": Thing(b"wrong bytes", etag=etag, parts=11)}
    with HostileS3(things) as server, pytest.raises(FatalError) as caught:
        fetched(server, tmp_path / "damaged")

    assert ({"1": b"right bytes"}, "checksum-differs") == (files, caught.value.code)


def test_equal_parts_cost_two_questions():
    """The first and the last tell; more would take as long as the bytes."""
    body = bytes(BIG)
    with HostileS3({"big": Thing(body, etag=f"{'a' * 32}-9", parts=1 << 20)}) as server:
        source, (entry,) = opened(server, "bucket")
        source.checksum(entry)

        assert [seen.query for seen in server.seen[1:]] == [{}, {"partNumber": "1"}, {"partNumber": "9"}]


def test_too_many_parts_of_different_sizes_are_no_checksum():
    """Thousands of questions would take longer than the bytes."""
    sizes = (8 << 20, *[1] * 200)
    with HostileS3({"big": Thing(bytes(sum(sizes)), etag=f"{'a' * 32}-201", parts=sizes)}) as server:
        source, (entry,) = opened(server, "bucket")

        assert (source.checksum(entry), len(server.requests("HEAD"))) == ("", 3)


def test_small_files_cost_no_question(tmp_path):
    """2,000 of them must not cost 2,000 HEADs: what proves them comes with their bytes."""
    etag = of_parts(b"of one part", [11])
    things = {f"d/{i}": f"{i}".encode() for i in range(50)}
    part = Thing(b"of one part", etag=etag, headers={"Server": "AmazonS3"})
    more = {"d/part": part, "d/empty": b"", "d/opaque": Thing(b"?", etag="opaque")}
    with HostileS3(things | more) as server:
        _, files = fetched(server, tmp_path)

        assert server.requests("HEAD") == []
    proofs = {name: kept.checksum for name, kept in files.items() if not kept.checksum.startswith("crc64nvme:")}
    expected = {f"{i}": f"md5:{hashlib.md5(f'{i}'.encode()).hexdigest()}" for i in range(50)}
    assert proofs == expected | {"part": f"md5-parts:11:{etag}"}


@pytest.mark.parametrize("first", ["encrypted", "plain"])
@pytest.mark.parametrize(
    "headers",
    [
        {"x-amz-server-side-encryption": "aws:kms"},
        {"x-amz-server-side-encryption": "aws:fsx"},
        {"x-amz-server-side-encryption-customer-algorithm": "AES256"},
    ],
)
def test_etags_of_encrypted_objects_are_no_md5(headers, first, tmp_path):
    """They look like one; those of the others in the bucket are, and prove them."""
    secret = Thing(b"secret", etag="0" * 32, headers=headers)
    things = {"d/1": secret, "d/2": Thing(b"clear", headers=AMAZON), "d/3": secret}
    if first == "plain":
        things["d/0"] = Thing(b"also clear")
    with HostileS3(things) as server:
        whole, files = fetched(server, tmp_path / "whole")
        server.objects["d/2"].body = b"Clear"
        with pytest.raises(FatalError) as caught:
            fetched(server, tmp_path / "damaged")

        assert server.requests("HEAD") == []
    assert whole == {key.removeprefix("d/"): thing.body for key, thing in things.items()} | {"2": b"clear"}
    assert files["2"].checksum == f"md5:{hashlib.md5(b'clear').hexdigest()}"
    assert (caught.value.code, files["1"].checksum[:9]) == ("checksum-differs", "crc64nvme")


def test_etags_that_look_like_md5s_and_are_none(tmp_path, capsys):
    """As lakeFS's of uploads in parts, FSx's and VAST's: one is fetched twice to know, the others are not."""
    things = {f"d/{i}": Thing(f"bytes {i}".encode(), etag=f"{i}" * 32) for i in range(5)}
    with HostileS3(things) as server:
        files, record_of = fetched(server, tmp_path)

        assert len(server.requests("GET")) == 1 + 5 + 1  # the list, and one of them again
    assert files == {str(i): f"bytes {i}".encode() for i in range(5)}
    assert {kept.checksum.partition(":")[0] for kept in record_of.values()} == {"crc64nvme"}
    assert capsys.readouterr().out.count("this server's ETags are no MD5s and prove nothing") == 1


@pytest.mark.parametrize("wrong", ["d/0", "d/1"])
def test_where_one_etag_is_an_md5_all_are(wrong, tmp_path):
    """Or the server is one whose ETags are: the same wrong bytes twice are then damage at the source."""
    things = {f"d/{i}": Thing(b"right" * (9 - i), headers=AMAZON if wrong == "d/0" else {}) for i in range(3)}
    things[wrong].body = b"wrong" * (len(things[wrong].body) // 5)
    with HostileS3(things) as server, pytest.raises(FatalError) as caught:
        fetched(server, tmp_path)

    assert caught.value.code == "checksum-differs"


@pytest.mark.parametrize("status", [400, 405, 416, 501])
def test_a_server_that_tells_nothing_of_parts(status, tmp_path):
    """versitygw, SeaweedFS, Ozone: no proof, and no failure, as nobody needs the answer."""
    body = bytes(BIG)
    with HostileS3({"d/big": Thing(body, etag=f"{'a' * 32}-2", parts=status)}) as server:
        server.no_parts = status
        files, record_of = fetched(server, tmp_path)

        assert [seen.query for seen in server.seen if seen.method == "HEAD"] == [{}, {"partNumber": "1"}]
    assert (files, record_of["big"].checksum[:9]) == ({"big": body}, "crc64nvme")


def test_a_server_for_which_each_part_is_all(tmp_path):
    """SeaweedFS's HEAD of a part has the length of the object."""
    with HostileS3({"big": Thing(bytes(BIG), etag=f"{'a' * 32}-60", parts=(BIG, *[0] * 59))}) as server:
        source, (entry,) = opened(server, "bucket")

        assert (source.checksum(entry), len(server.requests("HEAD"))) == ("", 2)


def test_a_small_file_that_is_read_in_parts_costs_a_question(server):
    """Only with the whole of it comes what proves it."""
    source, (entry,) = opened(server)
    list(source.read(entry, 0, 100))

    assert source.checksum(entry) == f"md5:{hashlib.md5(BODY).hexdigest()}"
    assert len(server.requests("HEAD")) == 1


def test_a_checksum_of_another_version_is_none(server):
    """The object was replaced between list and HEAD, or is gone."""
    source, (entry,) = opened(server)
    server.objects["d/f"] = Thing(b"other")
    with pytest.raises(ChangedError):
        source.checksum(entry)
    del server.objects["d/f"]
    with pytest.raises(ChangedError):
        source.checksum(entry)
