"""A plain command: a Python script, or any program, as it stands. JAX and single processes start this way."""

from __future__ import annotations

from trainer_agent.launchers import Command, Job, base_env, interpreted


def suits(job: Job) -> bool:  # the last of the table suits everything
    """Whether nothing better does."""
    return True


def command(job: Job) -> Command:
    """Return the command as it is, after the interpreter where it needs one."""
    return Command(interpreted(job.script, job.python), base_env(job), note=_note(job))


def _note(job: Job) -> str:
    if job.topology.runtime != "torch":
        return ""
    if job.topology.single_node and job.nproc.value == 1:
        return ""
    return (
        f"the environment describes {job.topology.max_nodes} nodes with {job.nproc.value} processes each, and "
        f"{job.script[0]} is started once on each as it is: unless it reads PET_* itself, pass only the script"
    )
