"""The questions to NVML, asked in a child: plain values, or the reason why there is none; never an exception."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Iterable, Sequence

    # A set of events, the indices of the GPUs that it hears by their handles, and why it does not hear all.
    Listening = tuple[Any, dict[int | None, int], str]

LIBRARY = "libnvidia-ml.so.1"
LOST, RESET_REQUIRED, NOT_SUPPORTED = 15, 16, 3  # NVML_ERROR_*
UNCORRECTED, CORRECTED, VOLATILE, AGGREGATE, DRAM, SRAM = 1, 0, 0, 1, 2, 7
MAX_LINKS = 36  # NVML_NVLINK_MAX_LINKS
# Before driver 510 `used` holds what the driver reserves, too: 912 MB were seen on an A100 (nvml-wrapper #57).
RESERVED_V1 = 1 << 30
LISTEN_MS = 50
MOST_XIDS = 100
XID = 8  # nvmlEventTypeXidCriticalError
# Error counters of links, as nvml.h numbers them: of all links together before Blackwell, of each link from there on.
LINK_FIELDS = {
    "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": 38,
    "NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": 45,
    "NVLINK_REPLAY_ERROR_COUNT_TOTAL": 52,
    "NVLINK_RECOVERY_ERROR_COUNT_TOTAL": 59,
}
PORT_FIELDS = {
    "NVLINK_ERROR_DL_REPLAY": 161,
    "NVLINK_ERROR_DL_RECOVERY": 162,
    "NVLINK_ERROR_DL_CRC": 163,
    "NVLINK_COUNT_RCV_ERRORS": 208,
    "NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS": 214,
    "NVLINK_COUNT_LINK_RECOVERY_EVENTS": 215,
    "NVLINK_COUNT_EFFECTIVE_ERRORS": 219,
    "NVLINK_COUNT_SYMBOL_ERRORS": 221,
}


class GoneError(Exception):
    """The GPU is lost, or wants a reset."""


class OthersError(Exception):
    """The GPU is not ours to use, as where a device cgroup leaves a container only some."""


def read_all(
    groups: Sequence[str], *, again: Sequence[str], times: int, pause: Callable[[], None], place: mmap.mmap
) -> dict[str, Any]:
    """Return the arguments of a `Reading`, `samples` instead of `gpus`."""
    _asks(place, "the library")
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        return {"state": "missing", "reason": str(error)}
    import pynvml as nvml

    try:
        _asks(place, "its start")
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        return {"state": "broken", "reason": str(error), "code": error.value}
    unread: dict[str, str] = {}
    events = _told(nvml, "xids", _listen, count, unread) if "xid" in groups else None
    if events and (deaf := events[2]):
        unread["xids"] = deaf
    samples = [_gpus(nvml, count, groups, place)]
    for _ in range(times - 1):
        pause()
        samples.append(_gpus(nvml, count, ("identity", *again), place))
    _asks(place, "the driver")
    return {
        "state": "ok",
        "driver": _told(nvml, "driver", lambda nvml, _: _text(nvml.nvmlSystemGetDriverVersion()), None, unread) or "",
        # It asks libcuda, which a container without the capability `compute` has not.
        "cuda": _told(nvml, "cuda", lambda nvml, _: int(nvml.nvmlSystemGetCudaDriverVersion_v2()), None, unread) or 0,
        "samples": samples,
        "others": count - len(samples[0]),
        "xids": _heard(nvml, events),
        "unread": unread,
    }


def _told(nvml: Any, name: str, question: Callable[[Any, Any], Any], about: Any, unread: dict[str, str]) -> Any:
    """Return the answer to a question that is about no GPU; without one, None, and the reason is put into `unread`."""
    try:
        answer, reason = _ask(nvml, question, about)
    except GoneError as error:
        answer, reason = None, str(error)
    if reason:
        unread[name] = reason
    return answer


def _gpus(nvml: Any, count: int, groups: Sequence[str], place: mmap.mmap) -> list[dict[str, Any]]:
    """Return what NVML says of each GPU that we may use."""
    found = []
    for index in range(count):
        with suppress(OthersError):
            found.append(_gpu(nvml, index, groups, place))
    return found


def _asks(place: mmap.mmap, *about: str) -> None:
    """Say what we ask about: a word, or a GPU's index, UUID and PCI address as far as they are known."""
    place[:] = "\t".join(about).encode()[: len(place)].ljust(len(place), b"\0")


