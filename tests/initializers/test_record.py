"""The record says what was fetched, or there is none."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from strange import NO_FILES, is_untouched, make_elsewhere

from trainer_agent.errors import FatalError
from trainer_agent.initializers import record
from trainer_agent.initializers.record import Kept, Record

RECORD = Record(
    "hf://organisation/name",
    "0123abc",
    "allow=None ignore=()",
    {
        "a/b.bin": Kept(5, '"etag"', "crc64nvme:0000000000000005", 1_700_000_000_123_456_789),
        "empty": Kept(0, "", "", 0),
        "\u00fcml\u00e4ut \U0001f600\n": Kept(1 << 50, "v", "md5:x", -1),
    },
)
NUMBER = 20_000


def write(directory):
    record.write(directory, RECORD)


def as_written(directory):
    return json.loads((directory / record.NAME).read_bytes())


def names_in(directory):
    return {path.name for path in directory.iterdir()}


def test_what_was_written_is_read(tmp_path):
    """With nothing left beside it."""
    record.write(tmp_path, RECORD)

    assert RECORD == record.read(tmp_path)
    assert {record.NAME} == names_in(tmp_path)


def test_names_of_any_bytes_are_kept(tmp_path):
    """A file system may hold what is no text; such a name survives."""
    name = os.fsdecode(b"latin \xfc")
    strange = Record("file:///data", "", "", {name: Kept(1, name, "", 2)})
    record.write(tmp_path, strange)

    assert strange == record.read(tmp_path)


def test_the_form_of_the_record(tmp_path):
    """Other programs may read it."""
    before = datetime.now(UTC).replace(microsecond=0)
    record.write(
        tmp_path, Record("s3://bucket/data", "", "all", {"a": Kept(1, "v", "md5:x", 2)}, "model", flushed=False)
    )
    data = as_written(tmp_path)

    assert before <= datetime.fromisoformat(data.pop("finished_at")) <= datetime.now(UTC)
    assert {
        "schema": "trainer-agent.fetched/v1",
        "source": "s3://bucket/data",
        "revision": "",
        "selection": "all",
        "kind": "model",
        "flushed": False,
        "files": {"a": [1, "v", "md5:x", 2]},
    } == data


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "trainer-agent.fetched/v2"},
        {"schema": None},
        {"files": None},
        {"files": []},
        {"files": {"a": None}},
        {"files": {"a": [1, "v"]}},
        {"files": {"a": [1, "v", "md5:x", 2, 3]}},
        {"files": {"a": ["1", "v", "md5:x", 2]}},
        {"files": {"a": [1, None, "md5:x", 2]}},
        {"files": {"a": [1, "v", 7, 2]}},
        {"files": {"a": [1, "v", "md5:x", "2"]}},
        {"files": {"a": [1, "v", "md5:x", 2], "../a": [1, "v", "md5:x", 2]}},
        {"files": {"/trainer-agent-test/a": [1, "v", "md5:x", 2]}},
        {"source": ...},
        {"revision": ...},
        {"selection": ...},
        {"files": ...},
    ],
    ids=str,
)
def test_a_foreign_record_does_not_count(tmp_path, change):
    record.write(tmp_path, RECORD)
    data = {name: value for name, value in (as_written(tmp_path) | change).items() if value is not ...}
    (tmp_path / record.NAME).write_text(json.dumps(data))

    assert record.read(tmp_path) is None


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"7", b'"text"', b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_record_does_not_count(tmp_path, text):
    (tmp_path / record.NAME).write_bytes(text)

    assert record.read(tmp_path) is None


def test_without_a_record_nothing_was_fetched(tmp_path):
    assert record.read(tmp_path) is None


@pytest.mark.parametrize("what", NO_FILES)
@pytest.mark.parametrize(
    "name,use", [(record.NAME, record.read), (f"{record.NAME}.part", write)], ids=["read", "write"]
)
def test_what_is_no_file_is_neither_read_nor_written(tmp_path, name, use, what):
    """And nobody waits for the other end of a fifo."""
    elsewhere = make_elsewhere(tmp_path / "elsewhere")
    NO_FILES[what](tmp_path / name, elsewhere)

    with pytest.raises(FatalError) as caught:
        use(tmp_path)

    assert "unsafe-destination" == caught.value.code
    assert caught.value.message.startswith(f"{tmp_path / name} is ")
    assert is_untouched(elsewhere)


@pytest.mark.lab
def test_a_killed_agent_leaves_the_old_record_or_the_new(tmp_path):
    """Never half of one, at whatever moment it is killed; what it left is no obstacle."""
    script = f"""
import sys
from pathlib import Path
from trainer_agent.initializers import record
directory = Path(sys.argv[1])
old = record.read(directory)
for number in range(10_000):
    files = {{f"{{number}}-{{n}}": record.Kept(number, "", "", 0) for n in range({NUMBER})}}
    print("writing", flush=True)
    record.write(directory, record.Record(str(number), "", "", files))
"""
    record.write(tmp_path, RECORD)
    for moment in range(4):
        with subprocess.Popen([sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE) as process:
            for _ in range(moment + 1):
                process.stdout.readline()
            while (tmp_path / f"{record.NAME}.part").exists() != (moment % 2 == 0):
                assert process.poll() is None
            process.send_signal(signal.SIGKILL)
        left = record.read(tmp_path)
        assert left == RECORD or NUMBER == len(left.files)
    record.write(tmp_path, RECORD)

    assert RECORD == record.read(tmp_path)
    assert {record.NAME} == names_in(tmp_path)


@pytest.mark.parametrize("there", [True, False], ids=["an old record", "none"])
def test_a_disk_without_room_keeps_the_old_record_and_nothing_else(tmp_path, there):
    """What would be half of one takes room, of which there is none."""
    if there:
        record.write(tmp_path, RECORD)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.raises(OSError) as caught:  # noqa: PT011, PT012  # the number is looked at below
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        try:
            record.write(tmp_path, RECORD)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert errno.EFBIG == caught.value.errno
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


@pytest.fixture
def kept(tmp_path):
    """Return a file and a record that knows it."""
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    return file, Record("s3://b/d", "", "", {"file": Kept(5, "v", "", file.stat().st_mtime_ns)})


def test_a_file_that_nobody_touched_matches(kept):
    file, known = kept

    assert known.matches(file, "file")
    assert not known.matches(file, "another name")


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file.unlink(),
        lambda file: file.write_bytes(b"longer than before"),
        lambda file: os.utime(file, ns=(0, file.stat().st_mtime_ns + 1)),
        lambda file: file.symlink_to(file.rename(file.with_name("elsewhere"))),
        lambda file: file.rename(file.with_name("elsewhere")) and file.mkdir(),
    ],
    ids=["gone", "longer", "touched", "a link", "a directory"],
)
def test_a_file_that_is_not_as_it_was_does_not_match(kept, change):
    file, known = kept
    change(file)

    assert not known.matches(file, "file")
