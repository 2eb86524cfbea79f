"""Whether the driver answers, and for how many GPUs."""

import pynvml
import pytest
from nvml_checks import found, only, run_on
from nvml_faults import FAULTS
from nvml_machines import h100_sxm, mig, uuid

from preflight_checks.driver_cuda import driver_cuda
from preflight_checks.gpu_clocks import gpu_clocks
from preflight_checks.gpu_count import gpu_count
from preflight_checks.gpu_health import gpu_health
from preflight_checks.gpu_link import gpu_link
from preflight_checks.gpu_memory import gpu_memory
from trainer_agent.accelerators import Accelerators
from trainer_agent.check import Outcome
from trainer_agent.errors import Action
from trainer_agent.testing import NO_DEVICES, FakeHost, run_check

MISSING = "libnvidia-ml.so.1: cannot open shared object file: No such file or directory"


def count_on(standin, scenario, root, **how):
    """Return the outcome on a machine."""
    return run_on(standin, scenario, [gpu_count], root, **how)["gpu-count"]


def test_eight_of_eight(nvml_standin, tmp_path):
    outcome = count_on(nvml_standin, h100_sxm(), tmp_path)

    measured = {"gpus": 8, "driver": "580.105.08", "device_nodes": 8}
    assert Outcome("8 x NVIDIA H100 80GB HBM3, driver 580.105.08", (), measured) == outcome


@pytest.mark.parametrize("visible", [None, "", "none", "void"])
def test_a_machine_that_asks_for_none(tmp_path, visible):
    """Without NVML, which this machine does not have: skipped, with the reason."""
    environ = {} if visible is None else {"NVIDIA_VISIBLE_DEVICES": visible}
    reason = run_check(gpu_count, FakeHost(tmp_path), environ=environ)

    assert f"nothing asks for an NVIDIA GPU here, and NVML is not here: {MISSING}" == reason


def test_a_machine_with_other_accelerators(tmp_path):
    """Images set NVIDIA_VISIBLE_DEVICES wherever they run."""
    amd = Accelerators("amd", 8, "8 ROCm GPUs")
    reason = run_check(gpu_count, FakeHost(tmp_path), environ={"NVIDIA_VISIBLE_DEVICES": "all"}, accelerators=amd)

    assert isinstance(reason, str)


@pytest.mark.parametrize(
    "environ, severity, asked",
    [
        ({"NVIDIA_VISIBLE_DEVICES": uuid(0)}, "error", f"NVIDIA_VISIBLE_DEVICES={uuid(0)}"),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, "warning", "NVIDIA_VISIBLE_DEVICES=all"),
        ({"PET_NPROC_PER_NODE": "gpu"}, "warning", "PET_NPROC_PER_NODE=gpu"),
    ],
    ids=["listed", "all", "nproc"],
)
def test_a_machine_that_asks_and_has_no_library(tmp_path, environ, severity, asked):
    """It should have been given one; images say `all` by themselves, and PET_NPROC_PER_NODE is the trainer's."""
    outcome = run_check(gpu_count, FakeHost(tmp_path), environ=environ)

    assert [("gpu-count", severity, "nvml-missing", [])] == found({"gpu-count": outcome})
    assert f"NVML is not here ({MISSING}), wanted it as {asked}" == only(outcome).message


def test_a_library_where_no_loader_looks(tmp_path):
    """GKE's device plugin mounts the driver and tells nobody: the image should know, and no other node would help."""
    host = FakeHost(tmp_path)
    host.put("/dev/nvidia0")
    host.put("/usr/local/nvidia/lib64/libnvidia-ml.so.1")
    finding = only(run_check(gpu_count, host))

    assert ("nvml-not-found", Action.STOP) == (finding.code, finding.action)
    assert f"NVML is /usr/local/nvidia/lib64/libnvidia-ml.so.1: {MISSING}" == finding.message


def test_device_nodes_ask_for_the_library(tmp_path):
    host = FakeHost(tmp_path)
    host.put("/dev/nvidia0")
    finding = only(run_check(gpu_count, host))

    assert ("nvml-missing", Action.RESCHEDULE) == (finding.code, finding.action)
    assert finding.message.endswith("wanted it as /dev has nvidia0")


