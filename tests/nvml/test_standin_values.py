"""What the real nvidia-ml-py reads from the stand-in: every function, and every kind of machine."""

import os
import subprocess
import sys

import pynvml
import pytest
from nvml_machines import bus_id, h100_sxm, machine, mig, mig_uuid, serial, uuid
from nvml_models import A100_PCIE, A100_SXM, B200_SXM, GB200, H100_NVL, H100_SXM, H200_SXM, L4
from nvml_reading import OTHER_GPU, ask
from nvml_scenario import functions

MIB = 1 << 20


def zeroes(structure):
    """Return a structure of nvidia-ml-py as a dictionary of zeroes."""
    return dict.fromkeys((name for name, _ in getattr(pynvml, f"c_{structure}")._fields_), 0)


PCI = {"busIdLegacy": "0000:55:00.0", "domain": 0, "bus": 0x55, "device": 0, "pciDeviceId": 0x233010DE}
PCI |= {"pciSubSystemId": 0x16C110DE, "busId": "00000000:55:00.0"}
SWITCH = dict.fromkeys(PCI, 0) | {"busIdLegacy": "", "bus": 0xC6, "busId": "00000000:C6:00.0"}
MEMORY = {"total": 81559 * MIB, "free": 81079 * MIB, "used": 480 * MIB}  # what is reserved is in use
MEMORY_V2 = MEMORY | {"version": pynvml.nvmlMemory_v2, "reserved": 480 * MIB, "used": 0}
SRAM = zeroes("nvmlEccSramErrorStatus_v1_t") | {"version": pynvml.nvmlEccSramErrorStatus_v1}
FABRIC = {"clusterUuid": bytes(16), "status": 0, "cliqueId": 0, "state": pynvml.NVML_GPU_FABRIC_STATE_COMPLETED}
FABRIC_V2 = FABRIC | {"version": pynvml.nvmlGpuFabricInfo_v2, "healthMask": 0}
FABRIC_V3 = FABRIC_V2 | {"version": pynvml.nvmlGpuFabricInfo_v3, "healthSummary": 0}
# The third GPU of eight H100.
H100 = [
    ("nvmlSystemGetDriverVersion", "580.105.08"),
    ("nvmlSystemGetNVMLVersion", "13.580.105.08"),
    ("nvmlSystemGetCudaDriverVersion", 13000),
    ("nvmlSystemGetCudaDriverVersion_v2", 13000),
    ("nvmlDeviceGetCount", 8),
    ("nvmlDeviceGetHandleByIndex", 5, uuid(5)),
    ("nvmlDeviceGetHandleByUUID", uuid(6).encode(), uuid(6)),
    ("nvmlDeviceGetHandleBySerial", serial(7).encode(), uuid(7)),
    ("nvmlDeviceGetHandleByPciBusId", bus_id(1).encode(), uuid(1)),
    ("nvmlDeviceGetHandleByPciBusId", bus_id(1).lower()[4:].encode(), uuid(1)),
    ("nvmlDeviceGetHandleByUUID", b"GPU-unknown", "NVMLError_NotFound"),
    ("nvmlDeviceGetHandleByIndex", 8, "NVMLError_InvalidArgument"),
    ("nvmlDeviceGetName", "NVIDIA H100 80GB HBM3"),
    ("nvmlDeviceGetUUID", uuid(2)),
    ("nvmlDeviceGetSerial", serial(2)),
    ("nvmlDeviceGetIndex", 2),
    ("nvmlDeviceGetMinorNumber", 2),
    ("nvmlDeviceGetModuleId", 3),
    ("nvmlDeviceGetBoardId", 0x5500),
    ("nvmlDeviceGetVbiosVersion", "96.00.99.00.01"),
    ("nvmlDeviceGetInforomImageVersion", "G520.0200.00.05"),
    ("nvmlDeviceGetArchitecture", pynvml.NVML_DEVICE_ARCH_HOPPER),
    ("nvmlDeviceGetCudaComputeCapability", (9, 0)),
    ("nvmlDeviceGetMemoryBusWidth", 5120),
    ("nvmlDeviceGetPciInfo", PCI),
    ("nvmlDeviceGetPersistenceMode", 1),
    ("nvmlDeviceGetComputeMode", pynvml.NVML_COMPUTEMODE_DEFAULT),
    ("nvmlDeviceGetPerformanceState", 0),
    ("nvmlDeviceGetVirtualizationMode", 0),
    ("nvmlDeviceGetMemoryInfo", MEMORY),
    ("nvmlDeviceGetMemoryInfo", pynvml.nvmlMemory_v2, MEMORY_V2),
    ("nvmlDeviceGetMemoryInfo", pynvml.nvmlMemory_v2 + (1 << 24), "NVMLError_ArgumentVersionMismatch"),
    ("nvmlDeviceGetBAR1MemoryInfo", {"bar1Total": 131072 * MIB, "bar1Free": 131071 * MIB, "bar1Used": MIB}),
    ("nvmlDeviceGetUtilizationRates", {"gpu": 0, "memory": 0}),
    ("nvmlDeviceGetViolationStatus", 1, {"referenceTime": 1, "violationTime": 0}),
    ("nvmlDeviceGetEccMode", [1, 1]),
    ("nvmlDeviceGetTotalEccErrors", 1, 0, 0),
    ("nvmlDeviceGetMemoryErrorCounter", 1, 0, pynvml.NVML_MEMORY_LOCATION_SRAM, 0),
    ("nvmlDeviceGetMemoryErrorCounter", 1, 0, pynvml.NVML_MEMORY_LOCATION_CBU, "NVMLError_NotSupported"),
    ("nvmlDeviceGetSramEccErrorStatus", pynvml.c_nvmlEccSramErrorStatus_v1_t, SRAM),
    ("nvmlDeviceGetRemappedRows", (0, 0, 0, 0)),
    ("nvmlDeviceGetRowRemapperHistogram", {"max": 2560, "high": 0, "partial": 0, "low": 0, "none": 0}),
    ("nvmlDeviceGetRepairStatus", [0, 0]),
    ("nvmlDeviceGetRetiredPages", 0, "NVMLError_NotSupported"),  # rows are remapped instead
    ("nvmlDeviceGetRetiredPages_v2", 0, "NVMLError_NotSupported"),
    ("nvmlDeviceGetRetiredPagesPendingStatus", "NVMLError_NotSupported"),
    ("nvmlDeviceGetFieldValues", [230, (161, 3), 9999], [(230, 0, 1, 0, 0), (161, 3, 3, 0, 0), (9999, 0, 0, 3, 0)]),
    ("nvmlDeviceGetFieldValues", [193, 194, 196], [(193, 0, 5, 0, -8), (194, 0, 5, 0, -2), (196, 0, 5, 0, 0)]),
    ("nvmlDeviceGetMaxPcieLinkGeneration", 5),
    ("nvmlDeviceGetGpuMaxPcieLinkGeneration", 5),
    ("nvmlDeviceGetCurrPcieLinkGeneration", 5),
    ("nvmlDeviceGetMaxPcieLinkWidth", 16),
    ("nvmlDeviceGetCurrPcieLinkWidth", 16),
    ("nvmlDeviceGetPcieSpeed", 32000),
    ("nvmlDeviceGetPcieReplayCounter", 150),
    ("nvmlDeviceGetNvLinkState", 17, 1),
    ("nvmlDeviceGetNvLinkState", 18, "NVMLError_InvalidArgument"),
    ("nvmlDeviceGetNvLinkVersion", 17, 6),
    ("nvmlDeviceGetNvLinkCapability", 35, pynvml.NVML_NVLINK_CAP_P2P_SUPPORTED, 1),
    ("nvmlDeviceGetNvLinkErrorCounter", 17, pynvml.NVML_NVLINK_ERROR_DL_RECOVERY, 0),
    ("nvmlDeviceGetNvLinkRemoteDeviceType", 17, pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH),
    ("nvmlDeviceGetNvLinkRemotePciInfo", 17, SWITCH),
    ("nvmlDeviceGetP2PStatus", OTHER_GPU, pynvml.NVML_P2P_CAPS_INDEX_NVLINK, pynvml.NVML_P2P_STATUS_OK),
    ("nvmlDeviceGetTopologyCommonAncestor", OTHER_GPU, pynvml.NVML_TOPOLOGY_SYSTEM),
    ("nvmlDeviceGetGpuFabricInfo", pynvml.c_nvmlGpuFabricInfo_t, FABRIC),
    ("nvmlDeviceGetGpuFabricInfoV", pynvml.c_nvmlGpuFabricInfo_v2_t, FABRIC_V2),
    ("nvmlDeviceGetGpuFabricInfoV", pynvml.c_nvmlGpuFabricInfo_v3_t, FABRIC_V3),
    ("nvmlDeviceGetNumaNodeId", "NVMLError_NotSupported"),  # nvml.h: only where a GPU is a NUMA node itself
    ("nvmlDeviceGetPlatformInfo", pynvml.c_nvmlPlatformInfo_v2_t, "NVMLError_NotSupported"),
    ("nvmlDeviceGetMigMode", [0, 0]),
    ("nvmlDeviceGetMaxMigDeviceCount", 7),
    ("nvmlDeviceGetMigDeviceHandleByIndex", 0, "NVMLError_NotFound"),
    ("nvmlDeviceIsMigDeviceHandle", 0),
    ("nvmlDeviceGetPowerUsage", 68_900),
    ("nvmlDeviceGetPowerManagementLimit", 700_000),
    ("nvmlDeviceGetPowerManagementDefaultLimit", 700_000),
    ("nvmlDeviceGetEnforcedPowerLimit", 700_000),
    ("nvmlDeviceGetPowerManagementLimitConstraints", [200_000, 700_000]),
    ("nvmlDeviceGetTotalEnergyConsumption", 500_000),
    ("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU, 30),
    ("nvmlDeviceGetTemperatureV", pynvml.NVML_TEMPERATURE_GPU, 30),
    ("nvmlDeviceGetTemperatureThreshold", pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN, 89),
    ("nvmlDeviceGetMarginTemperature", 57),
    ("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM, 345),
    ("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_SM, 1980),
    ("nvmlDeviceGetMaxCustomerBoostClock", pynvml.NVML_CLOCK_GRAPHICS, 1980),
    ("nvmlDeviceGetApplicationsClock", pynvml.NVML_CLOCK_GRAPHICS, 1980),
    ("nvmlDeviceGetDefaultApplicationsClock", pynvml.NVML_CLOCK_MEM, 2619),
    ("nvmlDeviceGetClock", pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_ID_CURRENT, 345),
    ("nvmlDeviceGetCurrentClocksThrottleReasons", pynvml.nvmlClocksThrottleReasonGpuIdle),
    ("nvmlDeviceGetCurrentClocksEventReasons", pynvml.nvmlClocksEventReasonGpuIdle),
    ("nvmlDeviceGetSupportedClocksThrottleReasons", 0x1FF),
    ("nvmlDeviceGetSupportedClocksEventReasons", 0x1FF),
    ("nvmlDeviceGetSupportedEventTypes", 0x1F),
    ("nvmlDeviceGetComputeRunningProcesses", []),
    ("nvmlDeviceGetComputeRunningProcesses_v2", []),
    ("nvmlDeviceGetGraphicsRunningProcesses", []),
    ("nvmlDeviceGetMPSComputeRunningProcesses", []),
]
# The second of two MIG instances.
INSTANCE = [
    ("nvmlDeviceGetUUID", mig_uuid(1)),
    ("nvmlDeviceGetName", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"),
    ("nvmlDeviceIsMigDeviceHandle", 1),
    ("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", uuid(0)),
    ("nvmlDeviceGetGpuInstanceId", 8),
    ("nvmlDeviceGetComputeInstanceId", 0),
    ("nvmlDeviceGetMemoryInfo", {"total": 10194 * MIB, "free": 10194 * MIB, "used": 0}),
    ("nvmlDeviceGetRemappedRows", "NVMLError_NotSupported"),
    ("nvmlDeviceGetEccMode", "NVMLError_NotSupported"),  # what is said of GPUs is not said of instances
    (
        "nvmlDeviceGetAttributes_v2",
        zeroes("nvmlDeviceAttributes") | {"gpuInstanceSliceCount": 1, "memorySizeMB": 10194},
    ),
]
ASKED_BY_OLDER_BINDINGS = {"nvmlDeviceGetPciInfo_v2"}
ASKED_ELSEWHERE = {"nvmlErrorString", "nvmlShutdown", "nvmlDeviceRegisterEvents"}
ASKED_ELSEWHERE |= {"nvmlEventSetCreate", "nvmlEventSetWait_v2", "nvmlEventSetFree"}


def expected(rows):
    """Return the last column, for a comparison that shows which row differs."""
    return [(row[0], row[-1]) for row in rows]


def read(nvml_standin, scenario, rows, **which):
    """Return the rows with what is found instead of what is expected, and the functions that were asked."""
    answers, asked = nvml_standin.call(scenario, lambda: ask([row[:-1] for row in rows], **which))
    return [(row[0], found) for row, found in zip(rows, answers, strict=True)], asked


def test_every_function_is_read_back(nvml_standin):
    """Every function of the library is asked by nvidia-ml-py and gives what the machine says."""
    found, asked = read(nvml_standin, h100_sxm(), H100, gpu=2)
    in_instance, asked_there = read(nvml_standin, mig(), INSTANCE, instance=1)

    assert expected(H100) == found
    assert expected(INSTANCE) == in_instance
    assert functions() - asked - asked_there == ASKED_ELSEWHERE | ASKED_BY_OLDER_BINDINGS


IDENTITY = [("nvmlDeviceGetCount",), ("nvmlDeviceGetName",), ("nvmlDeviceGetCudaComputeCapability",)]


@pytest.mark.parametrize(
    "model, count, links, down",
    [
        (A100_SXM, 8, 12, 0),
        (A100_PCIE, 4, 12, 12),
        (H100_SXM, 8, 18, 0),
        (H100_NVL, 2, 18, 6),
        (H200_SXM, 8, 18, 0),
        (B200_SXM, 8, 18, 0),
        (GB200, 4, 18, 0),
        (L4, 1, 0, 0),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_kinds_of_machines(nvml_standin, model, count, links, down):
    """Each has its name, its number of GPUs, and its links, which end with an error."""
    rows = [*IDENTITY, *(("nvmlDeviceGetNvLinkState", link) for link in range(36))]
    (devices, name, capability, *states), _ = nvml_standin.call(machine(model, count), lambda: ask(rows))
    beyond = "NVMLError_InvalidArgument" if links else "NVMLError_NotSupported"

    assert (count, model.name, model.capability) == (devices, name, capability)
    assert {beyond} == set(states[links:])
    assert (links - down, down) == (states.count(1), states.count(0))


def test_a_gpu_of_a_rack_knows_its_place(nvml_standin):
    """GB200: a cluster, a clique, a health summary, a NUMA node of its own, other counters of links."""
    rows = [
        ("nvmlDeviceGetGpuFabricInfoV", pynvml.c_nvmlGpuFabricInfo_v3_t),
        ("nvmlDeviceGetNumaNodeId",),
        ("nvmlDeviceGetNvLinkErrorCounter", 0, 0),
        ("nvmlDeviceGetFieldValues", [(215, 17), (161, 0)]),
    ]
    (info, node, counter, fields), _ = nvml_standin.call(machine(GB200, 4), lambda: ask(rows))

    place = {"clusterUuid": bytes(range(1, 17)), "cliqueId": 2}
    health = {"healthMask": 0b10101010, "healthSummary": pynvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY}
    assert FABRIC_V3 | place | health == info
    assert (2, "NVMLError_NotSupported") == (node, counter)
    assert [(215, 17, 3, 0, 0), (161, 0, 0, pynvml.NVML_ERROR_NOT_SUPPORTED, 0)] == fields


def test_lists_are_read_whole(nvml_standin):
    """Processes and retired pages are asked for twice: for their number, then with room for them."""
    busy = (
        h100_sxm(1)
        .says("nvmlDeviceGetComputeRunningProcesses_v3", "4711:1048576 4712:7")
        .says("nvmlDeviceGetRetiredPages", (0x1000, 0x2000), of=1)
        .says("nvmlDeviceGetRetiredPages_v2", (0x3000,), of=1)
    )
    rows = [
        ("nvmlDeviceGetComputeRunningProcesses",),
        ("nvmlDeviceGetRetiredPages", 1),
        ("nvmlDeviceGetRetiredPages_v2", 1),
    ]
    (processes, pages, pages_2), _ = nvml_standin.call(busy, lambda: ask(rows))

    whole_gpu = {"gpuInstanceId": 0xFFFFFFFF, "computeInstanceId": 0xFFFFFFFF}
    assert [{"pid": 4711, "usedGpuMemory": MIB} | whole_gpu, {"pid": 4712, "usedGpuMemory": 7} | whole_gpu] == processes
    assert ([0x1000, 0x2000], [{"address": 0x3000, "timestamp": 0}]) == (pages, pages_2)


def test_a_program_finds_it_by_the_path_of_the_loader(nvml_standin):
    """As a real program does: LD_LIBRARY_PATH at its start, and the name that nvidia-ml-py has for the library."""
    script = "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())"
    environ = os.environ | nvml_standin.environ(h100_sxm())
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True, timeout=30
    )

    assert "8\n" == done.stdout
