"""The memory of each GPU: what somebody before us has left there is missing to the training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from preflight_checks._gpu_models import MIB, Thresholds, in_force, thresholds, wait_s
from preflight_checks._gpus import READ_S, found_by_rule, gpu_check, present, read_gpus, unread
from trainer_agent.check import Context, Outcome, Rule, Skip
from trainer_agent.errors import Action, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from preflight_checks._gpus import Gpu
    from trainer_agent.errors import Finding

POLL_S = 2.0
WAITED = "for 10 s (5 s with --profile quick, 50 s with deep; a sixth of --timeout)"
HINT = (
    "run `nvidia-smi` on the node and end what holds the memory, or look for a data loader of an earlier job that "
    "lives on; when GPUs are shared on purpose, --ignore gpu-memory"
)

USED = Rule(
    "gpu-memory-used",
    when="more than 1 GiB of the memory of a GPU or MIG instance is in use; only informs where that memory is a NUMA "
    "node, as on Grace",
    hint=HINT,
    severity=Severity.WARNING,
    source="heuristic; nvidia-resiliency-ext 512 MB, gcm 15 MiB, both without a wait; nvml.h for NUMA nodes, where the "
    "kernel keeps pages of processes that have ended",
)
MUCH_USED = Rule(
    "gpu-memory-occupied",
    when=f"more than 5 % of the memory of a GPU or MIG instance, and 1 GiB, is in use, and stays so {WAITED}",
    hint=HINT,
    action=Action.RESCHEDULE,
    source="heuristic: what training will miss; an orphan held 115 GiB for 370 s (NeMo-RL #3592)",
)


@dataclass(frozen=True)
class Memory:
    """The memory of a GPU, or of one of its MIG instances."""

    gpu: Gpu
    used: int
    total: int
    instance: str = ""

    @property
    def fraction(self) -> float:
        """Return the part that is in use."""
        return self.used / self.total if self.total else 0.0


def deadline_s(context: Context) -> float:
    """Return the longest wait, and the time of a reading."""
    return wait_s(context, thresholds(context).drain_s) + READ_S + 3


@gpu_check(
    "gpu-memory",
    rules=(USED, MUCH_USED),
    thresholds=partial(in_force, ("leftover_bytes", "leftover_fraction", "drain_s")),
    timeout_s=deadline_s,
)
def gpu_memory(context: Context) -> Outcome:
    """Is the memory of every GPU free?"""
    limits, host = thresholds(context), context.host
    began = host.monotonic()
    end = began + wait_s(context, limits.drain_s)
    gpus = present(read_gpus(context, "memory"))
    # A warning is not worth the wait: the checks that let the GPUs work need the time.
    while _fails(_held(context, gpus, limits), limits) and (left := end - host.monotonic()) > 0:
        host.sleep(min(POLL_S, left))
        gpus = present(read_gpus(context, "memory"))
    waited_s = round(host.monotonic() - began, 1)
    read = list(_memories(context, gpus))
    if not read:
        raise Skip(f"no GPU tells its memory: {_reason(gpus)}")
    held = _held(context, gpus, limits)
    measured = {
        "used_bytes": {memory.instance or memory.gpu.index: memory.used for memory in read},
        "waited_s": waited_s,
        "not_read": unread([gpu for gpu in gpus if not gpu.mig], ("memory_used", "memory_total", "processes")),
    }
    answered, most = len({memory.gpu.index for memory in read}), max(memory.used for memory in read)
    message = f"{answered} of {len(gpus)} GPUs read, at most {most / MIB:.0f} MiB in use"
    return Outcome(message, tuple(_findings(held, limits, waited_s)), measured)


def _memories(context: Context, gpus: Sequence[Gpu]) -> Iterator[Memory]:
    """Yield what can be told; of a GPU in MIG mode its instances, as the rest of it is other people's."""
    visible = context.accelerators.visible
    for gpu in gpus:
        if gpu.mig:
            told = (gpu.instances or {}).items()
            yield from (Memory(gpu, *numbers, uuid) for uuid, numbers in told if uuid in visible or not visible)
        elif gpu.memory_used is not None:
            yield Memory(gpu, gpu.memory_used, gpu.memory_total or 0)


def _held(context: Context, gpus: Sequence[Gpu], limits: Thresholds) -> list[Memory]:
    return [memory for memory in _memories(context, gpus) if memory.used > limits.leftover_bytes]


def _fails(held: Sequence[Memory], limits: Thresholds) -> bool:
    return any(_rule(memory, limits).severity is Severity.ERROR for memory in held)


def _reason(gpus: Sequence[Gpu]) -> str:
    whole = unread([gpu for gpu in gpus if not gpu.mig], ("memory_used",))
    return whole.get("memory_used", "in MIG mode, and none of its instances answers")


def _findings(held: Sequence[Memory], limits: Thresholds, waited_s: float) -> list[Finding]:
    rows = [(_rule(m, limits), (m.gpu, _text(m, limits), _evidence(m, waited_s))) for m in held]
    return sorted(found_by_rule(rows), key=lambda finding: finding.code != MUCH_USED.code)


def _rule(memory: Memory, limits: Thresholds) -> Rule:
    if memory.gpu.numa_node is not None:
        return replace(USED, severity=Severity.INFO)
    return MUCH_USED if memory.fraction > limits.leftover_fraction else USED


def _text(memory: Memory, limits: Thresholds) -> str:
    what = f"memory of {memory.instance}" if memory.instance else "memory"
    used, wanted = memory.used / MIB, limits.leftover_bytes / MIB
    return f"{used:.0f} MiB of {what} are in use ({memory.fraction:.0%}), wanted {wanted:.0f} MiB or less"


def _evidence(memory: Memory, waited_s: float) -> dict[str, Any]:
    # Numbers of processes may be those of another PID namespace: they are shown, and nothing follows from them.
    pids = [] if memory.instance else list(memory.gpu.processes or ())
    evidence = {"used_bytes": memory.used, "total_bytes": memory.total, "waited_s": waited_s, "pids": pids}
    return evidence | ({"mig": memory.instance} if memory.instance else {})
