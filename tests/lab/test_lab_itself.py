"""The lab is what it says, for root and for others, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from podlab import ADDRESSES, JOB, eventually, without

pytestmark = pytest.mark.lab

LOOK_UP = """
import json, os, socket, sys
def look_up(name):
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        return error.strerror
print(json.dumps([os.getpid(), socket.gethostname(), *map(look_up, sys.argv[1:])]))
"""
# A process that has a lab and a command in it, says how many processes that makes, and waits to be killed.
OWNER = """
import os, signal, sys
from pathlib import Path
from podlab import Lab
with Lab(Path(sys.argv[1]), rootless=os.geteuid() != 0) as lab:
    container = lab[0].run("sh", "-c", "echo runs; trap '' TERM; sleep 600 & wait")
    container.printed("runs")
    print(lab.holder, container.pid, flush=True)
    signal.pause()
"""


def test_a_command_is_pid_1_of_a_pod_with_its_name_and_sees_published_names_only(lab):
    """A pod finds itself by its own name, and another pod once that is published."""
    lab.publish(lab[1])
    names = [f"{JOB}-node-0-{rank}.{JOB}" for rank in (1, 2)]
    container = lab[0].run(sys.executable, "-c", LOOK_UP, lab[0].name, *names)
    assert 0 == container.wait()
    own, other = ADDRESSES[lab[0].name], ADDRESSES[lab[1].name]
    assert [1, lab[0].name, own, other, "Name or service not known"] == json.loads(container.stdout)


def test_the_termination_log_can_be_written_but_neither_replaced_nor_removed(lab):
    """As the kubelet's: it is mounted."""
    script = "rm termination-log; mv -f /etc/hostname termination-log; echo written > termination-log"
    container = lab[0].run("sh", "-c", script)
    assert 0 == container.wait()
    assert 2 == container.stderr.count("Device or resource busy")
    assert "written\n" == (container.directory / "kubelet-file").read_text()


def test_exit_codes_and_signals_come_through(lab):
    """A PID 1 ends with its own code; a signal from outside reaches its handler."""
    container = lab[0].run("sh", "-c", "trap 'exit 7' USR1; echo ready; while :; do sleep 0.01; done")
    container.printed("ready")
    container.signal(signal.SIGUSR1)
    assert 7 == container.wait()


def owner_of_a_lab(directory, *prefix):
    """Start a process with a lab of its own; return it and the pids of two processes deep in the lab."""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    argv = [*prefix, sys.executable, "-c", OWNER, str(directory)]
    owner = subprocess.Popen(argv, stdout=subprocess.PIPE, env=env, text=True)
    return owner, [int(word) for word in owner.stdout.readline().split()]


@pytest.mark.parametrize("user", [None, 1000])
def test_nothing_survives_the_owner(lab, tmp_path, user):
    """After kill -9 of whoever built the lab its processes are gone, and with them namespaces and mounts."""
    directory = tmp_path / "owned"
    directory.mkdir()
    # Seen from a user namespace with that number, we are an ordinary user who owns the same files.
    prefix = ["unshare", "--user", f"--map-user={user}", f"--map-group={user}"] if user else []
    if subprocess.run([*(prefix or ["env"]), "true"], check=False).returncode:
        without("user namespaces are not allowed")
    owner, pids = owner_of_a_lab(directory, *prefix)
    assert [True, True] == [psutil.pid_exists(pid) for pid in pids]
    owner.kill()
    owner.communicate()
    eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids), what="all are gone")
    words = [str(directory), *map(str, pids)]
    eventually(lambda: not any(mentioned(words, p) for p in psutil.process_iter()), what="no wrapper is left")


def mentioned(words, process):
    """Whether one of the words is in a process's command, as the directory and the pid to enter are in wrappers'."""
    try:
        command = process.cmdline()
    except psutil.NoSuchProcess:
        return False
    return any(word in command for word in words)
