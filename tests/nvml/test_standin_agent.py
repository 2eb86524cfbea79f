"""What the agent's own reader of NVML makes of these machines."""

import pytest
from nvml_faults import FAULTS
from nvml_machines import h100_sxm, machine, mig, mig_uuid, uuid
from nvml_models import L4
from nvml_scenario import Scenario

from trainer_agent.accelerators import Accelerators, find_accelerators
from trainer_agent.nvml import NvmlDevices, read_nvml
from trainer_agent.testing import FakeHost

pytestmark = pytest.mark.lab

EIGHT = tuple(uuid(i) for i in range(8))


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
        (h100_sxm(3).fails("nvmlDeviceGetHandleByIndex_v2", 4, gpu=1), NvmlDevices("ok", (EIGHT[0], EIGHT[2]))),
        (FAULTS["hung-driver"](h100_sxm(), 0), NvmlDevices("hung", reason="NVML gave no answer within 0.3 s")),
    ],
    ids=["h100", "driver-450", "l4", "mig", "one-less", "not-loaded", "lost", "others", "hung"],
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


def test_a_library_without_most_functions_is_broken(nvml_standin):
    """Nothing crashes when the loader finds no function."""
    scenario = Scenario().without("nvmlInitWithFlags")

    assert NvmlDevices("broken", reason="Function Not Found", code=13) == nvml_standin.call(scenario, read_nvml)
