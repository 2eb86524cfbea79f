"""cuda: the least that training needs, on GPUs of a stand-in torch; the probe is the real one."""

import json
import mmap
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise

import pytest
from nvml_checks import context_of, found, only
from nvml_cuda import variables, work_on
from nvml_machines import h100_sxm, mig, mig_uuid, uuid

from preflight_checks import _gpu_work
from preflight_checks._gpus import Gpu
from preflight_checks._probes import FOLDER, ProbeError, ask
from preflight_checks.cuda import cuda
from trainer_agent.accelerators import Accelerators
from trainer_agent.check import Options, Outcome
from trainer_agent.errors import Action
from trainer_agent.guarded import Ended
from trainer_agent.isolation import CrashedError
from trainer_agent.testing import FakeHost, context_on, run_check

pytestmark = pytest.mark.lab

UNREADY = "Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized"
TARGET = _gpu_work.Target(Gpu(3, uuid="GPU-3"), {"CUDA_VISIBLE_DEVICES": "GPU-3"})


def rows(outcome):
    """Return severity, code and GPUs of the findings."""
    return [row[1:] for row in found({"cuda": outcome})]


def test_healthy_gpus(nvml_standin, tmp_path):
    outcome = work_on(nvml_standin, cuda, tmp_path)

    assert [] == rows(outcome)
    assert outcome.message.startswith("CUDA works on 2 GPUs, torch 2.")
    assert [0, 1] == [gpu["index"] for gpu in outcome.measurements["gpus"]]


def test_every_fault_on_its_gpu(nvml_standin, tmp_path):
    """Each of six GPUs has another one; those of older versions of torch are told by their text."""
    gpus = {
        0: {"context": UNREADY},
        1: {"synchronize": 719},
        2: {"context": "memory"},
        3: {"wrong_integer": 17},
        4: {"synchronize": "CUDA error: no kernel image is available for execution on the device"},
    }
    outcome = work_on(nvml_standin, cuda, tmp_path, gpus=gpus, count=6)

    assert {
        ("error", "cuda-fabric-not-ready", 0),
        ("error", "cuda-failed", 1),
        ("error", "cuda-out-of-memory", 2),
        ("error", "cuda-wrong", 3),
        ("error", "cuda-mismatch", 4),
    } == {(severity, code, index) for severity, code, (index,) in rows(outcome)}
    messages = {f.code: (f.message, f.action) for f in outcome.findings}
    label = f"GPU 3 ({uuid(3)}, 00000000:56:00.0)"
    wrong = f"{label}: 1 of 4194304 integers are wrong, number 17 is 53, wanted 52"
    assert (wrong, Action.RESCHEDULE) == messages["cuda-wrong"]
    assert messages["cuda-failed"][0].endswith(": CUDA says: CUDA error: number 719 (719), wanted no error")
    assert Action.STOP is messages["cuda-mismatch"][1]


def test_a_mistake_in_the_probe_says_nothing_of_the_gpus(nvml_standin, tmp_path):
    with pytest.raises(CrashedError, match="ProbeError: it ended with exit code 1: RuntimeError: shapes cannot be"):
        work_on(nvml_standin, cuda, tmp_path, gpus={"*": {"synchronize": "mistake"}}, count=1)


def test_one_broken_probe_hides_nothing_of_the_others(nvml_standin, tmp_path):
    outcome = work_on(nvml_standin, cuda, tmp_path, gpus={0: {"context": "mistake"}, 1: {"context": 719}})

    assert [("error", "cuda-failed", [1]), ("warning", "gpu-not-judged", [0])] == rows(outcome)
    assert ["RuntimeError: shapes cannot be multiplied"] == [
        reason.partition(": ")[2] for reason in outcome.measurements["broken"].values()
    ]


def test_a_gpu_that_gave_no_answer_is_no_pass(nvml_standin, tmp_path):
    """Where all others did; it is named, with what its probe said at last."""
    outcome = work_on(nvml_standin, cuda, tmp_path, gpus={0: {"context": "mistake"}})

    message = only(outcome).message
    assert ("warn", [("warning", "gpu-not-judged", [0])]) == (outcome.status, rows(outcome))
    assert message.startswith(f"GPU 0 ({uuid(0)}, 00000000:53:00.0): its probe broke: it ended with exit code 1: ")
    assert message.endswith("; wanted an answer")


