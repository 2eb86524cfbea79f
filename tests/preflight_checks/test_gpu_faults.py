"""Every fault of the stand-in gives its own finding, on its own GPU, and no healthy machine gives one."""

import pytest
from fault_table import CASES, CHECKS, EXPECTED, GPU, line, rows
from nvml_checks import HEALTHY, found, only, run_on
from nvml_drivers import DRIVERS
from nvml_faults import FAULTS
from nvml_machines import bus_id, h100_sxm, uuid

from preflight_checks.gpu_health import gpu_health
from trainer_agent.check import Outcome
from trainer_agent.errors import Action, Severity

pytestmark = pytest.mark.lab


def test_every_fault_is_expected_to_give_something():
    """A new fault needs a line in the table."""
    assert set(FAULTS) == set(EXPECTED)


SLOW = {"hung-gpu"}  # it takes the 12 s that NVML gets


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.lab) if n in SLOW else n for n in sorted(CASES)])
def test_a_fault_gives_exactly_its_finding(nvml_standin, tmp_path, name):
    """The check, the severity, the code and the GPU; every other check has nothing to say."""
    actual = list(rows(nvml_standin, name, tmp_path))

    assert CASES[name].expected == [row[:4] for row in actual]
    assert all(row[4] in ("reschedule", "stop") for row in actual if row[1] == "error")


def test_a_row_of_the_table():
    actual = [("gpu-link", "error", "nvlink-down", [3], "reschedule")]

    expected = "| link-down | `nvlink-down` | gpu-link: error `nvlink-down`, GPU [3], reschedule |"
    assert expected == line("link-down", actual)
    assert "| fabric-late | nothing | nothing |" == line("fabric-late", [])


@pytest.mark.parametrize("fault", ["link-down", "remap-failed", "leftover-memory-much", "too-hot"])
def test_a_finding_names_the_gpu_and_another_node(nvml_standin, tmp_path, fault):
    """Index, UUID and PCI address, in the message and in the evidence; what was wanted; what helps."""
    outcomes = run_on(nvml_standin, FAULTS[fault](h100_sxm(), GPU), CHECKS, tmp_path)
    finding = only(outcomes[EXPECTED[fault][0][0]])

    assert [{"index": GPU, "uuid": uuid(GPU), "pci": bus_id(GPU)}] == finding.evidence["gpus"]
    assert finding.message.startswith(f"GPU 3 ({uuid(GPU)}, {bus_id(GPU)}): ")
    assert ", wanted " in finding.message
    assert Action.RESCHEDULE is finding.action


@pytest.mark.parametrize("branch", DRIVERS)
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_machines_pass(nvml_standin, tmp_path, name, branch):
    """No finding above info from any check, with drivers that lack half of the questions."""
    scenario = HEALTHY[name].on_driver(branch)
    outcomes = run_on(nvml_standin, scenario, CHECKS, tmp_path, nodes=int(name.partition(" x ")[0].replace("MIG", "1")))

    assert [] == [row for row in found(outcomes) if row[1] != str(Severity.INFO)]
    assert [] == [name for name, outcome in outcomes.items() if not isinstance(outcome, Outcome)]


def test_what_an_old_driver_lacks_is_told(nvml_standin, tmp_path):
    """The report has the reason for every question that found no answer."""
    (outcome,) = run_on(nvml_standin, h100_sxm().on_driver(525), [gpu_health], tmp_path).values()

    wanted = {"recovery_action": "Not Supported", "sram_exceeded": "Function Not Found"}
    wanted |= {"repair_pending": "Function Not Found", "retired": "Not Supported"}
    assert wanted == outcome.measurements["not_read"]
