"""mpirun, of whatever MPI: hosts by their addresses, ssh as it must be called, ranks that report before they start."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trainer_agent.launchers import Command, Job, base_env

if TYPE_CHECKING:
    from trainer_agent.mpi.plan import Plan

FOLDER = "/dev/shm/trainer-agent-mpi"  # what stands in a command that is shown for the directory that is made later


def suits(job: Job) -> bool:
    """Whether this is an MPI job."""
    return job.mpi is not None


def command(job: Job) -> Command:
    """Return the command as far as it is known before the workers are there."""
    from trainer_agent.mpi.plan import Place  # a start of torchrun asks only whether this suits
    from trainer_agent.mpi.prepare import module

    assert job.mpi is not None  # noqa: S101  # whoever chooses this launcher has read the plan
    plan = replace(job.mpi, environ=base_env(job))
    if isinstance(job.nproc.value, int) and job.nproc.changed:
        plan = replace(plan, hosts=plan.hosts.with_slots(job.nproc.value))
    how = module(plan)
    place = Place(f"{FOLDER}/hostfile", (*plan.ssh_args, "-i", f"{FOLDER}/id_rsa", "…"))
    return Command(how.argv(plan, place), how.env(plan, place), note=_note(plan), mpi=plan)


def _note(plan: Plan) -> str:
    if plan.verified:
        return ""
    why = f"{plan.asked.unknown} is an option that we do not know" if plan.asked.unknown else "that is not wanted"
    return f"nobody checks where mpirun puts the ranks: {why}"
