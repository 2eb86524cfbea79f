"""What a supervised run's end means: an exit code, and the reason for the log and the termination message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainer_agent.errors import ExitCode
from trainer_agent.process import signal_name

if TYPE_CHECKING:
    from trainer_agent.launchers.autopsy import Autopsy
    from trainer_agent.launchers.supervise import Ended

# What a program means when it ends with one of these; with the others it may as well have been killed.
OWN_CODES = range(2, 128)


def outcome(ended: Ended, autopsy: Autopsy, *, oom_kills: int, hostname: str) -> dict[str, Any]:
    """Return exit code and reason of a supervised run, with the first failing rank and its last words."""
    if ended.signum:  # also where the command then ends with 0: it has saved what it had, and has not finished
        return {**stopped(ended), "host": hostname}
    if ended.code == 0:
        return {"exit_code": 0, "reason": "finished"}
    if autopsy.never_met:
        hint = (
            "a node is missing, has another PET_NNODES, or has a rank that exists twice; see the other pods of this job"
        )
        return {
            "exit_code": int(ExitCode.RETRY),
            "reason": f"the nodes did not meet: {autopsy.never_met}",
            "hint": hint,
            "host": hostname,
        }
    failure = autopsy.failure(ended.code)
    facts: dict[str, Any] = {"exit_code": failure.code, "reason": f"{failure} on {hostname}", "host": hostname}
    ranks = {"rank": failure.rank, "local_rank": failure.local_rank}
    facts |= {name: rank for name, rank in ranks.items() if rank is not None}
    if oom_kills > 0:
        reason = f"out of memory: the kernel killed {oom_kills} process(es) of this container; {failure} on {hostname}"
        facts |= {
            "exit_code": failure.code if failure.code in OWN_CODES else 137,
            "reason": reason,
            "hint": "raise the container's memory limit, or use fewer data-loader workers",
        }
    return {**facts, "error": failure.error}


def stopped(ended: Ended) -> dict[str, Any]:
    """Return exit code and reason of a run that a signal to us has ended."""
    killed = " and was killed after the grace" if ended.killed else ""
    return {"exit_code": 128 + ended.signum, "reason": f"stopped by {signal_name(ended.signum)}{killed}"}
