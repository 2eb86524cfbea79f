"""What the hosts of an MPI job say of themselves, asked by ssh, all at the same time."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from trainer_agent.bundle import agent_python
from trainer_agent.errors import FatalError
from trainer_agent.mpi.facts import facts
from trainer_agent.mpi.ssh import run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainer_agent.mpi.plan import Plan
    from trainer_agent.mpi.workers import Workers

ASK_S = 30.0  # ssh tries again for 10 s; a cold Python takes its time; NVML has 10 s
AT_A_TIME = 32
MODULE = "trainer_agent.mpi.facts"


@dataclass(frozen=True)
class Said:
    """
    What a host said.

    Args:
        refusal: why ssh could not ask it, empty where it could.
        facts: as `trainer_agent.mpi.facts`, empty where the agent is not there.
    """

    refusal: str
    facts: Mapping[str, Any]

    @property
    def denied(self) -> bool:
        """Whether sshd did not take our key, or we not its; these are OpenSSH's own words."""
        return "ermission denied" in self.refusal or "ost key verification failed" in self.refusal


def ask_all(plan: Plan, workers: Workers) -> dict[str, Said]:
    """Return what each host says, by its name."""
    local = {name: Said("", facts(plan.asked.program)) for name in workers.addresses if name not in workers.remote}
    ask = partial(_ask, plan, workers.place.ssh_args)
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        said = dict(zip(workers.remote, pool.map(ask, workers.remote.values()), strict=True))
    return {name: local.get(name) or said[name] for name in workers.addresses}


def _ask(plan: Plan, ssh_args: tuple[str, ...], address: str) -> Said:
    """With our PATH: a session of ssh has another one, and mpirun needs none of it."""
    words = ("env", f"PATH={plan.environ.get('PATH', '')}", agent_python(plan.python), "-m", MODULE, plan.asked.program)
    try:
        done = run(("ssh", *ssh_args, address, shlex.join(words)), plan.environ, timeout_s=ASK_S)
    except FatalError as error:
        return Said(error.message, {})
    if done.returncode == 255:  # ssh's own
        return Said((done.stderr.strip().splitlines() or ["ssh failed"])[-1], {})
    try:
        told = json.loads(done.stdout.strip().rpartition("\n")[2])
    except ValueError:
        return Said("", {})
    return Said("", told if isinstance(told, dict) else {})


def odd_ones(values: Mapping[str, str], wanted: str) -> dict[str, str]:
    """Return the hosts whose value is not `wanted`, with what it is; those that say nothing are nobody's."""
    return {name: value for name, value in values.items() if value and value != wanted}


def most_common(values: Mapping[str, str]) -> str:
    """Return what most hosts say, empty where none says anything."""
    counted = Counter(value for value in values.values() if value)
    return counted.most_common(1)[0][0] if counted else ""
