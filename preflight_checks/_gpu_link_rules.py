"""Everything that gpu-link can find."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer_agent.check import Rule
from trainer_agent.errors import Action, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable

MANAGER = "look at `nvidia-smi -q | grep -A5 Fabric` and `systemctl status nvidia-fabricmanager` on this node"
RECOVERY_FAILED = "NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS"  # a counter of each link

NVLINK = Rule(
    "nvlink-down",
    when="fewer NVLinks are active than the model has, or than its neighbours have where the model leaves a choice, "
    "after as long a wait as for the fabric; a warning for unknown models, also where none of several GPUs on boards "
    "has any, and for a card without any whose model may lack its bridge, and only informs where a single GPU is "
    "visible that has none",
    hint="run `nvidia-smi nvlink --status` on this node; cordon it, and reset the GPUs or reboot",
    action=Action.RESCHEDULE,
    source="NVIDIA's data sheets; azurehpc-health-checks #162 for the 12 of 18 of an H100 NVL, NVSentinel #1481 for "
    "cards without a bridge, #1715 for links that train",
)
NVLINK_ERRORS = Rule(
    "nvlink-errors",
    when="an error counter of NVLink rose while the check ran (1 s)",
    hint="run `nvidia-smi nvlink --errorcounters` on this node, again after a while; a link that goes on needs service",
    severity=Severity.WARNING,
    source="heuristic; totals since the last reset prove nothing",
)
NVLINK_LOST = Rule(
    "nvlink-recovery-failed",
    when="a link of NVLink could not be recovered while the check ran (Blackwell and later)",
    hint="run `nvidia-smi nvlink --status` and `--errorcounters` on this node; cordon it, and reset the GPUs or reboot",
    action=Action.RESCHEDULE,
    source="NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS, which DCGM fails on",
)
P2P = Rule(
    "p2p-one-way",
    when="a GPU cannot reach another one (NVLink or reading), and the other one can reach it",
    hint="run `nvidia-smi topo -p2p n` on this node; cordon it, and reset the GPUs or reboot",
    action=Action.RESCHEDULE,
    source="gpud looks at all pairs",
)
FABRIC_NOT_READY = Rule(
    "fabric-not-ready",
    when="a GPU's registration with the fabric is not completed after 30 s (5 s with --profile quick, 50 s with deep; "
    "half of --timeout)",
    hint=f"{MANAGER}: CUDA fails with error 802 until it is completed",
    action=Action.RESCHEDULE,
    source="NVSentinel #1701: links still train for a while after a reboot",
)
FABRIC_FAILED = Rule(
    "fabric-failed",
    when="a GPU's registration with the fabric ended with an error",
    hint=f"{MANAGER}; restart it or reboot",
    action=Action.RESCHEDULE,
    source="nvmlDeviceGetGpuFabricInfo",
)
FABRIC_DEGRADED = Rule(
    "fabric-degraded",
    when="the fabric says that this GPU's bandwidth is degraded",
    hint=f"{MANAGER}; cordon the node until its links are repaired",
    action=Action.RESCHEDULE,
    source="the health mask of nvmlDeviceGetGpuFabricInfoV, from driver 550 on",
)
FABRIC_ROUTE = Rule(
    "fabric-route-unhealthy",
    when="the fabric says that this GPU's route is unhealthy",
    hint=f"{MANAGER}; cordon the node until its links are repaired",
    action=Action.RESCHEDULE,
    source="the health mask of nvmlDeviceGetGpuFabricInfoV, from driver 570 on",
)
FABRIC_RECOVERING = Rule(
    "fabric-recovering",
    when="the fabric says that a route of this GPU, or an access that timed out, is being recovered",
    hint=MANAGER,
    severity=Severity.WARNING,
    source="the health mask of nvmlDeviceGetGpuFabricInfoV, from driver 570 on",
)
FABRIC_MISCONFIGURED = Rule(
    "fabric-misconfigured",
    when="the fabric says that its configuration does not fit this GPU (system, chassis, partition, firmware)",
    hint=f"{MANAGER}; nvml.h has the number's meaning under INCORRECT_CONFIGURATION",
    action=Action.RESCHEDULE,
    source="the health mask of nvmlDeviceGetGpuFabricInfoV, from driver 580 on",
)
FABRIC_UNHEALTHY = Rule(
    "fabric-unhealthy",
    when="the fabric says that this GPU is unhealthy, and not why",
    hint=MANAGER,
    action=Action.RESCHEDULE,
    source="the summary of nvmlDeviceGetGpuFabricInfoV, from driver 580 on",
)
FABRIC_LIMITED = Rule(
    "fabric-limited",
    when="the fabric says that this GPU has limited capacity",
    hint=MANAGER,
    severity=Severity.WARNING,
    source="the summary of nvmlDeviceGetGpuFabricInfoV, from driver 580 on",
)
PCIE_NARROW = Rule(
    "pcie-narrow",
    when="PCIe has fewer lanes than NVML's maximum, in every sample: a GPU on a board of SXM that is not in a virtual "
    "machine, or one beside another of its name that has them all, in a virtual machine only on such a board; a "
    "warning for all others, info for cards in a virtual machine none of which has them all",
    hint="reseat the board or its riser; until then cordon this node",
    action=Action.RESCHEDULE,
    source="the number of lanes does not go down when a link is idle; the maximum may be the card's alone, and not "
    "that of its slot",
)
PCIE_SLOW = Rule(
    "pcie-slow",
    when="PCIe runs at a lower generation than at the neighbours of the same model and performance state",
    hint="compare `nvidia-smi -q -d PERFORMANCE` and `lspci -vv` under load with another GPU of this node",
    severity=Severity.WARNING,
    source="heuristic; a link that is idle goes down by design, so a generation alone proves nothing",
)
PCIE_ERRORS = Rule(
    "pcie-errors",
    when="the counter of PCIe replays rose while the check ran (1 s)",
    hint="look at `dmesg | grep -i aer` on this node; reseat the board when it goes on",
    severity=Severity.WARNING,
    source="heuristic; a healthy H100 had a total of 150",
)
# NVML_GPU_FABRIC_HEALTH_MASK_*: rule, shift and width of the part, what is healthy there, and the words.
HEALTH_MASK = (
    (FABRIC_DEGRADED, 0, 2, (0, 2), "degraded bandwidth"),
    (FABRIC_RECOVERING, 2, 2, (0, 2), "a route is being recovered"),
    (FABRIC_ROUTE, 4, 2, (0, 2), "a route is unhealthy"),
    (FABRIC_RECOVERING, 6, 2, (0, 2), "an access that timed out is being recovered"),
    (FABRIC_MISCONFIGURED, 8, 4, (0, 1), "incorrect configuration"),
)
RULES = (
    *(NVLINK, NVLINK_ERRORS, NVLINK_LOST, P2P, FABRIC_NOT_READY, FABRIC_FAILED, FABRIC_DEGRADED, FABRIC_ROUTE),
    *(FABRIC_RECOVERING, FABRIC_MISCONFIGURED, FABRIC_UNHEALTHY, FABRIC_LIMITED, PCIE_NARROW, PCIE_SLOW, PCIE_ERRORS),
)


def of_rises(rose: Iterable[str], usual: Rule) -> Rule:
    """Return what the rise of these counters of NVLink is: a link that is lost, or as usual."""
    return NVLINK_LOST if any(name.startswith(RECOVERY_FAILED) for name in rose) else usual
