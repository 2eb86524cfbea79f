"""Decide how many processes to start on this node, and say why in one sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from trainer_agent.errors import AgentError, FatalError, RetryError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainer_agent.accelerators import Accelerators

ONE_PER_HOST = ("tpu", "neuron")  # torch_xla and Neuron want one process that opens all devices


class Policy(StrEnum):
    """What to do with a number of processes that does not fit the devices."""

    FIX = "fix"
    TRUST = "trust"
    STRICT = "strict"


@dataclass(frozen=True)
class Decision:
    """
    The number of processes for this node.

    Args:
        value: a number, or `auto` where only torch can count (Intel's device hierarchy).
        reason: one sentence for the log.
        changed: whether it differs from what was asked for.
        warning: whether the user should read the reason.
        omp_threads: OMP_NUM_THREADS for each process, None when the user set it.
        virtual_local_rank: each rank must see one MIG instance as its device 0.
    """

    value: int | str
    reason: str
    changed: bool = False
    warning: bool = False
    omp_threads: int | None = None
    virtual_local_rank: bool = False


class NprocMismatchError(FatalError):
    """`--nproc-policy strict`: asked for and possible differ."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            "nproc-mismatch",
            f"{reason}, and --nproc-policy is strict",
            hint="set spec.trainer.numProcPerNode to the number of GPUs in a pod, or use --nproc-policy fix",
        )


def decide(
    asked: int | str | None,
    accelerators: Accelerators,
    *,
    cpus: float,
    variable: str = "PET_NPROC_PER_NODE",
    policy: Policy = Policy.FIX,
    allow_cpu: bool = False,
    omp_set: bool = False,
) -> Decision:
    """
    Return the number of processes for `asked` (None when nobody asked) on these devices.

    Args:
        variable: where `asked` was read, for the reason.
        cpus: CPUs that may be used (quota and affinity), for runs without accelerators and for OMP_NUM_THREADS.
        allow_cpu: let `auto` and `gpu` mean CPUs when there is no device.
        omp_set: whether the user chose OMP_NUM_THREADS.

    Raises:
        RetryError: devices were asked for and the driver of this node does not work.
        FatalError: devices were asked for and there are none; or, under `strict`, the numbers differ.
    """
    if isinstance(asked, int):
        decision = _number(asked, accelerators, name=f"{variable}={asked}", cpus=cpus)
        if policy is Policy.TRUST and decision.changed:
            decision = Decision(
                asked, f"{_processes(asked)} as {variable} says, against our advice: {decision.reason}", warning=True
            )
    else:
        name = f"{variable}={asked}" if asked else f"{variable} not being set"
        decision = _word(asked, accelerators, name=name, cpus=cpus, allow_cpu=allow_cpu)
    if policy is Policy.STRICT and decision.changed:
        raise NprocMismatchError(decision.reason)
    if omp_set or not isinstance(decision.value, int):
        return decision
    return replace(decision, omp_threads=max(1, math.floor(cpus / decision.value)))


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _number(asked: int, found: Accelerators, *, name: str, cpus: float) -> Decision:
    count = found.count
    if found.kind == "mig" and count:
        return _mig(asked, found)
    if found.kind in ONE_PER_HOST and count:
        reason = f"1 process, because {found.source}: one process drives all of them"
        changed = asked != 1
        return Decision(1, f"{reason}, not {name}" if changed else reason, changed=changed, warning=changed)
    if found.kind == "intel" and count:
        return Decision(
            asked, f"{_processes(asked)} as {name} says; only torch can count these devices ({found.source})"
        )
    if count == 0:
        return _number_without_devices(asked, found, name=name, cpus=cpus)
    if asked > count:
        why = f"{_processes(count)}, not {name}, because there are no more devices here ({found.source})"
        return Decision(count, why, changed=True, warning=True)
    if asked < count:
        return Decision(asked, _idle(asked, found, name=name), warning=True)
    return Decision(asked, f"{_processes(asked)}, one for each device ({found.source})")


