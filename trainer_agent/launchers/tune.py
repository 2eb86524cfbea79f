"""`tune run` (torchtune) is distributed only when torchrun's options stand before the recipe."""

from __future__ import annotations

from trainer_agent.launchers import Command, Job
from trainer_agent.launchers.torchrun import elastic_env, meeting_place, nproc


def suits(job: Job) -> bool:
    """Whether the command is `tune run …` in a job with PET_* variables."""
    return (
        job.topology.runtime == "torch" and job.script[0].rpartition("/")[2] == "tune" and job.script[1:2] == ("run",)
    )


def command(job: Job) -> Command:
    """Return the command with torchrun's options inserted; without an endpoint torchtune forces a single node."""
    shape = job.topology
    flags = ["--nnodes", str(shape.max_nodes), *nproc(job)]
    if not shape.single_node:
        flags += ["--node-rank", str(shape.node_rank), *meeting_place(job)]
    return Command((*job.script[:2], *flags, *job.script[2:]), elastic_env(job), elastic_agent=True)
