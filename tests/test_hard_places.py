"""preflight where a container has next to nothing, and where somebody kills it."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from marked import until

from trainer_agent.process import is_alive

pytestmark = pytest.mark.lab

AGENT = [sys.executable, "-m", "trainer_agent"]
EXAMPLES = Path(__file__).parents[1] / "examples" / "checks"
# All is read-only, /tmp too, and there is no /etc/passwd: a user without a name, a home, rights and standard input.
# $1 is what nobody else may enter of the way to this Python, $2 this Python's own directory.
BARE = """
set -e
mount --make-rprivate /
if [ -n "$1" ]; then
    mount -t tmpfs none /mnt && mkdir /mnt/python && mount --bind "$2" /mnt/python
    mount -t tmpfs -o mode=755 none "$1" && mkdir -p "$2" && mount --bind /mnt/python "$2"
fi
shift 2
mount --bind /dev/null /etc/passwd
mount --bind /tmp /tmp
mount --bind /var/tmp /var/tmp
awk '{ print $5 }' /proc/self/mountinfo | while read -r place; do
    mount -o remount,bind,ro "$place" 2>/dev/null || :
done
mount -o remount,ro /proc
mount -t tmpfs -o mode=777 none /srv
cd /
exec setpriv --reuid 54321 --regid 54321 --clear-groups --bounding-set=-all --inh-caps=-all --no-new-privs \
    env -i PATH=/usr/bin:/bin "$@" <&-
