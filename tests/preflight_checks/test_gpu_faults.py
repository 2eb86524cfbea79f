"""Every fault of the stand-in gives its own finding, on its own GPU, and no healthy machine gives one."""

import pytest
from nvml_checks import HEALTHY, HurriedHost, found, only, run_on
from nvml_drivers import DRIVERS
from nvml_faults import FAULTS
from nvml_machines import bus_id, h100_sxm, uuid

from preflight_checks.gpu_clocks import gpu_clocks
from preflight_checks.gpu_count import gpu_count
from preflight_checks.gpu_health import gpu_health
from preflight_checks.gpu_link import gpu_link
from preflight_checks.gpu_memory import gpu_memory
from trainer_agent.check import Outcome
from trainer_agent.errors import Action, Severity
from trainer_agent.testing import FakeHost

CHECKS = (gpu_count, gpu_health, gpu_memory, gpu_link, gpu_clocks)
GPU, ALL, NONE = 3, list(range(8)), []
HANGS = {"hung-driver", "hung-gpu"}

# What becomes of each fault of GPU 3 of eight H100, in all checks together.
EXPECTED = {
    "not-loaded": [("gpu-count", "error", "gpu-driver-not-loaded", NONE)],
    "driver-mismatch": [("gpu-count", "error", "gpu-driver-mismatch", NONE)],
    "one-less": [("gpu-count", "error", "gpu-missing", NONE)],
    "lost": [("gpu-health", "error", "gpu-lost", [3])],
    "lost-meanwhile": [("gpu-health", "error", "gpu-lost", [3])],
    "reset-required": [("gpu-health", "error", "gpu-lost", [3])],
    **{f"recovery-action-{n}": [("gpu-health", "error", "gpu-recovery-wanted", [3])] for n in range(1, 8)},
    "remap-failed": [("gpu-health", "error", "row-remap-failed", [3])],
    "remap-pending": [("gpu-health", "warning", "row-remap-pending", [3])],
    "remapped-rows-many": [("gpu-health", "warning", "rows-remapped-many", [3])],
    "no-spare-rows": [("gpu-health", "warning", "row-banks-used-up", [3])],
    "sram-uncorrected": [("gpu-health", "error", "ecc-sram-uncorrected", [3])],
    "dram-uncorrected": [("gpu-health", "warning", "ecc-dram-uncorrected", [3])],
    "dram-uncorrected-rising": [("gpu-health", "error", "ecc-dram-rising", [3])],
    "dram-corrected": [("gpu-health", "warning", "ecc-corrected-many", [3])],
    "ecc-off": [("gpu-health", "warning", "ecc-off", [3])],
    "sram-threshold": [("gpu-health", "error", "ecc-sram-threshold", [3])],
    "sram-status-forbidden": [],
    "repair-pending": [("gpu-health", "warning", "gpu-repair-pending", [3])],
    "xid-79": [("gpu-health", "error", "gpu-xid", [3])],
    "xid-31": [("gpu-health", "warning", "gpu-xid-application", [3])],
    "link-down": [("gpu-link", "error", "nvlink-down", [3])],
    "all-links-down": [("gpu-link", "error", "nvlink-down", ALL)],
    "link-errors": [("gpu-link", "warning", "nvlink-errors", [3])],
    "one-way-p2p": [("gpu-link", "error", "p2p-one-way", [3])],
    "fabric-not-started": [("gpu-link", "error", "fabric-not-ready", [3])],
    "fabric-in-progress": [("gpu-link", "error", "fabric-not-ready", [3])],
    "fabric-late": [],
    "fabric-failed": [("gpu-link", "error", "fabric-failed", [3])],
    "fabric-degraded-bandwidth": [("gpu-link", "error", "fabric-degraded", [3])],
    "fabric-route-unhealthy": [("gpu-link", "error", "fabric-route-unhealthy", [3])],
    "fabric-unhealthy": [("gpu-link", "error", "fabric-unhealthy", [3])],
    "fabric-limited-capacity": [("gpu-link", "warning", "fabric-limited", [3])],
    "narrow-pcie": [("gpu-link", "error", "pcie-narrow", [3])],
    "slow-pcie": [("gpu-link", "warning", "pcie-slow", [3])],
    "pcie-errors": [("gpu-link", "warning", "pcie-errors", [3])],
    "hw-thermal-slowdown": [("gpu-clocks", "error", "gpu-thermal-slowdown", [3])],
    "power-brake": [("gpu-clocks", "error", "gpu-power-brake", [3])],
    "sw-thermal-slowdown": [("gpu-clocks", "warning", "gpu-sw-thermal-slowdown", [3])],
    "throttled-later": [("gpu-clocks", "warning", "gpu-thermal-slowdown", [3])],
    "capped-power": [("gpu-clocks", "warning", "power-limit-low", [3])],
    "hot": [("gpu-clocks", "warning", "gpu-warm", [3])],
    "too-hot": [("gpu-clocks", "error", "gpu-too-hot", [3])],
    "no-persistence": [("gpu-health", "info", "persistence-off", [3])],
    "compute-prohibited": [("gpu-health", "error", "compute-prohibited", [3])],
    "compute-exclusive": [("gpu-health", "warning", "compute-exclusive", [3])],
    "leftover-memory": [("gpu-memory", "warning", "gpu-memory-used", [3])],
    "leftover-memory-much": [("gpu-memory", "error", "gpu-memory-occupied", [3])],
    "leftover-memory-freed": [],
    "other-vbios": [("gpu-health", "warning", "vbios-differs", [3])],
}
# What passes with time: the machine's must pass, too.
WAITS = {"fabric-late", "leftover-memory-freed"}


def test_every_fault_is_expected_to_give_something():
    """A new fault needs a line above."""
    assert set(FAULTS) == EXPECTED.keys() | HANGS


@pytest.mark.parametrize("fault", sorted(EXPECTED))
def test_a_fault_gives_exactly_its_finding(nvml_standin, tmp_path, fault):
    """The check, the severity, the code and the GPU; every other check has nothing to say."""
    host = (HurriedHost if fault in WAITS else FakeHost)(tmp_path)
    outcomes = run_on(nvml_standin, FAULTS[fault](h100_sxm(), GPU), CHECKS, tmp_path, host=host)

    assert EXPECTED[fault] == found(outcomes)


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
