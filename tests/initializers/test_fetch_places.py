"""Places that are odd: full, without numbers, folding names, or another agent's by now."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import fetching
import pytest
from claiming import FOREIGN, write
from fetching import bring, tree
from memory_source import Memory

from trainer_agent.errors import FatalError, RetryError
from trainer_agent.initializers import HIDDEN

pytestmark = pytest.mark.lab

# --- another agent's


def test_who_has_lost_the_destination_puts_nothing_in_place(tmp_path):
    """Another agent has taken over since the last look; what has the names of our parts is its own now."""

    def take_over(path, at):
        write(tmp_path / HIDDEN, FOREIGN)

    with pytest.raises(RetryError, match="another agent has taken over") as caught:
        bring(Memory({"f": b"abc"}, hook=take_over), tmp_path)

    assert ("destination-lost", {}) == (caught.value.code, tree(tmp_path))


def test_who_has_lost_the_destination_meanwhile_writes_no_record(tmp_path):
    """Some files had been put in place by then."""
    last = str(tmp_path / "d9" / "f")

    def take_over(event, args):
        if event == "os.rename" and str(args[1]) == last:
            write(tmp_path / HIDDEN, FOREIGN)

    sys.addaudithook(take_over)  # for good, but nothing else has this name
    with pytest.raises(RetryError, match="another agent has taken over"):
        bring(Memory({f"d{n}/f": b"abc" for n in range(10)}), tmp_path)

    assert len(tree(tmp_path)) == 10
    assert not (tmp_path / HIDDEN / "record.json").exists()


def test_who_has_lost_the_destination_to_one_who_has_finished_leaves_all_as_it_is(tmp_path):
    """Neither a lease nor our parts are there any more; what we would remove may be wanted by the other."""
    bring(Memory({"old": b"o"}), tmp_path)

    def finish(path, at):
        shutil.rmtree(tmp_path / HIDDEN / "parts")
        (tmp_path / HIDDEN / "journal").unlink()
        (tmp_path / HIDDEN / "lease").unlink()

    with pytest.raises(RetryError) as caught:
        bring(Memory({"f": b"abc"}, hook=finish), tmp_path)

    assert ("destination-lost", {"old": b"o"}) == (caught.value.code, tree(tmp_path))
    assert {"lock", "record.json"} == {path.name for path in (tmp_path / HIDDEN).iterdir()}


def test_parts_that_somebody_removes_are_told_as_such(tmp_path):
    """The destination is still ours."""

    def remove(path, at):
        shutil.rmtree(tmp_path / HIDDEN / "parts")

    with pytest.raises(RetryError, match="No such file or directory") as caught:
        bring(Memory({"f": b"abc"}, hook=remove), tmp_path)

    assert ("destination-not-writable", {}) == (caught.value.code, tree(tmp_path))


# --- folding


def folding_place(place, *, name, other):
    """Make a destination in which two names of our own are one file, as all are where names are folded."""
    (place / HIDDEN).mkdir(parents=True)
    (place / HIDDEN / name).touch()
    (place / HIDDEN / other).hardlink_to(place / HIDDEN / name)
    return place


@pytest.mark.parametrize(
    "names,told",
    [
        (["A", "a"], "the source has 'A' and 'a', which are one name on this file system"),
        (["b/C/x", "b/c/y"], "the source has 'b/C' and 'b/c', which are one name on this file system"),
        (["Straße", "STRASSE/x"], "the source has 'Straße' and 'STRASSE', which are one name on this file system"),
        (["A", "a-b", "a/x"], "'a' is a file and the directory of others"),
    ],
)
def test_names_in_other_letters_are_refused_where_they_are_one(tmp_path, names, told):
    """One file would replace the other, and of two directories nobody could tell whose the files are."""
    source = Memory(dict.fromkeys(names, b"x"))
    with pytest.raises(FatalError) as caught:
        bring(source, folding_place(tmp_path / "folds", name="lock", other="LOCK"))

    assert ("name-collision", told, []) == (caught.value.code, caught.value.message, source.reads)
    bring(source, tmp_path / "plain")
    assert set(names) == set(tree(tmp_path / "plain"))


def test_names_in_other_forms_of_unicode_are_refused_where_they_are_one(tmp_path):
    """Composed and decomposed, which nobody can tell apart by looking."""
    source = Memory({"\u00f6": b"x", "o\u0308": b"y", "O": b"z", "o": b"z"})
    with pytest.raises(FatalError, match="which are one name on this file system") as caught:
        bring(source, folding_place(tmp_path / "folds", name="\u00fc", other="u\u0308"))

    assert ("name-collision", []) == (caught.value.code, source.reads)
    bring(source, tmp_path / "plain")
    assert 4 == len(tree(tmp_path / "plain"))


def test_our_own_directory_is_ours_in_capitals_too(tmp_path):
    """A record could come from the source otherwise."""
    source = Memory({f"{HIDDEN.upper()}/record.json": b"{}"})
    with pytest.raises(FatalError, match="which is here the directory that is ours") as caught:
        bring(source, folding_place(tmp_path / "folds", name="lock", other="LOCK"))

    assert "unsafe-name" == caught.value.code


def test_other_names_are_fine_where_names_are_folded(tmp_path):
    place = folding_place(tmp_path / "folds", name="lock", other="LOCK")
    source = Memory({"A/x": b"1", "A/y": b"2", "b": b"3", "A-b": b"4", "\u00e4": b"5"})

    bring(source, place)

    assert source.files == tree(place)


def mounted(mount, *, tmp_path, script, argument=""):
    """Run a script on a file system of its own; return what it prints, and how it ended."""
    place = tmp_path / "volume"
    place.mkdir()
    text = (
        f"import sys; from pathlib import Path; sys.path.insert(0, {str(Path(fetching.__file__).parent)!r})\n{script}"
    )
    command = ["unshare", "-m" if os.geteuid() == 0 else "-rm", "sh", "-c", f'{mount} && shift && "$@"', "sh", place]
    command += [sys.executable, "-c", text, place, argument]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)


FOLDED = """
from fetching import bring, tree
from memory_source import Memory
from trainer_agent.errors import FatalError
place = Path(sys.argv[1]) / "data"
for files in ({"A": b"1", "a": b"2"}, {"d/x": b"1", "D/y": b"2"}):
    try:
        bring(Memory(files), place)
    except FatalError as error:
        print(error.code)
