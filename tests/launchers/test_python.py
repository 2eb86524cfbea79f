"""python: a script, an interpreter's option, or any program, as it stands."""

import pytest

from trainer_agent.launchers import Command, Job, python
from trainer_agent.nproc import Decision
from trainer_agent.topology import read_topology

TORCH = {"PET_NNODES": "2", "PET_MASTER_ADDR": "m"}


def job(environ, *script, nproc=1, omp=None):
    topology = read_topology(environ, hostname="box")
    return Job(topology, Decision(nproc, "", omp_threads=omp), script, environ, "/venv/python", ("torchrun",), 900.0)


@pytest.mark.parametrize(
    "script, argv",
    [
        (("train.py", "--lr", "1"), ("/venv/python", "train.py", "--lr", "1")),
        (("/a/b/train.py",), ("/venv/python", "/a/b/train.py")),
        (("-c", "pass"), ("/venv/python", "-c", "pass")),
        (("-m", "pkg", "x"), ("/venv/python", "-m", "pkg", "x")),
        (("-u", "train.py"), ("/venv/python", "-u", "train.py")),
        (("./train.sh", "a b"), ("./train.sh", "a b")),
        (("python3", "train.py"), ("python3", "train.py")),
    ],
)
def test_commands(script, argv):
    """What Python understands goes to the training environment's Python, the rest is a command of its own."""
    assert python.suits(job({}, *script))
    assert Command(argv, {"A": "b"}) == python.command(job({"A": "b"}, *script))


def test_omp_threads():
    """A decided number of threads is in the environment; PET_ variables stay, as nothing replaces them."""
    expected = {"PET_NNODES": "1", "OMP_NUM_THREADS": "3"}
    assert expected == python.command(job({"PET_NNODES": "1"}, "t.py", omp=3)).env


@pytest.mark.parametrize(
    "environ, nproc, shape",
    [
        (TORCH, 1, "2 nodes with 1 processes"),
        (TORCH, 4, "2 nodes with 4 processes"),
        ({"PET_NNODES": "1"}, 2, "1 nodes with 2 processes"),
    ],
)
def test_a_note_when_ranks_are_lost(environ, nproc, shape):
    """A job of several ranks that starts as one process would train on a part of its data without a word."""
    expected = (
        f"the environment describes {shape} each, and ./train.sh is started once on each as it is: "
        "unless it reads PET_* itself, pass only the script"
    )
    assert expected == python.command(job(environ, "./train.sh", nproc=nproc)).note


@pytest.mark.parametrize(
    "text, noted",
    [
        ("pip install x && accelerate launch train.py", "`accelerate launch` in bash ignores PET_*"),
        ("accelerate-launch train.py", "`accelerate-launch` in bash ignores PET_*"),
        ("python -m accelerate.commands.launch t.py", "`accelerate.commands.launch` in bash ignores PET_*"),
        ("tune run lora_finetune_distributed", "`tune run` in bash ignores PET_*"),
        ("accelerate launch --num_machines $PET_NNODES train.py", ""),
        ("pip install x && torchrun train.py", ""),
        ("python -m torch.distributed.run train.py", ""),
        ("python train.py", "bash is started once on each as it is"),
    ],
)
def test_what_a_shell_starts_may_obey_the_variables_or_not(text, noted):
    """Who is warned of what works learns to overlook it."""
    note = python.command(job(TORCH, "bash", "-c", text, nproc=2)).note
    assert (noted in note) if noted else note == ""


@pytest.mark.parametrize("environ, nproc", [({}, 1), ({"PET_NNODES": "1"}, 1), ({"JAX_NUM_PROCESSES": "2"}, 1)])
def test_no_note_when_one_process_is_right(environ, nproc):
    """JAX jobs and single processes start this way on purpose."""
    assert python.command(job(environ, "./train.sh", nproc=nproc)).note == ""
