"""`init` where the container has little of something."""

import json
import os
import subprocess
import sys

import pytest
from remote_s3 import RemoteS3, read_directory

pytestmark = pytest.mark.lab

FILES = {f"{number:03}": f"file {number}".encode() * 100 for number in range(300)}


@pytest.fixture
def far(tmp_path):
    """Return a server that is so far away that 128 connections would help."""
    (tmp_path / "bucket" / "data").mkdir(parents=True)
    for name, body in FILES.items():
        (tmp_path / "bucket" / "data" / name).write_bytes(body)
    with RemoteS3(read_directory(tmp_path / "bucket")) as server:
        yield server


@pytest.mark.parametrize("limit", ["-n 64", "-n 256"])
def test_no_more_streams_than_open_files_allow(far, tree, tmp_path, limit):
    """Each takes two: with more, every attempt would end with `system-exhausted`."""
    destination = tmp_path / "destination"
    source = {"STORAGE_URI": "s3://bucket/data", "OUTPUT_PATH": str(destination), "ENDPOINT": far.endpoint}
    keys = {"ACCESS_KEY_ID": "id", "SECRET_ACCESS_KEY": "key"}
    line = f'ulimit {limit} && exec "$@"'

    done = subprocess.run(
        ["sh", "-c", line, "sh", sys.executable, "-m", "trainer_agent", "init", "dataset"],
        env={"PATH": os.environ["PATH"], **source, **keys},
        stderr=subprocess.PIPE,
        timeout=100,
        check=False,
    )

    assert (0, "fetched") == (done.returncode, json.loads(done.stderr.splitlines()[-1])["event"]), done.stderr
    assert FILES == tree(destination)
