"""Healthy machines, as lines of a scenario; numbers without a source are what a quiet machine shows."""

from __future__ import annotations

from nvml_models import ADA, BLACKWELL, H100_SXM, Model
from nvml_scenario import Scenario

MIB = 1 << 20
INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION = 2, 3, 4
GRAPHICS, SM, MEM = 0, 1, 2  # NVML_CLOCK_*
SHUTDOWN, SLOWDOWN, MEM_MAX, GPU_MAX = 0, 1, 2, 3  # NVML_TEMPERATURE_THRESHOLD_*
DRAM, SRAM = 2, 7  # NVML_MEMORY_LOCATION_*
NVLINK_VERSIONS = {3: 4, 4: 6, 5: 7}  # nvmlNvlinkVersion_t has numbers for half versions too
NO_TROUBLE, HEALTHY = 0b10101010, 1  # each of the four parts of the health mask says "false"; the summary


def h100_sxm(count: int = 8) -> Scenario:
    """Return the usual node of eight."""
    return machine(H100_SXM, count)


def machine(model: Model, count: int) -> Scenario:
    """Return a node of `count` healthy, idle GPUs."""
    made = Scenario().says("nvmlDeviceGetCount_v2", count)
    for part in (_facts, _memory, _ecc, _power_and_heat, _clocks, _pcie, _nvlink, _fabric):
        made = part(made, model)
    for index in range(count):
        made = _identity(made, model, index)
    return made


def _identity(made: Scenario, model: Model, gpu: int) -> Scenario:
    bus = bus_id(gpu)
    pci = {"busIdLegacy": bus[4:], "domain": 0, "bus": 0x53 + gpu, "device": 0, "pciDeviceId": model.pci_id}
    pci |= {"pciSubSystemId": 0x16C110DE, "busId": bus}  # the bus id last, where the library looks for it
    return (
        made.says("nvmlDeviceGetUUID", uuid(gpu), gpu=gpu)
        .says("nvmlDeviceGetSerial", serial(gpu), gpu=gpu)
        .says("nvmlDeviceGetIndex", gpu, gpu=gpu)
        .says("nvmlDeviceGetMinorNumber", gpu, gpu=gpu)
        .says("nvmlDeviceGetModuleId", gpu + 1, gpu=gpu)
        .says("nvmlDeviceGetBoardId", (0x53 + gpu) << 8, gpu=gpu)
        .says("nvmlDeviceGetPciInfo_v2", pci, gpu=gpu)
        .says("nvmlDeviceGetPciInfo_v3", pci, gpu=gpu)
    )


def uuid(gpu: int) -> str:
    """Return the UUID of a GPU."""
    return f"GPU-{gpu:x}0000000-0000-0000-0000-000000000000"


def serial(gpu: int) -> str:
    """Return the serial number of a GPU."""
    return f"16500000000{gpu:02d}"


def bus_id(gpu: int) -> str:
    """Return where a GPU sits."""
    return f"00000000:{0x53 + gpu:02X}:00.0"


def _facts(made: Scenario, model: Model) -> Scenario:
    made = (
        made.says("nvmlDeviceGetName", model.name)
        .says("nvmlDeviceGetArchitecture", model.architecture)
        .says("nvmlDeviceGetCudaComputeCapability", model.capability)
        .says("nvmlDeviceGetVbiosVersion", model.vbios)
        .says("nvmlDeviceGetInforomImageVersion", model.inforom)
        .says("nvmlDeviceGetPersistenceMode", 1)
        .says("nvmlDeviceGetComputeMode", 0)
        .says("nvmlDeviceGetVirtualizationMode", 0)
        .says("nvmlDeviceGetMemoryBusWidth", model.bus_bits)
        .says("nvmlDeviceGetSupportedEventTypes", 0x1F)
        .says("nvmlDeviceGetUtilizationRates", {"gpu": 0, "memory": 0})
        .says("nvmlDeviceGetTopologyCommonAncestor", 50)  # NVML_TOPOLOGY_SYSTEM
        .says("nvmlDeviceGetComputeRunningProcesses_v2", "")
        .says("nvmlDeviceGetComputeRunningProcesses_v3", "")
        .says("nvmlDeviceGetGraphicsRunningProcesses_v3", "")
        .says("nvmlDeviceGetMPSComputeRunningProcesses_v3", "")
        .field(230, 0)  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: none
    )
    if model.fabric == "rack":
        made = made.says("nvmlDeviceGetNumaNodeId", 2)  # only where a GPU is a NUMA node of its own, as on Grace
    if model.mig:
        made = made.says("nvmlDeviceGetMigMode", (0, 0)).says("nvmlDeviceGetMaxMigDeviceCount", 7)
    return made


