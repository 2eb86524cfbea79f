"""Memory that others have left in use."""

import pytest
from fault_table import mig_leftover
from nvml_checks import HurriedHost, context_of, found, only, run_on
from nvml_faults import FAULTS, leftover
from nvml_machines import MIB, h100_sxm, machine, memory, mig, mig_uuid
from nvml_models import GB200, L4

from preflight_checks.gpu_memory import deadline_s, gpu_memory
from trainer_agent.accelerators import Accelerators
from trainer_agent.check import Options
from trainer_agent.errors import Action
from trainer_agent.testing import FakeHost

pytestmark = pytest.mark.lab


def memory_on(standin, scenario, root, **how):
    """Return the outcome on a machine."""
    return run_on(standin, scenario, [gpu_memory], root, **how)["gpu-memory"]


def test_free_memory(nvml_standin, tmp_path):
    """What the driver reserves for itself is not in use."""
    outcome = memory_on(nvml_standin, h100_sxm(2), tmp_path)

    assert ("2 of 2 GPUs read, at most 0 MiB in use", ()) == (outcome.message, outcome.findings)
    assert {"used_bytes": {0: 0, 1: 0}, "waited_s": 0.0, "not_read": {}} == outcome.measurements


def test_leftover_memory_is_told_with_its_process(nvml_standin, tmp_path):
    """After ten seconds of waiting; the process may be one of another namespace."""
    finding = only(memory_on(nvml_standin, FAULTS["leftover-memory-much"](h100_sxm(), 3), tmp_path))

    assert finding.message.endswith(": 30000 MiB of memory are in use (37%), wanted 1024 MiB or less")
    assert Action.RESCHEDULE is finding.action
    evidence = {key: finding.evidence[key] for key in ("used_bytes", "waited_s", "pids")}
    assert {"used_bytes": 30_000 * MIB, "waited_s": 10.0, "pids": [4711]} == evidence


@pytest.mark.parametrize(
    "used_mib, expected",
    [(1024, []), (1025, ["gpu-memory-used"]), (4077, ["gpu-memory-used"]), (4079, ["gpu-memory-occupied"])],
)
def test_the_thresholds(nvml_standin, tmp_path, used_mib, expected):
    """More than 1 GiB, and more than 5 % of 81,559 MiB."""
    scenario, quick = leftover(used_mib)(h100_sxm(1), 0), Options(profile="quick")
    outcome = memory_on(nvml_standin, scenario, tmp_path, nodes=1, options=quick)

    assert expected == [f.code for f in outcome.findings]


def test_memory_that_is_freed_in_time(nvml_standin, tmp_path):
    """An orphan of the job before us takes a while to end."""
    outcome = memory_on(
        nvml_standin, FAULTS["leftover-memory-freed"](h100_sxm(), 3), tmp_path, host=HurriedHost(tmp_path)
    )

    assert () == outcome.findings
    assert 1 < outcome.measurements["waited_s"] <= 10


def test_a_warning_is_not_waited_for(nvml_standin, tmp_path):
    """The time is that of the checks which let the GPUs work; what was seen at first is what is told."""
    host = FakeHost(tmp_path)
    outcome = memory_on(nvml_standin, FAULTS["leftover-memory"](h100_sxm(), 3), tmp_path, host=host)

    assert [("gpu-memory", "warning", "gpu-memory-used", [3])] == found({"gpu-memory": outcome})
    assert 0.0 == outcome.measurements["waited_s"] == host.slept


def test_the_quick_profile_waits_less(nvml_standin, tmp_path):
    host = FakeHost(tmp_path)
    scenario = FAULTS["leftover-memory-much"](h100_sxm(), 3)
    outcome = memory_on(nvml_standin, scenario, tmp_path, host=host, options=Options(profile="quick"))

    assert 5.0 == only(outcome).evidence["waited_s"]