def test_a_hang_is_told_within_what_is_left_of_the_budget(nvml_standin, tmp_path):
    """Who runs the checks would end this one then, and nobody would know why."""
    began = time.monotonic()
    options = Options(budget_s=31)  # 22 s for the probe, of which twelve may go before it touches the GPU
    outcome = work_on(nvml_standin, cuda, tmp_path, gpus={1: {"context": "hang"}}, options=options)

    assert [("error", "cuda-hung", [1])] == rows(outcome)
    assert time.monotonic() - began < 45


@pytest.mark.parametrize(
    "budget_s, wanted_s, expected", [(60, 42, 42), (48, 42, 39), (15, 42, 10), (300, 120, 120), (4, 42, 10)]
)
def test_a_probe_leaves_time_to_tell_of_it(tmp_path, budget_s, wanted_s, expected):
    """Nine seconds, as it may have to be killed, and NVML, too; ten seconds it has at least."""
    context = replace(context_of(tmp_path), options=Options(budget_s=budget_s))

    assert expected == _gpu_work.allowed_s(context, wanted_s)


def test_only_visible_gpus_work(nvml_standin, tmp_path):
    outcome = work_on(nvml_standin, cuda, tmp_path, count=4, environ={"CUDA_VISIBLE_DEVICES": "2"})

    assert [2] == [gpu["index"] for gpu in outcome.measurements["gpus"]]


def test_instances_of_a_gpu_work_one_by_one(nvml_standin, tmp_path):
    """Each is named by its own UUID, with the index of its GPU."""
    instances = Accelerators("mig", 2, "NVML: 2 MIG instances")
    failing = {"gpus": {"*": {}, mig_uuid(1): {"context": 719}}, "cuda": "13.0"}
    environ = {"FAKE_CUDA_SCENARIO": json.dumps(failing)}
    how = {"scenario": mig(), "count": 1, "accelerators": instances, "environ": environ}
    outcome = work_on(nvml_standin, cuda, tmp_path, **how)

    assert [{"index": 0, "instance": mig_uuid(0), "name": "NVIDIA H100 80GB HBM3"}] == outcome.measurements["gpus"]
    assert f"GPU 0 ({mig_uuid(1)}, 00000000:53:00.0): CUDA says" in only(outcome).message


def test_nvml_is_read_until_the_probes_end(nvml_standin, tmp_path):
    """They may take two minutes; samples get rarer, so that they stay few and lie all over that time."""

    def times():
        host, stop = FakeHost(tmp_path), mmap.mmap(-1, 1)
        began = host.monotonic()
        host.sleep = lambda seconds: (FakeHost.sleep(host, seconds), stop.write_byte(1) if host.slept > 110 else None)
        samples, _ = _gpu_work._sampled(context_on(host), ("clocks",), stop)
        ends = [gpus[0].temperature_c for _, gpus in (samples[0], samples[-1])]
        return [when - began for when, _ in samples], ends

    when, ends = nvml_standin.call(h100_sxm(1), times)

    assert len(when) <= _gpu_work.MOST_SAMPLES + 1
    assert when[0] == 0
    assert 110 < when[-1] < 111
    assert max(b - a for a, b in pairwise(when)) < 1
    assert None not in ends


@pytest.mark.parametrize("before, expected", [(0, [("error", "gpu-recovery-wanted", [1])]), (4, [])])
def test_a_recovery_that_the_work_brings_about(nvml_standin, tmp_path, before, expected):
    """What was wanted before is for gpu-health to say; a GPU that has no work here is nobody's concern."""
    scenario = h100_sxm(3).field(230, 4, from_call=2).field(230, before, gpu=1).field(230, 4, gpu=1, from_call=2)
    environ = {"CUDA_VISIBLE_DEVICES": "0,1"}
    how = {"scenario": scenario.field(230, 4, gpu=0), "count": 3, "environ": environ}

    assert expected == rows(work_on(nvml_standin, cuda, tmp_path, **how))