def memory(made: Scenario, total_mib: int, reserved_mib: int, used_mib: int, *, gpu="*", after_s=0.0) -> Scenario:
    """Say how much memory is in use; the first version of the structure counts what is reserved as used."""
    total, reserved, used = (n * MIB for n in (total_mib, reserved_mib, used_mib))
    free = total - reserved - used
    v1 = {"total": total, "free": free, "used": reserved + used}
    v2 = {"total": total, "reserved": reserved, "free": free, "used": used}
    made = made.says("nvmlDeviceGetMemoryInfo", v1, gpu=gpu, after_s=after_s)
    return made.says("nvmlDeviceGetMemoryInfo_v2", v2, gpu=gpu, after_s=after_s)


def _memory(made: Scenario, model: Model) -> Scenario:
    bar1 = 1 << (model.memory_mib * MIB).bit_length()
    bar = {"bar1Total": bar1, "bar1Free": bar1 - MIB, "bar1Used": MIB}
    return memory(made.says("nvmlDeviceGetBAR1MemoryInfo", bar), model.memory_mib, model.reserved_mib, 0)


def _ecc(made: Scenario, model: Model) -> Scenario:
    return (
        made.says("nvmlDeviceGetEccMode", (1, 1))
        .says("nvmlDeviceGetTotalEccErrors", 0)
        .says("nvmlDeviceGetMemoryErrorCounter", 0, of=("*", "*", DRAM))
        .says("nvmlDeviceGetMemoryErrorCounter", 0, of=("*", "*", SRAM))
        .says("nvmlDeviceGetSramEccErrorStatus", {"bThresholdExceeded": 0})
        .says("nvmlDeviceGetRemappedRows", (0, 0, 0, 0))
        .says("nvmlDeviceGetRowRemapperHistogram", {"max": model.banks})
        .says("nvmlDeviceGetRepairStatus", {"bChannelRepairPending": 0, "bTpcRepairPending": 0})
        .field(142, 0)  # the fields of remapped rows: correctable, uncorrectable, pending, failure
        .field(143, 0)
        .field(144, 0)
        .field(145, 0)
    )


def _power_and_heat(made: Scenario, model: Model) -> Scenario:
    limits = dict(zip((SHUTDOWN, SLOWDOWN, GPU_MAX, MEM_MAX), model.limits_c, strict=True))
    for threshold, degrees in limits.items():
        made = made.says("nvmlDeviceGetTemperatureThreshold", degrees, of=threshold)
    for function in ("PowerManagementLimit", "PowerManagementDefaultLimit", "EnforcedPowerLimit"):
        made = made.says(f"nvmlDeviceGet{function}", model.power_w * 1000)
    made = made.says("nvmlDeviceGetPowerManagementLimitConstraints", (model.least_w * 1000, model.power_w * 1000))
    made = heat(made, model.temperature_c, margin_c=limits[GPU_MAX] - model.temperature_c)
    if model.architecture >= ADA:  # older ones know absolute limits only
        for field, threshold in ((193, SHUTDOWN), (194, SLOWDOWN), (196, GPU_MAX)):
            made = made.field(field, limits[GPU_MAX] - limits[threshold], value_type=5)  # a signed int
    return made.says("nvmlDeviceGetPowerUsage", int(model.idle_w * 1000)).says(
        "nvmlDeviceGetTotalEnergyConsumption", 500_000
    )


def heat(made: Scenario, degrees: int, *, margin_c: int, gpu="*") -> Scenario:
    """Say how warm it is, and how far from slowing down."""
    made = made.says("nvmlDeviceGetTemperature", degrees, gpu=gpu, of=0)
    made = made.says("nvmlDeviceGetTemperatureV", {"temperature": degrees}, gpu=gpu)
    return made.says("nvmlDeviceGetMarginTemperature", {"marginTemperature": margin_c}, gpu=gpu).field(
        82, degrees + 4, gpu=gpu
    )


