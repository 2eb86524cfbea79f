"""What every source shares: planning, transfer, verification, resuming, putting in place."""

import errno
import hashlib
import json
import os
import threading
import zlib
from contextlib import suppress

import pytest
import structlog
from fetching import AT_HAND, BIG, BLOCK, FEW, MIB, Faults, bring, hidden, md5, order, sha256, tree
from memory_source import PIECE, Memory

from trainer_agent.errors import FatalError, RetryError
from trainer_agent.host import Host
from trainer_agent.initializers import HIDDEN, ChangedError, NoRangesError, TransientError
from trainer_agent.initializers.fetch import Bounds, fetch

pytestmark = pytest.mark.lab

# --- arriving


def test_many_files_arrive_whole(tmp_path):
    """More files than streams, in directories that do not exist yet; nothing but the record is left beside them."""
    files = {f"d{i % 7}/f{i}": bytes([i % 256]) * i for i in range(300)}

    done = bring(Memory(files), tmp_path / "new" / "place")

    assert tree(tmp_path / "new" / "place") == files
    assert (done.files, done.size, done.fetched_files) == (300, sum(range(300)), 300)
    assert "record.json" in hidden(tmp_path / "new" / "place")
    assert "parts" not in hidden(tmp_path / "new" / "place")


@pytest.mark.parametrize("checksum", ["", "sha256", "md5", "crc32"])
def test_a_large_file_comes_in_ranges(tmp_path, checksum):
    """Each byte once, whatever proves it."""
    known = {"": "", "sha256": sha256(BIG), "md5": md5(BIG), "crc32": f"crc32:{zlib.crc32(BIG):08x}"}[checksum]
    source = Memory({"big": BIG}, checksums={"big": known})

    bring(source, tmp_path)

    assert tree(tmp_path) == {"big": BIG}
    assert source.served["big"] <= len(BIG) + AT_HAND
    assert len(source.reads) > 2


def test_a_source_without_ranges_is_asked_for_whole_files(tmp_path):
    """The first answer that is no range is enough to know."""
    files = {"big": BIG, "big2": BIG[: 70 * MIB], "small": b"s"}
    source = Whole(files)
    bring(source, tmp_path)

    assert tree(tmp_path) == files
    assert source.served == {path: len(body) for path, body in files.items()}


def test_two_orders_go_side_by_side(tmp_path):
    """Both begin before either ends."""
    both = threading.Barrier(2, timeout=20)
    waited = set()

    def meet(path, at):
        if path not in waited:
            waited.add(path)
            both.wait()

    orders = [
        order(Memory({name: bytes(3 * PIECE)}, hook=meet, uri=f"memory://{name}"), tmp_path / name)
        for name in ("dataset", "model")
    ]
    done = fetch(orders, host=Host(), bounds=Bounds(timeout_s=60))

    assert done.fetched_files == 2
    assert tree(tmp_path / "dataset") == {"dataset": bytes(3 * PIECE)}
    assert tree(tmp_path / "model") == {"model": bytes(3 * PIECE)}


# --- errors that pass


def test_a_cut_range_goes_on_from_its_last_byte(tmp_path):
    """Without fetching anything twice."""
    source = Memory({"big": BIG}, hook=Faults(("big", 5 * PIECE, TransientError("reset", "reset"))))

    bring(source, tmp_path)

    assert tree(tmp_path) == {"big": BIG}
    assert source.served["big"] <= len(BIG) + AT_HAND
    assert [start for _, start, _ in source.reads].count(5 * PIECE) == 1


def test_a_body_that_ends_early_is_continued(tmp_path):
    """A piece that is shorter than it should be leaves a hole that is fetched."""
    source = Memory({"f": BLOCK}, checksums={"f": sha256(BLOCK)}, hook=Faults(("f", 3 * PIECE, BLOCK[3 * PIECE : -10])))

    bring(source, tmp_path)

    assert tree(tmp_path) == {"f": BLOCK}
    assert source.reads[-1] == ("f", MIB - 10, MIB)


def test_a_source_that_always_fails_ends_the_fetch(tmp_path):
    """After so many attempts that brought next to nothing, with its own error."""

    def fail(path, at):
        raise TransientError("source-unavailable", "503", retry_after_s=0.0)

    source = Memory({"f": b"abc"}, hook=fail)
    with pytest.raises(TransientError, match="503"):
        bring(source, tmp_path, bounds=Bounds(attempts=4, timeout_s=60))

    assert (len(source.reads), tree(tmp_path)) == (4, {})


class Whole(Memory):
    """A server that knows no ranges."""

    def read(self, entry, start, stop):
        if (start, stop) != (0, entry.size):
            raise NoRangesError("no-ranges", "200 to a range")
        return super().read(entry, start, stop)


def test_a_source_without_ranges_that_cuts_every_body_ends_the_fetch(tmp_path):
    """However much of each body comes: nothing of it can be kept."""

    def cut(path, at):
        if at >= 2 * MIB:
            raise TransientError("reset", "reset")

    source = Whole({"f": BIG[: 3 * MIB]}, hook=cut)
    with pytest.raises(TransientError, match="reset"):
        bring(source, tmp_path, bounds=Bounds(attempts=4, timeout_s=10))

    assert source.served["f"] <= 5 * 2 * MIB


