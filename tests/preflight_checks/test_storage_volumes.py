"""What the check says of volumes that are served by a program, such as a bucket that is mounted as a directory."""

import json
import re
import sys

import fuse_volume
import pytest

pytestmark = pytest.mark.lab

SCRIPT = """
import json, sys
from functools import partial
from pathlib import Path
from preflight_checks.storage import Target, examine, write_and_read
place = Path(sys.argv[1])
outcome = examine([Target("/data", (place,))], probe=partial(write_and_read, most=16 << 20))
found = [(f.severity, f.code, f.action, f.message) for f in outcome.findings]
measured = sorted(outcome.measurements["paths"].get("/data", ()))
print(json.dumps([found, [name for name in measured if "mb_per_s" in name], len(list(place.iterdir()))]))
"""
OTHERS = (
    "/data gives back other bytes than were written, wanted a directory that can be written and read back (required)"
)
KEPT = "/data keeps what was written there, wanted gone: PLACE: Operation not permitted"
SPEED = ["read_mb_per_s", "write_mb_per_s"]


@pytest.mark.parametrize(
    "refused, found, speed, left",
    [
        ("", [], SPEED, 0),
        # Mountpoint for S3 takes a file in one go: it is well, and nothing is known of its speed.
        ("AGAIN", [], [], 0),
        # Nor is a second file written that nobody can remove.
        ("REMOVE", [["warning", "storage-not-removable", "continue", KEPT]], [], 1),
        ("READ", [["error", "storage-corrupt", "reschedule", OTHERS]], [], 0),
    ],
    ids=["well", "in one go", "for ever", "other bytes"],
)
def test_a_bucket_that_is_mounted_as_a_directory(tmp_path, refused, found, speed, left):
    place = tmp_path / "volume"

    said = fuse_volume.beside(place, refused, sys.executable, "-c", SCRIPT, place)

    assert [found, speed, left] == json.loads(re.sub(rf"{place}/\S+(?=:)", "PLACE", said))