def _gpu(nvml: Any, index: int, groups: Iterable[str], place: mmap.mmap) -> dict[str, Any]:
    _asks(place, str(index))
    values: dict[str, Any] = {"index": index, "unread": {}}
    try:
        handle, reason = _ask(nvml, _handle, index)
        if reason:
            return values | {"gone": f"NVML gives no handle for it: {reason}"}
        for group in ("identity", *(g for g in groups if g in GROUPS)):
            for name, question in GROUPS[group].items():
                values[name], reason = _ask(nvml, question, handle)
                if reason:
                    values["unread"][name] = reason
            _asks(place, str(index), values["uuid"] or "", values["pci"] or "")
        for name in ("uuid", "pci", "name"):
            values[name] = values[name] or ""
    except GoneError as error:
        values["gone"] = str(error)
    return {name: value for name, value in values.items() if value is not None}


def _handle(nvml: Any, index: int) -> Any:
    try:
        return nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError_NoPermission as error:
        raise OthersError from error


def _ask(nvml: Any, question: Callable[[Any, Any], Any], device: Any) -> tuple[Any, str]:
    """Return the answer, or None and the reason."""
    try:
        return question(nvml, device), ""
    except nvml.NVMLError as error:
        if error.value in (LOST, RESET_REQUIRED):
            raise GoneError(str(error)) from error
        return None, str(error)
    except (nvml.NVMLLibraryMismatchError, AttributeError) as error:  # an old driver; an old nvidia-ml-py
        return None, str(error)


def _fields(nvml: Any, gpu: Any, wanted: Sequence[int | tuple[int, int]]) -> list[int | None]:
    """Return numbers by NVML's field ids, or (id, link) pairs; None for what this GPU does not have."""
    found: list[int | None] = []
    for value in nvml.nvmlDeviceGetFieldValues(gpu, list(wanted)):
        if value.nvmlReturn in (LOST, RESET_REQUIRED):
            raise nvml.NVMLError(value.nvmlReturn)
        members = {1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal"}  # by NVML_VALUE_TYPE_*
        member = members.get(value.valueType)
        found.append(getattr(value.value, member) if value.nvmlReturn == 0 and member else None)
    return found


def _field(number: int) -> Callable[[Any, Any], int]:
    def ask(nvml: Any, gpu: Any) -> int:
        value = _fields(nvml, gpu, [number])[0]
        if value is None:
            raise nvml.NVMLError(NOT_SUPPORTED)
        return value

    return ask


def _plain(function: str, *arguments: Any, to: Callable[[Any], Any] = int) -> Callable[[Any, Any], Any]:
    return lambda nvml, gpu: to(getattr(nvml, function)(gpu, *arguments))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _mig(nvml: Any, gpu: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(gpu)[0] == 1)
    except nvml.NVMLError_NotSupported:  # a model without it
        return False


def _memory(nvml: Any, gpu: Any) -> int:
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(gpu, version=nvml.nvmlMemory_v2).used)
    except (nvml.NVMLError_FunctionNotFound, AttributeError):
        return max(0, int(nvml.nvmlDeviceGetMemoryInfo(gpu).used) - RESERVED_V1)


def _instances(nvml: Any, gpu: Any) -> dict[str, tuple[int, int]]:
    """Return used and total bytes of each MIG instance that we may ask, by its UUID."""
    found = {}
    for slot in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu) if _mig(nvml, gpu) else 0):
        with suppress(nvml.NVMLError):  # an empty slot
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, slot)
            total = int(nvml.nvmlDeviceGetMemoryInfo(instance).total)
            found[_text(nvml.nvmlDeviceGetUUID(instance))] = (_memory(nvml, instance), total)
    return found


def _processes(nvml: Any, gpu: Any) -> tuple[int, ...]:
    return tuple(int(process.pid) for process in nvml.nvmlDeviceGetComputeRunningProcesses(gpu))


