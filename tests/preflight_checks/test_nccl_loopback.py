"""nccl-loopback: its own probe and ranks for real, over gloo on the CPU, and what is made of their answers."""

import os
import secrets
import signal
import sys
import threading
from dataclasses import replace

import pytest
from marked import marked, until

from preflight_checks._blame import blame
from preflight_checks._gpu_models import Thresholds
from preflight_checks._gpus import Gpu
from preflight_checks._ranks import Run, heard
from preflight_checks.nccl_loopback import (
    INSIDE,
    LINK_ERRORS,
    NICS,
    for_job,
    measured,
    nccl_loopback,
    nvls,
    risen,
    slow,
    start,
    why_no_nics,
)
from trainer_agent.accelerators import Accelerators
from trainer_agent.check import Options, Skip
from trainer_agent.testing import NO_DEVICES, FakeHost, context_on, run_check
from trainer_agent.topology import read_topology

pytestmark = pytest.mark.lab

PATH = {"PATH": os.environ["PATH"]}
MIB, GIB = 1 << 20, 1 << 30
GPUS = [Gpu(index, uuid=f"GPU-{index}", pci=f"0000:{index:02x}:00.0") for index in range(3)]
WRONG = {"of": "all-gather", "source": 0, "index": 5, "got": "6.0", "wanted": "5.0", "differ": 1, "of_numbers": 9}
FAULTY = """
import os, sys
if "nccl_loopback_probe" in " ".join(sys.orig_argv) and '"rank": 1' in sys.orig_argv[-1]:
    import torch.distributed as dist
    right = dist.all_gather
    def all_gather(parts, part):
        right(parts, part)
        {fault}
    dist.all_gather = all_gather
"""


@pytest.fixture
def host(tmp_path):
    return FakeHost(tmp_path / "root")


@pytest.fixture
def context(host):
    return context_on(host, environ=PATH, options=Options(budget_s=120))


@pytest.fixture
def mark():
    """A variable that all processes of one test have; none of them is left at its end."""
    value = secrets.token_hex(8)
    yield value
    assert [] == marked(MARK=value)


def over_gloo(context, count=2, **environ):
    """Run the probe and give each rank a GPU to be named by, as if it had one."""
    context = replace(context, environ=context.environ | environ)
    run = start(context, "gloo", count=count, sizes=(MIB,), exact=1000)
    return replace(run, ranks=tuple(replace(rank, gpu=GPUS[rank.number]) for rank in run.ranks))


def test_every_rank_gets_exact_results_and_both_collectives_are_timed(context, tmp_path, mark):
    (tmp_path / "scratch").mkdir()

    run = over_gloo(context, 3, MARK=mark, TMPDIR=str(tmp_path / "scratch"))

    assert [] == blame(run, INSIDE)
    assert ["done"] * 3 == [rank.stage for rank in run.ranks]
    assert [("all-gather", MIB), ("all-reduce", MIB)] == [(r["of"], r["size_bytes"]) for r in measured(run)]
    assert all(row["busbw_gbps"] > 0 for row in measured(run))
    assert [] == list((tmp_path / "scratch").iterdir())


def test_a_wrong_number_names_both_gpus(context, tmp_path, mark):
    (tmp_path / "sitecustomize.py").write_text(FAULTY.format(fault="parts[0][5] += 1"))

    (finding,) = blame(over_gloo(context, MARK=mark, PYTHONPATH=str(tmp_path)), INSIDE)

    assert ("nccl-wrong-result", "reschedule") == (finding.code, finding.action)
    assert (
        "rank 1 on GPU 1 (GPU-1, 0000:01:00.0): all-gather gave 1 wrong numbers of 1000 in the part of rank 0 on "
        "GPU 0 (GPU-0, 0000:00:00.0), the first 6.0 at 5, wanted 5.0"
    ) == finding.message
    assert [GPUS[1].id, GPUS[0].id] == finding.evidence["gpus"]


def test_what_is_wrong_at_several_receivers_was_wrong_when_it_was_sent():
    ranks = [replace(rank, stage="done", gpu=GPUS[rank.number]) for rank in heard("", 3)]
    others = [replace(rank, facts={"wrong": [WRONG]}) for rank in ranks[1:]]

    (finding,) = blame(Run((ranks[0], *others), wait_s=30.0), INSIDE)

    assert [GPUS[0].id] == finding.evidence["gpus"]
    assert [1, 2] == finding.evidence["ranks"]


def test_a_rank_that_crashes_is_named_with_its_gpu(context, tmp_path, mark):
    (tmp_path / "sitecustomize.py").write_text(FAULTY.format(fault="os.kill(os.getpid(), 11)"))

    (finding,) = blame(over_gloo(context, MARK=mark, PYTHONPATH=str(tmp_path)), INSIDE)

    assert ("nccl-rank-failed", "reschedule") == (finding.code, finding.action)
    assert (
        "rank 1 on GPU 1 (GPU-1, 0000:01:00.0) was killed by SIGSEGV in stage `all-gather`, wanted to come to the end"
    ) == finding.message
    assert [GPUS[1].id] == finding.evidence["gpus"]