def _clocks(made: Scenario, model: Model) -> Scenario:
    state, idle_mhz, _ = model.idle
    made = made.says("nvmlDeviceGetPerformanceState", state)
    for clock, now, most in ((GRAPHICS, idle_mhz, model.sm_mhz), (SM, idle_mhz, model.sm_mhz)):
        made = made.says("nvmlDeviceGetClockInfo", now, of=clock).says("nvmlDeviceGetMaxClockInfo", most, of=clock)
        made = made.says("nvmlDeviceGetClock", now, of=(clock, 0))
    for function in ("ClockInfo", "MaxClockInfo", "ApplicationsClock", "DefaultApplicationsClock"):
        made = made.says(f"nvmlDeviceGet{function}", model.memory_mhz, of=MEM)
    for function in ("MaxCustomerBoostClock", "ApplicationsClock", "DefaultApplicationsClock"):
        made = made.says(f"nvmlDeviceGet{function}", model.sm_mhz, of=GRAPHICS)
    for kind in ("Throttle", "Event"):  # the same under its old and its new name; idle
        made = made.says(f"nvmlDeviceGetCurrentClocks{kind}Reasons", 0x1)
        made = made.says(f"nvmlDeviceGetSupportedClocks{kind}Reasons", 0x1FF)
    return made.says("nvmlDeviceGetViolationStatus", {"referenceTime": 1, "violationTime": 0})


def _pcie(made: Scenario, model: Model) -> Scenario:
    for number in range(173, 184):  # NVML_FI_DEV_PCIE_COUNT_*
        made = made.field(number, 0)
    return (
        made.says("nvmlDeviceGetMaxPcieLinkGeneration", model.generation)
        .says("nvmlDeviceGetGpuMaxPcieLinkGeneration", model.generation)
        .says("nvmlDeviceGetCurrPcieLinkGeneration", model.idle[2])
        .says("nvmlDeviceGetMaxPcieLinkWidth", 16)
        .says("nvmlDeviceGetCurrPcieLinkWidth", 16)
        .says("nvmlDeviceGetPcieSpeed", 2500 << (model.idle[2] - 1) if model.idle[2] < 3 else 1000 << model.idle[2])
        # Replays since the last reset do no harm: a healthy H100 had 150 [q].
        .says("nvmlDeviceGetPcieReplayCounter", 150)
    )


def _nvlink(made: Scenario, model: Model) -> Scenario:
    if not model.links:
        return made.says("nvmlDeviceGetP2PStatus", 5).says("nvmlDeviceGetP2PStatus", 0, of=("*", 0))
    up = set(range(model.links)) - set(model.down)
    # Links that a GPU does not have are an invalid argument, but are said to be capable (TensorRT-LLM #17060, #19210).
    made = made.fails("nvmlDeviceGetNvLinkState", INVALID_ARGUMENT).says("nvmlDeviceGetNvLinkCapability", 1)
    for link in range(model.links):
        made = made.says("nvmlDeviceGetNvLinkState", int(link in up), of=link)
        made = made.says("nvmlDeviceGetNvLinkVersion", NVLINK_VERSIONS[model.nvlink], of=link)
    remote = 2 if model.switched else 0  # NVML_NVLINK_DEVICE_TYPE_SWITCH and _GPU
    made = made.says("nvmlDeviceGetNvLinkRemoteDeviceType", remote)
    made = made.says("nvmlDeviceGetNvLinkRemotePciInfo_v2", {"domain": 0, "bus": 0xC6, "busId": "00000000:C6:00.0"})
    made = made.says("nvmlDeviceGetP2PStatus", 0)
    if not up:
        made = made.says("nvmlDeviceGetP2PStatus", 5, of=("*", 2))  # NVML_P2P_CAPS_INDEX_NVLINK: not supported
    made = made.field(91, model.links).field(147, len(up) if model.switched else 0)
    return _link_counters(made, model)


