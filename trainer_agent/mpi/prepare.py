"""Read what the user, the controller and the image say, and make a plan of it."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from trainer_agent import hostfile
from trainer_agent.errors import FatalError
from trainer_agent.launchers import interpreted
from trainer_agent.mpi import hydra, openmpi, words
from trainer_agent.mpi.agents import agent_words
from trainer_agent.mpi.implementation import detect
from trainer_agent.mpi.plan import Plan
from trainer_agent.mpi.settings import INJECTED, read_injected
from trainer_agent.mpi.suits import is_mpirun

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

    from trainer_agent.hostfile import Hostfile
    from trainer_agent.mpi.settings import Injected
    from trainer_agent.mpi.words import Asked


def read_plan(
    script: Sequence[str],
    environ: Mapping[str, str],
    *,
    python: str,
    path: str | None = None,
    exports: Sequence[str] = (),
    verified: bool = True,
) -> Plan:
    """
    Return the plan for a command.

    Args:
        path: the hostfile, instead of what the command, the environment and the controllers' place say.

    Raises:
        FatalError: there is no hostfile or no mpirun, or one that nobody can use, or no ssh is to be used.
    """
    own = is_mpirun(script)
    asked = words.parse(script) if own else words.plain(interpreted(script, python))
    _check(asked)
    injected = read_injected(environ)
    implementation = detect(asked.program, environ)
    hosts = _hosts(path or _path(asked, injected), injected)
    agent = agent_words(asked, environ, implementation, alone=len(hosts.entries) == 1)
    plan = Plan(
        implementation=implementation,
        hosts=hosts,
        asked=asked,
        ssh_args=injected.ssh_args,
        python=python,
        environ=environ,
        exports=tuple(exports),
        verified=verified and not asked.unknown and not asked.has(*words.NO_ENVIRONMENT),
        root=os.geteuid() == 0,
    )
    return replace(plan, ssh_args=(*agent, *module(plan).ssh_args(plan), *plan.ssh_args))


def module(plan: Plan) -> ModuleType:
    """Return how to talk to an implementation: a module with `ssh_args`, `argv` and `env`."""
    return openmpi if plan.implementation.kind == "openmpi" else hydra


def _check(asked: Asked) -> None:
    if any(not part.command for part in asked.parts):
        message = f"{asked.program} is given options and no program to start"
        raise FatalError("mpirun-empty", message, hint="write the program and its arguments after the options")


def _path(asked: Asked, injected: Injected) -> str:
    given = asked.values(*words.HOSTFILES)
    return given[-1][0] if given else injected.hostfile or INJECTED


def _hosts(path: str, injected: Injected) -> Hostfile:
    hosts = hostfile.read(path)
    if injected.slots and injected.slots > 1 and all(entry.slots == 1 for entry in hosts.entries):
        return hosts.with_slots(injected.slots)
    return hosts
