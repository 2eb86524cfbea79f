"""What `launch` is as a process: a parent that reaps as PID 1, torchrun itself elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from podlab import AGENT, MASTER, SCRIPTS, TORCHRUN, children, eventually

pytestmark = pytest.mark.lab

HOST = "job1-node-0-0"
PET = {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": "0", "PET_MASTER_ADDR": MASTER}
KUBEFLOW = {**PET, "PET_MASTER_PORT": "29500"}
# A shell that stays PID 1, so that the agent is not.
UNDER_A_SHELL = ("sh", "-c", '"$@"; exit $?', "sh")


def zombies(container):
    """Return how many processes have ended without that anybody has asked about them."""
    return container.of_each(psutil.Process.status).count(psutil.STATUS_ZOMBIE)


def command_line(pid):
    """Return the words of a process's command, none when it is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []


def test_orphans_are_reaped_while_the_command_runs(lab):
    """Five grandchildren end; no zombie is left of them, and the log counts them."""
    container = lab[0].launch("--", str(SCRIPTS / "orphans.py"), env=PET)
    container.printed("five orphans")
    eventually(lambda: not zombies(container), what="no zombie is left")
    assert not container.ended
    (container.directory / "go").touch()
    assert 0 == container.wait()
    assert 5 == container.log("training ended")["orphans_reaped"]


def test_under_bare_torchrun_orphans_stay_zombies(lab):
    """The contrast."""
    container = lab[0].run(TORCHRUN, "--standalone", "--nproc-per-node", "1", str(SCRIPTS / "orphans.py"))
    container.printed("five orphans")
    assert eventually(lambda: zombies(container) == 5, what="all five are zombies")


def test_without_being_pid_1_the_agent_becomes_torchrun(lab):
    """The same process, so whoever started it signals torchrun and reads torchrun's exit code."""
    container = lab[0].run(*UNDER_A_SHELL, AGENT, "launch", "--", str(SCRIPTS / "orphans.py"), env=KUBEFLOW)
    container.printed("five orphans")
    eventually(lambda: len(children(container.pid)) == 1, what="the shell has reaped the orphans")
    (started,) = children(container.pid)  # the shell's own child: there is no agent in between
    python, *words = command_line(started)
    assert [TORCHRUN, "--standalone", "--nproc-per-node", "1", str(SCRIPTS / "orphans.py")] == words
    assert Path(sys.executable).name == Path(python).name
    (container.directory / "go").touch()
    assert 0 == container.wait()


def test_a_rank_may_run_torchrun_itself(lab):
    """It inherits no PET_ variable, so its own torchrun does not fight for port 29500."""
    container = lab[0].run(*UNDER_A_SHELL, AGENT, "launch", "--", str(SCRIPTS / "nested.py"), env=KUBEFLOW)
    assert 0 == container.wait()
    assert {"pet": [], "code": 0, "said": "inner 1"} == json.loads(container.stdout)


def test_a_torchrun_that_fails_inside_a_rank_is_not_taken_for_ours(lab):
    """Its failed rank is that rank's own business; what the rank itself ends with is told, with its last words."""
    killed = (sys.executable, "-c", "import os; os.kill(os.getpid(), 9)")
    container = lab[0].launch("--", str(SCRIPTS / "nested.py"), *killed, env=KUBEFLOW)
    assert 42 == container.wait()
    told = container.termination
    reason = f"rank 0 (local rank 0) exited with code 42 on {HOST}"
    assert (42, 0, reason) == (told["exit_code"], told["rank"], told["reason"])
    assert "the inner run failed with 1" == told["error"].splitlines()[-1]


def test_a_progress_bar_is_passed_on_while_it_moves(lab):
    """It ends in a carriage return; its newline may come in an hour."""
    container = lab[0].launch("--launcher", "python", "--", str(SCRIPTS / "progress.py"), env=KUBEFLOW)
    eventually(lambda: "10%" in container.stderr, what="the bar is seen")
    assert not container.ended


def read_only(words, *directories):
    """Run the agent where nothing can be written to these directories."""
    mount = "mount --bind $d $d && mount -o remount,ro,bind $d"
    places = f"for d in {' '.join(directories)}; do [ ! -d $d ] || {{ {mount}; }}; done; cd /proc"
    rootless = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    command = ["unshare", "--mount", *rootless, "sh", "-c", f"{places}; exec {AGENT} launch --supervise {words}"]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=40, check=False, env={"PATH": os.environ["PATH"]}
    )


TEMPORARY = ("/tmp", "/var/tmp", "/usr/tmp")


def test_without_a_temporary_directory_it_says_what_to_mount():
    """A read-only root file system without a volume at /tmp: exit 30 and the remedy, no traceback."""
    done = read_only("--launcher torchrun --nproc 1 -- x.py", *TEMPORARY, "/dev/shm")
    assert done.returncode == 30, done.stderr
    assert json.loads(done.stderr.splitlines()[-1])["code"] == "no-temporary-directory"


def test_without_a_temporary_directory_torchrun_has_one_in_memory():
    """Every container has /dev/shm."""
    done = read_only(f"--launcher torchrun --nproc 2 -- {SCRIPTS / 'fail.py'} exit42", *TEMPORARY)
    assert 42 == done.returncode, done.stderr


def test_a_command_that_needs_no_temporary_directory_starts_without():
    """It would start without the agent, too."""
    done = read_only("-- echo trained", *TEMPORARY, "/dev/shm")
    assert (0, "trained\n") == (done.returncode, done.stdout), done.stderr
