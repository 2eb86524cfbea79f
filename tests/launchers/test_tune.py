"""tune: torchrun's options before the recipe, without which torchtune stays on one device."""

import pytest

from trainer_agent.launchers import Command, Job, tune
from trainer_agent.nproc import Decision
from trainer_agent.topology import read_topology

TORCH = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_RDZV_ENDPOINT": "j-0.j:29500"}
RECIPE = ("full_finetune_distributed", "--config", "llama")


def job(environ, *script):
    topology = read_topology(environ, hostname="box")
    return Job(topology, Decision(4, ""), script or ("tune", "run", *RECIPE), environ, "python", ("torchrun",), 600.0)


@pytest.mark.parametrize(
    "environ, script, suits",
    [
        (TORCH, ("tune", "run", "x"), True),
        (TORCH, ("/opt/bin/tune", "run", "x"), True),
        (TORCH, ("tune", "download"), False),
        (TORCH, ("tune",), False),
        ({}, ("tune", "run", "x"), False),
    ],
)
def test_what_it_suits(environ, script, suits):
    """`tune run`, under any path, in a job with PET_* variables."""
    assert suits == tune.suits(job(environ, *script))


def test_several_nodes():
    """Without an endpoint torchtune would force a single node."""
    flags = (
        *("--nnodes", "2", "--nproc-per-node", "4", "--node-rank", "1", "--rdzv-backend", "static"),
        *("--rdzv-endpoint", "j-0.j:29500", "--rdzv-id", "j-0", "--rdzv-conf", "timeout=600"),
    )
    expected = Command(("tune", "run", *flags, *RECIPE), {}, elastic_agent=True)
    assert expected == tune.command(job(TORCH))


def test_one_node():
    """One node needs no place to meet."""
    expected = ("tune", "run", "--nnodes", "1", "--nproc-per-node", "4", *RECIPE)
    assert expected == tune.command(job({"PET_NNODES": "1"})).argv