def test_a_source_without_ranges_may_cut_a_body_now_and_then(tmp_path):
    """The file begins anew, without a question in vain."""
    faults = [("f", 2 * MIB, TransientError("reset", "reset")) for _ in range(3)]
    source = Whole({"f": BIG[: 3 * MIB], "g": b"g"}, hook=Faults(*faults))

    bring(source, tmp_path)

    assert source.files == tree(tmp_path)
    assert [("f", 0, 3 * MIB)] * 4 == [read for read in source.reads if read[0] == "f"]


def test_a_source_that_sends_another_part_than_the_whole_ends_the_fetch(tmp_path):
    """Asking for all of it again is no remedy."""

    class Absurd(Memory):
        def read(self, entry, start, stop):
            raise NoRangesError("no-ranges", "200 to a range")

    with pytest.raises(NoRangesError):
        bring(Absurd({"f": b"abc"}), tmp_path, bounds=Bounds(attempts=3, timeout_s=10))


def test_a_log_that_cannot_be_written_ends_the_fetch(tmp_path):
    """It is no error of the destination, and nothing waits for a stream that has ended with it."""
    reader, writer = os.pipe()
    os.close(reader)
    source = Memory({"f": b"abc"}, hook=Faults(("f", 0, TransientError("reset", "reset"))))
    with os.fdopen(writer, "w", buffering=1) as file:
        structlog.configure(logger_factory=structlog.WriteLoggerFactory(file))
        try:
            with pytest.raises(BrokenPipeError):
                bring(source, tmp_path, bounds=Bounds(timeout_s=5))
        finally:
            structlog.reset_defaults()
            with suppress(BrokenPipeError):
                file.close()


def test_time_is_bounded(tmp_path):
    """A source that hangs ends with the time."""
    release = threading.Event()
    source = Memory({"f": b"abc"}, hook=lambda path, at: release.wait(30) and None)
    with pytest.raises(RetryError, match="the time is up with 1 files to come") as caught:
        bring(source, tmp_path, bounds=Bounds(timeout_s=0.3))
    release.set()

    assert caught.value.code == "fetch-timeout"


def test_a_changed_file_is_told(tmp_path):
    """Half of the old and half of the new is neither."""
    source = Memory({"a": b"1", "b": b"2"}, hook=Faults(("b", 0, ChangedError("source-changed", "b changed"))))
    with pytest.raises(ChangedError, match="b changed"):
        bring(source, tmp_path)

    assert tree(tmp_path) == {}


def test_what_the_source_refuses_is_fatal_at_once(tmp_path):
    """No second attempt."""
    source = Memory({"a": b"1"}, hook=Faults((None, 0, FatalError("source-refused", "403"))))
    with pytest.raises(FatalError, match="403"):
        bring(source, tmp_path)

    assert len(source.reads) == 1


# --- verification


@pytest.mark.parametrize("size", [3 * PIECE, len(BIG)])
@pytest.mark.parametrize("hashed", [sha256, md5], ids=["sha256", "md5"])
def test_damaged_bytes_are_fetched_again(tmp_path, size, hashed):
    """One flipped bit: the file comes again, and is right."""
    body = BIG[:size]
    wrong = bytes([body[0] ^ 1]) + body[1:PIECE]
    source = Memory({"f": body}, checksums={"f": hashed(body)}, hook=Faults(("f", 0, wrong)))

    bring(source, tmp_path)

    assert tree(tmp_path) == {"f": body}
    assert 2 * size <= source.served["f"] <= 2 * size + 2 * AT_HAND


def test_bytes_that_are_always_damaged_differently_are_worth_another_node(tmp_path):
    """Its memory may be bad."""
    count = iter(range(100))
    source = Memory({"f": b"abc"}, checksums={"f": sha256(b"abc")}, hook=lambda *_: b"%03d" % next(count))
    with pytest.raises(RetryError, match="must have sha256:ba78") as caught:
        bring(source, tmp_path)

    assert (caught.value.code, tree(tmp_path)) == ("checksum-differs", {})


def test_the_same_wrong_bytes_twice_are_the_sources_own(tmp_path):
    """Another node would get them too."""
    source = Memory({"f": b"abc"}, checksums={"f": sha256(b"other")})
    with pytest.raises(FatalError, match="twice") as caught:
        bring(source, tmp_path)

    assert (caught.value.code, tree(tmp_path)) == ("checksum-differs", {})


def test_the_users_list_wins(tmp_path):
    """Over what the source says."""
    source = Memory({"f": b"abc"}, checksums={"f": sha256(b"other")})

    bring(source, tmp_path, checksums={"f": sha256(b"abc")})

    assert (tree(tmp_path), source.asked["f"]) == ({"f": b"abc"}, 0)


def test_sizes_only(tmp_path):
    """`--verify size` asks for no checksum."""
    source = Memory({"f": b"abc"}, checksums={"f": sha256(b"other")})

    bring(source, tmp_path, verify="size")

    assert (tree(tmp_path), source.asked["f"]) == ({"f": b"abc"}, 0)


