"""How the stand-in fails: errors, hangs, lost GPUs, old drivers, values that change, events."""

import os
import time

import pynvml
import pytest
from nvml_faults import FAULTS
from nvml_machines import h100_sxm, machine, mig
from nvml_models import GB200, H100_SXM
from nvml_reading import OTHER_GPU, ask
from nvml_scenario import Scenario

from trainer_agent.isolation import CrashedError, TimedOutError, isolated

pytestmark = pytest.mark.lab


def read(nvml_standin, scenario, *rows, gpu=0):
    """Return the answers to the rows on that machine."""
    return nvml_standin.call(scenario, lambda: ask(rows, gpu=gpu)[0])


def initialized():
    """Return what becomes of the first call."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return type(error).__name__
    return "ready"


ERRORS = {
    getattr(pynvml, name): f"NVMLError_{name.removeprefix('NVML_ERROR_').title().replace('_', '')}"
    for name in dir(pynvml)
    if name.startswith("NVML_ERROR_")
}


def test_every_error_code_becomes_its_exception(nvml_standin):
    """For one function of one GPU; its neighbours answer."""
    scenario = h100_sxm()
    for code in ERRORS:
        scenario = scenario.fails("nvmlDeviceGetTemperatureThreshold", code, gpu=1, of=code)
    rows = [("nvmlDeviceGetTemperatureThreshold", code) for code in ERRORS]

    assert list(ERRORS.values()) == read(nvml_standin, scenario, *rows, gpu=1)
    assert [89] == read(nvml_standin, scenario, ("nvmlDeviceGetTemperatureThreshold", 1), gpu=2)


def test_a_field_fails_by_itself(nvml_standin):
    """The call succeeds, and so do the other fields."""
    scenario = h100_sxm().field_fails(230, pynvml.NVML_ERROR_GPU_IS_LOST)
    (fields,) = read(nvml_standin, scenario, ("nvmlDeviceGetFieldValues", [82, 230]))

    assert [(82, 0, 1, 0, 34), (230, 0, 0, pynvml.NVML_ERROR_GPU_IS_LOST, 0)] == fields


@pytest.mark.parametrize(
    "fault, becomes",
    [
        ("not-loaded", "NVMLError_DriverNotLoaded"),
        ("driver-mismatch", "NVMLError_LibRmVersionMismatch"),
        ("lost", "ready"),
    ],
)
def test_a_driver_that_does_not_start(nvml_standin, fault, becomes):
    """A library without its kernel module, or with another's; one lost GPU does not stop it."""
    assert becomes == nvml_standin.call(FAULTS[fault](h100_sxm(), 3), initialized)


def test_nothing_answers_before_the_beginning_and_after_the_end(nvml_standin):
    """As the real library, which counts its users."""

    def used():
        pynvml._LoadNvmlLibrary()
        found = []
        for step in (None, pynvml.nvmlInit, pynvml.nvmlInit, pynvml.nvmlShutdown, pynvml.nvmlShutdown):
            if step:
                step()
            try:
                found.append(pynvml.nvmlDeviceGetCount())
            except pynvml.NVMLError_Uninitialized:
                found.append(None)
        return found

    assert [None, 8, 8, 8, None] == nvml_standin.call(h100_sxm(), used)


@pytest.mark.parametrize("fault", ["hung-driver", "hung-gpu"])
def test_a_hang_ends_only_with_its_process(nvml_standin, fault):
    """A deadline kills the child that asks, and only there is anything stuck."""
    scenario = FAULTS[fault](h100_sxm(), 3)

    with pytest.raises(TimedOutError, match=r"^no answer within 0\.3 s$"):
        nvml_standin.call(scenario, lambda: ask([("nvmlDeviceGetTemperature", 0)], gpu=3), timeout_s=0.3)


def test_a_hung_gpu_leaves_the_others_alone(nvml_standin):
    """One question of one GPU hangs."""
    scenario = FAULTS["hung-gpu"](h100_sxm(), 3)

    assert [30] == read(nvml_standin, scenario, ("nvmlDeviceGetTemperature", 0), gpu=2)
    assert [700_000] == read(nvml_standin, scenario, ("nvmlDeviceGetEnforcedPowerLimit",), gpu=3)


