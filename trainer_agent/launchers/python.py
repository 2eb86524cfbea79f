"""A plain command: a Python script, or any program, as it stands. JAX and single processes start this way."""

from __future__ import annotations

import re

from trainer_agent.launchers import Command, Job, base_env, interpreted
from trainer_agent.shells import is_shell

# In a shell's text: the first ignore PET_*, and are told by flags where they are the command itself; the others obey.
DEAF = re.compile(r"\b(accelerate(?:\s+|-|\.commands\.)launch|tune\s+run)\b")
TOLD = re.compile(r"--(?:num[-_]machines|nnodes)\b")
OBEYING = re.compile(r"\btorchrun\b|\btorch\.distributed\.(?:run|launch)\b|\btrainer-agent\b")


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
    text = " ".join(job.script) if is_shell(job.script) else ""
    deaf = DEAF.search(text)
    if OBEYING.search(text) or (deaf and TOLD.search(text)):
        return ""
    what = (
        f"`{deaf[1]}` in {job.script[0]} ignores PET_*, so that each node trains alone: make it the command itself"
        if deaf
        else f"{job.script[0]} is started once on each as it is: unless it reads PET_* itself, pass only the script"
    )
    return f"the environment describes {job.topology.max_nodes} nodes with {job.nproc.value} processes each, and {what}"
