"""
What a host of an MPI job says of itself, for the launcher's preflight, which asks by ssh.

    python -m trainer_agent.mpi.facts mpirun
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from trainer_agent import __version__
from trainer_agent.accelerators import find_accelerators
from trainer_agent.errors import AgentError
from trainer_agent.host import Host
from trainer_agent.mpi.implementation import detect


def facts(program: str) -> dict[str, Any]:
    """Return agent, MPI and devices of this host; `mpi` is empty where there is none, and `problem` says why."""
    found = find_accelerators(Host(), os.environ)
    about = {"agent": __version__, "devices": found.count, "device_kind": found.kind, "driver_problem": found.problem}
    try:
        mpi = detect(program, os.environ)
    except AgentError as error:
        return {**about, "mpi": "", "problem": error.message}
    return {**about, "mpi": f"{mpi.kind} {mpi.version}", "problem": ""}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(facts(sys.argv[1])) + "\n")
