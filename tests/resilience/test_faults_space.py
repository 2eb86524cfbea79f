"""A volume that is too small, from the start or because somebody else fills it."""

import os
import subprocess
import sys
from pathlib import Path

import agent_process
import pytest

MIB = 1 << 20
# In a mount namespace of its own; the tmpfs ends with it. The agent reports through files outside.
INSIDE = """
set -e
mount -t tmpfs -o size="$1" tmpfs "$2"
shift 2
"$@"
"""


@pytest.fixture
def volume(tmp_path):
    """Return a function that runs a script of Python on a fresh tmpfs of so many bytes, which is its `destination`."""
    if subprocess.run(["unshare", *_unshare(), "true"], check=False, capture_output=True).returncode:
        pytest.skip("no mount namespace can be made here")
    place = tmp_path / "volume"
    place.mkdir()

    def run(size, script, *args):
        command = ["unshare", *_unshare(), "sh", "-c", INSIDE, "sh", str(size), place, sys.executable, "-c", script]
        done = subprocess.run([*command, place, *args], check=False, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr

    return run


def _unshare():
    return ["-m"] if os.geteuid() == 0 else ["-rm"]


SCRIPT = """
import os, sys, threading, time
from pathlib import Path
sys.path.insert(0, {servers!r})
from agent_process import Agent, Data
place, endpoint, data, output = Path(sys.argv[1]), sys.argv[2], Data(Path(sys.argv[3])), Path(sys.argv[4])
count = iter(range(9))
agent = lambda *args: Agent(endpoint, place / "d", *args, output=output / f"inside-{{next(count)}}")
"""


def script(text):
    servers = str(Path(agent_process.__file__).parent)
    return SCRIPT.format(servers=servers) + text


@pytest.mark.parametrize("mib,code", [(64, 30), (124, 20)])
def test_too_small_is_told_before_the_first_byte(volume, proxy, data, *, tmp_path, mib, code):
    """What an empty volume could not hold either is fatal; nothing is fetched."""
    text = f"""
run = agent()
assert run.finish() == {code}, run.output
assert run.error == "no-space", run.output
assert data.wrong(place / "d") == []
"""
    volume(mib * MIB, script(text), proxy.endpoint, data.directory, tmp_path)

    assert proxy.served() == 0


@pytest.mark.lab
def test_filled_by_somebody_else(volume, proxy, data, tmp_path):
    """20 and no-space, nothing partial under a final name; with space again the next run goes on."""
    proxy.pace.bytes_per_s = 100e6
    text = """
run = agent()
parts = place / "d" / ".trainer-agent" / "parts"
while run.running and not (parts.exists() and any(parts.iterdir())):
    time.sleep(0.001)
hog = (place / "hog").open("wb", buffering=0)
try:
    while hog.write(bytes(1 << 20)) == 1 << 20:
        pass
except OSError as error:
    assert error.errno == 28
assert run.finish() == 20, run.output
assert run.error == "no-space", run.output
assert data.wrong(place / "d") == []
hog.truncate(0)
hog.close()
run = agent()
assert run.finish() == 0, run.output
assert data.lacking(place / "d") == []
"""
    volume(140 * MIB, script(text), proxy.endpoint, data.directory, tmp_path)

    assert proxy.twice() <= 64 * MIB
