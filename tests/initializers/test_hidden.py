"""Whatever others have left in a destination, we write nowhere else, wait for nobody and say what is in the way."""

import json
import os
import shutil
import subprocess
import sys
import threading

import pytest
from claiming import as_nobody
from fetching import bring, hidden, tree
from memory_source import Memory
from strange import NO_DIRECTORIES, NO_FILES, is_untouched, make_elsewhere

from trainer_agent.errors import FatalError
from trainer_agent.initializers import HIDDEN, record
from trainer_agent.initializers.hidden import folds_case, folds_unicode, open_plain, prepare
from trainer_agent.initializers.journal import part_name
from trainer_agent.initializers.record import Kept, Record
from trainer_agent.isolation import isolated

FILES = {"a": b"alpha", "deep/b": b"beta"}
HINT = "remove it, or choose another OUTPUT_PATH"
# Every file of our own, with one that is fetched; and what another version may have.
OURS = ["lock", "lease", "journal", "record.json", "record.json.part", "another"]


@pytest.fixture
def elsewhere(tmp_path):
    """Return a directory beside the destination that must stay as it is."""
    return make_elsewhere(tmp_path / "elsewhere")


def refused(destination):
    """Return code, message and hint of what a fetch refuses."""
    with pytest.raises(FatalError) as caught:
        bring(Memory(FILES), destination)
    return caught.value.code, caught.value.message, caught.value.hint


def told(what, path, wanted):
    """Return the same as it should be."""
    kind = "a link" if "link" in what else what
    leads = f" to {path.readlink()}" if kind == "a link" else ""
    return "unsafe-destination", f"{path} is {kind}{leads}, and must be {wanted} of the agent's own", HINT


# --- what is refused


@pytest.mark.parametrize("what", NO_FILES)
@pytest.mark.parametrize("name", [*OURS, f"parts/{part_name('a', 'any')}"])
def test_what_is_no_plain_file_is_refused(ours, elsewhere, name, what):
    """Before the source is asked."""
    NO_FILES[what](ours / name, elsewhere)
    there = sorted(ours.rglob("*"))

    assert told(what, ours / name, "a file") == refused(ours.parent)
    assert is_untouched(elsewhere)
    assert (there, {}) == (sorted(ours.rglob("*")), tree(ours.parent))


@pytest.mark.parametrize("what", NO_DIRECTORIES)
@pytest.mark.parametrize("name", [HIDDEN, f"{HIDDEN}/parts"])
def test_what_is_no_directory_is_refused(tmp_path, elsewhere, name, what):
    path = tmp_path / "destination" / name
    path.parent.mkdir(parents=True)
    NO_DIRECTORIES[what](path, elsewhere)

    assert told(what, path, "a directory") == refused(tmp_path / "destination")
    assert is_untouched(elsewhere)
    assert not any((tmp_path / "destination" / name).exists() for name in FILES)


@pytest.mark.parametrize("path", ["../elsewhere/file", "{elsewhere}/file", "x/../../elsewhere/file"])
def test_a_record_of_what_lies_elsewhere_is_no_record(ours, elsewhere, path):
    """What the source no longer has is removed, but nothing that somebody only wrote into our record."""
    (ours.parent / "x").mkdir()
    stat = (elsewhere / "file").stat()
    files = {path.format(elsewhere=elsewhere): Kept(stat.st_size, "v", "", stat.st_mtime_ns)}
    record.write(ours, Record("memory://test", "", "", files))

    bring(Memory(FILES), ours.parent)

    assert is_untouched(elsewhere)
    assert FILES == tree(ours.parent)


# --- what is fine


def test_a_destination_that_is_a_link_is_fine(tmp_path):
    """Volumes are mounted anywhere."""
    (tmp_path / "volume").mkdir()
    (tmp_path / "workspace").symlink_to("volume")

    bring(Memory(FILES), tmp_path / "workspace" / "dataset")
    bring(Memory(FILES), tmp_path / "workspace")

    assert FILES == tree(tmp_path / "volume" / "dataset")
    assert FILES.items() <= tree(tmp_path / "volume").items()


def test_a_directory_is_made_where_there_is_none(tmp_path):
    """With all above it, and only once."""
    for _ in range(2):
        prepare(tmp_path / "new" / HIDDEN, inner="parts")

    assert [tmp_path / "new" / HIDDEN] == list((tmp_path / "new").rglob("*"))


def test_plain_files_are_fine(ours):
    """An earlier attempt left them."""
    for name in OURS:
        (ours / name).write_text("")
    (ours / "parts" / "0123").write_text("")
    before = set(ours.rglob("*"))
    prepare(ours, inner="parts")

    assert before == set(ours.rglob("*"))


