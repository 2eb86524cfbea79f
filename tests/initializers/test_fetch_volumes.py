"""Volumes of servers that refuse something, through the kernel's own FUSE."""

import sys
from pathlib import Path

import fetching
import fuse_volume
import pytest

pytestmark = pytest.mark.lab

BEGINNING = f"""
import sys, time
sys.path.insert(0, {str(Path(fetching.__file__).parent)!r})
from pathlib import Path
from fetching import BLOCK, MIB, Faults, bring, order, sha256, tree
from memory_source import Memory
from trainer_agent.errors import AgentError
from trainer_agent.host import Host
from trainer_agent.initializers import TransientError
from trainer_agent.initializers.fetch import Bounds, fetch
volume, here = Path(sys.argv[1]) / "data", Path(sys.argv[2])
"""


@pytest.fixture
def volume(tmp_path):
    """Return a function that runs a script beside a volume that refuses something; it returns what is printed."""

    def run(refused, script):
        place, disk = tmp_path / "volume", tmp_path / "disk"
        said = fuse_volume.beside(place, refused, sys.executable, "-c", BEGINNING + script, place, disk)
        return [line for line in said.splitlines() if not line[:4].isdigit()]

    return run


TWICE = """
files = {"large": BLOCK * 9, "small": b"abc"}
known = {path: sha256(body) for path, body in files.items()}
for wrong in FIRST, []:
    source = Memory(files, checksums=known, hook=Faults(*wrong))
    try:
        bring(source, volume)
    except AgentError as error:
        print(error.code, error.exit_code.value, error.message.rpartition(": ")[2], tree(volume))
    else:
        print(sorted(source.served), tree(volume) == files)
"""
AGAIN = "[(name, 0, bytes(body[:256 * 1024])) for name, body in ((n, bytes(len(b))) for n, b in files.items())]"


@pytest.mark.parametrize("first", ["[]", AGAIN], ids=["at once", "when it has begun anew"])
def test_a_file_that_is_refused_when_it_is_closed_is_not_whole(volume, first):
    """There, closing is what uploads it; fsync is nothing."""
    said = volume("FLUSH=1", TWICE.replace("FIRST", first))

    assert ["destination-not-writable 20 Input/output error {}", "['large', 'small'] True"] == said


SIDE_BY_SIDE = """
def wait(path, at):
    while '["file","d",' not in journals[0].read_text():
        time.sleep(0.01)

places = PLACES
journals = [place / ".trainer-agent" / "journal" for place in places]
for hook in wait, lambda path, at: None:
    data, model = Memory({"d": BLOCK}, uri="memory://d"), Memory({"m": b"abc"}, uri="memory://m", hook=hook)
    orders = [order(data, places[0]), order(model, places[1], kind="model")]
    try:
        fetch(orders, host=Host(), bounds=Bounds(timeout_s=20))
    except AgentError as error:
        print(error.code, sorted(data.served), [journal.exists() for journal in journals])
    else:
        print("fetched", sorted(data.served), sorted(model.served))
"""


@pytest.mark.parametrize(
    "refused,told",
    [
        ("FLUSH=1", ["destination-not-writable ['d'] [True, False]", "fetched [] ['m']"]),
        ("WRITE", ["no-space ['d'] [True, False]", "no-space [] [True, False]"]),
    ],
    ids=["closing", "writing"],
)
def test_what_has_arrived_on_another_volume_is_kept(volume, refused, told):
    """It is not what the server of this one has refused."""
    assert told == volume(refused, SIDE_BY_SIDE.replace("PLACES", "[here, volume]"))


def test_what_has_arrived_on_the_same_volume_is_not_kept(volume):
    """Servers tell only once what they have lost, and not always of which file."""
    said = volume("FLUSH=1", SIDE_BY_SIDE.replace("PLACES", "[volume / 'd', volume / 'm']"))

    assert ["destination-not-writable ['d'] [False, False]", "fetched ['d'] ['m']"] == said


REFUSED = """
try:
    bring(Memory({"f": b"abc"}), volume)
except AgentError as error:
    print(error.code, error.exit_code.value, error.hint)
"""


def test_a_name_of_our_own_is_nobodys_to_change(volume):
    """A volume that finds it invalid is broken, and may be well on another node."""
    said = volume("CREATE", REFUSED)

    assert ["destination-not-writable 20 check the volume, and whether it is mounted read-only"] == said


FETCHED = """
files = {f"d/{number}": BLOCK for number in range(3)}
print(bring(Memory(files), volume).fetched_files, tree(volume) == files)
"""


def test_a_volume_may_know_no_way_to_put_a_directory_on_disk(volume):
    assert ["3 True"] == volume("FSYNCDIR", FETCHED)


FROM_THERE = """
from trainer_agent.initializers import open_source
volume.mkdir()
(volume / "f").write_bytes(b"abc")
for _ in range(2):
    summary = bring(open_source(f"file://{volume}", {}), here)
    print(summary.fetched_files, tree(here))
"""


def test_a_file_that_only_has_another_inode_has_not_changed(volume):
    """Neither between its listing and its bytes, nor from one fetch to the next."""
    assert ["1 {'f': b'abc'}", "0 {'f': b'abc'}"] == volume("INODES", FROM_THERE)