def test_a_gpu_that_falls_off_the_bus(nvml_standin):
    """It answers three times, then never again, to nobody; its neighbours stay, and they are still counted."""
    scenario = FAULTS["lost-meanwhile"](h100_sxm(), 3)
    rows = [("nvmlDeviceGetIndex",)] * 3 + [("nvmlDeviceGetFieldValues", [230]), ("nvmlDeviceGetCount",)]
    rows += [("nvmlDeviceGetHandleByIndex", 3), ("nvmlDeviceGetName",)]
    gone = "NVMLError_GpuIsLost"

    assert [3, 3, gone, gone, 8, gone, gone] == read(nvml_standin, scenario, *rows, gpu=3)
    assert [2] == read(nvml_standin, scenario, ("nvmlDeviceGetIndex",), gpu=2)


def test_an_instance_is_lost_with_its_gpu(nvml_standin):
    """MIG instances are parts of a board."""
    scenario = mig().loses(0, from_call=3)
    rows = [("nvmlDeviceGetName",)] * 2

    assert ["NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVMLError_GpuIsLost"] == nvml_standin.call(
        scenario, lambda: ask(rows, instance=1)[0]
    )


def test_calls_are_counted_over_all_processes(nvml_standin):
    """A check may ask in one child, and again in another: for a machine that is the second question."""
    scenario = h100_sxm().says("nvmlDeviceGetPcieReplayCounter", 151, from_call=2)
    rows = [("nvmlDeviceGetPcieReplayCounter",)]

    def in_two_children():
        return [isolated(lambda: ask(rows)[0], timeout_s=10) for _ in range(2)]

    assert [[150], [151]] == nvml_standin.call(scenario, in_two_children)


def test_a_value_changes_with_time(nvml_standin):
    """The fabric of a node that has just booted; half a second after the first question it is there."""
    info = [("nvmlDeviceGetGpuFabricInfoV", pynvml.c_nvmlGpuFabricInfo_v3_t)]

    def until_completed():
        began = time.monotonic()
        states = set()
        while 3 not in states and time.monotonic() < began + 60:
            states.add(ask(info)[0][0]["state"])
        return states, time.monotonic() - began

    states, seconds = nvml_standin.call(FAULTS["fabric-late"](h100_sxm(), 0), until_completed)

    assert {2, 3} == states
    assert seconds > 0.4


def test_every_scenario_begins_anew(nvml_standin):
    """What one test counted is not another's."""
    scenario = FAULTS["lost-meanwhile"](h100_sxm(1), 0)
    rows = [("nvmlDeviceGetIndex",)] * 3

    assert read(nvml_standin, scenario, *rows) == read(nvml_standin, scenario, *rows)


MISSING, MISMATCH = "NVMLError_FunctionNotFound", "NVMLLibraryMismatchError"
REFUSED, UNKNOWN_FIELD = "NVMLError_ArgumentVersionMismatch", pynvml.NVML_ERROR_INVALID_ARGUMENT
FABRIC_V3 = ("nvmlDeviceGetGpuFabricInfoV", pynvml.c_nvmlGpuFabricInfo_v3_t)
FABRIC_V2 = ("nvmlDeviceGetGpuFabricInfoV", pynvml.c_nvmlGpuFabricInfo_v2_t)


