"""How GPUs reach each other and the CPU; tests/preflight_checks/test_gpu_faults.py has one of each fault."""

from itertools import product

import pynvml
import pytest
from nvml_checks import HurriedHost, context_of, found, only, run_on
from nvml_faults import FAULTS, link_down, narrow_pcie, slow_pcie
from nvml_machines import fabric, h100_sxm, machine, mig, uuid
from nvml_models import A100_PCIE, B200_SXM, GB200, H100_NVL, L4

from preflight_checks.gpu_link import deadline_s, gpu_link
from trainer_agent.check import Options
from trainer_agent.testing import FakeHost, run_check

pytestmark = pytest.mark.lab

HEALTHY_MASK = 0b0001_10101010


def link_on(standin, scenario, root, **how):
    """Return the outcome on a machine."""
    return run_on(standin, scenario, [gpu_link], root, **how)["gpu-link"]


def named(scenario, name):
    """Return the machine with GPUs of another name."""
    return scenario.says("nvmlDeviceGetName", name)


def rows(outcome):
    """Return severity, code and GPUs of the findings."""
    return [row[1:] for row in found({"gpu-link": outcome})]


def test_the_deadline_has_room_for_the_wait(tmp_path):
    assert 30 + 12 < deadline_s(context_of(tmp_path))


@pytest.mark.parametrize("budget_s, slept", [(300, 50.0), (60, 30.0), (20, 10.0), (8, 4.0), (4, 0.0)])
def test_half_of_the_budget_is_for_the_checks_that_follow(nvml_standin, tmp_path, budget_s, slept):
    """The rest is for the fabric, without which they can do nothing; 4 s before its end the check says what it sees."""

    def waited():
        host = FakeHost(tmp_path)
        outcome = run_check(gpu_link, host, options=Options(budget_s=budget_s))
        return rows(outcome), host.slept

    scenario = FAULTS["fabric-in-progress"](h100_sxm(), 3)
    assert ([("error", "fabric-not-ready", [3])], slept) == nvml_standin.call(scenario, waited)


def test_what_is_measured_stands_beside_what_is_expected(nvml_standin, tmp_path):
    """The page draws bars of it. Idle cards at generation 1 are what is expected of each other."""
    scenario = FAULTS["narrow-pcie"](FAULTS["link-down"](h100_sxm(), 3), 3)
    measured = link_on(nvml_standin, scenario, tmp_path).measurements["gpus"][3]
    (idle, *_) = link_on(nvml_standin, machine(L4, 2), tmp_path, nodes=2).measurements["gpus"]

    pairs = {name: (measured[name], measured[f"expected_{name}"]) for name in ("links_active", "pcie_width")}
    assert {"links_active": (17, 18), "pcie_width": (8, 16)} == pairs
    assert (1, 1) == (idle["pcie_generation"], idle["expected_pcie_generation"])
    assert "expected_links_active" not in idle


def test_links_that_are_down_are_numbered(nvml_standin, tmp_path):
    finding = only(link_on(nvml_standin, FAULTS["link-down"](h100_sxm(), 3), tmp_path))

    assert finding.message.endswith(": 17 NVLinks are active, wanted 18")
    assert {"down": [3], "wanted": 18} == {key: finding.evidence[key] for key in ("down", "wanted")}


def test_a_fabric_that_is_late(nvml_standin, tmp_path):
    """It is waited for: links train for a while after a reboot."""
    assert [] == rows(link_on(nvml_standin, FAULTS["fabric-late"](h100_sxm(), 0), tmp_path, host=HurriedHost(tmp_path)))


def test_links_that_still_train(nvml_standin, tmp_path):
    """As on every node that has just booted; the fabric of some is there before them, and others have none."""
    scenario = FAULTS["link-down"](h100_sxm(), 3).says("nvmlDeviceGetNvLinkState", 1, gpu=3, of=3, after_s=0.5)

    assert [] == rows(link_on(nvml_standin, scenario, tmp_path, host=HurriedHost(tmp_path)))


def test_half_a_bridge_of_a_pair_is_down(nvml_standin, tmp_path):
    """An H100 NVL has 12 links or, without a bridge, none; one of eleven is broken."""
    assert [("error", "nvlink-down", [1])] == rows(link_on(nvml_standin, link_down(machine(H100_NVL, 2), 1), tmp_path))


def test_a_missing_bridge_is_no_fault(nvml_standin, tmp_path):
    scenario = machine(H100_NVL, 2)
    for link in range(18):
        scenario = scenario.says("nvmlDeviceGetNvLinkState", 0, of=link)

    assert [] == rows(link_on(nvml_standin, scenario, tmp_path))


def test_one_card_without_a_bridge_only_warns(nvml_standin, tmp_path):
    """Three cards, two of them bridged: the third may never have had one."""
    scenario = machine(A100_PCIE, 3)
    for link, gpu in product(range(12), range(2)):
        scenario = scenario.says("nvmlDeviceGetNvLinkState", 1, gpu=gpu, of=link)

    assert [("warning", "nvlink-down", [2])] == rows(link_on(nvml_standin, scenario, tmp_path, nodes=3))


