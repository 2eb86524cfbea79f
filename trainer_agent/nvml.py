"""Count NVIDIA GPUs through NVML, in a child with a deadline because a sick driver hangs its callers."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from trainer_agent.isolation import CrashedError, TimedOutError, isolated

LIBRARY = "libnvidia-ml.so.1"
# NVML calls take 0.2 ms when healthy, but the first one loads the driver where no daemon keeps it loaded, which takes
# seconds with eight GPUs; other monitors give up after 10 to 20 s.
TIMEOUT_S = 20.0


@dataclass(frozen=True)
class NvmlDevices:
    """
    What NVML answered.

    Args:
        state: `ok`, `missing` (no library), `broken` (the library answers with an error) or `hung`.
        gpus: UUIDs of the whole GPUs, in NVML's order; a GPU in MIG mode is here too.
        mig: UUIDs of the MIG instances.
        reason, code: NVML's own words and number when it is broken.
        others: how many more NVML counts and gives no handle for: mostly those of other containers.
    """

    state: str
    gpus: tuple[str, ...] = ()
    mig: tuple[str, ...] = ()
    reason: str = ""
    code: int = 0
    others: int = 0


def read_nvml(*, timeout_s: float = TIMEOUT_S) -> NvmlDevices:
    """Return the devices that NVML lists; never raises and never takes longer than `timeout_s` by much."""
    try:
        devices: NvmlDevices = isolated(_query, timeout_s=timeout_s)
    except TimedOutError as error:
        return NvmlDevices("hung", reason=f"NVML gave {error}")
    except CrashedError as error:
        return NvmlDevices("broken", reason=f"the process that asked NVML {error}")
    return devices


def _query() -> NvmlDevices:
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        return NvmlDevices("missing", reason=str(error))
    import pynvml

    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        handles = [handle for i in range(count) if (handle := _handle(pynvml, i)) is not None]
        gpus = tuple(_text(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles)
        mig = tuple(uuid for handle in handles for uuid in _mig_uuids(pynvml, handle))
    except pynvml.NVMLError as error:
        return NvmlDevices("broken", reason=str(error), code=error.value)
    return NvmlDevices("ok", gpus, mig, others=count - len(handles))


def _handle(pynvml: Any, index: int) -> Any:
    """Return the handle of a GPU, None of one that is not ours to use: a device cgroup may leave us only some."""
    try:
        return pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError_NoPermission:
        return None


def _mig_uuids(pynvml: Any, gpu: Any) -> list[str]:
    try:
        current, _pending = pynvml.nvmlDeviceGetMigMode(gpu)
        if current != pynvml.NVML_DEVICE_MIG_ENABLE:
            return []
        most = pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)
    except pynvml.NVMLError:  # this model has no MIG
        return []
    uuids = []
    for index in range(most):
        try:
            uuids.append(_text(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index))))
        except pynvml.NVMLError:  # an unused slot
            continue
    return uuids


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
