"""
What an NVIDIA driver's age hides: functions, versions of structures, fields.

The numbers are the driver branches of the CUDA toolkits whose nvml.h first has a name, 11.0 (450) to 13.3; branch 450
has everything that is not listed. Production drivers may know a name one branch earlier than a header shows it.
"""

from __future__ import annotations

# Branch: a driver of it, and the newest CUDA version that it runs.
DRIVERS = {
    450: ("450.248.02", 11000),
    470: ("470.256.02", 11040),
    525: ("525.147.05", 12000),
    535: ("535.247.01", 12020),
    550: ("550.163.01", 12040),
    570: ("570.148.08", 12080),
    580: ("580.105.08", 13000),
}

FUNCTIONS_SINCE = {
    "nvmlDeviceGetAttributes_v2": 455,
    "nvmlDeviceGetComputeRunningProcesses_v2": 455,
    "nvmlDeviceGetRowRemapperHistogram": 455,
    "nvmlDeviceGetNvLinkRemoteDeviceType": 470,
    "nvmlDeviceGetComputeRunningProcesses_v3": 510,
    "nvmlDeviceGetGraphicsRunningProcesses_v3": 510,
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": 510,
    "nvmlDeviceGetMemoryBusWidth": 510,
    "nvmlDeviceGetMemoryInfo_v2": 510,
    "nvmlDeviceGetPcieSpeed": 515,
    "nvmlDeviceGetGpuFabricInfo": 525,
    "nvmlDeviceGetGpuMaxPcieLinkGeneration": 525,
    "nvmlDeviceGetCurrentClocksEventReasons": 535,
    "nvmlDeviceGetSupportedClocksEventReasons": 535,
    "nvmlDeviceGetModuleId": 535,
    "nvmlDeviceGetGpuFabricInfoV": 550,
    "nvmlDeviceGetNumaNodeId": 550,
    "nvmlDeviceGetSramEccErrorStatus": 550,
    "nvmlDeviceGetMarginTemperature": 570,
    "nvmlDeviceGetPlatformInfo": 570,
    "nvmlDeviceGetTemperatureV": 570,
    "nvmlDeviceGetRepairStatus": 580,
}

# (function, version of its structure): the first branch that takes it.
STRUCTURES_SINCE = {("nvmlDeviceGetGpuFabricInfoV", 3): 580}

# Branch: NVML_FI_MAX, one more than the last field that it knows.
FIELDS_BELOW = {450: 146, 455: 147, 460: 148, 470: 161, 520: 167, 525: 170, 535: 197, 550: 200, 560: 230, 570: 269}
FIELDS_BELOW |= {575: 274, 590: 289, 595: 303}


def hidden_functions(branch: int) -> set[str]:
    """Return the functions that a driver of this branch does not export."""
    return {name for name, since in FUNCTIONS_SINCE.items() if since > branch}


def hidden_structures(branch: int) -> list[tuple[str, int]]:
    """Return the (function, version) pairs that a driver of this branch refuses."""
    return [pair for pair, since in STRUCTURES_SINCE.items() if since > branch]


def fields_below(branch: int) -> int:
    """Return the first field that a driver of this branch does not know."""
    return FIELDS_BELOW[max(b for b in FIELDS_BELOW if b <= branch)]