def _sram_exceeded(nvml: Any, gpu: Any) -> bool:
    status = nvml.c_nvmlEccSramErrorStatus_v1_t()
    nvml.nvmlDeviceGetSramEccErrorStatus(gpu, ctypes.byref(status))
    return bool(status.bThresholdExceeded)


def _retired(nvml: Any, gpu: Any) -> int:
    return sum(len(nvml.nvmlDeviceGetRetiredPages(gpu, cause)) for cause in (0, 1))


def _links(nvml: Any, gpu: Any) -> dict[int, bool]:
    """Return the links that this GPU has. Those that it has not are refused, each driver with another error."""
    states = {}
    for link in range(MAX_LINKS):
        try:
            states[link] = nvml.nvmlDeviceGetNvLinkState(gpu, link) == 1
        except nvml.NVMLError as error:
            if error.value in (LOST, RESET_REQUIRED):
                raise
    return states


def _link_errors(nvml: Any, gpu: Any) -> dict[str, int]:
    keys = list(LINK_FIELDS)
    wanted: list[int | tuple[int, int]] = list(LINK_FIELDS.values())
    for link in _links(nvml, gpu):
        keys += [f"{name}[{link}]" for name in PORT_FIELDS]
        wanted += [(number, link) for number in PORT_FIELDS.values()]
    found = zip(keys, _fields(nvml, gpu, wanted), strict=True)
    return {name: value for name, value in found if value is not None}


def _p2p(nvml: Any, gpu: Any) -> dict[int, tuple[int, int]]:
    """Return the status towards each other GPU. NVML_P2P_CAPS_INDEX_READ is 0; nvidia-ml-py has a tuple there."""
    found = {}
    own = nvml.nvmlDeviceGetIndex(gpu)
    for other in range(nvml.nvmlDeviceGetCount()):
        if other != own:
            with suppress(nvml.NVMLError):  # the other one may be lost
                peer = nvml.nvmlDeviceGetHandleByIndex(other)
                nvlink, read = (int(nvml.nvmlDeviceGetP2PStatus(gpu, peer, index)) for index in (2, 0))
                found[other] = (nvlink, read)
    return found


def _fabric(nvml: Any, gpu: Any) -> dict[str, int]:
    """Return the newest version of the answer that the driver has; 580 has the third, 550 the second."""
    for structure in ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t"):
        with suppress(nvml.NVMLError_ArgumentVersionMismatch, nvml.NVMLError_FunctionNotFound, AttributeError):
            info = getattr(nvml, structure)()
            nvml.nvmlDeviceGetGpuFabricInfoV(gpu, ctypes.byref(info))
            summary = getattr(info, "healthSummary", 0)
            return {"state": info.state, "status": info.status, "mask": info.healthMask, "summary": summary}
    info = nvml.c_nvmlGpuFabricInfo_t()
    nvml.nvmlDeviceGetGpuFabricInfo(gpu, ctypes.byref(info))
    return {"state": info.state, "status": info.status, "mask": 0, "summary": 0}


def _reasons(nvml: Any, gpu: Any) -> int:
    try:
        return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu))
    except (nvml.NVMLError_FunctionNotFound, AttributeError):  # its name before driver 535
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))


def _watts(value: int) -> float:
    return value / 1000


def _counter(kind: int, life: int, location: int) -> Callable[[Any, Any], Any]:
    return _plain("nvmlDeviceGetMemoryErrorCounter", kind, life, location)


