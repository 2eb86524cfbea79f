"""XGBoost: a worker for each GPU, as Trainer's DMLC_NUM_WORKER promises; its containers run one command each."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trainer_agent.accelerators import parse_cuda_visible
from trainer_agent.errors import FatalError
from trainer_agent.launchers import Command, Job, python, several

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLES = ("DMLC_NUM_WORKER", "DMLC_TASK_ID", "DMLC_TRACKER_URI", "DMLC_TRACKER_PORT")
CUDA, HIP = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"  # HIP takes CUDA's where its own is not set
MOST_DEVICES = 1024
AS_IT_IS = "--launcher python runs the command once on each node as it is"


def suits(job: Job) -> bool:
    """Whether the job has DMLC_* variables, whatever the command is: they are all that its processes differ in."""
    return job.topology.runtime == "xgboost"


def command(job: Job) -> Command:
    """
    Return the command as it is for one worker on this node, else what runs it once for each of them.

    Raises:
        FatalError: variables are missing, or this node's processes do not make the number of workers.
    """
    _all_there(job.environ)
    job, note = _lowered(job)
    count = _processes(job)
    plain = python.command(job)
    if count == 1:
        return Command(plain.argv, {**plain.env, **_one_node(job), "LOCAL_RANK": "0"}, note=note)
    first = job.topology.node_rank * count
    local = [str(n) for n in range(count)]
    tasks = [str(first + n) for n in range(count)]
    each = {"DMLC_TASK_ID": tasks, "LOCAL_RANK": local, **_devices(job.environ, count)}
    return Command(several.words(each, plain.argv), plain.env)


def _all_there(environ: Mapping[str, str]) -> None:
    missing = [name for name in VARIABLES if not environ.get(name, "").strip()]
    if missing:
        hint = f"give the TrainJob a spec.trainer (an empty one is enough), and Trainer sets all four; {AS_IT_IS}"
        message = f"{', '.join(missing)} not set, and XGBoost's workers cannot find each other without"
        raise FatalError("dmlc-incomplete", message, hint=hint)


def _lowered(job: Job) -> tuple[Job, str]:
    """Return the job with no more processes than workers, and why: one worker is one process, whatever is here."""
    count = job.nproc.value
    if count == 1 or (isinstance(count, int) and job.topology.max_nodes > 1):
        return job, ""
    one = replace(job, nproc=replace(job.nproc, value=1, omp_threads=None))
    return one, f"1 process, as XGBoost's workers are counted by DMLC_NUM_WORKER={job.topology.max_nodes}, not {count}"


def _processes(job: Job) -> int:
    """Return this node's workers; whatever node decides so, the others must come to the same number."""
    workers, rank, count = job.topology.max_nodes, job.topology.node_rank, int(job.nproc.value)
    because = f"({job.nproc.reason})"
    if workers % count:
        raise _mismatch(f"DMLC_NUM_WORKER={workers} is no multiple of this node's {count} processes {because}")
    if rank * count >= workers:
        nodes = workers // count
        message = f"DMLC_TASK_ID={rank} is left without workers: DMLC_NUM_WORKER={workers} are {nodes} nodes of {count}"
        raise _mismatch(f"{message} {because}")
    return count


def _mismatch(message: str) -> FatalError:
    hint = (
        "give all pods the same number of GPUs by a resource that Trainer counts, such as nvidia.com/gpu; "
        "where it counts none, --nproc 1 (TRAINER_AGENT_LAUNCH_NPROC=1) starts one worker on each node"
    )
    return FatalError("workers-mismatch", message, hint=hint)


def _one_node(job: Job) -> dict[str, str]:
    """A worker alone meets itself: its pod's name is in /etc/hosts, the name that Trainer gives may not be in DNS."""
    host = job.topology.hostname
    alone = job.topology.single_node and job.topology.master_addr.partition(".")[0] == host
    return {"DMLC_TRACKER_URI": host} if alone else {}


def _devices(environ: Mapping[str, str], count: int) -> dict[str, list[str]]:
    """Return each process's own device, out of what the container's variables leave."""
    names = (CUDA, HIP) if HIP in environ else (CUDA,)
    found = {name: _listed(environ.get(name), count) for name in names}
    return {name: entries[:count] for name, entries in found.items() if len(entries) >= count}


def _listed(visible: str | None, count: int) -> list[str]:
    """Return the entries that CUDA would take, as they are written."""
    if visible is None:
        return [str(n) for n in range(count)]
    taken = parse_cuda_visible(visible, [f"GPU-?{n}" for n in range(MOST_DEVICES)], [])
    return [entry.strip() for entry in visible.split(",")][: len(taken)]