@pytest.mark.parametrize(
    "branch, driver, cuda, found",
    [
        (450, "450.248.02", 11000, [MISMATCH, MISSING, MISSING, MISSING, MISSING, MISSING, MISSING]),
        (470, "470.256.02", 11040, [MISMATCH, MISSING, MISSING, MISSING, MISSING, MISSING, MISSING]),
        (525, "525.147.05", 12000, [[], 0, MISSING, MISSING, MISSING, MISSING, MISSING]),
        (535, "535.247.01", 12020, [[], 0, 1, MISSING, MISSING, MISSING, MISSING]),
        (550, "550.163.01", 12040, [[], 0, 1, 3, REFUSED, MISSING, MISSING]),
        (570, "570.148.08", 12080, [[], 0, 1, 3, REFUSED, 57, MISSING]),
        (580, "580.105.08", 13000, [[], 0, 1, 3, 3, 57, [0, 0]]),
    ],
)
def test_old_drivers_lack_functions(nvml_standin, branch, driver, cuda, found):
    """The loader does not find them, and what nvidia-ml-py makes of that is not always an NVMLError."""
    rows = [
        ("nvmlSystemGetDriverVersion",),
        ("nvmlSystemGetCudaDriverVersion",),
        ("nvmlDeviceGetComputeRunningProcesses",),
        ("nvmlDeviceGetMemoryInfo", pynvml.nvmlMemory_v2),
        ("nvmlDeviceGetCurrentClocksEventReasons",),
        FABRIC_V2,
        FABRIC_V3,
        ("nvmlDeviceGetMarginTemperature",),
        ("nvmlDeviceGetRepairStatus",),
    ]
    answers = read(nvml_standin, machine(H100_SXM, 1).on_driver(branch), *rows)

    assert [driver, cuda, *found] == [
        a.get("used", a.get("state")) if isinstance(a, dict) else a  # of a structure the one member that matters here
        for a in answers
    ]


@pytest.mark.parametrize("branch, code", [(550, UNKNOWN_FIELD), (570, 0)])
def test_old_drivers_do_not_know_new_fields(nvml_standin, branch, code):
    """The recovery action came with 570."""
    (fields,) = read(nvml_standin, h100_sxm(1).on_driver(branch), ("nvmlDeviceGetFieldValues", [230, 143]))

    assert [code, 0] == [f[3] for f in fields]


def test_a_function_may_be_missing_by_itself(nvml_standin):
    """As in a library between two branches."""
    scenario = h100_sxm(1).without("nvmlDeviceGetRemappedRows")

    assert [MISSING] == read(nvml_standin, scenario, ("nvmlDeviceGetRemappedRows",))


def listen(*, gpus, timeout_ms=200, waits=1):
    """Register for the XIDs of some GPUs, and return what every wait hears: (GPU, event, XID) or the error."""
    pynvml.nvmlInit()
    events = pynvml.nvmlEventSetCreate()
    for gpu in gpus:
        device = pynvml.nvmlDeviceGetHandleByIndex(gpu)
        pynvml.nvmlDeviceRegisterEvents(device, pynvml.nvmlEventTypeXidCriticalError, events)
    heard = []
    for _ in range(waits):
        try:
            data = pynvml.nvmlEventSetWait_v2(events, timeout_ms)
            heard.append((pynvml.nvmlDeviceGetIndex(data.device), data.eventType, data.eventData, data.gpuInstanceId))
        except pynvml.NVMLError as error:
            heard.append(type(error).__name__)
    pynvml.nvmlEventSetFree(events)
    return heard


NO_INSTANCE = 0xFFFFFFFF
SILENCE = "NVMLError_Timeout"


def test_an_xid_is_heard_once(nvml_standin):
    """With its GPU and its number; then there is silence."""
    scenario = FAULTS["xid-79"](h100_sxm(), 3)
    heard = nvml_standin.call(scenario, lambda: listen(gpus=range(8), waits=2, timeout_ms=30))

    assert [(3, pynvml.nvmlEventTypeXidCriticalError, 79, NO_INSTANCE), SILENCE] == heard


def test_an_xid_of_a_gpu_that_nobody_listens_to(nvml_standin):
    """Is not heard."""
    assert [SILENCE] == nvml_standin.call(FAULTS["xid-79"](h100_sxm(), 3), lambda: listen(gpus=[2], timeout_ms=30))


def test_an_xid_wakes_who_waits(nvml_standin):
    """After its time, long before the wait would end by itself; the second one with the second wait."""
    scenario = h100_sxm().raises(31, gpu=0, after_s=0.2).raises(43, gpu=1, from_wait=2)
    began = time.monotonic()
    heard = nvml_standin.call(scenario, lambda: listen(gpus=[0, 1], timeout_ms=10_000, waits=2))

    assert [(0, 8, 31, NO_INSTANCE), (1, 8, 43, NO_INSTANCE)] == heard
    assert 0.2 < time.monotonic() - began < 9


