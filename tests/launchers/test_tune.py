"""tune: torchrun's options before the recipe, without which torchtune stays on one device."""

import pytest

from trainer_agent.launchers import Command, Job, tune
from trainer_agent.nproc import Decision
from trainer_agent.topology import read_topology

TORCH = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_RDZV_ENDPOINT": "j-0.j:29500"}
RECIPE = ("full_finetune_distributed", "--config", "llama")


def job(environ, *script, nproc=4):
    topology = read_topology(environ, hostname="box")
    return Job(
        topology, Decision(nproc, ""), script or ("tune", "run", *RECIPE), environ, "python", ("torchrun",), 600.0
    )


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


@pytest.mark.parametrize(
    "recipe", ["lora_finetune_single_device", "generate", "quantize", "eleuther_eval", "my/recipe.py"]
)
def test_one_process_of_a_recipe_for_one_device(recipe):
    """Any option before it makes torchtune distributed, and refuse it; torch's variables are not for its ranks."""
    script = ("tune", "run", recipe, "--config", "llama2/7B_lora_distributed")
    expected = Command(script, {})
    assert expected == tune.command(job({"PET_NNODES": "1", "PET_MAX_RESTARTS": "3"}, *script, nproc=1))


@pytest.mark.parametrize(
    "words", [("dev/generate_v2_distributed",), ("--nproc_per_node", "1", "my_recipe"), ("--tee", "3", "quantize")]
)
def test_one_process_of_a_distributed_recipe(words):
    """It refuses to start without torchrun, and whoever gives an option of torchrun's wants it, too."""
    script = ("tune", "run", *words, "--config", "x")
    expected = ("tune", "run", "--nnodes", "1", "--nproc-per-node", "1", *words, "--config", "x")
    assert expected == tune.command(job({"PET_NNODES": "1"}, *script, nproc=1)).argv


def test_the_options_of_torchrun():
    """What PET_* variables say beside the topology is said by flags, as the variables are removed."""
    environ = {"PET_NNODES": "1", "PET_MAX_RESTARTS": "3", "PET_TEE": "3", "PET_LOG_DIR": "/logs"}
    options = ("--max-restarts", "3", "--log-dir", "/logs", "--tee", "3")
    argv = ("tune", "run", "--nnodes", "1", "--nproc-per-node", "4", *options, *RECIPE)
    assert Command(argv, {}, elastic_agent=True) == tune.command(job(environ))


def test_one_node():
    """One node needs no place to meet."""
    expected = ("tune", "run", "--nnodes", "1", "--nproc-per-node", "4", *RECIPE)
    assert expected == tune.command(job({"PET_NNODES": "1"})).argv