def test_a_file_shorter_than_listed_gets_no_name(tmp_path):
    """A cut body is no file, however often it comes."""
    with pytest.raises(TransientError, match="the body ended 2 bytes early"):
        bring(Memory({"cut": b"abc"}, listed={"cut": 5}), tmp_path, bounds=FEW)

    assert tree(tmp_path) == {}


def test_a_file_longer_than_listed_gets_no_name(tmp_path):
    """More than was asked for is wrong too."""
    source = Memory({"long": b"abcdef"}, listed={"long": 3}, hook=lambda path, at: b"abcdef")
    with pytest.raises(TransientError, match="more than was asked for"):
        bring(source, tmp_path, bounds=FEW)

    assert tree(tmp_path) == {}


# --- refusing


def test_an_empty_source_is_an_error(tmp_path):
    """The trainer must not start on nothing."""
    with pytest.raises(FatalError, match="holds no file"):
        bring(Memory({}), tmp_path)
    with pytest.raises(FatalError, match="1 listed, all ignored"):
        bring(Memory({"a.md": b"1"}), tmp_path, ignore=("*.md",))


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/trainer-agent-test/x", ".trainer-agent/record.json"])
def test_hostile_names_are_refused_before_the_first_byte(tmp_path, name):
    """By name."""
    source = Memory({"good": b"1", name: b"2"})
    with pytest.raises(FatalError) as caught:
        bring(source, tmp_path / "a" / "b")

    assert (caught.value.code, source.reads) == ("unsafe-name", [])
    assert repr(name) in caught.value.message
    assert tree(tmp_path / "a" / "b") == {}
    assert [p.name for p in tmp_path.rglob("*") if HIDDEN not in p.parts] == ["a", "b"]


def test_a_link_that_leads_outside_is_not_followed(tmp_path):
    """Nothing is written outside the destination, whatever lies in it already."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "data").symlink_to(tmp_path / "outside")
    source = Memory({"data/f": b"1"})
    with pytest.raises(FatalError, match="data"):
        bring(source, tmp_path / "inside")

    assert ([], []) == (list((tmp_path / "outside").iterdir()), source.reads)


def test_what_is_in_the_way_is_told_before_the_first_byte(tmp_path):
    """A directory of the user's own is nothing that we would remove."""
    (tmp_path / "f" / "mine").mkdir(parents=True)
    source = Memory({"f": b"1", "g": b"2"})
    with pytest.raises(FatalError, match="f is a directory, and the source has a file of that name") as caught:
        bring(source, tmp_path)

    assert ("destination-in-the-way", []) == (caught.value.code, source.reads)


def test_no_space_is_told_before_the_first_byte(tmp_path):
    """The message has the numbers; a volume that could never hold it is no matter of trying again."""
    source = Memory({"big": b""}, listed={"big": 10**15})
    with pytest.raises(FatalError, match=r"bytes free of [\d,]+, and 1,000,000,000,000,000 are to come") as caught:
        bring(source, tmp_path)

    assert (caught.value.code, source.reads, tree(tmp_path)) == ("no-space", [], {})


def test_a_full_disk_is_told_as_such(tmp_path):
    """While fetching, too."""
    source = Memory({"a": b"1"}, hook=Faults(("a", 0, OSError(errno.ENOSPC, "No space left on device"))))
    with pytest.raises(RetryError, match="is full: No space left on device") as caught:
        bring(source, tmp_path)

    assert (caught.value.code, tree(tmp_path)) == ("no-space", {})


def test_a_destination_that_cannot_be_written(tmp_path):
    """A file stands where the directory should be, or one above it; that is so on every node."""
    (tmp_path / "file").write_text("")

    for place in (tmp_path / "file", tmp_path / "file" / "deep" / "er"):
        with pytest.raises(FatalError) as caught:
            bring(Memory({"a": b"1"}), place)
        told = f"{tmp_path / 'file'} is a file, and must be a directory"
        assert ("destination-in-the-way", told) == (caught.value.code, caught.value.message)


def test_a_name_that_the_file_system_refuses_is_told(tmp_path):
    """Here for its length, together with the destination's; no attempt can succeed."""
    deep = tmp_path.joinpath(*["x" * 250] * 2)
    name = "/".join(["y" * 200] * 18)
    with pytest.raises(FatalError, match=r"the file system refuses the name '.*': File name too long") as caught:
        bring(Memory({"fine": b"1", name: b"2"}), deep)

    assert "unsafe-name" == caught.value.code


def test_the_record_says_what_is_there(tmp_path):
    """Source, and each file with size, version and checksum."""
    bring(Memory({"f": b"abc"}, checksums={"f": sha256(b"abc")}), tmp_path)

    data = json.loads((tmp_path / ".trainer-agent" / "record.json").read_text())
    size, version, checksum, _ = data["files"]["f"]

    assert (data["schema"], data["source"]) == ("trainer-agent.fetched/v1", "memory://test")
    assert (size, version, checksum) == (3, hashlib.md5(b"abc").hexdigest(), sha256(b"abc"))