GROUPS: dict[str, dict[str, Callable[[Any, Any], Any]]] = {
    "identity": {
        "uuid": _plain("nvmlDeviceGetUUID", to=_text),
        "pci": _plain("nvmlDeviceGetPciInfo", to=lambda info: _text(info.busId)),
        "name": _plain("nvmlDeviceGetName", to=_text),
        "mig": _mig,
    },
    "recovery": {"recovery_action": _field(230)},  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, from driver 570 on
    "state": {
        "persistence": _plain("nvmlDeviceGetPersistenceMode", to=bool),
        "compute_mode": _plain("nvmlDeviceGetComputeMode"),
        "vbios": _plain("nvmlDeviceGetVbiosVersion", to=_text),
        "repair_pending": _plain("nvmlDeviceGetRepairStatus", to=any),
    },
    "rows": {
        "remapped": _plain("nvmlDeviceGetRemappedRows", to=tuple),
        "banks_without_rows": _plain("nvmlDeviceGetRowRemapperHistogram", to=lambda rows: int(rows.none)),
        "retired": _retired,
        "retired_pending": _plain("nvmlDeviceGetRetiredPagesPendingStatus", to=bool),
    },
    "ecc": {
        "ecc_on": _plain("nvmlDeviceGetEccMode", to=lambda modes: modes[0] == 1),
        "ecc_uncorrected_sram": _counter(UNCORRECTED, VOLATILE, SRAM),
        "ecc_uncorrected_dram": _counter(UNCORRECTED, VOLATILE, DRAM),
        "ecc_corrected": _counter(CORRECTED, VOLATILE, DRAM),
    },
    "sram": {"sram_exceeded": _sram_exceeded, "sram_aggregate": _counter(UNCORRECTED, AGGREGATE, SRAM)},
    "memory": {
        "memory_total": _plain("nvmlDeviceGetMemoryInfo", to=lambda memory: int(memory.total)),
        "memory_used": _memory,
        "instances": _instances,
        "numa_node": _plain("nvmlDeviceGetNumaNodeId"),
        "processes": _processes,
    },
    "links": {"links": _links, "p2p": _p2p},
    "errors": {"link_errors": _link_errors, "pcie_replays": _plain("nvmlDeviceGetPcieReplayCounter")},
    "fabric": {"fabric": _fabric},
    "pcie": {
        "pcie_generation": _plain("nvmlDeviceGetCurrPcieLinkGeneration"),
        "pcie_generation_max": _plain("nvmlDeviceGetMaxPcieLinkGeneration"),
        "pcie_width": _plain("nvmlDeviceGetCurrPcieLinkWidth"),
        "pcie_width_max": _plain("nvmlDeviceGetMaxPcieLinkWidth"),
        "performance_state": _plain("nvmlDeviceGetPerformanceState"),
    },
    "clocks": {"clock_reasons": _reasons, "sm_mhz": _plain("nvmlDeviceGetClockInfo", 1)},
    "heat": {
        "busy_percent": _plain("nvmlDeviceGetUtilizationRates", to=lambda rates: int(rates.gpu)),
        "temperature_c": _plain("nvmlDeviceGetTemperature", 0),
        "slowdown_c": _plain("nvmlDeviceGetTemperatureThreshold", 1),
        "tlimit_c": _plain("nvmlDeviceGetMarginTemperature"),
        "tlimit_slowdown_c": _field(194),  # NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT
        "power_limit_w": _plain("nvmlDeviceGetEnforcedPowerLimit", to=_watts),
        "power_default_w": _plain("nvmlDeviceGetPowerManagementDefaultLimit", to=_watts),
    },
    "capability": {"capability": _plain("nvmlDeviceGetCudaComputeCapability", to=tuple)},
}


def listen() -> Callable[[], list[tuple[int, int]]]:
    """Hear the XIDs of all GPUs from now on; return what gives those that came since."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return partial(_heard, pynvml, _listen(pynvml, pynvml.nvmlDeviceGetCount()))
    except pynvml.NVMLError:  # read_all says more
        return list


def _listen(nvml: Any, count: int) -> Listening:
    """Hear the XIDs of all GPUs that can tell."""
    events, indices, deaf = nvml.nvmlEventSetCreate(), {}, []
    for index in range(count):
        with suppress(nvml.NVMLError):  # lost, or not ours to use
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            try:
                nvml.nvmlDeviceRegisterEvents(gpu, XID, events)
                indices[_address(gpu)] = index
            except nvml.NVMLError as error:  # as of a model without events
                deaf.append(f"GPU {index}: {error}")
    return events, indices, "; ".join(deaf)


def _heard(nvml: Any, listening: Listening | None) -> list[tuple[int, int]]:
    heard: list[tuple[int, int]] = []
    while listening and len(heard) < MOST_XIDS:
        try:
            data = nvml.nvmlEventSetWait_v2(listening[0], LISTEN_MS)
        except nvml.NVMLError:  # a timeout: nothing more has happened
            break
        # A GPU that is lost no longer tells its index, but its handle stays the same.
        heard.append((listening[1].get(_address(data.device), -1), int(data.eventData)))
    return heard


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
