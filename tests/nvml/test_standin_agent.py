"""What the agent's own reader of NVML makes of these machines."""

import pytest
from nvml_faults import FAULTS
from nvml_machines import h100_sxm, machine, mig, mig_uuid, uuid
from nvml_models import L4
from nvml_scenario import Scenario

from trainer_agent.accelerators import Accelerators, find_accelerators
from trainer_agent.errors import RetryError
from trainer_agent.nproc import decide
from trainer_agent.nvml import NvmlDevices, read_nvml
from trainer_agent.testing import FakeHost

pytestmark = pytest.mark.lab

EIGHT = tuple(uuid(i) for i in range(8))


def refused(count, *gpus):
    """Return a machine of `count` GPUs that gives no handle for some."""
    scenario = h100_sxm(count)
    for gpu in gpus:
        scenario = scenario.fails("nvmlDeviceGetHandleByIndex_v2", 4, gpu=gpu)
    return scenario


@pytest.mark.parametrize(
    "scenario, devices",
    [
        (h100_sxm(), NvmlDevices("ok", EIGHT)),
        (h100_sxm().on_driver(450), NvmlDevices("ok", EIGHT)),
        (machine(L4, 1), NvmlDevices("ok", EIGHT[:1])),
        (mig(instances=2), NvmlDevices("ok", EIGHT[:1], (mig_uuid(0), mig_uuid(1)))),
        (FAULTS["one-less"](h100_sxm(), 0), NvmlDevices("ok", EIGHT[:7])),
        (FAULTS["not-loaded"](h100_sxm(), 0), NvmlDevices("broken", reason="Driver Not Loaded", code=9)),
        (FAULTS["lost"](h100_sxm(), 3), NvmlDevices("broken", reason="GPU is lost", code=15)),
        (refused(3, 1), NvmlDevices("ok", (EIGHT[0], EIGHT[2]), others=1)),
        (refused(2, 0, 1), NvmlDevices("ok", others=2)),
        (FAULTS["hung-driver"](h100_sxm(), 0), NvmlDevices("hung", reason="NVML gave no answer within 0.3 s")),
    ],
    ids=["h100", "driver-450", "l4", "mig", "one-less", "not-loaded", "lost", "others", "refused", "hung"],
)
def test_the_devices_that_the_agent_sees(nvml_standin, scenario, devices):
    """From driver 450 on; a hang costs its deadline."""
    timeout_s = 0.3 if devices.state == "hung" else 10.0

    assert devices == nvml_standin.call(scenario, lambda: read_nvml(timeout_s=timeout_s))


def test_accelerators_in_a_child_of_a_test(nvml_standin, tmp_path):
    """So does a check that asks for them."""
    found = nvml_standin.call(
        h100_sxm(), lambda: find_accelerators(FakeHost(tmp_path), {"CUDA_VISIBLE_DEVICES": "0,1"})
    )

    assert Accelerators("nvidia", 2, "NVML: 8 GPUs, CUDA_VISIBLE_DEVICES='0,1'") == found


def test_a_machine_that_refuses_all_gpus_that_it_gave_has_a_sick_driver(nvml_standin, tmp_path):
    """The launcher then asks for another node, and does not call the job wrong."""
    environ = {"NVIDIA_VISIBLE_DEVICES": ",".join(EIGHT[:2])}
    found = nvml_standin.call(refused(2, 0, 1), lambda: find_accelerators(FakeHost(tmp_path), environ))

    wanted = "Insufficient Permissions for all of 2 GPUs"
    assert Accelerators("nvidia", 0, "NVML", problem=wanted) == found
    with pytest.raises(RetryError, match=wanted):
        decide("gpu", found, cpus=8)


def test_a_library_without_most_functions_is_broken(nvml_standin):
    """Nothing crashes when the loader finds no function."""
    scenario = Scenario().without("nvmlInitWithFlags")

    assert NvmlDevices("broken", reason="Function Not Found", code=13) == nvml_standin.call(scenario, read_nvml)