def _link_counters(made: Scenario, model: Model) -> Scenario:
    if model.nvlink < 5:  # nvml.h: not supported from Blackwell on
        made = made.says("nvmlDeviceGetNvLinkErrorCounter", 0)
        for number in (38, 45, 52, 59, 160, 161, 162, 163):  # CRC, replay, recovery, ECC of all links, then of each
            made = made.field(number, 0, value_type=3)
        return made
    for number in (206, 207, *range(208, 216), 219, 221, 295):  # errors and recoveries of a port
        made = made.field(number, 0, value_type=3)
    return made


def fabric(made: Scenario, *, gpu="*", after_s=0.0, from_call=0, summary=0, **values) -> Scenario:
    """Say how a GPU is registered with its fabric manager, in all three structures; `state=3` is completed."""
    plain = {"clusterUuid": bytes(16), "status": 0, "cliqueId": 0, "state": 3} | values
    mask = {"healthMask": plain.pop("healthMask", 0)}
    when = {"gpu": gpu, "after_s": after_s, "from_call": from_call}
    made = made.says("nvmlDeviceGetGpuFabricInfo", plain, **when)
    made = made.says("nvmlDeviceGetGpuFabricInfoV", plain | mask, of=2, **when)
    return made.says("nvmlDeviceGetGpuFabricInfoV", plain | mask | {"healthSummary": summary}, of=3, **when)


def _fabric(made: Scenario, model: Model) -> Scenario:
    if model.fabric == "rack":
        guid = {"clusterUuid": bytes(range(1, 17)), "cliqueId": 2}
        place = {"ibGuid": b"\xa0\x88\xc2\x03", "chassisSerialNumber": b"1820000000001", "slotNumber": 14}
        place |= {"trayIndex": 4, "hostId": 1, "peerType": 1, "moduleId": 2}
        made = made.says("nvmlDeviceGetPlatformInfo", place, of=2)
        return fabric(made, summary=HEALTHY, healthMask=NO_TROUBLE, **guid)
    if model.fabric == "hgx":  # no cluster and no clique inside one node; only Blackwell has a summary [q]
        return fabric(made, summary=HEALTHY if model.architecture == BLACKWELL else 0)
    return fabric(made, state=0) if model.fabric == "absent" else made


def mig(model: Model = H100_SXM, *, instances: int = 2) -> Scenario:
    """Return one GPU in MIG mode as a container sees it that was given some of its instances."""
    made = machine(model, 1).says("nvmlDeviceGetMigMode", (1, 1))
    # nvml.h: no remapped rows and no volatile errors of the whole GPU; memory: nvidia-container-toolkit #842.
    made = made.fails("nvmlDeviceGetRemappedRows", NOT_SUPPORTED)
    made = made.fails("nvmlDeviceGetTotalEccErrors", NOT_SUPPORTED, of=("*", 0))
    made = made.fails("nvmlDeviceGetMemoryErrorCounter", NOT_SUPPORTED, of=("*", 0, "*"))
    made = made.fails("nvmlDeviceGetUtilizationRates", NOT_SUPPORTED)
    made = made.fails("nvmlDeviceGetMemoryInfo", NO_PERMISSION).fails("nvmlDeviceGetMemoryInfo_v2", NO_PERMISSION)
    for slot in range(instances):
        made = _instance(made, model, slot)
    return made


def _instance(made: Scenario, model: Model, slot: int) -> Scenario:
    gpu, size = f"0/{slot}", model.memory_mib // 8
    made = memory(made, size, 0, 0, gpu=gpu)
    return (
        made.says("nvmlDeviceGetUUID", mig_uuid(slot), gpu=gpu)
        .says("nvmlDeviceGetName", f"{model.name} MIG 1g.10gb", gpu=gpu)
        .says("nvmlDeviceGetGpuInstanceId", 7 + slot, gpu=gpu)
        .says("nvmlDeviceGetComputeInstanceId", 0, gpu=gpu)
        .says("nvmlDeviceGetAttributes_v2", {"gpuInstanceSliceCount": 1, "memorySizeMB": size}, gpu=gpu)
        .says("nvmlDeviceGetMemoryErrorCounter", 0, gpu=gpu, of=(1, 0, SRAM))  # nvml.h: this one alone
        .says("nvmlDeviceGetComputeRunningProcesses_v3", "", gpu=gpu)
    )


def mig_uuid(slot: int) -> str:
    """Return the UUID of a MIG instance."""
    return f"MIG-0{slot + 1:x}000000-0000-0000-0000-000000000000"
