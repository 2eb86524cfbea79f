"""What every source shares."""

from collections.abc import Iterator

import pytest

from trainer_agent.errors import FatalError, RetryError
from trainer_agent.initializers import Entry, open_source
from trainer_agent.initializers.fetch import fetch, refuse_unsafe


class Memory:
    """A source of given files, which may be listed with another size."""

    def __init__(self, files: dict[str, bytes], *, listed: dict[str, int] | None = None) -> None:
        self.files = files
        self.listed = listed or {}

    def entries(self) -> list[Entry]:
        return [Entry(path, self.listed.get(path, len(body)), path) for path, body in self.files.items()]

    def read(self, entry: Entry) -> Iterator[bytes]:
        yield self.files[entry.key]


def test_many_files_arrive_whole(tree, tmp_path):
    """More files than streams, in directories that do not exist yet."""
    files = {f"d{i % 7}/f{i}": bytes([i % 256]) * i for i in range(200)}

    fetch(Memory(files), tmp_path / "new" / "place")

    assert tree(tmp_path / "new" / "place") == files


def test_a_file_shorter_than_listed_gets_no_name(tree, tmp_path):
    """A cut body is no file."""
    with pytest.raises(RetryError, match=r"cut has 3 bytes, and 5 were listed"):
        fetch(Memory({"cut": b"abc"}, listed={"cut": 5}), tmp_path)

    assert tree(tmp_path) == {}


def test_an_empty_source_is_an_error(tmp_path):
    """The trainer must not start on nothing."""
    with pytest.raises(FatalError, match="holds no file"):
        fetch(Memory({}), tmp_path)


def test_no_space_is_told_before_the_first_byte(tree, tmp_path):
    """The message has the numbers."""
    with pytest.raises(RetryError, match=r"bytes free, and 1,000,000,000,000,000 are to come"):
        fetch(Memory({"big": b""}, listed={"big": 10**15}), tmp_path)

    assert tree(tmp_path) == {}


def test_a_destination_that_cannot_be_written(tmp_path):
    """A file stands where the directory should be."""
    (tmp_path / "file").write_text("")

    with pytest.raises(RetryError, match="cannot write to"):
        fetch(Memory({"a": b"1"}), tmp_path / "file")


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/passwd", "", "a\0b", ".trainer-agent/x"])
def test_names_that_would_leave_the_destination_are_refused(name):
    """By name, before any byte."""
    with pytest.raises(FatalError) as caught:
        refuse_unsafe([Entry(name, 1, name)])

    assert caught.value.code == "unsafe-name"
    assert repr(name) in caught.value.message


@pytest.mark.parametrize("uri", ["", "bucket/x", "s3://", "ftp://x/y", "hf://org/name", "file:///"])
def test_uris_that_nobody_understands(uri):
    """The message shows the value and what would be right."""
    with pytest.raises(FatalError) as caught:
        open_source(uri, {})

    assert caught.value.message == f"STORAGE_URI={uri!r} is not one of file://…, s3://…"
