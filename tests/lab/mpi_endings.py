"""How MPI jobs end: what is done to them while they run, by plain mpirun and by the agent, as `mpi_plays`."""

from __future__ import annotations

import shlex
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from mpi_plays import HANGS, RUNS_S, WAITS_S, Play, ending, ready, told
from mpilab import script
from podlab import eventually
from psutil import NoSuchProcess

from trainer_agent.mpi.worker import DAEMONS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mpilab import MpiJob
    from podlab import Container

TIMEOUT_S = 3


def dies_at_start(play: Play) -> str:
    """A worker is killed as soon as somebody has connected to it."""
    job = play.job()
    play.lab.publish()
    workers = job.workers_ready(play.worker)
    alone = len(workers[1].processes())
    container = play.started(job, *script("who"), options=("--rendezvous-timeout", str(WAITS_S)))
    eventually(lambda: len(workers[1].processes()) > alone, within=RUNS_S, what="somebody has connected")
    since = workers[1].signal(signal.SIGKILL)
    return judge_loss(play, container, since, 20, lost="job1-node-0-1")


def dies_at_work(play: Play) -> str:
    """A worker is killed while its ranks train."""
    _, workers, container = at_work(play)
    since = workers[1].signal(signal.SIGKILL)
    return judge_loss(play, container, since, 137, lost="job1-node-0-1")


def at_work(play: Play) -> tuple[MpiJob, list[Container], Container]:
    """Return a job whose ranks train, the containers of its workers, and that of its launcher."""
    job = play.job()
    play.lab.publish()
    workers = job.workers_ready(play.worker)
    return job, workers, training(play, job)


def judge_loss(play: Play, container: Container, since: float, wanted: int, *, lost: str) -> str:
    code, seconds = play.end(container, since=since)
    play.wants_code(code, wanted)
    if play.how == "agent":
        play.wants(lost in told(container), f"{lost} is not in the termination message: {told(container)}")
    return ending(code, seconds)


def checkpoints(job: MpiJob) -> Path:
    """Return where checkpoints go."""
    folder = job.files("checkpoints")
    folder.chmod(0o777)
    return folder


def training(play: Play, job: MpiJob, *words: str) -> Container:
    """Start ranks that write a checkpoint when told to stop, and wait until all of them train."""
    container = play.started(job, *script("checkpoint", str(checkpoints(job)), *words))
    all_train(container)
    return container


def all_train(container: Container) -> None:
    """Wait until all ranks train."""
    what = "all ranks train"
    eventually(lambda: container.stdout.count("trains") == 6 or container.ended, within=RUNS_S, what=what)
    assert not container.ended, container.story()


def whole(job: MpiJob) -> list[int]:
    """Return the ranks whose checkpoints are whole."""
    return sorted(int(path.stem) for path in checkpoints(job).glob("*.end"))


def rank_ends(play: Play, how: str, *, code: int, mpi: bool = True) -> str:
    """One rank ends badly while the others work, all of them after MPI_Init or none."""
    job = ready(play)
    library = (job.implementation.kind, job.implementation.loadable) if mpi else ()
    ended, seconds = play.end(play.started(job, *script("end", "3", how, *library)))
    play.wants_code(ended, code)
    play.wants(seconds < 30, "the others are not ended")
    return ending(ended, seconds)


def preempted(play: Play, *words: str) -> str:
    """SIGTERM to the launcher; every rank needs two seconds for its checkpoint."""
    job = ready(play)
    container = training(play, job, *words)
    return judge_saved(play, job, container, container.signal(signal.SIGTERM))


def judge_saved(play: Play, job: MpiJob, container: Container, since: float) -> str:
    """Judge a job that was stopped: every checkpoint is to be whole."""
    code, seconds = play.end(container, since=since)
    saved = whole(job)
    play.wants_code(code, 143)
    play.wants(len(saved) == 6, f"only {saved} are whole")
    return f"{len(saved)} of 6 checkpoints, {ending(code, seconds)}"


def worker_deleted(play: Play) -> str:
    """SIGTERM to one worker's container; the job cannot go on, and every rank needs two seconds for its checkpoint."""
    job, workers, container = at_work(play)
    since = workers[1].signal(signal.SIGTERM)
    code, seconds = play.end(container, since=since)
    saved = whole(job)
    own = len({2, 3} & set(saved))
    play.wants_code(code, 143)
    play.wants(len(saved) == 6, f"only {saved} are whole")
    return f"{own} of its 2 checkpoints, {len(saved) - own} of the others' 4, {ending(code, seconds)}"


def preempted_in_bash(play: Play) -> str:
    """The same, of ranks that are scripts of bash, which ends at SIGTERM and hands nothing on."""
    job = ready(play)
    command = shlex.join(script("checkpoint", str(checkpoints(job))))
    container = play.started(job, "bash", "-c", f"{command}; echo after")
    all_train(container)
    return judge_saved(play, job, container, container.signal(signal.SIGTERM))


def daemon_killed(play: Play) -> str:
    """MPI's daemon on one worker is killed: mpirun ends the job, the ranks there are asked to, no pod is deleted."""
    job, workers, container = at_work(play)
    for process in workers[1].processes():
        with suppress(NoSuchProcess):
            if process.name()[:15] in DAEMONS:
                process.kill()
    cell = judge_mpiruns_end(play, container, since=time.monotonic())
    begun = {int(path.stem) for path in checkpoints(job).glob("*.begin")}
    play.wants({2, 3} <= begun, f"ranks 2 and 3 were left alone, only {begun} were asked to end")
    return cell


def not_finalized(play: Play) -> str:
    """A rank ends with 0 and without MPI_Finalize: Open MPI and Intel MPI end the job, and no pod is deleted."""
    job = ready(play)
    kind = job.implementation.kind
    container = play.started(job, *script("end", "3", "0", kind, job.implementation.loadable))
    return judge_mpiruns_end(play, container)


def timed_out(play: Play) -> str:
    """mpirun's own limit of time is over: its code and its words count."""
    job = ready(play)
    limit = str(TIMEOUT_S)
    own = ("--timeout", limit) if job.implementation.kind == "openmpi" else ()
    command, env = ("mpirun", *own, *script("checkpoint", str(checkpoints(job)))), {"MPIEXEC_TIMEOUT": limit}
    play.began = time.monotonic()
    container = job.sdk(*command[1:], env=env) if play.how == "plain" else job.launch(*command, env=env)
    return judge_mpiruns_end(play, container)


def judge_mpiruns_end(play: Play, container: Container, *, since: float = 0.0) -> str:
    """Judge a job that mpirun ends by itself: its code and its words count, and no host is accused."""
    code, seconds = play.end(container, since=since)
    play.wants(code not in (0, 143, HANGS), f"exit {code}, not mpirun's own")
    if play.how == "agent":
        play.wants("mpirun ended with code" in told(container), told(container))
    return ending(code, seconds)


ENDINGS: dict[str, Callable[[Play], str]] = {
    "worker dies at start": dies_at_start,
    "worker dies at work": dies_at_work,
    "rank exits with 42": lambda play: rank_ends(play, "42", code=42),
    "rank without MPI exits with 42": lambda play: rank_ends(play, "42", code=42, mpi=False),
    "rank killed": lambda play: rank_ends(play, "SIGKILL", code=137),
    "SIGTERM, checkpoint of 2 s": preempted,
    "SIGTERM, ranks are scripts of bash": preempted_in_bash,
    "worker deleted": worker_deleted,
    "MPI's daemon killed": daemon_killed,
    "rank without MPI_Finalize": not_finalized,
    "mpirun's time is over": timed_out,
}
