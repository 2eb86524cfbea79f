"""bandwidth on GPUs of a stand-in torch whose copies take as long as the scenario says; the probe is the real one."""

from itertools import permutations

import pytest
from nvml_checks import found
from nvml_cuda import at_work, work_on
from nvml_faults import narrow_pcie, pcie_errors, slow_pcie
from nvml_machines import h100_sxm, machine
from nvml_models import GB200

from preflight_checks import _gpu_pairs, _gpu_work, bandwidth
from preflight_checks._gpu_models import Thresholds, model_of
from preflight_checks._gpus import Gpu
from trainer_agent.check import Options

pytestmark = pytest.mark.lab

PEAK = 3.94 * 16
H100 = "NVIDIA H100 80GB HBM3"
UNDER_LOAD = {"pcie_generation": 5, "pcie_generation_max": 5, "pcie_width": 16, "pcie_width_max": 16}


def rows(outcome):
    """Return severity, code and GPUs of the findings."""
    return [row[1:] for row in found({"bandwidth": outcome})]


def test_healthy_gpus(nvml_standin, tmp_path):
    """Every speed is told beside what it should be."""
    outcome = work_on(nvml_standin, bandwidth.bandwidth, tmp_path)

    assert ([], "2 GPUs copy 2900 2900 GB/s in their memory") == (rows(outcome), outcome.message)
    first = {name: round(value, 2) for name, value in outcome.measurements["gpus"][0].items()}
    wanted = {"expected_memory_gbps": 3350, "expected_h2d_gbps": PEAK, "expected_d2h_gbps": PEAK}
    assert {"index": 0, "memory_gbps": 2900, "h2d_gbps": 54, "d2h_gbps": 54, **wanted} == first


def test_every_fault_on_its_gpu(nvml_standin, tmp_path):
    """Slow memory, half of the lanes, an old generation and bad packets, on GPUs of one node."""
    scenario = pcie_errors(slow_pcie(narrow_pcie(at_work(h100_sxm(4)), 1), 2), 3)
    gpus = {0: {"memory_gbps": 2000}, 1: {"host_gbps": 24}, 2: {"host_gbps": 3}}
    outcome = work_on(nvml_standin, bandwidth.bandwidth, tmp_path, gpus=gpus, scenario=scenario, count=4)

    assert {
        ("error", "gpu-memory-slow", 0),
        ("error", "pcie-narrow-under-load", 1),
        ("error", "host-link-slow", 1),
        ("error", "pcie-slow-under-load", 2),
        ("error", "host-link-slow", 2),
        ("warning", "pcie-replays-under-load", 3),
    } == {(severity, code, index) for severity, code, (index,) in rows(outcome)}
    told = next(f.message for f in outcome.findings if f.code == "gpu-memory-slow")
    assert told.endswith(": it copies 2000 GB/s in its memory, wanted 2680: 80% of its model's 3350")


def test_a_grace_is_not_judged_by_pcie(nvml_standin, tmp_path):
    scenario = slow_pcie(machine(GB200, 1), 0)
    gpus = {"*": {"memory_gbps": 7000, "host_gbps": 3, "name": "NVIDIA GB200"}}

    assert [] == rows(work_on(nvml_standin, bandwidth.bandwidth, tmp_path, gpus=gpus, scenario=scenario, count=1))


def test_deep_copies_between_all_pairs(nvml_standin, tmp_path):
    """On a board with a switch every pair is alike: less than half of the others is a fault of one of the two."""
    options = Options(profile="deep")
    pairs = {"cuda:0 cuda:2": 150, "cuda:2 cuda:1": 300}
    outcome = work_on(nvml_standin, bandwidth.bandwidth, tmp_path, count=3, pairs=pairs, options=options)

    assert [("error", "gpu-pair-slow", [0, 2]), ("warning", "gpu-pair-slow", [2, 1])] == rows(outcome)
    assert "GB/s, wanted 320: 80% of the median of all pairs" in outcome.findings[0].message
    assert (400, 6) == (
        round(outcome.measurements["pairs"]["usual_gbps"]),
        len(outcome.measurements["pairs"]["speeds"]),
    )


