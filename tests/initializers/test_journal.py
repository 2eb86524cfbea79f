"""What an earlier attempt left."""

import os

import pytest
from strange import NO_FILES, is_untouched, make_elsewhere

from trainer_agent.errors import FatalError
from trainer_agent.initializers import Entry
from trainer_agent.initializers.journal import Journal, Saved, part_name

ENTRY = Entry("dir/file", 100, "key", version="v1")


def written(directory, *, boot="boot-1", uri="s3://bucket/data"):
    """Return a journal with three ranges of one file and another file whole."""
    journal = Journal(directory, uri=uri, boot=boot)
    journal.range_done(ENTRY, 0, 40, ("crc64nvme", 7))
    journal.range_done(ENTRY, 40, 80, None)
    journal.file_done(Entry("whole", 3, "k", version="w"), "md5:abc", (11, 22))
    journal.close()
    return journal


def saved(directory, *, boot="boot-1", uri="s3://bucket/data"):
    journal = Journal(directory, uri=uri, boot=boot)
    journal.close()
    return journal.saved


def test_everything_is_there_on_the_same_kernel(tmp_path):
    """Ranges with their digests, whole files with identity and checksum."""
    written(tmp_path)

    assert saved(tmp_path) == {
        "dir/file": Saved("v1", 100, ranges={0: (40, ("crc64nvme", 7)), 40: (80, None)}),
        "whole": Saved("w", 3, identity=(11, 22), checksum="md5:abc"),
    }


def test_another_kernel_must_read_again(tmp_path):
    """What had not reached the disk died with the node, so digests and whole files do not count."""
    written(tmp_path)

    left = Saved("v1", 100, ranges={0: (40, None), 40: (80, None)}, same_boot=False)
    assert saved(tmp_path, boot="boot-2") == {"dir/file": left}


def test_another_source_does_not_count(tmp_path):
    """The same path and etag elsewhere may be other bytes."""
    written(tmp_path)

    assert saved(tmp_path, uri="s3://bucket/other") == {}


def test_a_new_version_replaces_the_old(tmp_path):
    """Only the last version of a file counts."""
    written(tmp_path)
    journal = Journal(tmp_path, uri="s3://bucket/data", boot="boot-1")
    journal.range_done(Entry("dir/file", 100, "key", version="v2"), 0, 10, None)
    journal.close()

    assert saved(tmp_path)["dir/file"] == Saved("v2", 100, ranges={0: (10, None)})


def test_discarded_is_discarded(tmp_path):
    """Wrong bytes are not resumed."""
    written(tmp_path)
    journal = Journal(tmp_path, uri="s3://bucket/data", boot="boot-1")
    journal.discard(ENTRY)
    journal.close()

    assert list(saved(tmp_path)) == ["whole"]


def test_a_kill_anywhere_loses_at_most_the_last_line(tmp_path):
    """Whatever prefix of the file survives, the next attempt reads it and goes on writing."""
    data = written(tmp_path).path.read_bytes()
    whole = saved(tmp_path)
    for length in range(len(data)):
        (tmp_path / "journal").write_bytes(data[:length])
        found = saved(tmp_path)
        assert found.keys() <= whole.keys()
        for path, one in found.items():
            assert one.ranges.items() <= whole[path].ranges.items()
        again = Journal(tmp_path, uri="s3://bucket/data", boot="boot-1")
        again.range_done(ENTRY, 80, 100, None)
        again.close()
        assert saved(tmp_path)["dir/file"].ranges[80] == (100, None)


def test_what_another_process_was_killed_in_takes_no_line_with_it(tmp_path):
    """Others of the same fetch go on writing until they hear of it."""
    journal = Journal(tmp_path, uri="s3://bucket/data", boot="boot-1")
    with journal.path.open("ab") as file:
        file.write(b'["range","dir/fi')
    journal.range_done(ENTRY, 0, 40, None)
    journal.close()

    assert {0: (40, None)} == saved(tmp_path)["dir/file"].ranges


NONSENSE = [
    b"null",
    b"[]",
    b"{}",
    b"\xff\xfe",
    b"[",
    b"[" * 100_000,
    b'["range"]',
    b'["range","p","v","1",0,1,null]',
    b'["range","p","v",9,-1,1,null]',
    b'["range","p","v",9,1,1,null]',
    b'["range","p","v",9,2,1,null]',
    b'["range","p","v",9,1,10,null]',
    b'["file","p","v",9,"",null]',
]


@pytest.mark.parametrize("line", NONSENSE, ids=lambda line: repr(line[:40]))
def test_nonsense_is_passed_over(tmp_path, line):
    """A journal is a file that others can write too."""
    written(tmp_path)
    with (tmp_path / "journal").open("ab") as file:
        file.write(line + b"\n")

    assert saved(tmp_path).keys() == {"dir/file", "whole"}


@pytest.mark.parametrize(
    "digest", ["7", '"x"', "[]", '["crc64nvme"]', '["crc64nvme",-1]', f'["crc32",{1 << 64}]', "{}"]
)
def test_a_digest_that_is_none_is_read_again(tmp_path, digest):
    written(tmp_path)
    with (tmp_path / "journal").open("a") as file:
        file.write(f'["range","p","v",9,0,9,{digest}]\n')

    assert saved(tmp_path)["p"] == Saved("v", 9, ranges={0: (9, None)})


@pytest.mark.parametrize("what", NO_FILES)
def test_what_is_no_file_is_neither_read_nor_written(tmp_path, what):
    """And nobody waits for the other end of a fifo."""
    elsewhere = make_elsewhere(tmp_path / "elsewhere")
    NO_FILES[what](tmp_path / "journal", elsewhere)

    with pytest.raises(FatalError) as caught:
        saved(tmp_path)

    assert "unsafe-destination" == caught.value.code
    assert caught.value.message.startswith(f"{tmp_path / 'journal'} is ")
    assert is_untouched(elsewhere)


@pytest.mark.parametrize(
    "entry,expected",
    [
        (ENTRY, True),
        (Entry("dir/file", 100, "key", version="v2"), False),
        (Entry("dir/file", 99, "key", version="v1"), False),
        (Entry("dir/file", 100, "key", version=""), False),
    ],
)
def test_only_the_same_version_is_resumed(entry, expected):
    """A version that nobody knows is never the same."""
    assert Saved(entry.version if not entry.version else "v1", 100).is_of(entry) == expected


def test_names_of_parts_are_short_plain_and_different():
    """Whatever the path, even bytes that are no UTF-8."""
    names = [part_name(p, v) for p in ("a", "a\0", "ä" * 300, os.fsdecode(b"\xff")) for v in ("", "1")]

    assert len(set(names)) == len(names)
    assert all(len(n) == 32 and n.isalnum() for n in names)
