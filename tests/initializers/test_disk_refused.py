"""A disk that refuses what the kernel has taken already: what was lost with it is fetched again."""

import errno
import json
import os
import resource
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import fetching
import pytest
from fetching import BLOCK, FEW, MIB, bring, tree
from memory_source import Memory

from trainer_agent.errors import AgentError
from trainer_agent.host import Host
from trainer_agent.initializers import HIDDEN
from trainer_agent.initializers import disk as module
from trainer_agent.initializers.disk import Disk

# A disk of 300 MB behind which there is room for 40; what the file system itself needs is there. In a mount namespace
# of its own, in which the second and third arguments are pool and volume.
INSIDE = """
set -e
mount -t tmpfs -o size=40m tmpfs "$1"
truncate -s 300M "$1/disk"
loop=$(losetup --find --show "$1/disk")
trap 'umount "$2" || true; losetup --detach "$loop"' EXIT
mkfs.ext4 -q -F -b 1024 -N 1024 -J size=1 -O ^uninit_bg,^metadata_csum \
    -E nodiscard,lazy_itable_init=0,lazy_journal_init=0 "$loop"
mount "$loop" "$2"
mkdir -p "$2/data/.trainer-agent/parts"
touch "$2/data/.trainer-agent/journal"
sync -f "$2"
python=$3 script=$4
for flush in $6; do
    "$python" -c "$script" "$flush" "$2/data" "$5"
    sync -f "$2" || true  # by anybody else, who is told of the error then
done
mount -o remount,size=400m "$1"
"$python" -c "$script" wait "$2/data" "$5"
umount "$2"
mount "$loop" "$2"
"$python" -c "$script" wait "$2/data" "$5"
"$python" -c "$script" look "$2/data" "$5"
"""
SCRIPT = """
import json, random, sys
from pathlib import Path
sys.path.insert(0, {servers!r})
from fetching import bring, tree
from memory_source import Memory
from trainer_agent.errors import AgentError
what, destination, sizes = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
chance = random.Random(7)
files = {{name: chance.randbytes(size) for name, size in sizes.items()}}
if what == "look":
    print(json.dumps(["there", tree(destination) == files]))
else:
    try:
        print(json.dumps(["fetched", bring(Memory(files), destination, flush=what).fetched_files]))
    except AgentError as error:
        print(json.dumps([error.code, error.hint]))
"""


SIZES = pytest.mark.parametrize(
    "large,small", [(80 * MIB, 0), (0, 200), (80 * MIB, 50)], ids=["a large file", "small files", "both"]
)


def on_a_full_disk(tmp_path, flushes, large, small):
    """
    Fetch onto a disk without room, then with room, then when it has been mounted again.

    Args:
        flushes: `wait` and `later`, for each try on the disk without room.

    Returns:
        The number of files, and what each try said.
    """
    if os.geteuid() != 0 or not Path("/dev/loop-control").exists():
        pytest.skip("only root can make such a disk")
    for name in ("pool", "volume"):
        (tmp_path / name).mkdir()
    sizes = {f"small/{number}": 256 << 10 for number in range(small)} | ({"large": large} if large else {})
    script = SCRIPT.format(servers=str(Path(fetching.__file__).parent))
    places = [str(tmp_path / "pool"), str(tmp_path / "volume")]
    command = ["unshare", "-m", "sh", "-c", INSIDE, "sh", *places, sys.executable, script, json.dumps(sizes), flushes]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100)

    assert 0 == ended.returncode, ended.stderr
    return len(sizes), [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("[")]


@pytest.mark.lab
@SIZES
def test_what_a_full_disk_has_dropped_is_fetched_again(tmp_path, large, small):
    """The kernel says so once, and shows the bytes as long as it remembers them; the next attempt is right."""
    files, [first, *later, last] = on_a_full_disk(tmp_path, "wait", large, small)

    lost = "give the volume more space; what had arrived may be damaged, and is fetched again"
    assert ["no-space", lost] == first
    # A block of its own may have been refused to the file system, too: then it takes no more until it is mounted again.
    assert "destination-not-writable" == later[0][0] or [["fetched", files], ["fetched", 0]] == later
    assert ["there", True] == last


@pytest.mark.lab
@SIZES
def test_what_a_full_disk_has_dropped_later_is_fetched_again(tmp_path, large, small):
    """Whoever does not wait does not notice; the first who does is told, and nothing counts that the disk never had."""
    files, said = on_a_full_disk(tmp_path, "later wait", large, small)

    assert ["fetched", files] == said[0]
    assert said[1][0] in {"no-space", "destination-not-writable"}  # the second where the file system has given up
    assert ["there", True] == said[-1]


@contextmanager
def files_of_at_most(size):
    """Let the kernel refuse to write further."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("keeps", [True, False], ids=["disk", "server"])
def test_a_refused_write_may_be_an_earlier_one(tmp_path, monkeypatch, keeps):
    """The client of a server tells of an earlier one when the next is written; a disk of this machine does not."""
    if not keeps:
        monkeypatch.setattr(module, "KEEPING", frozenset())
    with files_of_at_most(MIB), pytest.raises(AgentError, match="File too large"):
        bring(Memory({"f": BLOCK + BLOCK}), tmp_path, bounds=FEW)

    assert keeps == (tmp_path / HIDDEN / "journal").exists()
    bring(Memory({"f": BLOCK + BLOCK}), tmp_path)
    assert {"f": BLOCK + BLOCK} == tree(tmp_path)


@pytest.mark.parametrize("code,lost", [(errno.ENOSPC, 0), (errno.EDQUOT, 0), (errno.EFBIG, 0), (errno.EIO, 1)])
def test_a_disk_without_room_keeps_what_it_has(tmp_path, code, lost):
    """Any other error is no promise."""
    told = []
    disk = Disk(tmp_path, host=Host(), lost=lambda: told.append("lost"))
    if not disk.together:
        pytest.skip(f"{tmp_path} is on no local disk: choose one with --basetemp")
    disk.refused(OSError(code, os.strerror(code)))
    disk.close()

    assert lost == len(told)


def test_what_cannot_be_put_on_disk_is_told(tmp_path):
    """Before the error is raised, so that no later one hides it."""
    told = []
    disk = Disk(tmp_path, host=Host(), lost=lambda: told.append("lost"))
    fds = os.pipe()
    with pytest.raises(OSError, match="Invalid argument"):
        disk.take(fds[1], tmp_path / "large", module.ALONE_BYTES)  # a pipe is on no disk
    with pytest.raises(FileNotFoundError):
        disk.wait([tmp_path / "gone"])

    assert ["lost", "lost"] == told
    for fd in fds:
        os.close(fd)
    disk.close()


def test_what_fails_beforehand_is_told_at_once(tmp_path):
    """Whoever comes next need not write any more."""
    told = []
    disk = Disk(tmp_path, host=Host(), lost=lambda: told.append("lost"))
    if not disk.together:
        pytest.skip(f"{tmp_path} is on no local disk: choose one with --basetemp")
    with (tmp_path / "small").open("wb") as file:
        disk.close()  # from now on the kernel refuses
        for _ in range(module.BATCH_BYTES // MIB):
            disk.take(file.fileno(), tmp_path / "small", MIB)
        disk._early.join()
        with pytest.raises(OSError, match="Bad file descriptor"):
            disk.take(file.fileno(), tmp_path / "small", MIB)

    assert ["lost"] == told