def test_what_another_agent_is_just_removing_is_no_obstacle(ours):
    """It may be at its end while we look."""
    ended = threading.Event()

    def other():
        while not ended.is_set():
            (ours / "parts").mkdir(exist_ok=True)
            for path in (ours / "lease.0123", ours / "parts" / "0123"):
                path.write_text("")
                path.unlink()
            shutil.rmtree(ours / "parts")

    agent = threading.Thread(target=other)
    agent.start()
    looked = 0
    try:
        for _ in range(1000):
            prepare(ours, inner="parts")
            looked += 1
    finally:
        ended.set()
        agent.join()

    assert looked == 1000


# --- opening


EXCHANGE = """
import itertools, os, sys
path, new, elsewhere = sys.argv[1:]
file, link, fifo = lambda: open(new, "w").close(), lambda: os.symlink(elsewhere, new), lambda: os.mkfifo(new)
for make in itertools.cycle([file, link, file, fifo]):
    make()
    os.replace(new, path)
"""


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY | os.O_CREAT], ids=["to read", "to write"])
def test_what_appears_after_the_look_is_not_followed_either(ours, elsewhere, flags):
    """Another may exchange a file for a link or a fifo just between looking and opening; nobody waits."""
    path, theirs, opened, refused = ours / "file", elsewhere / "file", [], 0
    with subprocess.Popen([sys.executable, "-c", EXCHANGE, path, ours / "new", theirs]) as exchanger:
        try:
            while min(len(opened), refused) < 2000:
                try:
                    fd = open_plain(path, flags)
                except (OSError, FatalError):
                    refused += 1
                else:
                    opened.append(os.fstat(fd).st_ino)
                    os.close(fd)
        finally:
            exchanger.kill()

    assert theirs.stat().st_ino not in opened
    assert is_untouched(elsewhere)


# --- what cannot be written

# In a mount namespace of its own, which ends with it: the destination as a pod sees a volume with `readOnly: true`.
INSIDE = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"'


@pytest.fixture
def read_only(tmp_path):
    """Return a function that runs the agent on a read-only destination and returns exit code and last line of log."""
    rootless = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    unshare = ["unshare", "--mount", *rootless]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode
    ):
        missing = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        missing("no mount namespace can be made here")

    def run(source, destination, *args, read_only=True):
        agent = [sys.executable, "-m", "trainer_agent", "init", "dataset", "--timeout", "30", *args]
        command = [*unshare, "sh", "-c", INSIDE, "sh", destination, *agent] if read_only else agent
        passed = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        env = {**passed, "STORAGE_URI": f"file://{source}", "OUTPUT_PATH": str(destination)}
        done = subprocess.run(command, env=env, cwd="/", check=False, capture_output=True, text=True, timeout=60)
        return done.returncode, json.loads(done.stderr.splitlines()[-1])

    return run


@pytest.fixture
def fetched(tmp_path, read_only):
    """Return a source and a complete destination."""
    source, destination = tmp_path / "source", tmp_path / "destination"
    for name, body in FILES.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(body)
    destination.mkdir()
    code, last = read_only(source, destination, read_only=False)
    assert code == 0, last
    return source, destination


@pytest.mark.parametrize("args", [(), ("--verify", "full")], ids=["", "and hashed"])
@pytest.mark.parametrize("left", ["with a lock", "without a lock"])
def test_a_complete_destination_may_be_read_only(fetched, read_only, left, args):
    """Another pod filled it; this one only has to see that it is whole."""
    source, destination = fetched
    if left == "without a lock":
        (destination / HIDDEN / "lock").unlink()
    before = hidden(destination)

    code, last = read_only(source, destination, *args)

    assert (code, "info") == (0, last["level"]), last
    assert (FILES, before) == (tree(destination), hidden(destination))


def add(source, destination):
    (source / "new").write_bytes(b"more")


def damage(source, destination):
    (destination / "a").write_bytes(b"ALPHA")


def remove(source, destination):
    (source / "a").unlink()


def empty(source, destination):
    shutil.rmtree(destination)
    destination.mkdir()


def interrupt(source, destination):
    add(source, destination)
    (destination / HIDDEN / "parts").mkdir()
    (destination / HIDDEN / "journal").write_text("")


@pytest.mark.parametrize("change", [add, damage, remove, empty, interrupt])
def test_an_incomplete_destination_may_not_be_read_only(fetched, read_only, change):
    """Whatever would have to be written, the message says why it cannot be."""
    source, destination = fetched
    change(source, destination)
    before = tree(destination)

    code, last = read_only(source, destination)

    assert (20, "destination-not-writable") == (code, last["code"]), last
    assert f"cannot write to {destination}: Read-only file system" in last["event"]
    assert before == tree(destination)


