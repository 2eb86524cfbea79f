"""
From a job's shape to the command that starts it.

A launcher is a module with two functions: `suits(job)` says whether the user's command is its kind,
`command(job)` returns what to run. Both are pure. `auto` takes the first of `LAUNCHERS` that suits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainer_agent.mpi.plan import Plan
    from trainer_agent.nproc import Decision
    from trainer_agent.topology import Topology

LAUNCHERS = {
    "accelerate": "trainer_agent.launchers.accelerate",
    "tune": "trainer_agent.launchers.tune",
    "mpirun": "trainer_agent.launchers.mpirun",
    "torchrun": "trainer_agent.launchers.torchrun",
    "xgboost": "trainer_agent.launchers.xgboost",
    "jax": "trainer_agent.launchers.jax",
    "python": "trainer_agent.launchers.python",
}
AUTO = "auto"
INTERPRETER = re.compile(r"(.*/)?python[0-9.]*")
# Python's options before a script: those alone, which may be one word, and those with a value, which may be the next.
ALONE, VALUED = re.compile("-[bBdEIOPqsSuv]+"), re.compile("-[XW].*")


@dataclass(frozen=True)
class Job:
    """
    What a launcher needs to know.

    Args:
        script: the user's command, at least one word.
        python: the training environment's interpreter.
        torchrun: words that start torchrun there.
        rendezvous_timeout_s: how long the nodes wait for each other.
        mpi: what an MPI job is made of, None for any other.
    """

    topology: Topology
    nproc: Decision
    script: tuple[str, ...]
    environ: Mapping[str, str]
    python: str
    torchrun: tuple[str, ...]
    rendezvous_timeout_s: float
    keep_pet_env: bool = False
    mpi: Plan | None = None


@dataclass(frozen=True)
class Command:
    """
    What to become or to supervise.

    Args:
        env: its complete environment.
        elastic_agent: whether torchrun is in it, so that its events tell about the ranks.
        note: something the user should know about the choice.
        mpi: for a command that has to wait for workers before it can be known in full.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    elastic_agent: bool = False
    note: str = ""
    mpi: Plan | None = field(default=None, repr=False)


def build(job: Job, name: str = AUTO) -> tuple[str, Command]:
    """
    Return the launcher's name and its command.

    Raises:
        FatalError: the environment holds an option that the launcher cannot understand.
    """
    if name == AUTO:
        name = next(n for n, module in LAUNCHERS.items() if import_module(module).suits(job))
    return name, import_module(LAUNCHERS[name]).command(job)


def base_env(job: Job) -> dict[str, str]:
    """Return the environment with OMP_NUM_THREADS decided."""
    env = dict(job.environ)
    if job.nproc.omp_threads is not None:
        env["OMP_NUM_THREADS"] = str(job.nproc.omp_threads)
    return env


def interpreted(script: Sequence[str], python: str) -> tuple[str, ...]:
    """Return `python SCRIPT…` for a script or an interpreter's option, else the command as it is."""
    first = script[0]
    return (python, *script) if is_python_file(first) or first.startswith("-") else tuple(script)


def interpreter_words(script: Sequence[str]) -> int:
    """Return how many words of a command are a Python interpreter and its options, up to a script or `-m`."""
    number = 1 if script and INTERPRETER.fullmatch(script[0]) else 0
    while number < len(script):
        word = script[number]
        if VALUED.fullmatch(word):
            number += 1 if len(word) > len("-X") else 2
        elif ALONE.fullmatch(word):
            number += 1
        else:
            break
    return min(number, len(script))


def is_python_file(word: str) -> bool:
    """Return whether a command's first word is a script rather than a program."""
    return word.endswith(".py")