bring(Memory({"A": b"1", "b": b"2"}), place)
bring(Memory({"a": b"3", "b": b"2"}), place)
print(tree(place))
"""
NTFS = 'truncate -s 64M disk && mkntfs -F -Q -q disk >/dev/null && lowntfs-3g -o ignore_case disk "$1"'


def test_a_file_system_that_folds_names(tmp_path):
    """A real one: collisions are refused, and a file may be spelled otherwise the next time."""
    ended = mounted(NTFS, tmp_path=tmp_path, script=FOLDED)
    if not ended.stdout and any(word in ended.stderr for word in ("not found", "fuse")):
        missing = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        missing(f"no NTFS can be made here (ntfs-3g, /dev/fuse): {ended.stderr.strip()[-200:]}")

    *said, left = ended.stdout.splitlines()
    assert ["name-collision"] * 2 == said[:2]
    assert str({"a": b"3", "b": b"2"}) == left


# --- full


FULL = """
from fetching import bring, tree
from memory_source import Memory
from trainer_agent.errors import RetryError
place = Path(sys.argv[1]) / "data"
bring(Memory({"f": b"abc", "gone": b"x"}), place)
try:
    for number in range(10_000):
        (place / f"of the user {number}").write_bytes(bytes(4096))
except OSError as error:
    print(error.errno)
print(bring(Memory({"f": b"abc", "gone": b"x"}), place).fetched_files)
for files in ({"f": b"new", "gone": b"x"}, {"f": b"abc"}):
    try:
        bring(Memory(files), place)
    except RetryError as error:
        print(error.code, (place / "f").read_bytes(), (place / "gone").read_bytes())
"""


@pytest.mark.parametrize("limit", ["size=20m", "nr_inodes=40"], ids=["space", "inodes"])
def test_what_is_complete_is_complete_on_a_full_volume(tmp_path, limit):
    """Nothing has to be written for that; whatever would have to be is an error."""
    ended = mounted(f'mount -t tmpfs -o {limit} tmpfs "$1"', tmp_path=tmp_path, script=FULL)
    if "unshare:" in ended.stderr or "mount:" in ended.stderr:
        pytest.skip(f"no mount namespaces here: {ended.stderr.strip()}")

    assert ("", "28\n0\n" + 2 * "no-space b'abc' b'x'\n") == (ended.stderr, ended.stdout)


NEARLY_FULL = """
import json
from fetching import bring, hidden
from memory_source import Memory
place = Path(sys.argv[1]) / "data"
files = {f"file-number-{number:05}": b"x" for number in range(2000)}
bring(Memory(files), place)
record = place / ".trainer-agent" / "record.json"
if sys.argv[2] == "kind":
    record.write_text(json.dumps(json.loads(record.read_text()) | {"kind": ""}))
before = record.read_bytes()
try:
    for number in range(10_000):
        (place / f"of the user {number}").write_bytes(bytes(4096))
except OSError as error:
    print(error.errno)
for last in range(number, number - 8, -1):
    (place / f"of the user {last}").unlink()
print(bring(Memory(files), place, ignore=("*.md",) if sys.argv[2] == "ignore" else ()).fetched_files)
print(hidden(place), record.read_bytes() == before)
"""


@pytest.mark.parametrize("other", ["kind", "ignore"])
def test_what_is_complete_is_complete_where_its_record_has_no_room(tmp_path, other):
    """It has been asked for in other words since, or a record of before there were kinds; a lease has room."""
    ended = mounted('mount -t tmpfs -o size=20m tmpfs "$1"', tmp_path=tmp_path, script=NEARLY_FULL, argument=other)
    if "unshare:" in ended.stderr or "mount:" in ended.stderr:
        pytest.skip(f"no mount namespaces here: {ended.stderr.strip()}")

    full, told, *rest = ended.stdout.splitlines()
    assert ("", "28", ["0", "['lock', 'record.json'] True"]) == (ended.stderr, full, rest)
    assert "all is in place, and the record cannot be written anew why='No space left on device'" in told


def test_a_file_system_without_numbers_is_not_full(tmp_path):
    """Where there are no blocks to be counted, none are free."""
    script = "from fetching import bring; from memory_source import Memory\n"
    script += "print(bring(Memory({'f': b'abc'}), Path(sys.argv[1])).files)"
    ended = mounted('mount -t ramfs ramfs "$1"', tmp_path=tmp_path, script=script)
    if "unshare:" in ended.stderr or "mount:" in ended.stderr:
        pytest.skip(f"no mount namespaces here: {ended.stderr.strip()}")

    assert ("", "1\n") == (ended.stderr, ended.stdout)
