"""A tight volume with XFS, which wants a file's whole size to be free whenever somebody reserves it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import fetching
import pytest

# Room for one file of 24 MiB and 18 more, in a mount namespace of its own.
INSIDE = """
set -e
truncate -s 320M disk
loop=$(losetup --find --show disk)
trap 'umount volume || true; losetup --detach "$loop"' EXIT
mkfs.xfs -q "$loop"
mount "$loop" volume
free=$(stat --file-system --format '%a * %S' volume)
fallocate --length $(( $free - (42 << 20) )) volume/others
"$1" -c "$2" volume/data
"""
SCRIPT = f"""
import sys
sys.path.insert(0, {str(Path(fetching.__file__).parent)!r})
from pathlib import Path
from fetching import BLOCK, MIB, Bounds, Faults, bring, tree
from memory_source import Memory
from trainer_agent.errors import FatalError
from trainer_agent.initializers import TransientError
files, place = {{"f": BLOCK * 24}}, Path(sys.argv[1])
faults = ("f", MIB, TransientError("reset", "reset")), ("f", 2 * MIB, FatalError("ended", "ended"))
try:
    bring(Memory(files, hook=Faults(*faults)), place, bounds=Bounds(streams=1, timeout_s=30))
except FatalError as error:
    print(error.code)
source = Memory(files)
bring(source, place)
print(source.served["f"] >> 20, tree(place) == files)
"""


@pytest.mark.lab
def test_what_is_reserved_needs_no_more_room(tmp_path):
    """Neither after a connection that was cut nor in the next attempt."""
    if os.geteuid() != 0 or not Path("/dev/loop-control").exists():
        pytest.skip("only root can make such a disk")
    if shutil.which("mkfs.xfs") is None:
        missing = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        missing("there is no mkfs.xfs: install xfsprogs")
    (tmp_path / "volume").mkdir()
    command = ["unshare", "-m", "sh", "-c", INSIDE, "sh", sys.executable, SCRIPT]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100)
    if "unknown filesystem type" in ended.stderr:
        pytest.skip("this kernel has no XFS")

    assert (0, ["ended", "12 True"]) == (ended.returncode, ended.stdout.splitlines()[-2:]), ended.stderr
