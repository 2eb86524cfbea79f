"""What the end of an MPI job means: an exit code that is the same on every implementation, and who began it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from trainer_agent.errors import ExitCode, FatalError, RetryError
from trainer_agent.launchers.outcome import stopped
from trainer_agent.mpi.census import listed, placed
from trainer_agent.mpi.ssh import run
from trainer_agent.process import ending

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainer_agent.errors import AgentError
    from trainer_agent.launchers.autopsy import Autopsy
    from trainer_agent.launchers.supervise import Ended
    from trainer_agent.mpi.plan import Plan
    from trainer_agent.mpi.world import Loss, World

ASK_S = 15.0
AT_A_TIME = 16
KILLED, STOPPED = 137, 143


def outcome(
    plan: Plan,
    ended: Ended,
    autopsy: Autopsy,
    world: World | None,
    *,
    remote: Mapping[str, str] | None = None,
    ssh_args: Sequence[str] = (),
) -> dict[str, Any]:
    """Return exit code and reason of an MPI job that has ended, with the rank that failed first."""
    if ended.signum:
        return stopped(ended)
    if world and world.deleted:
        reason = f"stopped: the ranks on {world.deleted} were told to end there, as when a pod is deleted"
        return {"exit_code": STOPPED, "reason": reason, "host": world.deleted}
    if world and world.loss:
        return _lost(world.loss, autopsy)
    if world and world.problem:
        found = world.problem
        return {"exit_code": int(ExitCode.FATAL), "code": found.code, "reason": found.message, "hint": found.hint}
    if world and not world.began:
        return _never_began(plan, ended, autopsy, world, remote=remote or {}, ssh_args=ssh_args)
    if ended.code == 0 and world and not world.ended_well:  # as Open MPI 5's, when a daemon was killed
        ranks = listed([f"{rank} on {host}" for rank, host in world.unheard])
        reason = f"mpirun ended with code 0 although these ranks did not: {ranks}"
        return {"exit_code": 1, "reason": reason, "error": autopsy.failure(1).error}
    if ended.code == 0 or (world and world.hung):
        return {"exit_code": 0, "reason": "finished"}
    failure = autopsy.failure(ended.code)
    after = ", after all ranks had ended with 0" if world and world.ended_well else ""
    return {"exit_code": ended.code, "reason": f"mpirun ended with code {ended.code}{after}", "error": failure.error}


def _lost(loss: Loss, autopsy: Autopsy) -> dict[str, Any]:
    """A rank failed: its own code, whatever mpirun makes of it, which is 9 or 255 for SIGKILL on some."""
    code = KILLED if loss.code is None else 128 - loss.code if loss.code < 0 else loss.code
    gone = "is gone without a word: its pod or its node has ended"
    how = gone if loss.code is None else ending(loss.code)
    reason = f"rank {loss.rank} {how} on {loss.host}"
    error = autopsy.failure(code).error
    return {"exit_code": code, "reason": reason, "rank": loss.rank, "host": loss.host, "error": error}


def _never_began(
    plan: Plan, ended: Ended, autopsy: Autopsy, world: World, *, remote: Mapping[str, str], ssh_args: Sequence[str]
) -> dict[str, Any]:
    """Mpirun ended, or was ended, before all ranks were there: ask each host that has none what it minds."""
    short = world.census.missing()
    missing = {name: address for name, address in remote.items() if not world.census.come or name in short}
    refusals = _refusals(missing, ssh_args, plan.environ)
    what = f"not all ranks came within {world.start_s:g} s" if world.late else f"mpirun ended with code {ended.code}"
    here = placed(world.census.count()) if world.census.come else "none"
    message = f"{what}; ranks that came: {here}"
    error = autopsy.failure(ended.code or 1).error
    if refusals:
        told = f"{message}; {listed([f'{name}: {why}' for name, why in refusals.items()])}"
        if any("ermission denied" in why or "ost key" in why for why in refusals.values()):
            return _told(FatalError("mpi-ssh-refused", told, hint=KEY_HINT), error)
        return _told(RetryError("mpi-hosts-missing", told, hint=POD_HINT), error)
    if world.late:
        names = f"; missing: {listed(list(short or missing))}" if short or missing else ""
        return _told(RetryError("mpi-hosts-missing", message + names, hint=LATE_HINT), error)
    return _told(FatalError("mpi-not-started", message, hint=NOT_STARTED_HINT), error)


KEY_HINT = "all pods must mount the same key pair, its public key as authorized_keys"
POD_HINT = "look at these pods and the nodes they run on"
LATE_HINT = "these hosts answer ssh: look for orted, prted or hydra_pmi_proxy on them, and for a firewall towards here"
NOT_STARTED_HINT = "the hosts answer ssh: read mpirun's words in `error`; is the same MPI and Python on all of them?"


def _told(found: AgentError, said: str) -> dict[str, Any]:
    about = {"code": found.code, "reason": found.message, "hint": found.hint}
    return {"exit_code": int(found.exit_code), **about, "error": said}


def _refusals(hosts: Mapping[str, str], ssh_args: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return what ssh says of each host that it cannot work on."""
    if not hosts:
        return {}
    with ThreadPoolExecutor(min(AT_A_TIME, len(hosts))) as pool:
        answers = pool.map(partial(_refusal, ssh_args=ssh_args, environ=environ), hosts.values())
        return {name: why for name, why in zip(hosts, answers, strict=True) if why}


def _refusal(address: str, *, ssh_args: Sequence[str], environ: Mapping[str, str]) -> str:
    try:
        done = run(("ssh", "-o", "ConnectionAttempts=1", *ssh_args, address, "true"), environ, timeout_s=ASK_S)
    except FatalError as error:
        return error.message
    said = done.stderr.strip().splitlines()
    return (said[-1] if said else f"ssh ended with code {done.returncode}") if done.returncode else ""