def test_an_xid_names_the_gpu_and_not_one_of_its_instances(nvml_standin, tmp_path):
    """Which of them it was, the index does not say."""
    instances = Accelerators("mig", 2, "NVML: 2 MIG instances")
    how = {"scenario": mig().raises(79, gpu=0), "count": 1, "accelerators": instances}

    message = f"GPU 0 ({uuid(0)}, 00000000:53:00.0): XID 79 while this check ran, wanted none"
    assert message == only(work_on(nvml_standin, cuda, tmp_path, **how)).message


def test_an_xid_of_a_gpu_without_work_here_is_none(nvml_standin, tmp_path):
    """It may be another tenant's."""
    how = {"scenario": h100_sxm(3).raises(94, gpu=2), "count": 3, "environ": {"CUDA_VISIBLE_DEVICES": "0,1"}}

    assert [] == rows(work_on(nvml_standin, cuda, tmp_path, **how))


def test_a_context_switch_that_takes_too_long_in_our_own_work_is_an_error(nvml_standin, tmp_path):
    how = {"scenario": h100_sxm(1).raises(109, gpu=0), "count": 1}

    assert [("error", "gpu-xid", [0])] == rows(work_on(nvml_standin, cuda, tmp_path, **how))


@pytest.mark.parametrize("visible", ["0", uuid(0)])
def test_a_gpu_that_is_named_gives_one_of_its_instances(nvml_standin, tmp_path, visible):
    """CUDA takes the first one; which that is, NVML does not say."""
    one = Accelerators("mig", 1, "NVML: 2 MIG instances")
    how = {"scenario": mig(), "count": 1, "accelerators": one, "environ": {"CUDA_VISIBLE_DEVICES": visible}}
    outcome = work_on(nvml_standin, cuda, tmp_path, **how)

    assert [{"index": 0, "instance": uuid(0), "name": "NVIDIA H100 80GB HBM3"}] == outcome.measurements["gpus"]


def test_gpus_that_nobody_can_name_go_by_number(tmp_path):
    """AMD's, and NVIDIA's where there is no NVML, as in gVisor."""
    given = Accelerators("amd", 2, "2 ROCm GPUs")
    all_of_them = replace(context_of(tmp_path), accelerators=given)
    chosen = replace(context_of(tmp_path, {"HIP_VISIBLE_DEVICES": "3,5"}), accelerators=given)

    expected = [{"HIP_VISIBLE_DEVICES": "0"}, {"HIP_VISIBLE_DEVICES": "1"}]
    assert expected == [target.environ for target in _gpu_work.targets(all_of_them)]
    expected = [{"HIP_VISIBLE_DEVICES": "3"}, {"HIP_VISIBLE_DEVICES": "5"}]
    assert expected == [target.environ for target in _gpu_work.targets(chosen)]


def test_a_torch_without_cuda_is_no_fault(nvml_standin, tmp_path):
    skipped = work_on(nvml_standin, cuda, tmp_path, cuda=None, count=1)

    assert skipped.endswith("was built without CUDA")


def test_a_machine_without_gpus_is_skipped(tmp_path):
    assert "no NVIDIA or AMD GPU is visible here: 0 device nodes" == run_check(cuda, FakeHost(tmp_path))


def test_a_driver_that_hung_before_is_not_asked_again(tmp_path):
    hung = Accelerators("nvidia", 0, "NVML", problem="no answer", hung=True)

    assert "NVML hangs; gpu-count says more" == run_check(cuda, FakeHost(tmp_path), accelerators=hung)


def killed(words, *, code=-9, timed_out=True):
    """Return how a probe was killed that had said this last."""
    return Ended(code, "", f"at: import\n{words}\n", "no answer within 42 s", timed_out, 42.0)


