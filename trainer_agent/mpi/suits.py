"""Whether a job is one of MPI."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from trainer_agent.mpi import words
from trainer_agent.mpi.settings import INJECTED, read_injected

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SHELLS = ("sh", "bash", "dash", "ash", "zsh")
PROGRAMS = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun")


def is_mpi(script: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Return whether this is an MPI job: the environment's, or the user's own mpirun where there is a hostfile."""
    injected = read_injected(environ)
    if starts_mpirun_itself(script):
        return False
    if injected.hostfile and injected.role != "worker":
        return True
    return is_mpirun(script) and (words.parse(script).has(*words.HOSTFILES) or Path(INJECTED).exists())


def starts_mpirun_itself(script: Sequence[str]) -> bool:
    """Return whether the user's command is a shell that starts mpirun: one on every rank would be too many."""
    is_shell = script[0].rpartition("/")[2] in SHELLS
    return is_shell and any(re.search(rf"(^|[\s/;&|(])({'|'.join(PROGRAMS)})\s", word) for word in script[1:])


def is_mpirun(script: Sequence[str]) -> bool:
    """Return whether the user's command is mpirun."""
    return script[0].rpartition("/")[2] in PROGRAMS
