"""The memory of each GPU: what somebody before us has left there is missing to the training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight_checks._gpu_models import MIB, Thresholds, thresholds, wait_s
from preflight_checks._gpus import READ_S, found_on, present, read_gpus, unread
from trainer_agent.check import Context, Outcome, Rule, check
from trainer_agent.errors import Action, Severity

if TYPE_CHECKING:
    from preflight_checks._gpus import Gpu

POLL_S = 2.0
HINT = (
    "run `nvidia-smi` on the node and end what holds the memory, or look for a data loader of an earlier job that "
    "lives on; when GPUs are shared on purpose, --ignore gpu-memory"
)

USED = Rule(
    "gpu-memory-used",
    when="more than 1 GiB of a GPU's memory is in use, and stays so for 50 s (5 s with --profile quick)",
    hint=HINT,
    severity=Severity.WARNING,
    source="heuristic; nvidia-resiliency-ext 512 MB, gcm 15 MiB, both without a wait",
)
MUCH_USED = Rule(
    "gpu-memory-occupied",
    when="more than 5 % of a GPU's memory, and 1 GiB, is in use, and stays so for 50 s (5 s with --profile quick)",
    hint=HINT,
    action=Action.RESCHEDULE,
    source="heuristic: what training will miss; an orphan held 115 GiB for 370 s (NeMo-RL #3592)",
)


def deadline_s(context: Context) -> float:
    """Return the longest wait, and the time of a reading."""
    return wait_s(context, thresholds(context).drain_s) + READ_S + 3


@check("gpu-memory", rules=(USED, MUCH_USED), timeout_s=deadline_s)
def gpu_memory(context: Context) -> Outcome:
    """Is the memory of every GPU free?"""
    limits, host = thresholds(context), context.host
    began = host.monotonic()
    gpus = present(read_gpus(context, "memory"))
    while any(_occupied(gpu, limits) for gpu in gpus) and host.monotonic() - began < wait_s(context, limits.drain_s):
        host.sleep(POLL_S)
        gpus = present(read_gpus(context, "memory"))
    waited = host.monotonic() - began
    held = [gpu for gpu in gpus if _occupied(gpu, limits)]
    much = [gpu for gpu in held if _fraction(gpu) > limits.leftover_fraction]
    findings = [
        *found_on(MUCH_USED, [(gpu, _text(gpu, limits), _evidence(gpu, waited)) for gpu in much]),
        *found_on(USED, [(gpu, _text(gpu, limits), _evidence(gpu, waited)) for gpu in held if gpu not in much]),
    ]
    measured = {
        "used_bytes": {gpu.index: gpu.memory_used for gpu in gpus},
        "waited_s": round(waited, 1),
        "not_read": unread(gpus, ("memory_used", "memory_total", "processes")),
    }
    read = [gpu for gpu in gpus if gpu.memory_used is not None]
    most = max((gpu.memory_used or 0 for gpu in read), default=0)
    return Outcome(f"{len(read)} of {len(gpus)} GPUs read, at most {most / MIB:.0f} MiB in use", (*findings,), measured)


def _occupied(gpu: Gpu, limits: Thresholds) -> bool:
    return (gpu.memory_used or 0) > limits.leftover_bytes


def _fraction(gpu: Gpu) -> float:
    return (gpu.memory_used or 0) / gpu.memory_total if gpu.memory_total else 0.0


def _text(gpu: Gpu, limits: Thresholds) -> str:
    used, wanted = (gpu.memory_used or 0) / MIB, limits.leftover_bytes / MIB
    return f"{used:.0f} MiB of memory are in use ({_fraction(gpu):.0%}), wanted {wanted:.0f} MiB or less"


def _evidence(gpu: Gpu, waited: float) -> dict[str, object]:
    # Numbers of processes may be those of another PID namespace: they are shown, and nothing follows from them.
    pids = list(gpu.processes or ())
    return {"used_bytes": gpu.memory_used, "total_bytes": gpu.memory_total, "waited_s": round(waited, 1), "pids": pids}
