"""GPUs: whether the driver answers, and whether it lists as many as this container was given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from preflight_checks._gpus import READ_S, gpu_check, models, read
from trainer_agent.accelerators import DRIVER_NOT_LOADED, MOUNTED, expects_nvidia, listed_gpus, nvidia_nodes
from trainer_agent.check import Context, Outcome, Rule, Skip
from trainer_agent.errors import Action, Finding, Severity

if TYPE_CHECKING:
    from preflight_checks._gpus import Reading

VERSION_MISMATCH = 18  # NVML_ERROR_*

LIBRARY = Rule(
    "nvml-missing",
    when="GPUs are asked for and libnvidia-ml.so.1 cannot be loaded; a warning where only NVIDIA_VISIBLE_DEVICES=all "
    "asks, which images set that run without GPUs too, or only PET_NPROC_PER_NODE=gpu, which is meant for the trainer",
    hint="check that the container requests nvidia.com/gpu and that its runtime class is nvidia's",
    action=Action.RESCHEDULE,
    source="KEP-3416: a missing GPU reschedules",
)
UNSEEN = Rule(
    "nvml-not-found",
    when=f"the driver's library is {MOUNTED}, and the loader does not look there",
    hint=f"set LD_LIBRARY_PATH={PurePath(MOUNTED).parent} in this container; images such as PyTorch's do",
    source="GKE's device plugin mounts the driver there",
)
NOT_LOADED = Rule(
    "gpu-driver-not-loaded",
    when="NVML says that the kernel module of the driver is not loaded",
    hint="run `lsmod | grep nvidia` and `dmesg | grep -i nvrm` on this node; until then cordon it",
    action=Action.RESCHEDULE,
    source="NVML_ERROR_DRIVER_NOT_LOADED",
)
MISMATCH = Rule(
    "gpu-driver-mismatch",
    when="the driver's library is of another version than its kernel module",
    hint="the driver was upgraded under running GPUs: reboot the node, or load the new module",
    action=Action.RESCHEDULE,
    source="NVML_ERROR_LIB_RM_VERSION_MISMATCH",
)
BROKEN = Rule(
    "nvml-broken",
    when="NVML answers its first calls with another error",
    hint="run `nvidia-smi` and `dmesg | grep -i nvrm` on this node; until then cordon it",
    action=Action.RESCHEDULE,
    source="KEP-3416: a missing GPU reschedules",
)
MISSING = Rule(
    "gpu-missing",
    when="NVML lists fewer GPUs than /dev has device nodes, or than NVIDIA_VISIBLE_DEVICES lists by UUID or index",
    hint="run `nvidia-smi -L` and `dmesg | grep -i xid` on this node; until then cordon it",
    action=Action.RESCHEDULE,
    source="KEP-3416: a missing GPU reschedules",
)
TOO_FEW = Rule(
    "gpus-too-few",
    when="PET_NPROC_PER_NODE is a number above that of the GPUs, and no GPU is missing",
    hint="raise nvidia.com/gpu of the container, or lower spec.trainer.numProcPerNode",
    source="two processes on one GPU end NCCL with `Duplicate GPU detected`",
)


@gpu_check("gpu-count", rules=(LIBRARY, UNSEEN, NOT_LOADED, MISMATCH, BROKEN, MISSING, TOO_FEW), timeout_s=READ_S + 3)
def gpu_count(context: Context) -> Outcome:
    """Does the NVIDIA driver answer, and does it list every GPU that this container was given?"""
    reading = read(context)
    stray = reading.code == DRIVER_NOT_LOADED and not expects_nvidia(context.host, context.environ)
    if reading.state == "missing" or stray:
        return _without_library(context, reading)
    if reading.state == "broken":
        rule = {DRIVER_NOT_LOADED: NOT_LOADED, VERSION_MISMATCH: MISMATCH}.get(reading.code, BROKEN)
        message = f"NVML does not start: {reading.reason}, wanted a driver that answers"
        return Outcome(message, (rule.found(message, nvml_error=reading.code),))
    count = len(reading.gpus)
    message = f"{models(reading.gpus) if count else 'no GPU'}, driver {reading.driver or 'unknown'}"
    measured = {"gpus": count, "driver": reading.driver, "device_nodes": len(nvidia_nodes(context.host))}
    return Outcome(message, tuple(_missing(context, count, reading.others) or _too_few(context, count)), measured)


def _asked(context: Context) -> tuple[str, bool]:
    """
    Return what asks for GPUs here, in words, empty when nothing does, and whether it asks for this very container.

    Images say `all` wherever they run, and a job's number of processes is told to init containers without GPUs, too.
    """
    visible = context.environ.get("NVIDIA_VISIBLE_DEVICES", "").strip()
    if nodes := nvidia_nodes(context.host):
        return f"/dev has {', '.join(nodes)}", True
    if visible.lower() not in ("", "none", "void"):
        return f"NVIDIA_VISIBLE_DEVICES={visible}", visible.lower() != "all"
    return ("PET_NPROC_PER_NODE=gpu" if context.topology.nproc == "gpu" else ""), False


def _without_library(context: Context, reading: Reading) -> Outcome:
    asked, certain = _asked(context)
    if not asked or context.accelerators.kind not in ("none", "nvidia", "mig"):
        raise Skip(f"nothing asks for an NVIDIA GPU here, and NVML is not here: {reading.reason}")
    if context.host.exists(MOUNTED):
        return Outcome("NVML is not found", (UNSEEN.found(f"NVML is {MOUNTED}: {reading.reason}", asked=asked),))
    message = f"NVML is not here ({reading.reason}), wanted it as {asked}"
    rule = LIBRARY if certain else replace(LIBRARY, severity=Severity.WARNING)
    return Outcome("NVML is not here", (rule.found(message, asked=asked),))


def _missing(context: Context, count: int, refused: int) -> list[Finding]:
    """
    Return whether we may use fewer GPUs than this container was given.

    Those that NVML counts and refuses may be others' where /dev is the whole machine's; not all of them, though, and
    none that NVIDIA_VISIBLE_DEVICES lists.
    """
    nodes, listed = nvidia_nodes(context.host), listed_gpus(context.environ)
    others = refused if count else 0
    if count < len(listed):
        wanted = f"{len(listed)} that NVIDIA_VISIBLE_DEVICES lists"
    elif count + others < len(nodes):
        wanted = f"{len(nodes)} that /dev has device nodes of"
    else:
        return []
    more = f" and refuses {refused} more" if refused else ""
    message = f"NVML lists {count} GPUs{more}, wanted the {wanted}"
    return [MISSING.found(message, count=count, refused=refused, device_nodes=nodes, listed=listed)]


def _too_few(context: Context, count: int) -> list[Finding]:
    processes, accelerators = context.topology.nproc, context.accelerators
    usable = accelerators.count
    if accelerators.kind not in ("nvidia", "mig") or accelerators.problem or not usable:
        return []
    if not isinstance(processes, int) or processes <= usable:
        return []
    message = f"PET_NPROC_PER_NODE={processes}, wanted at most {usable}: {accelerators.source}"
    return [TOO_FEW.found(message, processes=processes, count=count, usable=usable)]
