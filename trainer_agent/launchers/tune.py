"""`tune run` (torchtune) is distributed only when torchrun's options stand before the recipe."""

from __future__ import annotations

from trainer_agent.launchers import Command, Job
from trainer_agent.launchers.torchrun import elastic_env, meeting_place, nproc, options


def suits(job: Job) -> bool:
    """Whether the command is `tune run …` in a job with PET_* variables."""
    return (
        job.topology.runtime == "torch" and job.script[0].rpartition("/")[2] == "tune" and job.script[1:2] == ("run",)
    )


def command(job: Job) -> Command:
    """
    Return the command with torchrun's options inserted; without an endpoint torchtune forces a single node.

    Any of them makes it distributed, which recipes for one device refuse: one process of those starts without.
    """
    shape, recipe = job.topology, "".join(job.script[2:3])
    # In torchtune 0.6.1 the recipes for torchrun, and no others, are named so.
    alone = shape.single_node and job.nproc.value == 1
    if alone and not recipe.startswith("-") and "distributed" not in recipe:
        return Command(job.script, elastic_env(job))
    flags = ["--nnodes", str(shape.max_nodes), *nproc(job)]
    if not shape.single_node:
        flags += ["--node-rank", str(shape.node_rank), *meeting_place(job)]
    argv = (*job.script[:2], *flags, *options(job.environ), *job.script[2:])
    return Command(argv, elastic_env(job), elastic_agent=True)