def test_pairs_that_could_not_be_judged_are_no_pass(nvml_standin, tmp_path):
    """Here the probe breaks at the first of them."""
    how = {"pairs": {"*": 0}, "options": Options(profile="deep")}
    outcome = work_on(nvml_standin, bandwidth.bandwidth, tmp_path, **how)

    assert [("warning", "gpu-not-judged", [0, 1])] == rows(outcome)
    assert "ZeroDivisionError" in outcome.measurements["pairs"]["not_done"]


@pytest.mark.parametrize("name", ["NVIDIA H100 NVL", "NVIDIA L4", "Z1"])
def test_pairs_of_other_boards_only_warn(name):
    """Bridges reach one neighbour, and PCIe is slower between sockets."""
    targets = [_gpu_work.Target(Gpu(index, name=name, model=model_of(name)), {}) for index in range(3)]
    pairs = [{"from": a, "to": b, "gbps": 10 if (a, b) == (0, 1) else 100} for a, b in permutations(range(3), 2)]

    assert ["warning"] == [str(f.severity) for f in _gpu_pairs.judge(targets, pairs, Thresholds())]


def answered(index, *, name=H100, memory=3000, h2d=55, d2h=55):
    """Return what the probe of one GPU answered."""
    gpu = Gpu(index, uuid=f"GPU-{index}", name=name, model=model_of(name))
    speeds = {"memory_gbps": memory, "memory_bytes": 1 << 30, "h2d_gbps": h2d, "d2h_gbps": d2h}
    return _gpu_work.Target(gpu, {}), {"name": name, **speeds, "host_window": [1, 5], "not_done": {}}


def judged(*answers, virtual=False, only=None, **seen):
    """Return (GPU, severity, code) of everything found while NVML saw the links so, all of them or only one."""
    differs = {target.gpu.index: seen if only in (None, target.gpu.index) else {} for target, _ in answers}
    sample = {index: Gpu(index, **{**UNDER_LOAD, **links}) for index, links in differs.items()}
    work = _gpu_work.Work(answers, {}, samples=[(float(when), sample) for when in range(7)])
    said = []
    for target, answer in answers:
        said += bandwidth._memory(work, target, answer, Thresholds())
        said += bandwidth._links(work, target, answer, limits=Thresholds(), virtual=virtual)
    return [(gpu.index, str(rule.severity), rule.code) for rule, (gpu, _, _) in said]


@pytest.mark.parametrize(
    "memory, expected",
    [(2681, []), (2679, [(0, "warning", "gpu-memory-slow")]), (2177, [(0, "error", "gpu-memory-slow")])],
)
def test_memory_by_its_model(memory, expected):
    """80 % and 65 % of 3350."""
    assert expected == judged(answered(0, memory=memory))


@pytest.mark.parametrize("name, severity", [(H100, "error"), ("NVIDIA H100 PCIe", "warning"), ("Z1", "warning")])
def test_a_link_that_nobody_saw_at_work_is_judged_by_what_it_can(name, severity):
    """On a busy host NVML may not be asked while data goes over it; a card may then have lanes that its slot lacks."""
    target, answer = answered(0, name=name, h2d=0.3 * PEAK)

    assert (0, severity, "host-link-slow") in judged((target, {**answer, "host_window": [7.5, 8]}))


def test_memory_of_an_unknown_model_is_compared_with_its_neighbours():
    same = [answered(index, name="Z1", memory=speed) for index, speed in enumerate((1000, 1000, 500))]

    assert [(2, "warning", "gpu-memory-slow")] == judged(*same)


