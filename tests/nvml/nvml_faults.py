"""
One fault at a time for a healthy machine: FAULTS has each by name, as a function of the machine and a GPU.

The names and numbers follow the checks that look for them: who changes a threshold there finds the trap here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvml_machines import DRAM, GRAPHICS, MIB, SM, SRAM, fabric, heat, memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from nvml_scenario import Scenario

UNCORRECTED, VOLATILE, AGGREGATE = 1, 0, 1
RESET_REQUIRED, NOT_LOADED, DRIVER_MISMATCH, UNKNOWN = 16, 9, 18, 999
EVENT_REASONS = ("nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetCurrentClocksEventReasons")
HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x8, 0x20, 0x40, 0x80


def not_loaded(made: Scenario, gpu: int) -> Scenario:
    """The kernel module is not there."""
    return made.fails("nvmlInitWithFlags", NOT_LOADED)


def driver_mismatch(made: Scenario, gpu: int) -> Scenario:
    """The driver was upgraded under a running kernel module."""
    return made.fails("nvmlInitWithFlags", DRIVER_MISMATCH)


def hung_driver(made: Scenario, gpu: int) -> Scenario:
    """Nothing ever answers."""
    return made.hangs("nvmlInitWithFlags")


def hung_gpu(made: Scenario, gpu: int) -> Scenario:
    """One GPU's temperature is never read."""
    return made.hangs("nvmlDeviceGetTemperature", gpu=gpu).hangs("nvmlDeviceGetTemperatureV", gpu=gpu)


def one_less(made: Scenario, gpu: int) -> Scenario:
    """The last of eight GPUs is gone."""
    return made.says("nvmlDeviceGetCount_v2", 7)


def lost(made: Scenario, gpu: int) -> Scenario:
    """A GPU fell off the bus before we came."""
    return made.loses(gpu)


def lost_meanwhile(made: Scenario, gpu: int) -> Scenario:
    """A GPU falls off the bus while we ask."""
    return made.loses(gpu, from_call=4)


def reset_required(made: Scenario, gpu: int) -> Scenario:
    """A GPU wants to be reset."""
    return made.loses(gpu, code=RESET_REQUIRED)


def recovery_action(action: int) -> Callable[[Scenario, int], Scenario]:
    """The driver asks for something: 1 a reset, 2 a reboot, 3 drain P2P, 4 drain and reset, 5 IMEX, 6 bus, 7 system."""
    return lambda made, gpu: made.field(230, action, gpu=gpu)


def remapped_rows(*rows: int) -> Callable[[Scenario, int], Scenario]:
    """Rows remapped for corrected and uncorrected errors, whether one is pending, whether one failed."""

    def fault(made: Scenario, gpu: int) -> Scenario:
        for number, value in enumerate(rows, start=142):
            made = made.field(number, value, gpu=gpu)
        return made.says("nvmlDeviceGetRemappedRows", rows, gpu=gpu)

    return fault


def no_spare_rows(made: Scenario, gpu: int) -> Scenario:
    """Two banks have no spare row left."""
    return made.says("nvmlDeviceGetRowRemapperHistogram", {"max": 2558, "none": 2}, gpu=gpu)


def ecc(location: int, count: int, *, kind: int = UNCORRECTED, rising: bool = False) -> Callable:
    """Errors since the driver was loaded; when rising, they come from the second question on."""

    def fault(made: Scenario, gpu: int) -> Scenario:
        when = {"gpu": gpu, "from_call": 2 if rising else 0}
        made = made.says("nvmlDeviceGetMemoryErrorCounter", count, of=(kind, "*", location), **when)
        return made.says("nvmlDeviceGetTotalEccErrors", count, of=(kind, "*"), **when)

    return fault


def ecc_off(made: Scenario, gpu: int) -> Scenario:
    """Nothing corrects errors."""
    return made.says("nvmlDeviceGetEccMode", (0, 0), gpu=gpu)


def sram_threshold(made: Scenario, gpu: int) -> Scenario:
    """The driver says itself that there were too many SRAM errors."""
    status = {"aggregateUncSecDed": 5, "aggregateUncBucketSm": 5, "bThresholdExceeded": 1}
    return made.says("nvmlDeviceGetSramEccErrorStatus", status, gpu=gpu)


def sram_status_forbidden(made: Scenario, gpu: int) -> Scenario:
    """No fault: nvml.h says that this question needs root."""
    return made.fails("nvmlDeviceGetSramEccErrorStatus", 4)