@pytest.mark.parametrize(
    "nodes, visible, message",
    [
        (8, None, "NVML lists 7 GPUs, wanted the 8 that /dev has device nodes of"),
        (7, ",".join(uuid(i) for i in range(8)), "NVML lists 7 GPUs, wanted the 8 that NVIDIA_VISIBLE_DEVICES lists"),
        (0, "0,1,2,3,4,5,6,7", "NVML lists 7 GPUs, wanted the 8 that NVIDIA_VISIBLE_DEVICES lists"),
    ],
)
def test_one_less_than_given(nvml_standin, tmp_path, nodes, visible, message):
    """By the device nodes, or by the list of the device plugin."""
    environ = {} if visible is None else {"NVIDIA_VISIBLE_DEVICES": visible}
    outcome = count_on(nvml_standin, FAULTS["one-less"](h100_sxm(), 0), tmp_path, nodes=nodes, environ=environ)

    assert ["gpu-missing", message] == [only(outcome).code, only(outcome).message]


@pytest.mark.parametrize("visible", ["all", "MIG-01000000-0000-0000-0000-000000000000", "0,0", "1,void"])
def test_what_is_no_count(nvml_standin, tmp_path, visible):
    """`all`, a MIG instance, a repetition."""
    outcome = count_on(nvml_standin, mig(), tmp_path, nodes=1, environ={"NVIDIA_VISIBLE_DEVICES": visible})

    assert () == outcome.findings


def test_more_processes_than_gpus(nvml_standin, tmp_path):
    """The job asks for too much; no node would help."""
    outcome = count_on(nvml_standin, h100_sxm(4), tmp_path, nodes=4, environ={"PET_NPROC_PER_NODE": "8"})

    finding = only(outcome)
    assert ("gpus-too-few", Action.STOP) == (finding.code, finding.action)
    assert "PET_NPROC_PER_NODE=8, wanted at most 4: NVML: 4 GPUs" == finding.message


def test_a_library_that_does_not_start(nvml_standin, tmp_path):
    """Any other error of its first calls."""
    scenario = h100_sxm().fails("nvmlInitWithFlags", pynvml.NVML_ERROR_UNKNOWN)
    outcome = count_on(nvml_standin, scenario, tmp_path)

    assert "NVML does not start: Unknown Error, wanted a driver that answers" == only(outcome).message
    assert ("nvml-broken", Action.RESCHEDULE) == (only(outcome).code, only(outcome).action)


def test_nvml_that_hung_before_the_checks_is_not_asked_again(tmp_path):
    """gpu-count says so at once; the others leave it to it."""
    hung = Accelerators("nvidia", 0, "NVML", problem="NVML gave no answer within 10 s", hung=True)
    finding = only(run_check(gpu_count, FakeHost(tmp_path), accelerators=hung))

    assert ("nvml-hung", Action.RESCHEDULE, {}) == (finding.code, finding.action, finding.evidence)
    assert "NVML gave no answer within 10 s, wanted one within a second" == finding.message
    for check in (gpu_health, gpu_memory, gpu_link, gpu_clocks, driver_cuda):
        assert "NVML hangs; gpu-count says more" == run_check(check, FakeHost(tmp_path), accelerators=hung)


def test_no_gpu_at_all(nvml_standin, tmp_path):
    """A driver without GPUs, and nobody who asks."""
    none = Accelerators("none", 0, "NVML: 0 GPUs")
    outcome = count_on(nvml_standin, h100_sxm(0), tmp_path, nodes=0, accelerators=none)

    assert Outcome("no GPU, driver 580.105.08", (), {"gpus": 0, "driver": "580.105.08", "device_nodes": 0}) == outcome


def refuses(scenario, *gpus):
    """Let NVML count GPUs that it gives no handle for."""
    for gpu in gpus:
        scenario = scenario.fails("nvmlDeviceGetHandleByIndex_v2", pynvml.NVML_ERROR_NO_PERMISSION, gpu=gpu)
    return scenario


