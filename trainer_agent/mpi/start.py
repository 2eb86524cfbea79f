"""From a plan to the end of the job: start mpirun, see that all ranks are there, tell the end."""

from __future__ import annotations

import shlex
import signal
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trainer_agent.env import redact_all, secrets_in
from trainer_agent.launchers.autopsy import Autopsy
from trainer_agent.launchers.supervise import supervise
from trainer_agent.log import get_logger
from trainer_agent.mpi.census import expected
from trainer_agent.mpi.outcome import outcome
from trainer_agent.mpi.plan import RANKS, Place, rank_program
from trainer_agent.mpi.prepare import module
from trainer_agent.mpi.words import PLACEMENT
from trainer_agent.mpi.workers import reach
from trainer_agent.mpi.world import World

if TYPE_CHECKING:
    from trainer_agent.host import Host
    from trainer_agent.launchers.supervise import Ended
    from trainer_agent.mpi.plan import Plan
    from trainer_agent.mpi.workers import Access, Workers

# From mpirun's start until every rank has reported: ssh to each host, a daemon there, a Python for each rank, on a
# cold and busy file system. MPICH 4's mpirun waits for ever for a host that refuses it.
START_S = 120.0


@dataclass(frozen=True)
class Waits:
    """
    How long for what, in seconds, and how ranks are told to end.

    Args:
        ready_s: until names have addresses and every sshd answers; at most as long again until all ranks are there.
        grace_s: from SIGTERM to SIGKILL.
        first: the signal that ranks get first.
    """

    ready_s: float
    grace_s: float
    first: int = signal.SIGTERM


def start_mpi(plan: Plan, waits: Waits, access: Access, host: Host) -> tuple[dict[str, Any], Ended]:
    """
    Run the job to its end; return what it means, as `launchers.outcome`, and how mpirun ended.

    Raises:
        RetryError: workers are missing.
        FatalError: keys, hosts or commands that cannot be used.
    """
    began = time.monotonic()
    with reach(plan, access, host, timeout_s=waits.ready_s) as workers:
        seconds, count = round(time.monotonic() - began, 2), len(workers.addresses)
        get_logger().info("workers are ready", hosts=count, seconds=seconds, command=shown(plan, workers.place))
        return _verified(plan, workers, waits) if plan.verified else _unverified(plan, workers, waits)


def shown(plan: Plan, place: Place) -> str:
    """Return the command for a log, with the path of what ranks are sent as text."""
    words = module(plan).argv(replace(plan, shim_text=""), place)
    return shlex.join(redact_all(words, secrets_in(plan.environ)))  # quotes would break a secret up


def _unverified(plan: Plan, workers: Workers, waits: Waits) -> tuple[dict[str, Any], Ended]:
    how, autopsy = module(plan), Autopsy(elastic_agent=False)
    command, environ = how.argv(plan, workers.place), how.env(plan, workers.place)
    ended = supervise(command, environ, grace_s=waits.grace_s, feed=autopsy.feed)
    return outcome(plan, ended, autopsy, None), ended


def _verified(plan: Plan, workers: Workers, waits: Waits) -> tuple[dict[str, Any], Ended]:
    plan, how = replace(plan, shim_text=rank_program()), module(plan)
    autopsy = Autopsy(elastic_agent=False)
    placed = plan.asked.has(*PLACEMENT)
    wanted = expected(plan.hosts, workers.addresses, count=plan.asked.count, placed=placed)
    start_s = min(START_S, waits.ready_s)
    world = World(wanted, start_s=start_s, grace_s=waits.grace_s, first=waits.first)
    try:
        environ = {**how.env(plan, workers.place), RANKS: world.variable(workers.here)}
        command = how.argv(plan, workers.place)
        ended = supervise(command, environ, grace_s=waits.grace_s, feed=autopsy.feed, companion=world)
    finally:
        world.close()
    return outcome(plan, ended, autopsy, world, remote=workers.remote, ssh_args=workers.place.ssh_args), ended