def repair_pending(made: Scenario, gpu: int) -> Scenario:
    """A memory channel will be repaired at the next reset."""
    return made.says("nvmlDeviceGetRepairStatus", {"bChannelRepairPending": 1}, gpu=gpu)


def xid(number: int) -> Callable[[Scenario, int], Scenario]:
    """An XID while we listen."""
    return lambda made, gpu: made.raises(number, gpu=gpu)


def link_down(made: Scenario, gpu: int) -> Scenario:
    """One of a GPU's links is inactive."""
    return made.says("nvmlDeviceGetNvLinkState", 0, gpu=gpu, of=3)


def all_links_down(made: Scenario, gpu: int) -> Scenario:
    """Every link of every GPU, as when nobody set the switches up."""
    links = sum(line.question.startswith("*.nvmlDeviceGetNvLinkVersion") for line in made.lines)
    for link in range(links):
        made = made.says("nvmlDeviceGetNvLinkState", 0, of=link)
    return made


def link_errors(made: Scenario, gpu: int) -> Scenario:
    """A link's counters rise between two questions, under whatever name the GPU's age gives them."""
    when = {"gpu": gpu, "from_call": 2}
    for number in (161, 162, 163, 208, 215, 221, 295):
        made = made.field(number, 1234, scope=3, value_type=3, **when)
    return made.says("nvmlDeviceGetNvLinkErrorCounter", 1234, of=(3, "*"), **when)


def link_lost(made: Scenario, gpu: int) -> Scenario:
    """A link is not recovered, and has more errors than that between two questions."""
    for number, value in ((214, 1), (221, 1234)):  # which GPUs before Blackwell have not
        made = made.field(number, 0, gpu=gpu, scope=3, value_type=3)
        made = made.field(number, value, gpu=gpu, scope=3, value_type=3, from_call=2)
    return made


def one_way_p2p(made: Scenario, gpu: int) -> Scenario:
    """One GPU cannot read from its neighbour over NVLink, which can read from it."""
    neighbour = (gpu + 1) % 8
    for capability in (0, 2):  # NVML_P2P_CAPS_INDEX_READ and _NVLINK
        made = made.says("nvmlDeviceGetP2PStatus", 6, gpu=gpu, of=(neighbour, capability))  # unknown
    return made


def fabric_state(**values) -> Callable[[Scenario, int], Scenario]:
    """The fabric says this of one GPU: `state` 1 not started, 2 in progress, 3 completed with a `status`."""
    return lambda made, gpu: fabric(made, gpu=gpu, **values)


def fabric_late(made: Scenario, gpu: int) -> Scenario:
    """No fault for those who wait: after a reboot the links train for a while (FACTS: NVSentinel #1701)."""
    return fabric(fabric(made, state=2), after_s=0.5)


def narrow_pcie(made: Scenario, gpu: int) -> Scenario:
    """Half of the lanes."""
    return made.says("nvmlDeviceGetCurrPcieLinkWidth", 8, gpu=gpu)


def slow_pcie(made: Scenario, gpu: int) -> Scenario:
    """The first generation of PCIe: what an idle GPU may show, a busy one may not."""
    return made.says("nvmlDeviceGetCurrPcieLinkGeneration", 1, gpu=gpu).says("nvmlDeviceGetPcieSpeed", 2500, gpu=gpu)


def pcie_errors(made: Scenario, gpu: int) -> Scenario:
    """Replays and bad packets between two questions."""
    made = made.says("nvmlDeviceGetPcieReplayCounter", 5000, gpu=gpu, from_call=2)
    return made.field(173, 12, gpu=gpu, from_call=2).field(176, 12, gpu=gpu, from_call=2)


def throttled(reasons: int, *, from_call: int = 0) -> Callable[[Scenario, int], Scenario]:
    """Clocks are held down, from the n-th look on."""

    def fault(made: Scenario, gpu: int) -> Scenario:
        for function in EVENT_REASONS:
            made = made.says(function, reasons, gpu=gpu, from_call=from_call)
        for clock in (GRAPHICS, SM):
            made = made.says("nvmlDeviceGetClockInfo", 345, gpu=gpu, of=clock, from_call=from_call)
        return made

    return fault


def capped_power(made: Scenario, gpu: int) -> Scenario:
    """Somebody left a limit of 500 W behind."""
    return made.says("nvmlDeviceGetEnforcedPowerLimit", 500_000, gpu=gpu)


def hot(degrees: int, *, margin_c: int) -> Callable[[Scenario, int], Scenario]:
    """Warm, with so many degrees left."""
    return lambda made, gpu: heat(made, degrees, margin_c=margin_c, gpu=gpu)


