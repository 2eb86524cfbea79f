"""gemm on GPUs of a stand-in torch; the probe, its matrices and its verification are the real ones."""

import pytest
from nvml_checks import context_of, found
from nvml_cuda import at_work, variables, work_on
from nvml_faults import ecc, throttled
from nvml_machines import DRAM, h100_sxm, uuid

from preflight_checks import _gpu_work, gemm
from preflight_checks._gpu_models import Thresholds, model_of
from preflight_checks._gpus import Gpu
from preflight_checks._probes import ask
from trainer_agent.errors import Action

pytestmark = pytest.mark.lab

H100 = "NVIDIA H100 80GB HBM3"


def rows(outcome):
    """Return severity, code and GPUs of the findings."""
    return [row[1:] for row in found({"gemm": outcome})]


def test_healthy_gpus(nvml_standin, tmp_path):
    """Nothing is found; the speed is told beside what the model can do."""
    outcome = work_on(nvml_standin, gemm.gemm, tmp_path)

    assert [] == rows(outcome)
    first = outcome.measurements["gpus"][0]
    assert (0, "bf16", 8192, 700, 794) == (
        first["index"],
        first["kind"],
        first["size"],
        round(first["matmul_tflops"]),
        first["expected_matmul_tflops"],
    )
    assert outcome.message.endswith(" exact products on 2 GPUs; 700 700 TFLOP/s")


def test_faults_of_one_node(nvml_standin, tmp_path):
    """One GPU computes one wrong bit and raises an XID; the other one is slow, hot, and loses memory."""
    scenario = throttled(0x48, from_call=2)(ecc(DRAM, 3, rising=True)(at_work(h100_sxm(2)), 1), 1)
    scenario = scenario.raises(48, gpu=0, after_s=1.0)
    gpus = {0: {"wrong_product": 3}, 1: {"tflops": 400}}
    outcome = work_on(nvml_standin, gemm.gemm, tmp_path, gpus=gpus, scenario=scenario)

    assert {
        ("error", "gemm-wrong", 0),
        ("error", "gpu-xid", 0),
        ("error", "gemm-slow", 1),
        ("error", "ecc-uncorrected-rising", 1),
        ("error", "gpu-thermal-slowdown", 1),
    } == {(severity, code, index) for severity, code, (index,) in rows(outcome)}
    told = {f.code: f.message.partition("): ")[2] for f in outcome.findings}
    assert told["gemm-wrong"].startswith(
        "1 products are wrong, the first one bf16 2048x4096x256: 1 numbers in 1 rows, "
    )
    assert "400.0 TFLOP/s with bf16, wanted 476: 60% of its model's best" == told["gemm-slow"]
    assert "3 uncorrected memory errors while it worked, wanted 0" == told["ecc-uncorrected-rising"]
    assert f"GPU 0 ({uuid(0)}, 00000000:53:00.0)" in "".join(f.message for f in outcome.findings)


def test_an_older_torch_and_a_full_gpu_do_what_they_can(tmp_path):
    """A type that this torch has not is left out with the reason; smaller matrices are timed."""
    older = {"lacks": ["float8_e4m3fn"], "free_bytes": 64 << 20}
    context = context_of(tmp_path, variables({"*": older}) | {"CUDA_VISIBLE_DEVICES": "0"})
    cases = [["bf16", 64, 64, 64], ["fp8", 64, 64, 64]]
    request = {"device": "cuda", "cases": cases, "repeat": 1, "size": 8192, "box_s": 0.05, "least": 20}
    answer = ask(context, "gemm", request, timeout_s=60)

    assert {"fp8 64x64x64": "module 'torch' has no attribute 'float8_e4m3fn'"} == answer["not_done"]
    assert ([], 2048) == (answer["wrong"], answer["size"])


def answered(index, tflops, *, name=H100, instance="", **more):
    """Return what the probe of one GPU answered."""
    gpu = Gpu(index, uuid=f"GPU-{index}", name=name, model=model_of(name))
    answer = {"name": name, "kind": "bf16", "size": 8192, "matmul_tflops": tflops, "window": [0, 9], **more}
    return _gpu_work.Target(gpu, {}, instance), answer


def slow(*answers, samples=()):
    """Return (GPU, severity) of those that are too slow."""
    work = _gpu_work.Work(answers, {}, samples=samples)
    said = [row for target, answer in answers for row in gemm._slow(work, target, answer, Thresholds())]
    return [(gpu.index, str(rule.severity)) for rule, (gpu, _, _) in said]