def test_a_rank_that_does_not_arrive_is_named_with_its_stage(context, mark):
    quick = replace(context, options=Options(budget_s=24))
    runs = []
    thread = threading.Thread(target=lambda: runs.append(over_gloo(quick, MARK=mark)))
    thread.start()
    (_, *ranks) = until(lambda: pids if len(pids := sorted(marked(MARK=mark))) == 3 else None)
    os.kill(ranks[1], signal.SIGSTOP)
    thread.join()

    (finding,) = blame(runs[0], INSIDE)

    late = int(finding.message[len("rank ")])
    assert "nccl-rank-hung" == finding.code
    assert [GPUS[late].id] == finding.evidence["gpus"]
    assert finding.message.endswith(f"wanted all done in a few; further are rank {1 - late} in `init`")


def test_nothing_outlives_the_agent(mark, tmp_path):
    code = (
        "import os; from pathlib import Path; from trainer_agent.testing import *; from trainer_agent.check import *; "
        "from trainer_agent.topology import read_topology; from trainer_agent.cgroup import read_limits; "
        "from preflight_checks.nccl_loopback import start; host = FakeHost(Path('/nonexistent')); "
        "start(Context(dict(os.environ), read_topology({}, hostname=''), read_limits(host), NO_DEVICES, host, "
        "Options(budget_s=200)), "
        "'gloo', count=2, sizes=(), exact=9)"
    )
    agent = os.spawnve(
        os.P_NOWAIT, sys.executable, [sys.executable, "-c", code], {**os.environ, "MARK": mark, "TMPDIR": str(tmp_path)}
    )
    *_, rank = until(lambda: pids if len(pids := sorted(marked(MARK=mark))) >= 5 else None)
    os.kill(rank, signal.SIGSTOP)

    os.kill(agent, signal.SIGKILL)
    os.waitpid(agent, 0)

    assert until(lambda: not marked(MARK=mark))  # long before the time of the ranks is up
    assert [] == list(tmp_path.iterdir())


def test_without_torch_there_is_nothing_to_start(context, tmp_path):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)

    with pytest.raises(Skip, match=f"{bare} has no torch"):
        over_gloo(replace(context, options=Options(python=str(bare))))


@pytest.mark.parametrize(
    "found, reason",
    [
        (Accelerators("mig", 7, "7"), "the GPUs are in MIG mode: their parts do not exchange over NVLink"),
        (Accelerators("nvidia", 1, "1"), "1 NVIDIA GPUs are visible, and it takes 2 to exchange"),
        (Accelerators("amd", 8, "8"), "0 NVIDIA GPUs are visible, and it takes 2 to exchange"),
        (NO_DEVICES, "0 NVIDIA GPUs are visible, and it takes 2 to exchange"),
    ],
    ids=["mig", "one", "amd", "none"],
)
def test_it_takes_two_whole_gpus(host, found, reason):
    assert reason == run_check(nccl_loopback, host, accelerators=found)


def test_a_torch_without_cuda_is_a_skip_with_its_reason(host):
    """The real torch of the tests, asked for NCCL, says so before it touches a GPU."""
    reason = run_check(nccl_loopback, host, environ=PATH, accelerators=Accelerators("nvidia", 2, "2 device nodes"))

    assert reason.endswith("was built without CUDA")


def eight(of, size, seconds, gpu="NVIDIA H200", *, said=""):
    """Return a run of eight GPUs of which the last one is the slowest."""
    timings = {"of": of, "bytes": size, "seconds": [second / 2 for second in seconds]}
    ranks = [replace(rank, facts={"gpu": gpu, "timings": [timings]}) for rank in heard("", 7)]
    last = replace(ranks[0], number=7, facts={"gpu": gpu, "timings": [timings | {"seconds": seconds}]})
    return Run((*ranks, last), wait_s=30.0, log=tuple(said.splitlines()))


ON, OFF = "vm:1 NCCL INFO 24 coll channels, 24 collnet channels, 16 nvls channels\n", "NCCL INFO 0 nvls channels\n"


@pytest.mark.parametrize(
    "of, seconds, said, wanted",
    [
        ("all-gather", 0.0417, "", []),
        ("all-gather", 0.055, "", ["nccl-slow"]),
        ("all-gather", 0.07, "", ["nccl-very-slow"]),
        ("all-reduce", 0.0636, ON, []),
        ("all-reduce", 0.082, ON, ["nccl-slow"]),
        ("all-reduce", 0.082, OFF, []),  # a ring reaches 367, not 473
        ("all-reduce", 0.082, "", []),  # nothing is known of NVLS: the lower number counts
        ("all-reduce", 0.15, "", ["nccl-very-slow"]),
    ],
)
def test_like_is_compared_with_like(of, seconds, said, wanted):
    run = eight(of, 16 * GIB, [9.0, seconds], said=said)

    assert wanted == [finding.code for finding in slow(measured(run), Thresholds())]