def no_persistence(made: Scenario, gpu: int) -> Scenario:
    """The driver forgets the GPU between processes; healthy B200 nodes had it so."""
    return made.says("nvmlDeviceGetPersistenceMode", 0, gpu=gpu)


def compute_mode(mode: int) -> Callable[[Scenario, int], Scenario]:
    """Whom the GPU serves: 2 nobody, 3 a single process."""
    return lambda made, gpu: made.says("nvmlDeviceGetComputeMode", mode, gpu=gpu)


def leftover(used_mib: int, *, freed_after_s: float = 0.0) -> Callable[[Scenario, int], Scenario]:
    """Memory of somebody before us, of an H100, with a process that may be in another PID namespace."""

    def fault(made: Scenario, gpu: int) -> Scenario:
        made = memory(made, 81559, 480, used_mib, gpu=gpu)
        for version in ("_v2", "_v3"):
            process = f"4711:{used_mib * MIB}"
            made = made.says(f"nvmlDeviceGetComputeRunningProcesses{version}", process, gpu=gpu)
        return memory(made, 81559, 480, 0, gpu=gpu, after_s=freed_after_s) if freed_after_s else made

    return fault


def other_vbios(made: Scenario, gpu: int) -> Scenario:
    """One board differs from its neighbours."""
    return made.says("nvmlDeviceGetVbiosVersion", "96.00.74.00.01", gpu=gpu)


# How long links that are down may still come up.
SOON = {"TRAINER_AGENT_GPU_THRESHOLDS": '{"fabric_s": 2}'}
FAULTS: dict[str, Callable[[Scenario, int], Scenario]] = {
    "not-loaded": not_loaded,
    "driver-mismatch": driver_mismatch,
    "hung-driver": hung_driver,
    "hung-gpu": hung_gpu,
    "one-less": one_less,
    "lost": lost,
    "lost-meanwhile": lost_meanwhile,
    "reset-required": reset_required,
    **{f"recovery-action-{n}": recovery_action(n) for n in range(1, 8)},
    "remap-failed": remapped_rows(0, 8, 0, 1),
    "remap-pending": remapped_rows(0, 1, 1, 0),
    "remapped-rows-many": remapped_rows(0, 513, 0, 0),
    "no-spare-rows": no_spare_rows,
    "sram-uncorrected": ecc(SRAM, 1),
    "dram-uncorrected": ecc(DRAM, 1),
    "dram-uncorrected-rising": ecc(DRAM, 3, rising=True),
    "dram-corrected": ecc(DRAM, 50_000_001, kind=0),
    "ecc-off": ecc_off,
    "sram-threshold": sram_threshold,
    "sram-status-forbidden": sram_status_forbidden,
    "repair-pending": repair_pending,
    "xid-79": xid(79),
    "xid-31": xid(31),
    "link-down": link_down,
    "all-links-down": all_links_down,
    "link-errors": link_errors,
    "link-lost": link_lost,
    "one-way-p2p": one_way_p2p,
    "fabric-not-started": fabric_state(state=1),
    "fabric-in-progress": fabric_state(state=2),
    "fabric-late": fabric_late,
    "fabric-failed": fabric_state(status=UNKNOWN),
    "fabric-degraded-bandwidth": fabric_state(healthMask=0b10101001, summary=2),
    "fabric-route-unhealthy": fabric_state(healthMask=0b10011010, summary=2),
    "fabric-unhealthy": fabric_state(healthMask=0b10101010, summary=2),
    "fabric-limited-capacity": fabric_state(healthMask=0b10101010, summary=3),
    "narrow-pcie": narrow_pcie,
    "slow-pcie": slow_pcie,
    "pcie-errors": pcie_errors,
    "hw-thermal-slowdown": throttled(HW_SLOWDOWN | HW_THERMAL),
    "power-brake": throttled(HW_SLOWDOWN | POWER_BRAKE),
    "sw-thermal-slowdown": throttled(SW_THERMAL),
    "throttled-later": throttled(HW_SLOWDOWN | HW_THERMAL, from_call=8),
    "capped-power": capped_power,
    "hot": hot(78, margin_c=9),
    "too-hot": hot(91, margin_c=-4),
    "no-persistence": no_persistence,
    "compute-prohibited": compute_mode(2),
    "compute-exclusive": compute_mode(3),
    "leftover-memory": leftover(1100),
    "leftover-memory-much": leftover(30_000),
    "leftover-memory-freed": leftover(30_000, freed_after_s=0.5),
    "other-vbios": other_vbios,
}