"""
# Fetch what is there, with a limit.
FETCH = """
mkdir /srv/in
head -c 40000000 /dev/zero >/srv/in/large
for number in 1 2 3 4 5 6 7 8 9; do echo "$number" >"/srv/in/$number"; done
limit=$1
shift
(ulimit $limit; exec env STORAGE_URI=file:///srv/in OUTPUT_PATH=/srv/out "$@" init dataset) || exit
rm -r /srv/out/.trainer-agent
diff -r /srv/in /srv/out
"""
# A check with a child, and an orphan in a session of its own, which tell their pids.
FAMILY = """#!/bin/sh
# trainer-agent: timeout=60
setsid sh -c 'setsid sh -c "trap : TERM HUP INT; echo \\$\\$ >>PIDS; while :; do sleep 1000; done" &' &
sh -c 'echo $$ >>PIDS; exec sleep 1000' &
echo $$ >>PIDS
exec sleep 1000
"""


@pytest.fixture
def bare():
    """A command prefix for the bare place."""
    if os.geteuid():
        pytest.skip("only root can make such a place and give up all rights")
    closed = next((p for p in reversed(Path(sys.base_prefix).parents) if not p.stat().st_mode & 0o001), "")
    prefix = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    argv = [*prefix, "sh", "-c", BARE, "sh", str(closed), sys.base_prefix]
    tried = run([*argv, sys.executable, "-c", "import trainer_agent"])
    if tried.returncode:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"no such place can be made: {tried.stderr}")
    return argv


@pytest.fixture
def family(tmp_path):
    """A directory of checks with one that has a family; the pids that it told so far."""
    folder = tmp_path / "checks"
    folder.mkdir(mode=0o755)
    script = folder / "family.sh"
    script.write_text(FAMILY.replace("PIDS", str(tmp_path / "pids")))
    script.chmod(0o755)
    return folder, tmp_path / "pids"


def run(argv, *, stdout=subprocess.PIPE):
    return subprocess.run(argv, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=100, check=False)


@pytest.mark.parametrize("profile", ["quick", "standard"])
def test_it_works_without_rights_files_or_a_name(bare, profile):
    """It says what is missing for training, a temporary directory, and every check comes to an end."""
    heavy = "bandwidth,cuda,gemm,nccl-loopback,torchrun-smoke"
    done = run([*bare, *AGENT, "preflight", "--profile", profile, "--output", "json", "--skip", heavy])

    report = json.loads(done.stdout)
    assert "Traceback" not in done.stderr
    assert [] == [check for check in report["checks"] if check["status"] == "error"]
    storage = next(check for check in report["checks"] if check["name"] == "storage")
    assert (30, 30, ["storage-not-writable"]) == (
        done.returncode,
        report["exit_code"],
        [finding["code"] for finding in storage["findings"]],
    )


def test_a_program_as_a_check_works_there(bare):
    """It needs no more than the agent does."""
    words = ["--checks-dir", str(EXAMPLES), "--checks", "scratch-space", "--output", "json"]

    done = run([*bare, "env", "SCRATCH=/usr", "SCRATCH_WANTED_MIB=0", *AGENT, "preflight", *words])

    (check,) = json.loads(done.stdout)["checks"]
    assert (0, "pass") == (done.returncode, check["status"]), check["message"]


@pytest.mark.parametrize(
    "limit,code",
    [
        ("-p 12", ""),
        ("-p 3", "system-exhausted"),
        ("-p 2", "system-exhausted"),
        ("-n 16", ""),
        ("-n 9", "system-exhausted"),
    ],
)
def test_a_fetch_makes_do_with_what_it_may_have(bare, limit, code):
    """Processes (threads are some, too) and open files: with fewer, and with too few by a message that says so."""
    alone = [word.replace("54321", "54322") for word in bare]  # whose processes are counted, wherever they run
    done = run([*alone, "sh", "-c", FETCH, "sh", limit, *AGENT])

    last = json.loads(done.stderr.splitlines()[-1])
    assert (20 if code else 0, code) == (done.returncode, last.get("code", "")), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("output", ["text", "json"])
def test_nobody_reads_its_output(output):
    """As with `| head`: a quiet end like that of any other program."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = run([*AGENT, "preflight", "--checks", "shm", "--output", output], stdout=writing)
    finally:
        os.close(writing)

    assert (141, "") == (done.returncode, done.stderr)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_files_may_be_closed(closed, tmp_path):
    """What was opened in their place must not get what was meant for them."""
    report = tmp_path / "report.json"
    line = f'exec "$@" {closed}'

    done = run(
        ["sh", "-c", line, "sh", *AGENT, "preflight", "--checks", "shm,environment", "--report-file", str(report)]
    )

    assert "Traceback" not in done.stderr
    assert json.loads(report.read_text())["exit_code"] == done.returncode


def told(file):
    """Return the pids of a family, once they are all there."""
    pids = [int(pid) for pid in file.read_text().split()] if file.exists() else []
    return pids if len(pids) == 3 else []


def alive(pids):
    """Return those that run; a zombie that waits for somebody else's parent does not."""
    return [pid for pid in pids if is_alive(pid)]


def preflight(folder, mark):
    """Start a preflight whose processes all carry `mark` in their environment."""
    return subprocess.Popen(
        [*AGENT, "preflight", "--checks-dir", str(folder), "--checks", "family,shm,storage,environment"],
        env={**os.environ, "HARD_PLACE": mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def marked(mark):
    """Return the pids of all processes that carry `mark`."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("HARD_PLACE") == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            pass
    return found


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_an_agent_that_is_killed_leaves_nothing(family, signum):
    """Not only of what still has a parent."""
    folder, pids = family
    with preflight(folder, str(folder)) as agent:
        assert until(lambda: told(pids))
        assert 3 == len(alive(told(pids)))
        agent.send_signal(signum)
        agent.wait(timeout=60)

    assert until(lambda: not alive(told(pids)))
    assert until(lambda: not marked(str(folder)))


@pytest.mark.parametrize("seed", range(10))
def test_an_agent_that_is_killed_at_any_moment_leaves_nothing(family, seed):
    """While it imports, forks, starts programs, or waits for them."""
    folder, _ = family
    with preflight(folder, str(folder)) as agent:
        signal.sigtimedwait([], random.Random(seed).uniform(0.05, 0.6))
        agent.kill()
        agent.wait(timeout=60)

    assert until(lambda: not marked(str(folder)))