@pytest.mark.parametrize(
    "ended, stage",
    [
        (killed("at: context after 5.0 s"), "context"),
        (killed("at: copies after 9.5 s", code=None), "copies"),
        (killed("at: context after 30.0 s"), None),
        (killed("at: kernel after 5.0 s"), None),
        (killed("at: first product after 5.0 s"), None),
        (killed(""), None),
        (killed("at: context after 5.0 s", timed_out=False), None),
        (None, None),
    ],
)
def test_who_hangs_and_who_is_only_late(ended, stage):
    """An import of torch may take as long as it likes, and a first kernel where nobody is past it."""
    work = _sorted_or_broken(ended)

    assert stage == (work.findings[0].evidence["stage"] if work else None)


OTHER = _gpu_work.Target(Gpu(0, uuid="GPU-0"), {"CUDA_VISIBLE_DEVICES": "GPU-0"})


@pytest.mark.parametrize("stage", ["kernel", "first product", "first copy", "pinned memory"])
@pytest.mark.parametrize("took_s, expected", [(12.0, "cuda-hung"), (12.4, "gpu-not-judged"), (None, "gpu-not-judged")])
def test_what_is_compiled_hangs_where_another_gpu_is_past_it(stage, took_s, expected):
    """In less than a third of the 37 s; where all are slow, a slow image is the cause."""
    answer = {"torch": "2.9", "cuda": "13.0", "stages": {} if took_s is None else {stage: took_s}}
    broken = ProbeError("it broke", killed(f"at: {stage} after 5.0 s"))
    work = _gpu_work._sorted([OTHER, TARGET], [answer, broken], 42.0, little=True)

    assert (expected, [3]) == (work.findings[0].code, [gpu["index"] for gpu in work.findings[0].evidence["gpus"]])


@pytest.mark.parametrize(
    "probe_s, began_s, hangs", [(22, 12, True), (22, 12.1, False), (30, 12.1, False), (120, 90, True)]
)
def test_little_time_makes_less_of_it_a_hang(probe_s, began_s, hangs):
    """All but 12 s of it, from 10 to 30 s."""
    assert hangs == (_gpu_work._hung(TARGET, killed(f"at: context after {began_s} s"), probe_s, {}) is not None)


def test_the_probe_says_how_long_each_stage_took(tmp_path):
    context = context_of(tmp_path, variables({}) | TARGET.environ)
    answer = ask(context, "cuda", {"device": "cuda", "numbers": 8}, timeout_s=60)

    assert ["context", "allocation", "kernel", "synchronize", "copy"] == list(answer["stages"])
    assert all(0 <= seconds < 60 for seconds in answer["stages"].values())


def _sorted_or_broken(ended):
    try:
        return _gpu_work._sorted([TARGET], [ProbeError("it broke", ended)], 42.0, little=True)
    except ProbeError:
        return None


def test_the_probe_says_where_it_hangs():
    """The real probe: its last words are those that the check looks for (how they come to it: test_probes.py)."""
    request = json.dumps({"device": "cuda", "numbers": 8})
    argv = [sys.executable, str(FOLDER / "cuda_probe.py"), request]
    environ = variables({"*": {"context": "hang"}}) | TARGET.environ
    with subprocess.Popen(argv, env=environ, stderr=subprocess.PIPE, text=True) as probe:
        said = probe.stderr.readline().strip()
        probe.kill()

    assert {"stage": "context"} == _gpu_work._hung(TARGET, killed(said), 300.0, {})[2]


@pytest.mark.parametrize("little, severity", [(True, "error"), (False, "warning")])
def test_who_wants_more_memory_only_warns(little, severity):
    answer = {"torch": "2.9", "cuda": "13.0", "error": {"kind": "memory", "code": 2, "text": "out of memory"}}
    work = _gpu_work._sorted([TARGET], [answer], 42.0, little=little)

    assert [("cuda-out-of-memory", severity)] == [(f.code, str(f.severity)) for f in work.findings]


@pytest.mark.parametrize("code, stuck", [(-9, ""), (None, ", and the probe does not die when killed")])
def test_a_hang_is_told_in_words(code, stuck):
    work = _sorted_or_broken(killed("at: context after 5.0 s", code=code))
    finding = only(Outcome("", tuple(work.findings)))

    assert f"GPU 3 (GPU-3): no answer for 37 s at `context`{stuck}, wanted one within seconds" == finding.message
    assert ("cuda-hung", Action.RESCHEDULE) == (finding.code, finding.action)