def test_a_lock_that_cannot_be_had_where_one_could_write_is_an_error(ours):
    """Going on without it would be two agents at work."""
    ours.parent.chmod(0o777)
    ours.chmod(0o777)
    (ours / "lock").touch(0o400)

    def enter():
        source = Memory(FILES)
        with pytest.raises(FatalError) as caught:
            bring(source, as_nobody(ours.parent))
        return caught.value.code, caught.value.message, source.served.total()

    message = f"cannot write to .: Permission denied ({HIDDEN}/lock)"
    assert ("destination-not-writable", message, 0) == isolated(enter, timeout_s=20)


def test_a_volume_of_somebody_else_is_told_with_both_users(tmp_path):
    """As where fsGroup is not applied: another try changes nothing."""
    tmp_path.chmod(0o555)
    owner = tmp_path.stat()

    def enter():
        with pytest.raises(FatalError) as caught:
            bring(Memory(FILES), as_nobody(tmp_path))
        return caught.value.message, caught.value.hint, os.geteuid()

    message, hint, user = isolated(enter, timeout_s=20)

    assert f"cannot write to .: Permission denied ({HIDDEN})" == message
    assert hint.startswith(f"make the volume writable for uid {user}, groups ")
    assert hint.endswith(f"; . is of {owner.st_uid}:{owner.st_gid}, mode 0555")


# --- what a record or a journal that somebody else wrote cannot do


def test_what_lies_behind_a_link_is_not_removed(tmp_path):
    """Though a record calls it ours, and the source has it no more."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "f").write_text("theirs")
    destination = tmp_path / "destination"
    (destination / HIDDEN).mkdir(parents=True)
    (destination / "link").symlink_to(elsewhere)
    kept = Kept(6, "v", "", (elsewhere / "f").stat().st_mtime_ns)
    record.write(destination / HIDDEN, Record("memory://test", "", "", {"link/f": kept}))
    bring(Memory(FILES), destination)

    assert (elsewhere / "f").read_text() == "theirs"


def test_a_fifo_in_place_of_a_file_is_not_waited_for(tmp_path):
    """It is no file, so the file is fetched again."""
    source = Memory({"empty": b"", "other": b"x"})
    bring(source, tmp_path)
    (tmp_path / "empty").unlink()
    os.mkfifo(tmp_path / "empty")
    isolated(lambda: bring(source, tmp_path, verify="full"), timeout_s=20.0)

    assert tree(tmp_path) == {"empty": b"", "other": b"x"}


@pytest.mark.parametrize(
    "checksum", ["blake9:12", "md5-parts:0:12", "md5-parts:-1:12", "md5-parts:2,0:1", "md5-parts", "sha256", ":"]
)
def test_a_checksum_of_an_unknown_kind_proves_nothing(tmp_path, checksum):
    """The file is fetched again."""
    source = Memory({"f": b"x"})
    bring(source, tmp_path)
    found = record.read(tmp_path / HIDDEN)
    kept = found.files["f"]
    forged = {"f": Kept(1, kept.version, checksum, kept.mtime_ns)}
    record.write(tmp_path / HIDDEN, Record(found.source, found.revision, found.selection, forged))
    done = isolated(lambda: bring(source, tmp_path, verify="full"), timeout_s=20.0)

    assert (done.fetched_files, tree(tmp_path)) == (1, {"f": b"x"})


# --- what the file system makes of names


def test_a_name_in_capitals_is_another(ours):
    """Unless it leads to the very same file."""
    (ours / "lock").touch()
    alone = folds_case(ours / "lock")
    (ours / "LOCK").touch()
    two = folds_case(ours / "lock")
    (ours / "LOCK").unlink()
    (ours / "LOCK").hardlink_to(ours / "lock")

    assert [False, False, True] == [alone, two, folds_case(ours / "lock")]


def test_what_shows_how_unicode_is_taken_is_removed(ours):
    """It is made for that, and nothing else lies there afterwards."""
    alone = folds_unicode(ours)
    left = {path.name for path in ours.iterdir()}
    (ours / "\u00fc").touch()
    (ours / "u\u0308").hardlink_to(ours / "\u00fc")

    assert [False, {"parts"}, True] == [alone, left, folds_unicode(ours)]


def test_where_no_file_can_be_made_nothing_is_said_of_unicode(ours):
    assert folds_unicode(ours / "gone") is False
