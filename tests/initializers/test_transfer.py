"""What a transfer costs, and whom it blames."""

import resource
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from fetching import BLOCK, MIB, Faults, bring, tree
from memory_source import Memory, Whole

from trainer_agent.errors import FatalError
from trainer_agent.initializers import HIDDEN, TransientError
from trainer_agent.initializers.fetch import Bounds

STREAMS = 8


class Unsteady:
    """A hook that fails each file once; `most` is how many parts were open at once."""

    def __init__(self, parts, *, at):
        self.parts, self.at = parts, at
        self.seen, self.most = set(), 0

    def __call__(self, path, at):
        opened = 0
        for fd in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # it is closed by now
                opened += fd.readlink().parent == self.parts
        self.most = max(self.most, opened)
        if at == self.at and path not in self.seen:
            self.seen.add(path)
            raise TransientError("source-unavailable", "503", retry_after_s=0.1)


@pytest.mark.parametrize("at", [0, 256 << 10], ids=["before the first byte", "in the middle"])
@pytest.mark.parametrize("source", [Memory, Whole])
def test_files_that_wait_for_another_attempt_are_not_open(tmp_path, source, at):
    """There may be more of them than descriptors."""
    files = {f"{number}": BLOCK[: 300 << 10] for number in range(60)}
    hook = Unsteady(tmp_path / HIDDEN / "parts", at=at)
    bring(source(files, hook=hook), tmp_path, bounds=Bounds(streams=STREAMS, timeout_s=60))

    assert (files, set(files)) == (tree(tmp_path), hook.seen)
    assert hook.most <= 2 * STREAMS  # each may have a copy to close, and some end while we count


def test_a_file_of_which_nothing_has_come_does_not_begin_anew(tmp_path):
    """A server without ranges is asked for it again, and that is all."""
    busy = [("g", 0, TransientError("source-unavailable", "503")) for _ in range(3)]
    faults, begun = Faults(("f", MIB, TransientError("reset", "reset")), *busy), set()

    def hook(path, at):
        begun.add((tmp_path / HIDDEN / "journal").read_text().count('"discard"'))
        return faults(path, at)

    source = Whole({"f": BLOCK * 2, "g": b"g"}, hook=hook)
    bring(source, tmp_path, bounds=Bounds(streams=1, timeout_s=60))

    assert (source.files, [], {0, 1}) == (tree(tmp_path), faults.left, begun)


def test_a_file_that_cannot_begin_anew_is_its_destinations_fault(tmp_path):
    """The journal has no room for the line that says so."""
    journal = tmp_path / HIDDEN / "journal"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    class Full(Whole):
        def read(self, entry, start, stop):
            if (start, stop) != (0, entry.size):
                resource.setrlimit(resource.RLIMIT_FSIZE, (journal.stat().st_size, before[1]))
            return super().read(entry, start, stop)

    source = Full({"f": BLOCK * 3}, hook=Faults(("f", MIB, TransientError("reset", "reset"))))
    try:
        with pytest.raises(FatalError, match="File too large") as caught:
            bring(source, tmp_path, bounds=Bounds(timeout_s=10))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert "destination-not-writable" == caught.value.code


def test_a_file_that_cannot_be_planned_ends_the_transfer_at_once(tmp_path, monkeypatch):
    """A library does not fit the image."""
    for name in ("awscrt", "awscrt.checksums"):
        monkeypatch.setitem(sys.modules, name, None)

    with pytest.raises(ImportError, match="awscrt"):
        bring(Memory({"f": BLOCK}), tmp_path, bounds=Bounds(streams=2, timeout_s=20))
