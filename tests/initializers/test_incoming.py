"""The part of a file: who holds it open, and what its end tells."""

import errno
import os
from pathlib import Path

import pytest
from memory_source import Memory

from trainer_agent.host import Host
from trainer_agent.initializers import Entry, TransientError
from trainer_agent.initializers.disk import Disk
from trainer_agent.initializers.incoming import Incoming, VoidError
from trainer_agent.initializers.journal import Journal

CUT = TransientError("reset", "reset")


class Part:
    """A file of six bytes on its way, in ranges of three; `told` has an item for each time that the disk lost bytes."""

    def __init__(self, directory):
        self.told = []
        self.journal = Journal(directory, uri="memory://test", boot="boot")
        self.disk = Disk(directory, host=Host(), lost=lambda: self.told.append("lost"))
        self.file = Incoming(Memory({"f": b"abcdef"}), Entry("f", 6, "f"), directory / "part", self.journal, self.disk)
        self.first, self.second, *_ = self.file.plan(range_bytes=3)

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
    part.file.close()
    part.journal.close()
    part.disk.close()


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
