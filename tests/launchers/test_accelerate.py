"""accelerate: flags instead of PET_* variables, which `accelerate launch` ignores."""

import pytest

from trainer_agent.launchers import Command, Job, accelerate
from trainer_agent.nproc import Decision
from trainer_agent.topology import read_topology

TORCH = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "j-0.j", "PET_MASTER_PORT": "29511"}
LAUNCH = ("accelerate", "launch", "--num_processes", "1", "train.py")


def job(environ, *script, nproc=4):
    topology = read_topology(environ, hostname="box")
    decision = Decision(nproc, "", omp_threads=2)
    return Job(topology, decision, script or LAUNCH, environ, "python", ("torchrun",), 900.0)


@pytest.mark.parametrize(
    "environ, script, suits",
    [
        (TORCH, LAUNCH, True),
        (TORCH, ("/opt/bin/accelerate", "launch", "t.py"), True),
        (TORCH, ("accelerate", "config"), False),
        (TORCH, ("accelerate",), False),
        (TORCH, ("train.py", "launch"), False),
        ({}, LAUNCH, False),
    ],
)
def test_what_it_suits(environ, script, suits):
    """`accelerate launch`, under any path, in a job with PET_* variables."""
    assert suits == accelerate.suits(job(environ, *script))


def test_several_nodes():
    """Processes are those of the whole job, and the user's own flags come last so that they win."""
    flags = (
        *("--num_machines", "2", "--num_processes", "8", "--machine_rank", "1", "--multi_gpu"),
        *("--main_process_ip", "j-0.j", "--main_process_port", "29511"),
    )
    argv = ("accelerate", "launch", *flags, "--num_processes", "1", "train.py")
    assert Command(argv, {"OMP_NUM_THREADS": "2"}, elastic_agent=True) == accelerate.command(job(TORCH))


@pytest.mark.parametrize("nproc, more", [(1, ()), (4, ("--multi_gpu",))])
def test_one_node(nproc, more):
    """One node needs no place to meet, and one process is not many GPUs."""
    flags = ("--num_machines", "1", "--num_processes", str(nproc), "--machine_rank", "0", *more)
    environ = {"PET_NNODES": "1"}
    assert ("accelerate", "launch", *flags, "t.py") == accelerate.command(
        job(environ, "accelerate", "launch", "t.py", nproc=nproc)
    ).argv


def test_a_number_that_only_torch_knows():
    """Without a number nothing can be said to accelerate, so it is left to itself."""
    note = "the number of processes is left to accelerate"
    expected = Command(LAUNCH, {"OMP_NUM_THREADS": "2"}, elastic_agent=True, note=note)
    assert expected == accelerate.command(job(TORCH, nproc="auto"))