@pytest.mark.parametrize("budget_s, waited_s", [(300, 50.0), (60, 10.0), (20, 5.0), (7, 3.0), (4, 0.0), (1, 0.0)])
def test_most_of_the_budget_is_for_the_checks_that_follow(nvml_standin, tmp_path, budget_s, waited_s):
    """A sixth of it is for the wait, but 5 s; four seconds before its end the check says what it sees."""
    scenario = FAULTS["leftover-memory-much"](h100_sxm(), 3)
    outcome = memory_on(nvml_standin, scenario, tmp_path, options=Options(budget_s=budget_s))

    assert ("gpu-memory-occupied", waited_s) == (only(outcome).code, only(outcome).evidence["waited_s"])


def test_an_old_driver_counts_its_reserve_as_used(nvml_standin, tmp_path):
    """Before 510 it cannot be told from little that others use, from 3 GiB it can."""
    own = memory(machine(L4, 1), 23034, 538, 900).on_driver(470)
    others = memory(machine(L4, 1), 23034, 538, 3072).on_driver(470)

    assert [] == found({"gpu-memory": memory_on(nvml_standin, own, tmp_path, nodes=1)})
    outcome = memory_on(nvml_standin, others, tmp_path, nodes=1, options=Options(profile="quick"))
    assert ["gpu-memory-occupied"] == [f.code for f in outcome.findings]


def test_a_gpu_in_mig_mode_is_judged_by_its_instances(nvml_standin, tmp_path):
    """A container may not ask for the whole GPU, and who may would see what other people use."""
    outcome = memory_on(nvml_standin, memory(mig_leftover(5000), 81559, 0, 70_000, gpu="0"), tmp_path, nodes=1)

    finding = only(outcome)
    assert "1 of 1 GPUs read, at most 5000 MiB in use" == outcome.message
    assert finding.message.endswith(f"5000 MiB of memory of {mig_uuid(1)} are in use (49%), wanted 1024 MiB or less")
    assert (mig_uuid(1), 0) == (finding.evidence["mig"], finding.evidence["gpus"][0]["index"])
    assert {mig_uuid(0): 0, mig_uuid(1): 5000 * MIB} == outcome.measurements["used_bytes"]
    assert {} == outcome.measurements["not_read"]


def test_instances_of_others_are_not_judged(nvml_standin, tmp_path):
    """CUDA_VISIBLE_DEVICES lists ours."""
    ours = Accelerators("mig", 1, "NVML: 2 MIG instances", visible=(mig_uuid(0),))
    outcome = memory_on(nvml_standin, mig_leftover(5000), tmp_path, nodes=1, accelerators=ours)

    assert ((), {mig_uuid(0): 0}) == (outcome.findings, outcome.measurements["used_bytes"])


@pytest.mark.parametrize(
    "scenario, reason",
    [
        (mig(instances=0), "in MIG mode, and none of its instances answers"),
        (h100_sxm(1).fails("nvmlDeviceGetMemoryInfo_v2", 4), "Insufficient Permissions"),
    ],
)
def test_memory_that_nobody_may_ask_for_is_skipped(nvml_standin, tmp_path, scenario, reason):
    assert f"no GPU tells its memory: {reason}" == memory_on(nvml_standin, scenario, tmp_path, nodes=1)


def test_memory_that_is_a_numa_node_only_informs(nvml_standin, tmp_path):
    """On Grace the kernel keeps pages of processes that have ended."""
    scenario = memory(machine(GB200, 4), 189471, 742, 60_000, gpu=2)
    outcome = memory_on(nvml_standin, scenario, tmp_path, nodes=4)

    assert [("gpu-memory", "info", "gpu-memory-used", [2])] == found({"gpu-memory": outcome})


def test_lost_gpus_are_left_to_gpu_health(nvml_standin, tmp_path):
    assert "no GPU answers; gpu-health says more" == memory_on(nvml_standin, h100_sxm(1).loses(0), tmp_path)


def test_the_deadline_has_room_for_the_wait(tmp_path):
    """And a threshold changes both."""
    assert 25.0 == deadline_s(context_of(tmp_path))
    assert 20.0 == deadline_s(context_of(tmp_path, profile="quick"))
    assert 18.0 == deadline_s(context_of(tmp_path, {"TRAINER_AGENT_GPU_THRESHOLDS": '{"drain_s": 3}'}))