@pytest.mark.parametrize(
    "scenario, virtual, expected",
    [
        (narrow_pcie(h100_sxm(1), 0), False, ("error", [0])),
        (narrow_pcie(h100_sxm(1), 0), True, ("warning", [0])),
        (narrow_pcie(h100_sxm(2), 1), True, ("error", [1])),
        (narrow_pcie(machine(L4, 1), 0), False, ("warning", [0])),
        (narrow_pcie(machine(L4, 2), 1), False, ("error", [1])),
        (narrow_pcie(machine(L4, 2), 1), True, ("warning", [1])),
        (narrow_pcie(machine(L4, 1), 0), True, ("info", [0])),
        (narrow_pcie(named(machine(L4, 2), "NVIDIA GeForce RTX 4090"), 1), False, ("warning", [1])),
    ],
)
def test_a_card_in_a_small_slot_is_no_fault(nvml_standin, tmp_path, scenario, virtual, expected):
    """Nor what a hypervisor shows; a board of SXM has all its lanes, and so has a card whose like beside it has."""
    host = FakeHost(tmp_path)
    host.put("/proc/cpuinfo", f"flags : fpu{' hypervisor' * virtual}")
    found_here = rows(link_on(nvml_standin, scenario, tmp_path, host=host, nodes=2))

    assert [expected] == [(severity, gpus) for severity, code, gpus in found_here if code == "pcie-narrow"]


def test_an_unknown_model_is_compared_with_its_neighbours(nvml_standin, tmp_path):
    """It warns only: nobody knows how many links it should have."""
    scenario = link_down(h100_sxm(4).says("nvmlDeviceGetName", "NVIDIA Z1"), 2)
    scenario = scenario.says("nvmlDeviceGetCurrPcieLinkWidth", 8, gpu=1)

    assert [("warning", "nvlink-down", [2]), ("warning", "pcie-narrow", [1])] == rows(
        link_on(nvml_standin, scenario, tmp_path, nodes=4)
    )


def test_a_part_of_a_node_has_nobody_to_reach(nvml_standin, tmp_path):
    """A virtual machine with one GPU may have all its links off; it only informs."""
    scenario = FAULTS["all-links-down"](h100_sxm(1), 0)

    assert [("info", "nvlink-down", [0])] == rows(link_on(nvml_standin, scenario, tmp_path, nodes=1))


@pytest.mark.parametrize(
    "mask, expected",
    [
        (HEALTHY_MASK, []),
        (0, []),
        (0b0001_10100110, [("warning", "fabric-recovering", [0])]),
        (0b0001_01101010, [("warning", "fabric-recovering", [0])]),
        (0b0101_10101010, [("error", "fabric-misconfigured", [0])]),
        (0b0001_10010110, [("warning", "fabric-recovering", [0]), ("error", "fabric-route-unhealthy", [0])]),
    ],
)
def test_what_the_health_mask_says(nvml_standin, tmp_path, mask, expected):
    """Two bits for each question, four for the configuration."""
    scenario = fabric(h100_sxm(2), gpu=0, healthMask=mask)

    assert expected == rows(link_on(nvml_standin, scenario, tmp_path))


def test_a_fabric_of_an_older_driver(nvml_standin, tmp_path):
    """Before 580 there is no summary, before 550 no mask; the state remains."""
    scenario = FAULTS["fabric-in-progress"](h100_sxm(), 3).on_driver(535)

    assert [("error", "fabric-not-ready", [3])] == rows(link_on(nvml_standin, scenario, tmp_path))


@pytest.mark.parametrize(
    "branch, expected",
    [(535, []), (550, [("error", "fabric-degraded", [3])]), (580, [("error", "fabric-degraded", [3])])],
)
def test_the_mask_of_an_older_driver(nvml_standin, tmp_path, branch, expected):
    """It came with the second version of the structure."""
    scenario = FAULTS["fabric-degraded-bandwidth"](h100_sxm(), 3).on_driver(branch)

    assert expected == rows(link_on(nvml_standin, scenario, tmp_path))


def test_totals_of_link_errors_prove_nothing(nvml_standin, tmp_path):
    """Only what rises does."""
    scenario = h100_sxm(2).field(161, 1234, scope=3, value_type=3).field(52, 99, value_type=3)

    assert [] == rows(link_on(nvml_standin, scenario, tmp_path))


def test_a_link_that_is_not_recovered_stands_first(nvml_standin, tmp_path):
    """Before counters that rose by more."""
    finding = only(link_on(nvml_standin, FAULTS["link-lost"](machine(B200_SXM, 2), 1), tmp_path, nodes=2))

    text = "NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS[3] rose by 1 while this check ran, wanted 0"
    assert finding.message.endswith(f": {text}")
    assert {"NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS[3]": 1, "NVLINK_COUNT_SYMBOL_ERRORS[3]": 1234} == (
        finding.evidence["rises"]
    )