def test_an_xid_from_before_is_not_heard(nvml_standin):
    """NVML tells what happens while one listens; the log of the kernel has the rest."""
    scenario = h100_sxm().raises(79, gpu=0, after_s=0.1)

    def late():
        early = listen(gpus=[1], timeout_ms=150)
        return early + listen(gpus=[0], timeout_ms=30)

    assert [SILENCE, SILENCE] == nvml_standin.call(scenario, late)


def test_the_guid_of_a_rack_is_no_text(nvml_standin):
    """Nvidia-ml-py decodes the bytes of nvmlPlatformInfo as UTF-8, which they are not: read them by their offset."""
    with pytest.raises(CrashedError, match="UnicodeDecodeError"):
        read(nvml_standin, machine(GB200, 4), ("nvmlDeviceGetPlatformInfo", pynvml.c_nvmlPlatformInfo_v2_t))


PLAIN = ("RemappedRows", "RowRemapperHistogram", "EccMode", "RepairStatus", "CurrPcieLinkWidth", "VbiosVersion")
PLAIN += ("CurrPcieLinkGeneration", "CurrentClocksEventReasons", "EnforcedPowerLimit", "PersistenceMode")
PLAIN += ("ComputeMode", "MemoryInfo", "MarginTemperature", "PcieReplayCounter")
EVERYTHING = [
    ("nvmlDeviceGetCount",),
    ("nvmlDeviceGetTemperature", 0),
    ("nvmlDeviceGetMemoryErrorCounter", 1, 0, pynvml.NVML_MEMORY_LOCATION_DRAM),
    ("nvmlDeviceGetMemoryErrorCounter", 1, 0, pynvml.NVML_MEMORY_LOCATION_SRAM),
    ("nvmlDeviceGetMemoryErrorCounter", 0, 0, pynvml.NVML_MEMORY_LOCATION_DRAM),
    ("nvmlDeviceGetSramEccErrorStatus", pynvml.c_nvmlEccSramErrorStatus_v1_t),
    ("nvmlDeviceGetNvLinkState", 3),
    ("nvmlDeviceGetNvLinkErrorCounter", 3, pynvml.NVML_NVLINK_ERROR_DL_RECOVERY),
    ("nvmlDeviceGetP2PStatus", OTHER_GPU, pynvml.NVML_P2P_CAPS_INDEX_NVLINK),
    ("nvmlDeviceGetFieldValues", [82, 143, 144, 145, 173, 176, 230, (161, 3), (214, 3)]),
    FABRIC_V3,
    *((f"nvmlDeviceGet{name}",) for name in PLAIN),
]


def everything():
    """Ask of GPU 7 what a check may ask, ten times, because some faults come later; and listen."""
    try:
        heard = listen(gpus=[7], timeout_ms=5)
        return heard, [ask(EVERYTHING, gpu=7)[0] for _ in range(10)]
    except pynvml.NVMLError as error:
        return type(error).__name__


@pytest.fixture(scope="module")
def healthy(nvml_standin):
    """What a healthy machine answers."""
    return nvml_standin.call(h100_sxm(), everything)


def test_a_healthy_machine_answers_the_same_again(nvml_standin, healthy):
    """Without a fault nothing changes, however often one asks."""
    assert healthy == nvml_standin.call(h100_sxm(), everything)


@pytest.mark.parametrize("name", sorted(set(FAULTS) - {"hung-driver", "hung-gpu"}))
def test_every_fault_is_seen(nvml_standin, healthy, name):
    """A fault that shows nowhere would prove a check that finds nothing."""
    assert healthy != nvml_standin.call(FAULTS[name](h100_sxm(), 7), everything)


def test_a_scenario_that_cannot_be_read_ends_the_process(nvml_standin, tmp_path):
    """A machine that answers "not supported" to everything would hide the mistake."""

    def without_a_file():
        os.environ["FAKE_NVML_SCENARIO"] = str(tmp_path / "nothing")
        pynvml.nvmlInit()

    with pytest.raises(CrashedError, match="ended with exit code 99"):
        nvml_standin.call(Scenario(), without_a_file)
