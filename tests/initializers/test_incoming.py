"""The part of a file: who holds it open, and what its end tells."""

import errno
import os
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from fetching import BLOCK, MIB, Bounds, Faults, bring, tree
from memory_source import Memory

from trainer_agent.errors import FatalError
from trainer_agent.host import Host
from trainer_agent.initializers import HIDDEN, Entry, TransientError
from trainer_agent.initializers.disk import Disk
from trainer_agent.initializers.incoming import PREALLOCATE_BYTES, Incoming, Job, VoidError
from trainer_agent.initializers.journal import Journal, Saved

LARGE = bytes(PREALLOCATE_BYTES)
CUT = TransientError("reset", "reset")


class Part:
    """A file on its way, in two ranges; `told` has an item for each time that the disk lost bytes."""

    def __init__(self, directory, body=b"abcdef", saved=None):
        self.told = []
        self.journal = Journal(directory, uri="memory://test", boot="boot")
        self.disk = Disk(directory, host=Host(), lost=lambda: self.told.append("lost"))
        source, entry = Memory({"f": body}), Entry("f", len(body), "f")
        self.file = Incoming(source, entry, directory / "part", self.journal, self.disk, saved=saved)
        self.first, self.second = (*self.file.plan(range_bytes=len(body) // 2), None)[:2]

    def close(self):
        """End everything."""
        self.file.close()
        self.journal.close()
        self.disk.close()

    @property
    def open(self):
        """How many descriptors there are of it."""
        return [fd.resolve() for fd in Path("/proc/self/fd").iterdir()].count(self.file.part)

    def do(self, job, *pieces, then=None):
        """Do a job: write these, and fail if need be."""
        with self.file.opened(job):
            for piece in pieces:
                self.file.write(job, piece)
            if then is not None:
                raise then


@pytest.fixture
def part(tmp_path):
    """Return the part of a file."""
    part = Part(tmp_path)
    yield part
    part.close()


def test_a_failure_closes_the_part(part):
    """Thousands of files may wait for their next attempt; what has come stays."""
    with pytest.raises(TransientError):
        part.do(part.first, b"abc", then=CUT)
    closed = part.open
    part.do(part.second, b"def")

    assert (0, 1, b"abcdef") == (closed, part.open, part.file.part.read_bytes())


def test_a_file_that_begins_anew_is_closed_too(part):
    """What the first round has left does not shine through."""
    with pytest.raises(TransientError):
        part.do(part.second, b"xxx", then=CUT)
    (job,) = part.file.start_again(range_bytes=None)
    with part.file.opened(job):
        part.file.write(job, b"abc")
        there = part.file.part.read_bytes()
        part.file.write(job, b"def")
        whole = part.file.range_done(job)

    assert (b"abc", True, 0) == (there, whole, part.open)


def test_a_part_that_begins_anew_while_it_is_open_is_empty(part):
    """And stays what it is when it is opened again."""
    with part.file.opened(part.first):
        part.file.write(part.first, b"xxx")
        (job,) = part.file.start_again(range_bytes=None)
        there = part.file.part.read_bytes()
        with pytest.raises(TransientError):
            part.do(job, b"abc", then=CUT)
        with pytest.raises(VoidError):
            part.file.write(part.first, b"yyy")
    part.do(job, b"def")

    assert (b"", b"abcdef") == (there, part.file.part.read_bytes())


def test_whoever_is_late_does_not_hold_another_files_descriptor(part):
    """The part of a file is closed by the last one who may write to it."""
    with part.file.opened(part.second):
        (job,) = part.file.start_again(range_bytes=None)
        with part.file.opened(job):
            part.file.write(job, b"abcdef")
            whole = part.file.range_done(job)
        held = part.open

    assert (True, 1, 0) == (whole, held, part.open)


def test_whoever_is_late_finds_the_file_closed(part):
    """The fetch has ended meanwhile: that is nothing that a disk has refused."""

    class Slow:
        """A digest during which the fetch ends."""

        def update(self, piece):
            part.file.close()

    part.first.digest = Slow()
    for job in part.first, part.second:
        with pytest.raises(VoidError):
            part.do(job, b"ab", b"c")

    assert ([], 0, b"ab") == (part.told, part.open, part.file.part.read_bytes())


def test_a_part_that_has_gone_is_not_made_again(part):
    """It would be full of zeros where ranges have come already."""
    with pytest.raises(TransientError):
        part.do(part.first, b"abc", then=CUT)
    part.file.part.unlink()

    with pytest.raises(FileNotFoundError):
        part.do(part.second, b"def")


@pytest.mark.parametrize(
    "error,told",
    [
        (CUT, "Bad file descriptor"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
    ],
    ids=["a connection that was cut", "a disk that is full"],
)
def test_a_part_that_cannot_be_closed_ends_the_fetch(part, error, told):
    """The client of a server may write only then; of what is wrong with the disk, the first is told."""

    def refuse():
        with part.file.opened(part.first):
            os.close(part.file._fd)  # closing it again is refused
            raise error

    with pytest.raises(OSError, match=told):
        refuse()

    assert ["lost"] == part.told


def test_a_part_that_cannot_be_closed_at_the_end_counts_as_refused(part):
    """The fetch ends with what ended it; the next one goes on with nothing."""
    part.do(part.first, b"abc")
    os.close(part.file._fd)
    part.file.close()

    assert ["lost"] == part.told


@pytest.fixture
def large(tmp_path):
    """Return a function that makes the part of a file that is worth a reserve."""
    with ExitStack() as stack:

        def make(saved=None):
            part = stack.enter_context(closing(Part(tmp_path, LARGE, saved)))
            if not part.disk.together:
                pytest.skip(f"{tmp_path} is on no local disk: choose one with --basetemp")
            return part

        yield make


def is_reserved(path):
    """Return whether a file has blocks for all its bytes."""
    return path.stat().st_blocks * 512 >= len(LARGE)


def give_back(path):
    """Leave the size and no blocks, so that whoever reserves them again can be seen."""
    os.truncate(path, 0)
    os.truncate(path, len(LARGE))


def test_a_part_is_reserved_when_it_begins(large):
    """And at no other time: XFS would want as much to be free again, although the blocks are there."""
    part = large()
    with pytest.raises(TransientError):
        part.do(part.first, then=CUT)
    begun = is_reserved(part.file.part)
    give_back(part.file.part)
    part.do(part.second)

    assert (True, False) == (begun, is_reserved(part.file.part))


def test_a_part_that_goes_on_is_not_reserved(large, tmp_path):
    """The attempt before has done so."""
    (tmp_path / "part").touch()
    give_back(tmp_path / "part")
    part = large(Saved("", len(LARGE), ranges={0: (1, None)}))
    part.do(part.first)

    assert not is_reserved(part.file.part)


@pytest.mark.parametrize("held", [True, False], ids=["open", "closed"])
def test_a_part_that_begins_anew_is_reserved_anew(large, held):
    """Its space was given back with what was in it."""
    part = large()
    part.do(part.first)
    if not held:
        part.file._close()
    (job,) = part.file.start_again(range_bytes=None)
    part.do(job)

    assert is_reserved(part.file.part)


@pytest.mark.parametrize("at", [15 * MIB, 20 * MIB], ids=["of two ranges one", "all"])
def test_what_somebody_has_cut_off_a_part_is_fetched_again(tmp_path, at):
    """Zeros would take its place, and what was noted of it would prove them."""
    body = BLOCK * 20
    first = Memory({"f": body}, hook=Faults(("f", at, FatalError("ended", "ended"))))
    first.checksum = lambda entry: first.hook(entry.path, entry.size) or ""
    with pytest.raises(FatalError, match="ended"):
        bring(first, tmp_path, bounds=Bounds(streams=1))
    (part,) = (tmp_path / HIDDEN / "parts").iterdir()
    os.truncate(part, MIB)
    bring(Memory({"f": body}), tmp_path)

    assert {"f": body} == tree(tmp_path)


class Late:
    """A lock before which something happens, once."""

    def __init__(self, lock, happens):
        self.lock = lock
        self.happens = [happens]

    def __enter__(self):
        while self.happens:
            self.happens.pop()()
        self.lock.acquire()

    def __exit__(self, *error):
        self.lock.release()


def test_whoever_leaves_last_closes_what_another_has_made_whole(part):
    """However shortly before."""

    def finish():
        part.file.write(part.second, b"def")
        done.append(part.file.range_done(part.second))
        second.close()

    done = [part.file.settle(Job(part.file, part.file.round))]
    second = ExitStack()
    second.enter_context(part.file.opened(part.second))
    with part.file.opened(part.first):
        part.file.write(part.first, b"abc")
        done.append(part.file.range_done(part.first))
        part.file._lock = Late(part.file._lock, finish)

    assert ([False, False, True], 0) == (done, part.open)


def test_what_is_noted_while_a_file_begins_anew_does_not_count(part, tmp_path):
    """Another stream has its range just then; an attempt that ends before it comes again would take zeros for it."""
    with part.file.opened(part.first):
        part.file.write(part.first, b"abc")
        part.file._lock = Late(part.file._lock, lambda: part.file.range_done(part.first))
        part.file.start_again(range_bytes=3)

    with closing(Journal(tmp_path, uri="memory://test", boot="boot")) as later:
        assert {} == later.saved
