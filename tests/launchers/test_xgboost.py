"""xgboost: a worker for each device, numbered over all nodes, and what cannot be."""

import sys

import pytest

from trainer_agent.errors import FatalError
from trainer_agent.launchers import Command, Job, build, several, xgboost
from trainer_agent.nproc import Decision
from trainer_agent.topology import read_topology

POD = "job-node-0-1"
DMLC = {
    "DMLC_NUM_WORKER": "4",
    "DMLC_TASK_ID": "1",
    "DMLC_TRACKER_URI": "job-node-0-0.job",
    "DMLC_TRACKER_PORT": "29500",
}
ALONE = {**DMLC, "DMLC_NUM_WORKER": "1", "DMLC_TASK_ID": "0"}
WHY = "for a reason"


def job(environ, *script, nproc=1, omp=None, hostname=POD):
    topology = read_topology(environ, hostname=hostname)
    decision = Decision(nproc, WHY, omp_threads=omp)
    return Job(topology, decision, script or ("train.py",), environ, "/venv/python", ("torchrun",), 900.0)


def each(command):
    """Return what the processes of a command differ in, by variable."""
    pairs = [command.argv[n + 1] for n, word in enumerate(command.argv) if word == "--each"]
    return dict(pair.split("=", 1) for pair in pairs)


@pytest.mark.parametrize(
    "environ, script, name",
    [
        (DMLC, ("train.py",), "xgboost"),
        (DMLC, ("bash", "-c", "python train.py"), "xgboost"),
        ({}, ("train.py",), "python"),
        ({**DMLC, "PET_NNODES": "1"}, ("train.py",), "torchrun"),
    ],
)
def test_auto(environ, script, name):
    """The variables decide, whatever the command is."""
    assert name == build(job(environ, *script))[0]


def test_one_worker_on_this_node_is_the_command_itself():
    """Nothing stands between, and nothing of the environment is lost."""
    expected = Command(("/venv/python", "train.py", "--depth", "6"), {**DMLC, "LOCAL_RANK": "0"})
    assert expected == xgboost.command(job(DMLC, "train.py", "--depth", "6"))


def test_several_workers_on_this_node():
    """Two of four on each node: this is the second one, with tasks 2 and 3."""
    flags = ("--each", "DMLC_TASK_ID=2,3", "--each", "LOCAL_RANK=0,1", "--each", "CUDA_VISIBLE_DEVICES=0,1")
    argv = (sys.executable, "-P", "-m", several.MODULE, *flags, "--", "/venv/python", "train.py", "a b")
    expected = Command(argv, {**DMLC, "OMP_NUM_THREADS": "8"})
    assert expected == xgboost.command(job(DMLC, "train.py", "a b", nproc=2, omp=8))


@pytest.mark.parametrize("nodes, count", [(1, 8), (2, 4), (4, 2), (8, 1)])
def test_every_task_exists_once(nodes, count):
    """All nodes together start each worker of DMLC_NUM_WORKER once."""
    environs = [{**DMLC, "DMLC_NUM_WORKER": "8", "DMLC_TASK_ID": str(n)} for n in range(nodes)]
    commands = [xgboost.command(job(environ, nproc=count)) for environ in environs]
    tasks = [each(c).get("DMLC_TASK_ID", c.env["DMLC_TASK_ID"]) for c in commands]
    assert "0,1,2,3,4,5,6,7" == ",".join(tasks)


