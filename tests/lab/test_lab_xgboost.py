"""XGBoost jobs: every worker that Trainer promises is started once, finds the tracker, and ends in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from nvml_machines import h100_sxm
from podlab import MASTER, PORT, SCRIPTS, eventually, without

pytestmark = pytest.mark.lab

WORKER, TRAIN = str(SCRIPTS / "dmlc.py"), str(SCRIPTS / "xgboost_sum.py")
HOST = "job1-node-0-0"


def dmlc(index, *, workers):
    """Return what Trainer injects into a pod."""
    return {
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_TASK_ID": str(index),
        "DMLC_TRACKER_URI": MASTER,
        "DMLC_TRACKER_PORT": str(PORT),
    }


def launch(lab, *words, processes, **more):
    """Start the job on three pods."""
    environs = [{**dmlc(n, workers=3 * processes), **more} for n in range(3)]
    return [lab[n].launch("--nproc", str(processes), *words, env=environ) for n, environ in enumerate(environs)]


@pytest.fixture(scope="module")
def xgboost_python():
    """Return a Python that can import XGBoost."""
    python = os.environ.get("LAB_XGBOOST_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import xgboost.tracker"], capture_output=True, check=False).returncode:
        without(f"{python} has no XGBoost")
    return python


def test_two_workers_on_each_of_three_nodes(lab):
    """Six tasks, each once, two on a node, each with a device of its own; Trainer started three containers."""
    lab.publish()
    containers = launch(lab, "--", WORKER, processes=2, CUDA_VISIBLE_DEVICES="GPU-a,GPU-b")
    assert [0, 0, 0] == [container.wait() for container in containers]
    tasks = [f"{n} {n % 2} GPU-{'ab'[n % 2]} {MASTER} job1-node-0-{n // 2}" for n in range(6)]
    for node, container in enumerate(containers):
        own = [f"task {n} goes on" for n in (2 * node, 2 * node + 1)]
        assert sorted([*tasks, *own]) == sorted(container.stdout.splitlines()), container.story()


def test_one_worker_on_each_node(lab):
    """Without GPUs the command is the worker: nothing stands between it and the agent."""
    lab.publish()
    containers = launch(lab, "--", WORKER, processes=1)
    assert [0, 0, 0] == [container.wait() for container in containers]
    tasks = [f"{n} 0 - {MASTER} job1-node-0-{n}" for n in range(3)]
    assert [*tasks, "task 2 goes on"] == containers[2].stdout.splitlines()
    assert "several" not in containers[2].log("launching")["command"]


def test_the_trackers_name_is_waited_for(lab):
    """XGBoost itself gives up at once on a name that does not exist yet."""
    containers = launch(lab, "--", WORKER, processes=1)
    eventually(lambda: all(lab.queries(MASTER, lab[n]) > 1 for n in range(3)), what="all ask for the name")
    assert [""] * 3 == [container.stdout for container in containers]
    lab.publish()
    assert [0, 0, 0] == [container.wait() for container in containers]


def test_the_tracker_is_waited_for(lab):
    """Its pod starts later than XGBoost would try to reach it; the names are there before."""
    lab.publish()
    late = [lab[n].launch("--", WORKER, env=dmlc(n, workers=3)) for n in (1, 2)]
    assert late[0].outlives(6)
    assert not late[1].ended
    first = lab[0].launch("--", WORKER, env=dmlc(0, workers=3))
    assert [0, 0, 0] == [container.wait() for container in (first, *late)]


def test_the_devices_decide_how_many_workers_a_node_has(lab, nvml_standin):
    """What Trainer has multiplied into DMLC_NUM_WORKER, the driver of every node says again."""
    lab.publish()
    environs = [{**dmlc(n, workers=6), **nvml_standin.environ(h100_sxm(2))} for n in range(3)]
    containers = [lab[n].launch("--", WORKER, env=environ) for n, environ in enumerate(environs)]
    assert [0, 0, 0] == [container.wait() for container in containers], containers[0].story()
    tasks = [f"{n} {n % 2} {n % 2} {MASTER} job1-node-0-{n // 2}" for n in range(6)]
    assert set(tasks) < set(containers[2].stdout.splitlines())
    said = containers[0].log("number of processes")
    assert (2, "2 processes for --nproc not being set: NVML: 2 GPUs") == (said["nproc"], said["reason"])


def test_a_single_worker_waits_for_no_name(lab):
    """Nothing is published: the tracker is at the pod's own name, which is in /etc/hosts."""
    container = lab[0].launch("--", WORKER, env=dmlc(0, workers=1))
    assert 0 == container.wait()
    assert [f"0 0 - {HOST} {HOST}", "task 0 goes on"] == container.stdout.splitlines()


