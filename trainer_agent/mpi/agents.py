"""The program by which Open MPI reaches its hosts, where the user names one: ssh with words of its own, or another."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from trainer_agent.errors import FatalError
from trainer_agent.mpi.settings import AGENTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainer_agent.mpi.implementation import Implementation
    from trainer_agent.mpi.words import Asked

# What version 4, and what version 5 reads: the variable, and the options with their names. Seen with 4.1.4 and 5.0.11.
VARIABLE_4, VARIABLE_5 = AGENTS
OPTIONS_4 = {"mca": ("plm_rsh_agent",), "gmca": ("plm_rsh_agent",)}
OPTIONS_5 = {"mca": ("plm_rsh_agent", "plm_ssh_agent"), "prtemca": ("plm_ssh_agent",)}


def agent_words(
    asked: Asked, environ: Mapping[str, str], implementation: Implementation, *, alone: bool
) -> tuple[str, ...]:
    """
    Return the words for ssh that stand behind it where it is named.

    Args:
        alone: whether there is one host only, which may be this one and need no ssh.

    Raises:
        FatalError: another program is named, and several hosts.
    """
    source, value = _said(asked, environ, implementation)
    if not value:
        return ()
    program, *words = _chosen(value, environ)
    if Path(program).name == "ssh":
        return tuple(words)
    if alone:
        return ()
    raise FatalError(
        "mpi-agent-unknown",
        f"{source} is {value!r}, wanted ssh, by which all hosts are reached and their ranks verified",
        hint=f"leave {source} out, with an sshd on each host, as `trainer-agent worker` starts it; "
        "or start mpirun as it is, with --launcher python",
    )


def _said(asked: Asked, environ: Mapping[str, str], implementation: Implementation) -> tuple[str, str]:
    """Return where an agent is named, and it; options win over the variable."""
    if implementation.kind != "openmpi":
        return "", ""
    variable, options = (VARIABLE_4, OPTIONS_4) if implementation.major < 5 else (VARIABLE_5, OPTIONS_5)
    said = [
        (f"--{option} {given[0]}", given[1].strip())
        for option, names in options.items()
        for given in asked.values(option)
        if len(given) > 1 and given[0] in names
    ]
    return said[-1] if said else (variable, environ.get(variable, "").strip())


def _chosen(value: str, environ: Mapping[str, str]) -> list[str]:
    """Return the words of the first of several, separated by colons, that is there, as Open MPI chooses."""
    found = [part.split() for part in value.split(":") if part.strip()] or [[value]]
    path = environ.get("PATH")
    return next((words for words in found if shutil.which(words[0], path=path)), found[0])
