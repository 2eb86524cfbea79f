"""What holds clocks down; tests/preflight_checks/test_gpu_faults.py has one of each fault."""

import pynvml
import pytest
from nvml_checks import found, only, run_on
from nvml_faults import FAULTS, throttled
from nvml_machines import h100_sxm, heat

from preflight_checks.gpu_clocks import gpu_clocks
from trainer_agent.errors import Action, Severity

SLOWDOWN = 1


def clocks_on(standin, scenario, root, **how):
    """Return the outcome on a machine."""
    return run_on(standin, scenario, [gpu_clocks], root, **how)["gpu-clocks"]


def rows(outcome):
    """Return severity, code and GPUs of the findings."""
    return [row[1:] for row in found({"gpu-clocks": outcome})]


@pytest.mark.parametrize("reasons", [0x1, 0x2, 0x4, 0x5, 0x10, 0x100])
def test_clocks_that_are_held_down_by_design(nvml_standin, tmp_path, reasons):
    """Idle, a setting of applications, the power cap, sync boost, a setting of the display."""
    assert [] == rows(clocks_on(nvml_standin, throttled(reasons)(h100_sxm(1), 0), tmp_path))


@pytest.mark.parametrize("branch", [450, 580])
def test_a_slowdown_without_a_cause(nvml_standin, tmp_path, branch):
    """Under both names that the question has had."""
    outcome = clocks_on(nvml_standin, throttled(0x8)(h100_sxm(2), 1).on_driver(branch), tmp_path)

    assert [("error", "gpu-hw-slowdown", [1])] == rows(outcome)
    assert only(outcome).message.endswith(": slowed down in 10 of 10 samples, wanted 0")


@pytest.mark.parametrize("from_call, severity", [(5, Severity.ERROR), (6, Severity.WARNING)])
def test_half_of_the_samples_decide(nvml_standin, tmp_path, from_call, severity):
    """Six of ten fail, five warn."""
    finding = only(clocks_on(nvml_standin, throttled(0x48, from_call=from_call)(h100_sxm(1), 0), tmp_path))

    assert ("gpu-thermal-slowdown", severity) == (finding.code, finding.severity)
    assert (Action.RESCHEDULE if severity is Severity.ERROR else Action.CONTINUE) is finding.action


def without_a_limit(scenario):
    """Return a machine as Ada and later may be: margins only."""
    return scenario.fails("nvmlDeviceGetTemperatureThreshold", pynvml.NVML_ERROR_NOT_SUPPORTED)


@pytest.mark.parametrize(
    "degrees, margin, expected",
    [
        (88, -1, [("warning", "gpu-warm", [0])]),
        (90, -2, [("error", "gpu-too-hot", [0])]),
        (40, -5, []),
        (40, 0, []),
    ],
)
def test_a_gpu_without_a_limit_has_a_margin(nvml_standin, tmp_path, degrees, margin, expected):
    """It slows down at -2; a margin that contradicts the temperature is not believed."""
    scenario = without_a_limit(heat(h100_sxm(1), degrees, margin_c=margin)).field(194, -2, value_type=5)

    assert expected == rows(clocks_on(nvml_standin, scenario, tmp_path))


def test_a_busy_gpu_may_be_warm(nvml_standin, tmp_path):
    """Somebody else works there; that is for gpu-memory to say."""
    scenario = FAULTS["hot"](h100_sxm(1), 0).says("nvmlDeviceGetUtilizationRates", {"gpu": 90, "memory": 10})

    assert [] == rows(clocks_on(nvml_standin, scenario, tmp_path))


def test_a_gpu_that_does_not_tell_whether_it_is_busy_may_be_warm(nvml_standin, tmp_path):
    scenario = FAULTS["hot"](h100_sxm(1), 0).fails("nvmlDeviceGetUtilizationRates", pynvml.NVML_ERROR_NOT_SUPPORTED)

    assert [] == rows(clocks_on(nvml_standin, scenario, tmp_path))


def test_a_gpu_that_does_not_tell_its_temperature(nvml_standin, tmp_path):
    scenario = h100_sxm(1).fails("nvmlDeviceGetTemperature", pynvml.NVML_ERROR_NOT_SUPPORTED)
    outcome = clocks_on(nvml_standin, scenario, tmp_path)

    assert ([], "Not Supported") == (rows(outcome), outcome.measurements["not_read"]["temperature_c"])


def test_a_power_limit_is_told_with_its_default(nvml_standin, tmp_path):
    outcome = clocks_on(nvml_standin, FAULTS["capped-power"](h100_sxm(), 3), tmp_path)
    finding, gpu = only(outcome), outcome.measurements["gpus"][3]

    assert (500, 700) == (gpu["power_limit_w"], gpu["expected_power_limit_w"])
    assert finding.message.endswith(": it may use 500 W, wanted its default of 700 W, or 90% of it")


def test_a_threshold_from_the_environment(nvml_standin, tmp_path):
    """For a site that caps its GPUs on purpose."""
    environ = {"TRAINER_AGENT_GPU_THRESHOLDS": '{"power_fraction": 0.7}'}

    assert [] == rows(clocks_on(nvml_standin, FAULTS["capped-power"](h100_sxm(), 3), tmp_path, environ=environ))
