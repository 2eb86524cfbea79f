"""The checksum of what arrives is that of the whole, in whatever order and by how many threads it arrives."""

import hashlib
import itertools
import random
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_agent.initializers import digests
from trainer_agent.initializers.proof import READ_BYTES, Combined, InOrder, Unproved, choose, feed

DATA = random.Random(1).randbytes(50_000)
KINDS = ["crc32:any", "crc32c:any", "crc64nvme:any", "sha256:any", "md5:any", "git-sha1:any", "md5-parts:777:any-1"]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Return an open file that hypothesis may write into again and again."""
    with (tmp_path_factory.mktemp("proof") / "file").open("w+b", buffering=0) as opened:
        yield opened


@pytest.fixture
def data(file):
    """Return an open file that holds `DATA`."""
    write(file, DATA)
    return file.fileno()


def write(file, content):
    file.seek(0)
    file.truncate()
    file.write(content)


def ranges_of(size, places):
    """Return the ranges between `places`; an empty file has one empty range."""
    bounds = sorted({0, size, *(p % (size + 1) for p in places)})
    return list(itertools.pairwise(bounds)) or [(0, 0)]


def value_of(checksum, content):
    """Return the CRC of a range, None for hashes."""
    if not digests.combinable(checksum):
        return None
    digest = digests.RangeDigest(checksum.partition(":")[0])
    digest.update(content)
    return digest.value


def arrive(proof, fd, content, start, stop):
    """Let one range arrive, in two pieces; return what may be kept of it."""
    digest = proof.digest(start, stop)
    if digest is not None:
        digest.update(content[start : start + 3][: stop - start])
        digest.update(memoryview(content)[start + 3 : stop])
    return proof.done(fd, start, stop, digest)


def hashed(hash_name, content):
    return f"{hash_name}:{hashlib.new(hash_name, content).hexdigest()}"


@pytest.mark.parametrize("checksum", KINDS)
@given(
    content=st.binary(max_size=300),
    places=st.lists(st.integers(0, 300), max_size=8),
    order=st.randoms(),
    known=st.sampled_from(["with values", "without"]),
)
def test_any_order_proves_the_whole(file, checksum, *, content, places, order, known):
    """Some ranges are of an earlier attempt, which may or may not have kept their values."""
    write(file, content)
    ranges = ranges_of(len(content), places)
    order.shuffle(ranges)
    earlier, now = ranges[: len(ranges) // 2], ranges[len(ranges) // 2 :]
    value = (lambda start, stop: value_of(checksum, content[start:stop])) if known == "with values" else lambda *_: None
    proof = choose(checksum, len(content), {start: (stop, value(start, stop)) for start, stop in earlier})
    for start, stop in now:
        arrive(proof, file.fileno(), content, start, stop)

    assert digests.of_file(file.fileno(), checksum, len(content)) == proof.actual(file.fileno())


@pytest.mark.parametrize("checksum", KINDS)
def test_many_threads_prove_the_whole(data, checksum):
    """Tiny ranges, so that their ends meet."""
    wanted = digests.of_file(data, checksum, len(DATA))
    for seed in range(5):
        ranges = ranges_of(len(DATA), range(0, len(DATA), 100))
        random.Random(seed).shuffle(ranges)
        proof = choose(checksum, len(DATA), {})
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda pair, proof=proof: arrive(proof, data, DATA, *pair), ranges))
        assert wanted == proof.actual(data)


def test_a_range_gives_what_may_be_kept_of_it(data):
    """Only the value of a CRC is worth keeping."""
    crc, sha, size = Combined("crc32", {}), InOrder("sha256:any", len(DATA), {}), Unproved()

    assert ("crc32", zlib.crc32(DATA[10:90])) == arrive(crc, data, DATA, 10, 90)
    assert crc.done(data, 90, 100, None) is None
    assert arrive(sha, data, DATA, 10, 90) is None
    assert arrive(size, data, DATA, 10, 90) is None


def test_a_range_whose_value_nobody_knows_is_read_again(data):
    proof = Combined("crc32", {0: (10, None)})
    proof.done(data, 10, len(DATA), None)

    assert f"crc32:{zlib.crc32(DATA):08x}" == proof.actual(data)


def test_a_file_of_one_range_is_hashed_while_its_bytes_are_at_hand(data):
    """And not read back."""
    proof = InOrder("sha256:any", len(DATA), {})
    digest = proof.digest(0, len(DATA))
    digest.update(DATA)
    proof.done(-1, 0, len(DATA), digest)

    assert hashed("sha256", DATA) == proof.actual(-1)
    assert proof.digest(0, 10) is None


def test_hashing_trails_the_bytes_without_a_gap(data):
    """What lies after a gap waits; what has no gap before it is not left for the end."""
    proof = InOrder("sha256:any", len(DATA), {20_000: (30_000, None)})
    arrive(proof, data, DATA, 40_000, 50_000)
    nothing = proof._hash.actual()
    arrive(proof, data, DATA, 0, 20_000)
    so_far = proof._hash.actual()
    arrive(proof, data, DATA, 30_000, 40_000)

    assert [hashed("sha256", DATA[:n]) for n in (0, 30_000, 50_000)] == [nothing, so_far, proof.actual(-1)]


def test_nobody_waits_for_another_who_is_hashing(data):
    """What arrives meanwhile is hashed by the one who is at it."""
    proof = InOrder("sha256:any", len(DATA), {})
    hashing, go_on = threading.Event(), threading.Event()
    whole = proof._hash

    class Slow:
        actual = whole.actual

        def update(self, piece):
            hashing.set()
            assert go_on.wait(60)
            whole.update(piece)

    proof._hash = Slow()
    first = threading.Thread(target=arrive, args=(proof, data, DATA, 0, 100))
    first.start()
    assert hashing.wait(60)
    arrive(proof, data, DATA, 100, len(DATA))
    go_on.set()
    first.join()

    assert hashed("sha256", DATA) == whole.actual()


def test_the_last_range_may_come_when_another_has_just_stopped_hashing(data):
    """That one has seen no further range and still holds the turn; the end takes what is left."""
    proof = InOrder("sha256:any", len(DATA), {})

    class Stops(dict):
        def pop(self, start, default=None):
            found = super().pop(start, default)
            if found is None and start == 100:
                late = threading.Thread(target=arrive, args=(proof, data, DATA, 100, len(DATA)))
                late.start()
                late.join()
            return found

    proof._stops = Stops()
    arrive(proof, data, DATA, 0, 100)

    assert hashed("sha256", DATA[:100]) == proof._hash.actual()
    assert hashed("sha256", DATA) == proof.actual(data)


def test_without_a_proof_there_is_no_checksum(data):
    proof = Unproved()
    arrive(proof, data, DATA, 0, len(DATA))

    assert "" == proof.actual(data)


@pytest.mark.parametrize("checksum", KINDS)
def test_the_kind_of_checksum_decides_how_it_is_found(checksum):
    wanted = Combined if checksum.startswith("crc") else InOrder

    assert wanted is type(choose(checksum, 10, {}))


def test_reading_back_takes_several_reads_and_stops_at_the_end(file):
    """A file that is too short is found out by its size."""
    content = DATA * (2 * READ_BYTES // len(DATA) + 1)
    write(file, content)
    parts = [hashlib.sha256(), hashlib.sha256()]
    feed(parts[0], file.fileno(), 5, len(content) - 5)
    feed(parts[1], file.fileno(), 5, len(content) + 10_000)

    assert [hashlib.sha256(content[5:-5]).digest(), hashlib.sha256(content[5:]).digest()] == [
        part.digest() for part in parts
    ]