@pytest.mark.parametrize(
    "variables, devices",
    [
        ({}, {"CUDA_VISIBLE_DEVICES": "0,1"}),
        ({"CUDA_VISIBLE_DEVICES": "3, 5 ,7"}, {"CUDA_VISIBLE_DEVICES": "3,5"}),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8f,GPU-1c"}, {"CUDA_VISIBLE_DEVICES": "GPU-8f,GPU-1c"}),
        ({"CUDA_VISIBLE_DEVICES": "MIG-8f,MIG-1c,-1"}, {"CUDA_VISIBLE_DEVICES": "MIG-8f,MIG-1c"}),
        ({"CUDA_VISIBLE_DEVICES": ""}, {}),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, {}),
        ({"CUDA_VISIBLE_DEVICES": "0,-1"}, {}),
        ({"CUDA_VISIBLE_DEVICES": "0,0"}, {}),
        ({"HIP_VISIBLE_DEVICES": "2,3"}, {"CUDA_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "2,3"}),
    ],
)
def test_each_worker_has_its_own_device(variables, devices):
    """Out of what is visible here, as it is written; where that is nothing, nothing becomes visible."""
    expected = {"DMLC_TASK_ID": "2,3", "LOCAL_RANK": "0,1", **devices}
    assert expected == each(xgboost.command(job({**DMLC, **variables}, nproc=2)))


@pytest.mark.parametrize("hostname, host", [("job-node-0-0", "job-node-0-0"), ("a-node", "job-node-0-0.job")])
def test_a_worker_alone_needs_no_name_server(hostname, host):
    """XGBoost gives up at once on a name that is not published yet; the pod's own is in /etc/hosts."""
    assert host == xgboost.command(job(ALONE, hostname=hostname)).env["DMLC_TRACKER_URI"]


@pytest.mark.parametrize("environ, nproc, workers", [(ALONE, 4, 1), (DMLC, "auto", 4)])
def test_workers_are_counted_by_the_controller(environ, nproc, workers):
    """One worker is one process, however many devices there are, and it has all CPUs; the log says so."""
    found = xgboost.command(job(environ, nproc=nproc, omp=2))
    note = f"1 process, as XGBoost's workers are counted by DMLC_NUM_WORKER={workers}, not {nproc}"
    assert (("/venv/python", "train.py"), note, None) == (found.argv, found.note, found.env.get("OMP_NUM_THREADS"))


@pytest.mark.parametrize(
    "count, environ, message",
    [
        (3, DMLC, f"DMLC_NUM_WORKER=4 is no multiple of this node's 3 processes ({WHY})"),
        (8, DMLC, f"DMLC_NUM_WORKER=4 is no multiple of this node's 8 processes ({WHY})"),
        (
            2,
            {**DMLC, "DMLC_TASK_ID": "2"},
            f"DMLC_TASK_ID=2 is left without workers: DMLC_NUM_WORKER=4 are 2 nodes of 2 ({WHY})",
        ),
    ],
)
def test_a_number_of_processes_that_cannot_be(count, environ, message):
    """The workers would wait for others that nobody starts."""
    with pytest.raises(FatalError) as refused:
        xgboost.command(job(environ, nproc=count))
    hint = (
        "give all pods the same number of GPUs by a resource that Trainer counts, such as nvidia.com/gpu; "
        "where it counts none, --nproc 1 (TRAINER_AGENT_LAUNCH_NPROC=1) starts one worker on each node"
    )
    error = refused.value
    assert ("workers-mismatch", message, hint) == (error.code, error.message, error.hint)


@pytest.mark.parametrize(
    "environ, names",
    [
        ({"DMLC_TASK_ID": "0"}, "DMLC_NUM_WORKER, DMLC_TRACKER_URI, DMLC_TRACKER_PORT"),
        ({**DMLC, "DMLC_NUM_WORKER": " ", "DMLC_TASK_ID": "0"}, "DMLC_NUM_WORKER"),
        ({}, "DMLC_NUM_WORKER, DMLC_TASK_ID, DMLC_TRACKER_URI, DMLC_TRACKER_PORT"),
    ],
)
def test_variables_that_are_missing(environ, names):
    """Each node would train alone, on its part of the data, without a word."""
    with pytest.raises(FatalError) as refused:
        xgboost.command(job(environ))
    error = refused.value
    hint = (
        "give the TrainJob a spec.trainer (an empty one is enough), and Trainer sets all four; "
        "--launcher python runs the command once on each node as it is"
    )
    message = f"{names} not set, and XGBoost's workers cannot find each other without"
    assert ("dmlc-incomplete", message, hint) == (error.code, error.message, error.hint)
