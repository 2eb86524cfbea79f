"""The recovery that the driver asks for: a reset, a reboot, a drain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainer_agent.check import Rule
from trainer_agent.errors import Action

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight_checks._gpus import Gpu

# NVML_GPU_RECOVERY_ACTION_*
ACTIONS = {
    1: "a reset of the GPU",
    2: "a reboot of the node",
    3: "P2P to be drained",
    4: "a drain and a reset of the GPU",
    5: "the IMEX domain to be recovered",
    6: "a reset of the bus",
    7: "a reboot of the system",
}
RECOVERY = Rule(
    "gpu-recovery-wanted",
    when="the driver asks for a reset, a reboot or a drain (recovery action other than 0; from driver 570 on) when the "
    "check ends; while the GPUs work, where it did not ask before",
    hint="cordon this node and do what the driver asks for, which the message names",
    action=Action.RESCHEDULE,
    source="NVML_FI_DEV_GET_GPU_RECOVERY_ACTION; nvidia-resiliency-ext fails on it",
)


def wanted(gpu: Gpu) -> Iterator[tuple[Rule, str, dict[str, Any]]]:
    """Yield what the driver asks for."""
    if gpu.recovery_action:
        words = ACTIONS.get(gpu.recovery_action, "something that this program does not know")
        text = f"the driver asks for {words} (recovery action {gpu.recovery_action}), wanted 0"
        yield RECOVERY, text, {"recovery_action": gpu.recovery_action}