@pytest.mark.parametrize(
    "h2d, severity",
    [(0.66, None), (0.64, "warning"), (0.41, "warning"), (0.39, "error")],
)
def test_half_of_the_lanes_fail(h2d, severity):
    """An H100 of Azure may have 48 of 63 GB/s, an A100 21 of 31."""
    expected = [(0, severity, "host-link-slow")] if severity else []

    assert expected == judged(answered(0, h2d=h2d * PEAK))


def test_a_virtual_machine_and_an_unknown_model_only_warn():
    expected = [(0, "warning", "host-link-slow"), (0, "warning", "pcie-narrow-under-load")]

    assert expected == judged(answered(0, d2h=20), virtual=True, pcie_width=8)
    assert expected == judged(answered(0, d2h=20, name="Z1"), pcie_width=8)


@pytest.mark.parametrize(
    "name, only, virtual, severity",
    [
        (H100, None, False, "error"),
        (H100, None, True, "warning"),
        (H100, 1, True, "error"),
        ("NVIDIA L4", None, False, "warning"),
        ("NVIDIA L4", 1, False, "error"),
        ("NVIDIA L4", 1, True, "warning"),
        ("NVIDIA GeForce RTX 4090", 1, False, "warning"),
        ("Z1", 1, False, "warning"),
    ],
)
def test_a_card_in_a_small_slot_is_no_fault(name, only, virtual, severity):
    """A quarter of the maximum, which may be the card's alone: neither its lanes nor its copies fail the node."""
    answers = [answered(n, name=name, memory=3000, h2d=14 if only in (None, n) else 55) for n in (0, 1)]
    found = judged(*answers, virtual=virtual, only=only, pcie_width=4)

    gpus = (0, 1) if only is None else (1,)
    expected = [(n, severity, code) for n in gpus for code in ("host-link-slow", "pcie-narrow-under-load")]
    assert expected == [row for row in found if row[2] != "gpu-memory-slow"]


@pytest.mark.parametrize(
    "gbps, expected",
    [(24, []), (20, [(0, "warning", "host-link-slow")]), (12, [(0, "warning", "host-link-slow")])],
)
def test_a_card_of_a_virtual_machine_is_measured_by_the_lanes_that_it_has(gbps, expected):
    """Eight of generation 5 can do 31.5 GB/s, of which 65 % are 20.5; that it has so few is said, and no more."""
    answer = answered(0, name="NVIDIA L4", h2d=gbps)

    assert [*expected, (0, "info", "pcie-narrow-under-load")] == judged(answer, virtual=True, pcie_width=8)


@pytest.mark.parametrize(
    "name, only, virtual, severity",
    [
        (H100, None, False, "error"),
        (H100, 1, True, "warning"),
        ("NVIDIA L4", None, False, "warning"),
        ("NVIDIA L4", 1, False, "error"),
        ("NVIDIA L4", 1, True, "warning"),
        ("NVIDIA GeForce RTX 4090", 1, False, "warning"),
        ("Z1", None, False, "warning"),
    ],
)
def test_a_slot_that_is_held_down_is_no_fault(name, only, virtual, severity):
    """By a riser or the BIOS: it is one only where nothing lies between, or where another card does better."""
    answers = [answered(n, name=name) for n in (0, 1)]
    found = judged(*answers, virtual=virtual, only=only, pcie_generation=4)

    gpus = (0, 1) if only is None else (1,)
    assert [(n, severity, "pcie-slow-under-load") for n in gpus] == [row for row in found if "pcie" in row[2]]


def test_a_link_that_woke_up_is_no_fault():
    """What NVML said before the copies does not count, and of the samples during them the best does."""
    target, answer = answered(0)
    asleep, awake = Gpu(0, **{**UNDER_LOAD, "pcie_generation": 1}), Gpu(0, **UNDER_LOAD)
    seen = [asleep, asleep, awake, awake, asleep, asleep]
    work = _gpu_work.Work([(target, answer)], {}, samples=[(float(n), {0: gpu}) for n, gpu in enumerate(seen)])

    assert [] == list(bandwidth._links(work, target, answer, limits=Thresholds(), virtual=False))