def _idle(asked: int, found: Accelerators, *, name: str) -> str:
    """A claim of Dynamic Resource Allocation without a CPU request makes the controller inject 1."""
    return (
        f"{_processes(asked)} as {name} says, so {found.count - asked} of {found.count} devices stay idle "
        f"({found.source}); --nproc gpu (TRAINER_AGENT_LAUNCH_NPROC=gpu) uses all, also with dynamic allocation"
    )


def _number_without_devices(asked: int, found: Accelerators, *, name: str, cpus: float) -> Decision:
    most = max(1, math.ceil(cpus))
    if asked > most:
        why = f"because no accelerator is visible{_why(found)} and the CPU limit is {cpus:g}"
        return Decision(most, f"{_processes(most)}, not {name}, {why}", changed=True, warning=True)
    reason = f"{_processes(asked)} as {name} says, on CPUs: no accelerator is visible{_why(found)}"
    return Decision(asked, reason, warning=bool(found.problem))


def _why(found: Accelerators) -> str:
    return f" (the NVIDIA driver does not answer: {found.problem})" if found.problem else ""


def _mig(asked: int | None, found: Accelerators) -> Decision:
    """One process sees one MIG instance; several need an explicit list and a rank for each (pytorch#130181)."""
    if found.visible and asked == len(found.visible) > 1:
        reason = f"{_processes(asked)}, one for each MIG instance that CUDA_VISIBLE_DEVICES lists"
        return Decision(asked, reason, virtual_local_rank=True)
    reason = f"1 process, because a process sees one MIG instance ({found.source})"
    changed = asked not in (None, 1)
    if not changed and found.count == 1:
        return Decision(1, reason)
    more = "to use more, list their UUIDs in CUDA_VISIBLE_DEVICES and set spec.trainer.numProcPerNode to their number"
    return Decision(1, f"{reason}; {more}", changed=changed, warning=True)


def _word(asked: str | None, found: Accelerators, *, name: str, cpus: float, allow_cpu: bool) -> Decision:
    on_cpus = max(1, math.ceil(cpus))
    if asked == "cpu":
        return Decision(on_cpus, f"{_processes(on_cpus)} for {name}: the CPU limit is {cpus:g}")
    if found.kind == "mig" and found.count:
        return _mig(None, found)
    if found.kind in ONE_PER_HOST and found.count:
        return Decision(1, f"1 process for {name}: {found.source}, and one process drives all of them")
    if found.kind == "intel" and found.count:
        return Decision("auto", f"as many processes as torch counts, for {name}: {found.source}")
    if found.count:
        return Decision(found.count, f"{_processes(found.count)} for {name}: {found.source}")
    if asked is None:
        return Decision(1, f"1 process for {name}: no accelerator is visible{_why(found)}", warning=bool(found.problem))
    if allow_cpu:
        reason = (
            f"{_processes(on_cpus)} on CPUs for {name}: no accelerator is visible, and --allow-cpu-fallback is given"
        )
        return Decision(on_cpus, reason, warning=True)
    raise _no_device(name, found)


def _no_device(name: str, found: Accelerators) -> AgentError:
    """The controller leaves `auto` only where it saw a request for GPUs, so none being here is a fault."""
    message = f"{name} asks for accelerators and none is visible here"
    if found.problem:
        return RetryError(
            "gpu-driver-broken",
            f"{message}{_why(found)}",
            hint="cordon this node and look at `nvidia-smi` and `dmesg` on it; the pod can run elsewhere",
        )
    return FatalError(
        "no-accelerator",
        f"{message} ({found.source})",
        hint="check that the container requests nvidia.com/gpu and that the device plugin runs on this node; "
        "to train on CPUs set TRAINER_AGENT_LAUNCH_NPROC=cpu, in spec.trainer.env of a TrainJob",
    )


def omp_is_set(environ: Mapping[str, str]) -> bool:
    """Return whether the user chose OMP_NUM_THREADS; an empty value is a choice for nobody."""
    return bool(environ.get("OMP_NUM_THREADS", "").strip())
