"""Checksums are those of hashlib, zlib, git and S3, however the bytes arrive."""

import hashlib
import itertools
import random
import shutil
import subprocess
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_agent.initializers import digests

DATA = random.Random(1).randbytes(100_000)
# Of the ASCII digits 1 to 9: the check values of the catalogue of parametrised CRC algorithms.
CHECK = b"123456789"
CHECK_VALUES = {"crc32": "cbf43926", "crc32c": "e3069283", "crc64nvme": "ae8b14860a799888"}
HASHES = ["sha512", "sha256", "sha1", "md5"]


def etag(data, size):
    """Return what S3 calls an object that was uploaded in parts of `size` bytes."""
    parts = [data[at : at + size] for at in range(0, len(data), size)] or [b""]
    whole = hashlib.md5(b"".join(hashlib.md5(part).digest() for part in parts)).hexdigest()
    return f"md5-parts:{size}:{whole}-{len(parts)}"


def cut(data, places):
    """Return the pieces of `data` between `places`."""
    bounds = sorted({0, len(data), *(p % (len(data) + 1) for p in places)})
    return [data[a:b] for a, b in itertools.pairwise(bounds)]


def sequential(checksum, pieces):
    digest = digests.Sequential(checksum, sum(map(len, pieces)))
    for piece in pieces:
        digest.update(piece)
    return digest.actual()


def of_range(algorithm, piece):
    digest = digests.RangeDigest(algorithm)
    digest.update(piece)
    return digest.value


@pytest.mark.parametrize("algorithm,value", CHECK_VALUES.items())
def test_crcs_are_those_of_the_catalogue(algorithm, value):
    assert f"{algorithm}:{value}" == digests.combine(algorithm, [(of_range(algorithm, CHECK), len(CHECK))])


def test_crc32_is_that_of_zlib():
    assert zlib.crc32(DATA) == of_range("crc32", DATA)


@pytest.mark.parametrize("algorithm", HASHES)
@pytest.mark.parametrize("data", [b"", b"x", DATA], ids=["empty", "one", "many"])
def test_hashes_are_those_of_hashlib(algorithm, data):
    """Only the kind of the checksum that is given counts, not its value."""
    assert f"{algorithm}:{hashlib.new(algorithm, data).hexdigest()}" == sequential(f"{algorithm}:any", [data])


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not there")
@pytest.mark.parametrize("data", [b"", b"x", DATA], ids=["empty", "one", "many"])
def test_a_blob_id_is_that_of_git(tmp_path, data):
    file = tmp_path / "file"
    file.write_bytes(data)
    blob = subprocess.check_output(["git", "hash-object", "--no-filters", file], text=True).strip()

    assert f"git-sha1:{blob}" == sequential("git-sha1:any", [data])


@pytest.mark.parametrize("size", [1000, 33_333, 50_000, 99_999, 100_000, 100_001])
@pytest.mark.parametrize("data", [b"", DATA], ids=["empty", "many"])
def test_an_etag_is_that_of_an_upload_in_parts(data, size):
    """The last part may be short, whole, or the only one."""
    assert etag(data, size) == sequential(f"md5-parts:{size}:any-1", [data])


@pytest.mark.parametrize("sizes", [(1, 2, 3), (3, 1, 2), (6,), (1, 1, 4)])
def test_parts_may_have_different_sizes(sizes):
    """As s3fs and pyarrow upload."""
    parts = [b"a" * size for size in sizes]
    whole = hashlib.md5(b"".join(hashlib.md5(part).digest() for part in parts)).hexdigest()
    written = ",".join(map(str, sizes))

    assert f"md5-parts:{written}:{whole}-{len(sizes)}" == sequential(f"md5-parts:{written}:any-1", [b"a" * 6])


def test_an_etag_may_be_asked_for_in_between():
    digest = digests.Sequential("md5-parts:10:any-1", 25)
    seen = []
    for piece in (b"a" * 12, b"b" * 13):
        digest.update(piece)
        seen += [digest.actual(), digest.actual()]

    first, both = etag(b"a" * 12, 10), etag(b"a" * 12 + b"b" * 13, 10)
    assert [first, first, both, both] == seen


@pytest.mark.parametrize("wrap", [bytes, memoryview], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("checksum", [*HASHES, "git-sha1", "md5-parts:7"])
def test_pieces_may_be_any_kind_of_bytes(wrap, checksum):
    assert sequential(checksum, [DATA]) == sequential(checksum, [wrap(DATA[:50]), wrap(DATA[50:])])


@pytest.mark.parametrize("wrap", [bytes, memoryview], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("algorithm", CHECK_VALUES)
def test_ranges_may_be_any_kind_of_bytes(wrap, algorithm):
    assert of_range(algorithm, DATA) == of_range(algorithm, wrap(DATA))


@pytest.mark.parametrize("algorithm", CHECK_VALUES)
@given(data=st.binary(max_size=500), places=st.lists(st.integers(0, 500), max_size=8), order=st.randoms())
def test_ranges_in_any_order_combine_to_the_whole(algorithm, data, places, order):
    """Each range may itself arrive in pieces."""
    ranges = list(enumerate(cut(data, places)))
    order.shuffle(ranges)
    values = {}
    for number, piece in ranges:
        digest = digests.RangeDigest(algorithm)
        for half in (piece[:3], piece[3:]):
            digest.update(half)
        values[number] = (digest.value, len(piece))

    whole = digests.combine(algorithm, [(of_range(algorithm, data), len(data))])
    assert whole == digests.combine(algorithm, [values[number] for number in sorted(values)])


@pytest.mark.parametrize("checksum", [*HASHES, "git-sha1", "md5-parts:7"])
@given(data=st.binary(max_size=200), places=st.lists(st.integers(0, 200), max_size=8))
def test_pieces_of_any_length_hash_to_the_whole(checksum, data, places):
    assert sequential(checksum, [data]) == sequential(checksum, cut(data, places))


@pytest.mark.parametrize("checksum", [*CHECK_VALUES, *HASHES, "git-sha1", "md5-parts:1000:any-3"])
@pytest.mark.parametrize("size", [0, 1, 3 << 20], ids=["empty", "one", "several reads"])
def test_a_file_has_the_checksum_of_its_bytes(tmp_path, checksum, size):
    data = (DATA * (size // len(DATA) + 1))[:size]
    file = tmp_path / "file"
    file.write_bytes(data)
    if digests.combinable(checksum):
        wanted = digests.combine(checksum, [(of_range(checksum, data), size)])
    else:
        wanted = sequential(checksum, [data])
    with file.open("rb") as opened:
        assert wanted == digests.of_file(opened.fileno(), checksum, size)


def test_only_crcs_can_be_combined():
    kinds = [*CHECK_VALUES, "crc32:cbf43926", *HASHES, "git-sha1", "md5-parts:8388608:abc-2", ""]

    assert ["crc32", "crc32c", "crc64nvme", "crc32:cbf43926"] == [k for k in kinds if digests.combinable(k)]