def test_the_message_has_the_measured_and_the_wanted_bandwidth():
    run = eight("all-gather", 16 * GIB, [9.0, 0.07])

    (finding,) = slow(measured(run), Thresholds())

    assert "all-gather of 16384 MiB: 215 GB/s of bus bandwidth, wanted 60% of 361" == finding.message
    assert {
        "of": "all-gather",
        "size_bytes": 16 * GIB,
        "busbw_gbps": 214.75,
        "expected_busbw_gbps": 361,
    } == finding.evidence


@pytest.mark.parametrize(
    "gpu, size, said",
    [
        ("NVIDIA GH200 480GB", 16 * GIB, ON),
        ("NVIDIA L40S", 16 * GIB, OFF),
        ("NVIDIA H200", GIB, ON),
        ("NVIDIA H200", 64 * MIB, OFF),  # that number holds with NVLS only
        ("NVIDIA H200", 64 * MIB, ""),
    ],
)
def test_what_nobody_measured_is_not_judged(gpu, size, said):
    (row,) = measured(eight("all-reduce", size, [9.0, 9.0], gpu, said=said))

    assert {"of", "size_bytes", "busbw_gbps"} == set(row)


def test_nothing_is_measured_when_a_rank_did_not_come_that_far():
    run = eight("all-gather", MIB, [1.0])

    assert [] == measured(replace(run, ranks=(*run.ranks[:7], replace(run.ranks[7], facts={}))))


@pytest.mark.parametrize("said, wanted", [(ON, True), (OFF, False), (OFF + ON, True), ("", None)])
def test_nccl_says_whether_it_uses_nvls(said, wanted):
    run = eight("all-gather", MIB, [1.0], said=said)

    assert (wanted, None) == (nvls(run), nvls(run, free=False))


def test_an_nvlink_counter_that_rises_under_load_is_a_warning():
    before = [replace(GPUS[0], link_errors={"crc": 5, "replay": 1}), replace(GPUS[1], link_errors={"crc": 0})]
    after = [replace(GPUS[0], link_errors={"crc": 9, "replay": 1}), replace(GPUS[1], link_errors={"crc": 0})]

    (finding,) = risen(before, after)

    message = "GPU 0 (GPU-0, 0000:00:00.0): crc rose by 4 while the GPUs exchanged data, wanted 0"
    assert (LINK_ERRORS.code, message, "continue") == (finding.code, finding.message, finding.action)


def test_a_link_that_is_not_recovered_under_load_is_an_error():
    """Whatever else rose on that GPU; another one only warns."""
    lost = "NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS[3]"
    before = [replace(GPUS[0], link_errors={"crc": 0, lost: 2}), replace(GPUS[1], link_errors={"crc": 0, lost: 2})]
    after = [replace(GPUS[0], link_errors={"crc": 9, lost: 3}), replace(GPUS[1], link_errors={"crc": 9, lost: 2})]

    failed, warned = risen(before, after)

    message = f"GPU 0 (GPU-0, 0000:00:00.0): crc rose by 9, {lost} rose by 1 while the GPUs exchanged data, wanted 0"
    assert ("nvlink-recovery-failed", message, "reschedule") == (failed.code, failed.message, failed.action)
    assert (LINK_ERRORS.code, "continue") == (warned.code, warned.action)


def test_the_nics_are_tried_in_the_deep_profile_where_there_are_some(context, host):
    deep = replace(context, options=Options(profile="deep"))
    host.put("/sys/class/infiniband/mlx5_0/node_guid", "0")

    assert "that runs from --profile deep on" == why_no_nics(context)
    assert "NCCL_IB_DISABLE=1" == why_no_nics(replace(deep, environ={"NCCL_IB_DISABLE": "1"}))
    assert "" == why_no_nics(deep)


def test_without_rdma_there_are_no_nics_to_try(context):
    assert "there is no RDMA device" == why_no_nics(replace(context, options=Options(profile="deep")))


@pytest.mark.parametrize("nnodes, severity", [("1", "warning"), ("2", "error")])
def test_a_broken_nic_stops_only_a_job_that_needs_the_network(context, nnodes, severity):
    environ = {"PET_NNODES": nnodes, "PET_MASTER_ADDR": "job-node-0-0.job", "PET_NODE_RANK": "0"}
    job = replace(context, topology=read_topology(environ, hostname="a-host"))

    known = for_job(NICS, job)

    assert {severity} == {str(rule.severity) for rule in known.all}
    assert [rule.code for rule in NICS.all] == [rule.code for rule in known.all]