def test_a_taken_port_is_found_before_the_start(lab):
    """The tracker would fail with it; the agent says who holds it, and the pod may be tried again."""
    lab.publish()
    holder = lab[0].run(sys.executable, str(SCRIPTS / "hold_port.py"), str(PORT), "/bin/sleep", "60")
    eventually(lambda: holder.listens(PORT), what="the port is taken")
    container = lab[0].launch("--", WORKER, env=dmlc(0, workers=3))
    assert 20 == container.wait()
    assert "master-port-taken" == container.termination["code"]
    assert f"port {PORT} of DMLC_TRACKER_PORT is taken" in container.termination["reason"]


def test_one_worker_fails(lab):
    """Its exit code is the container's, the log names it, and its neighbour on the node is ended."""
    lab.publish()
    containers = launch(lab, "--", WORKER, "fail", processes=2)
    assert 42 == containers[0].wait()
    told = containers[0].termination
    assert (42, f"the command exited with code 42 on {HOST}") == (told["exit_code"], told["reason"])
    assert "the process with DMLC_TASK_ID=1 exited with code 42" in told["error"]


def test_sigterm_lets_all_workers_save_their_state(lab):
    """Both take a second for it, and none is ended because another one was quicker."""
    lab.publish()
    containers = launch(lab, "--", WORKER, "save", processes=2)
    for n in (0, 1):
        containers[0].printed(f"task {n} goes on")
    containers[0].signal(signal.SIGTERM)
    assert 143 == containers[0].wait()
    assert ["saved-0", "saved-1"] == sorted(p.name for p in containers[0].directory.glob("saved-*"))


def test_as_pid_1_by_itself(lab):
    """With --exec the agent is gone, and what is left of it forwards signals and leaves nothing behind."""
    lab.publish()
    environ = dmlc(0, workers=2)
    container = lab[0].launch("--exec", "--nproc", "2", "--", WORKER, "save", env=environ)
    for n in (0, 1):
        container.printed(f"task {n} goes on")
    container.signal(signal.SIGTERM)
    assert 1 == container.wait()
    assert ["saved-0", "saved-1"] == sorted(p.name for p in container.directory.glob("saved-*"))


def test_nodes_that_count_differently_are_told(lab):
    """Two of Trainer's three workers would be started twice; exit 30, and what to do."""
    container = lab[2].launch("--nproc", "2", "--", WORKER, env=dmlc(2, workers=4))
    assert 30 == container.wait()
    told = container.termination
    assert ("workers-mismatch", True) == (told["code"], "--nproc 1" in told["hint"])


def test_xgboost_itself(lab, xgboost_python):
    """The real program, six workers on three nodes: one communicator, one model."""
    lab.publish()
    containers = launch(lab, "--python", xgboost_python, "--", TRAIN, processes=2)
    assert [0, 0, 0] == [c.wait() for c in containers], [c.story() for c in containers]
    lines = sorted(line for c in containers for line in c.stdout.splitlines() if line.startswith("task"))
    assert [f"task {n}: 6 workers, sum 15, 2 trees" for n in range(6)] == lines


def test_xgboost_alone(lab, xgboost_python):
    """One worker whose name nobody has published."""
    container = lab[0].launch("--python", xgboost_python, "--", TRAIN, env=dmlc(0, workers=1))
    assert 0 == container.wait(), container.story()
    assert "task 0: 1 workers, sum 0, 2 trees" in container.stdout