def test_symbol_errors_are_a_warning(nvml_standin, tmp_path):
    """What forward error correction could not mend."""
    scenario = machine(B200_SXM, 2).field(221, 5, gpu=1, scope=3, value_type=3, from_call=2)

    assert [("warning", "nvlink-errors", [1])] == rows(link_on(nvml_standin, scenario, tmp_path, nodes=2))


def test_p2p_that_is_broken_both_ways_is_not_one_way(nvml_standin, tmp_path):
    """Boards on two sockets may not reach each other at all."""
    scenario = machine(A100_PCIE, 2).says("nvmlDeviceGetP2PStatus", 4)

    assert [] == rows(link_on(nvml_standin, scenario, tmp_path))


def test_p2p_names_both_gpus(nvml_standin, tmp_path):
    finding = only(link_on(nvml_standin, FAULTS["one-way-p2p"](h100_sxm(), 3), tmp_path))

    assert f"GPU 4 ({uuid(4)}" in finding.message
    assert 4 == finding.evidence["to"]["index"]


def test_a_lost_neighbour_is_left_to_gpu_health(nvml_standin, tmp_path):
    assert [] == rows(link_on(nvml_standin, FAULTS["lost"](h100_sxm(), 3), tmp_path))


def test_pcie_that_sleeps_is_no_fault(nvml_standin, tmp_path):
    """All idle cards at generation 1; and one that differs because it is in another performance state."""
    asleep = slow_pcie(h100_sxm(2), 1).says("nvmlDeviceGetPerformanceState", 8, gpu=1)

    assert [] == rows(link_on(nvml_standin, machine(L4, 4), tmp_path))
    assert [] == rows(link_on(nvml_standin, asleep, tmp_path))


def test_pcie_that_wakes_up_is_no_fault(nvml_standin, tmp_path):
    """The best of the samples counts."""
    scenario = h100_sxm(2).says("nvmlDeviceGetCurrPcieLinkGeneration", 1, gpu=1)
    scenario = scenario.says("nvmlDeviceGetCurrPcieLinkGeneration", 5, gpu=1, from_call=3)

    assert [] == rows(link_on(nvml_standin, scenario, tmp_path))


def test_pcie_of_a_grace_says_nothing(nvml_standin, tmp_path):
    """It reaches its CPU over NVLink-C2C."""
    assert [] == rows(link_on(nvml_standin, FAULTS["narrow-pcie"](machine(GB200, 4), 3), tmp_path))


def test_a_gpu_in_mig_mode_has_no_nvlink(nvml_standin, tmp_path):
    outcome = link_on(nvml_standin, FAULTS["all-links-down"](mig(), 0), tmp_path, nodes=1)

    assert ([], "1 x NVIDIA H100 80GB HBM3: NVLink not judged in MIG mode") == (rows(outcome), outcome.message)


def test_what_cannot_be_read_is_told(nvml_standin, tmp_path):
    """And judged by nobody."""
    scenario = h100_sxm(1).fails("nvmlDeviceGetPcieReplayCounter", pynvml.NVML_ERROR_NO_PERMISSION)
    scenario = scenario.fails("nvmlDeviceGetCurrPcieLinkWidth", pynvml.NVML_ERROR_NOT_SUPPORTED)
    outcome = link_on(nvml_standin, scenario, tmp_path, nodes=1)

    wanted = {"pcie_replays": "Insufficient Permissions", "pcie_width": "Not Supported"}
    assert ([], wanted) == (rows(outcome), outcome.measurements["not_read"])


@pytest.mark.parametrize("name", ["NVIDIA R200 SXM7 AC", "NVIDIA H20", "Tesla V100-SXM2-32GB"])
def test_no_link_at_all_on_boards_that_nobody_counted_is_a_warning(nvml_standin, tmp_path, name):
    """Their neighbours have none either; by their name, or by the fabric that they are part of, they should."""
    machine = named(FAULTS["all-links-down"](h100_sxm(2), 0), name)
    outcome = link_on(nvml_standin, machine, tmp_path, nodes=2)

    assert [("warning", "nvlink-down", [0, 1])] == rows(outcome)
    text = "none of its 18 NVLinks is active, nor one of any GPU here, wanted some"
    assert only(outcome).message.endswith(text)


@pytest.mark.parametrize("count, name", [(1, "NVIDIA R200 SXM7 AC"), (2, "NVIDIA H21 PCIe")])
def test_no_link_where_none_may_be_wanted(nvml_standin, tmp_path, count, name):
    """A single board, and cards without a bridge."""
    machine = fabric(named(FAULTS["all-links-down"](h100_sxm(count), 0), name), state=0)

    assert [] == rows(link_on(nvml_standin, machine, tmp_path, nodes=count))