@pytest.mark.parametrize(
    "tflops, expected",
    [
        ((700, 700, 700), []),
        ((700, 700, 631), []),
        ((700, 700, 629), [(2, "warning")]),
        ((700, 700, 524), [(2, "error")]),
        ((700, 600), [(1, "warning")]),
        ((477,), []),
        ((476,), [(0, "error")]),
        ((470, 470), [(0, "error"), (1, "error")]),
    ],
)
def test_how_slow_is_too_slow(tflops, expected):
    """90 % and 75 % of the median of the others, 60 % of the model's 794."""
    assert expected == slow(*(answered(index, speed) for index, speed in enumerate(tflops)))


def test_an_unknown_model_only_warns():
    assert [(1, "warning")] == slow(answered(0, 100, name="Z1"), answered(1, 50, name="Z1"))


def test_other_models_are_no_neighbours():
    assert [] == slow(answered(0, 300, name="Z1"), answered(1, 50, name="Z2"))


def test_other_work_is_no_comparison():
    """A GPU with little free memory multiplies smaller matrices, which are slower."""
    assert [] == slow(answered(0, 700), answered(1, 300, size=2048))


def test_instances_of_a_gpu_are_not_judged():
    assert [] == slow(answered(0, 90, instance="MIG-1"), answered(0, 45, instance="MIG-2"))


def test_a_gpu_with_a_power_limit_only_warns():
    limited = Gpu(0, power_limit_w=400, power_default_w=700)

    assert [(0, "warning")] == slow(answered(0, 400), samples=[(0, {0: limited}), (9, {0: limited})])


def held(reasons):
    """Return (severity, code) of what slowed a GPU down, by its clock event reasons under load."""
    target, answer = answered(0, 700, window=[1, 1 + len(reasons)])
    samples = [(0, {0: Gpu(0, clock_reasons=0x40)})]  # before the work
    samples += [(1 + n, {0: Gpu(0, clock_reasons=seen)}) for n, seen in enumerate(reasons)]
    work = _gpu_work.Work([(target, answer)], {}, samples=samples)
    return [(str(rule.severity), rule.code) for rule, _ in gemm._held(work, target, answer, Thresholds())]


@pytest.mark.parametrize(
    "reasons, expected",
    [
        ([0x4] * 8, []),
        ([0x48] * 4 + [0] * 4, [("warning", "gpu-thermal-slowdown")]),
        ([0x48] * 5 + [0] * 3, [("error", "gpu-thermal-slowdown")]),
        ([0x88] * 8, [("error", "gpu-power-brake")]),
        ([0x20] * 8, [("warning", "gpu-sw-thermal-slowdown")]),
        ([0x48] * 4, []),
    ],
)
def test_what_slows_clocks_down_under_load(reasons, expected):
    """The power cap is normal; half of the samples decide; four are too few."""
    assert expected == held(reasons)


def errors(before, after):
    """Return the codes of what rose while a GPU worked for two seconds."""
    target, answer = answered(0, 700)
    samples = [(0, {0: Gpu(0, **before)}), (2, {0: Gpu(0, **after)})]
    work = _gpu_work.Work([(target, answer)], {}, samples=samples)
    return [rule.code for rule, _ in gemm._memory_errors(work, target)]


def test_memory_errors_count_when_they_rise():
    """Totals are for gpu-health."""
    assert [] == errors({"ecc_uncorrected_sram": 4}, {"ecc_uncorrected_sram": 4})
    assert ["ecc-uncorrected-rising"] == errors({"ecc_uncorrected_sram": 4}, {"ecc_uncorrected_sram": 5})
    assert [] == errors({}, {"ecc_uncorrected_sram": 5})
    assert [] == errors({"ecc_corrected": 0}, {"ecc_corrected": 2000})
    assert ["ecc-corrected-rising"] == errors({"ecc_corrected": 0}, {"ecc_corrected": 2001})


def test_a_checksum_that_differs_is_told_apart():
    target, _ = answered(0, 700)
    wrong = {"kind": "bf16", "shape": [8, 8, 8], "what": "checksum", "rows": 1}
    ((rule, (_, text, _)),) = gemm._wrong(target, [wrong])

    assert ("gemm-wrong", Action.RESCHEDULE) == (rule.code, rule.action)
    assert "the first one bf16 8x8x8: its checksum differs and its numbers are right as the CPU reads them" in text