@pytest.mark.parametrize("nodes, visible", [(2, "void"), (1, uuid(1)), (2, "1"), (0, "void")])
def test_gpus_of_others_are_not_missing(nvml_standin, tmp_path, nodes, visible):
    """A device cgroup leaves us one of two; /dev may be the whole machine's."""
    environ = {"NVIDIA_VISIBLE_DEVICES": visible}
    outcome = count_on(nvml_standin, refuses(h100_sxm(2), 0), tmp_path, nodes=nodes, environ=environ)

    assert ((), 1) == (outcome.findings, outcome.measurements["gpus"])


@pytest.mark.parametrize(
    "refused, visible, message",
    [
        ((1,), f"{uuid(0)},{uuid(1)}", "1 GPUs and refuses 1 more, wanted the 2 that NVIDIA_VISIBLE_DEVICES lists"),
        ((1,), "0,1", "1 GPUs and refuses 1 more, wanted the 2 that NVIDIA_VISIBLE_DEVICES lists"),
        ((0, 1), "0,1", "0 GPUs and refuses 2 more, wanted the 2 that NVIDIA_VISIBLE_DEVICES lists"),
        ((0, 1), "void", "0 GPUs and refuses 2 more, wanted the 2 that /dev has device nodes of"),
    ],
)
def test_gpus_of_ours_that_are_refused_are_missing(nvml_standin, tmp_path, refused, visible, message):
    """Those in the list were given to this container, and so was one at least of those in /dev: no fault of the job."""
    environ = {"NVIDIA_VISIBLE_DEVICES": visible, "PET_NPROC_PER_NODE": "2"}
    usable = Accelerators("nvidia", 2 - len(refused), "NVML")
    how = {"nodes": 2, "environ": environ, "accelerators": usable}
    finding = only(count_on(nvml_standin, refuses(h100_sxm(2), *refused), tmp_path, **how))

    assert ("gpu-missing", Action.RESCHEDULE) == (finding.code, finding.action)
    assert f"NVML lists {message}" == finding.message
    assert len(refused) == finding.evidence["refused"]


def test_a_container_without_gpus_misses_none(nvml_standin, tmp_path):
    """NVML counts those of the machine, and nothing says that one was given to us."""
    environ = {"NVIDIA_VISIBLE_DEVICES": "all"}
    outcome = count_on(nvml_standin, refuses(h100_sxm(2), 0, 1), tmp_path, nodes=0, environ=environ)

    assert ((), 0) == (outcome.findings, outcome.measurements["gpus"])


def test_a_library_without_any_hardware_is_no_broken_driver(nvml_standin, tmp_path):
    """Images bring it to machines of other makers, where its driver is not loaded and nobody wants it."""
    scenario = FAULTS["not-loaded"](h100_sxm(), 0)
    host = FakeHost(tmp_path)
    host.put("/sys/bus/pci/devices/0000:00:02.0/vendor", "0x1002\n")
    reason = count_on(nvml_standin, scenario, tmp_path, nodes=0, host=host, accelerators=NO_DEVICES)

    assert "nothing asks for an NVIDIA GPU here, and NVML is not here: Driver Not Loaded" == reason


@pytest.mark.parametrize("place", ["bus", "variable"])
def test_a_driver_that_has_work_to_do_is_broken(nvml_standin, tmp_path, place):
    """A GPU on the PCI bus, or one that is asked for."""
    host = FakeHost(tmp_path)
    if place == "bus":
        host.put("/sys/bus/pci/devices/0000:53:00.0/vendor", "0x10de\n")
    environ = {"NVIDIA_VISIBLE_DEVICES": "0"} if place == "variable" else {}
    scenario = FAULTS["not-loaded"](h100_sxm(), 0)
    outcome = count_on(nvml_standin, scenario, tmp_path, nodes=0, host=host, environ=environ, accelerators=NO_DEVICES)

    assert "gpu-driver-not-loaded" == only(outcome).code
