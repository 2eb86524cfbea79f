"""torchrun-smoke: real torchrun, real ranks over gloo, and real faults: signals, a torch that computes wrong."""

import os
import secrets
import signal
import sys
import threading
from dataclasses import replace

import pytest
from marked import marked, until

from preflight_checks._probes import ProbeError
from preflight_checks._ranks import Run, heard
from preflight_checks.torchrun_smoke import judge, plan, torchrun_smoke, with_codes
from trainer_agent.accelerators import Accelerators
from trainer_agent.check import Options, Skip
from trainer_agent.guarded import run_guarded
from trainer_agent.testing import NO_DEVICES, FakeHost, context_on, run_check

pytestmark = pytest.mark.lab

PATH = {"PATH": os.environ["PATH"]}
# What a pod of a job and a torchrun around us would leave in the environment; torchrun obeys or stumbles over each.
LEFTOVERS = {
    "PET_STANDALONE": "true",
    "PET_NPROC_PER_NODE": "auto",
    "PET_NNODES": "16",
    "PET_MASTER_ADDR": "job-node-0-0.job",
    "MASTER_ADDR": "nowhere.invalid",
    "MASTER_PORT": "1",
    "RANK": "7",
    "WORLD_SIZE": "99",
    "LOCAL_RANK": "7",
    "TORCHELASTIC_ERROR_FILE": "/dev/termination-log",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "GLOO_SOCKET_IFNAME": "eth77",
    "NCCL_DEBUG": "INFO",
}
# Stands for a faulty device: the second rank's torch returns something else than it should.
FAULTY = """
import os, sys
if os.environ.get("RANK") == "1" and "torchrun_smoke_probe" in " ".join(sys.orig_argv):
    import torch.distributed as dist
    right = dist.all_reduce
    def all_reduce(tensor):
        right(tensor)
        {fault}
    dist.all_reduce = all_reduce
"""


@pytest.fixture
def host(tmp_path):
    return FakeHost(tmp_path / "root")


@pytest.fixture
def context(host):
    return context_on(host, environ=PATH)


@pytest.fixture
def mark():
    """A variable that all processes of one test have; none of them is left at its end."""
    value = secrets.token_hex(8)
    yield value
    assert [] == marked(MARK=value)


def smoke(host, *, budget_s=120, **environ):
    options = Options(budget_s=budget_s)
    return run_check(torchrun_smoke, host, environ=PATH | environ, options=options)


def found(outcome):
    return [(finding.code, finding.message) for finding in outcome.findings]


def in_the_background(function):
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    return thread, results


def test_the_smallest_job_passes_whatever_the_job_around_it_says(host, tmp_path, mark):
    (tmp_path / "scratch").mkdir()

    outcome = smoke(host, MARK=mark, TMPDIR=str(tmp_path / "scratch"), **LEFTOVERS)

    assert () == outcome.findings
    assert outcome.message.startswith("torchrun of torch ")
    assert ": 2 of 2 ranks with gloo on the CPU, however many the job wants done in " in outcome.message
    assert {"ranks": 2, "backend": "gloo"}.items() <= outcome.measurements.items()
    assert [] == list((tmp_path / "scratch").iterdir())


@pytest.mark.parametrize(
    "fault, wanted",
    [
        (
            "tensor[7], tensor[9] = float('nan'), 5",
            (
                "torchrun-wrong-result",
                "rank 1: all-reduce gave 2 wrong numbers of 65536, the first nan at 7, wanted 870.0",
            ),
        ),
        (
            "raise RuntimeError('CUDA error')",
            (
                "torchrun-rank-failed",
                "rank 1 failed with RuntimeError: CUDA error in stage `all-reduce`, wanted to come to the end",
            ),
        ),
    ],
    ids=["numbers", "exception"],
)
def test_a_rank_that_computes_wrong_or_breaks_is_named(host, tmp_path, mark, fault, wanted):
    (tmp_path / "sitecustomize.py").write_text(FAULTY.format(fault=fault))

    outcome = smoke(host, MARK=mark, PYTHONPATH=str(tmp_path))

    assert [wanted] == found(outcome)


def test_a_rank_that_is_killed_is_named(host, mark):
    thread, outcomes = in_the_background(lambda: smoke(host, MARK=mark))
    (pid,) = until(lambda: marked(MARK=mark, RANK="1"))
    os.kill(pid, signal.SIGKILL)
    thread.join()

    ((code, message),) = found(outcomes[0])
    assert "torchrun-rank-failed" == code
    assert message.startswith("rank 1 was killed by SIGKILL in stage `")
    assert "reschedule" == outcomes[0].findings[0].action


def test_a_rank_that_hangs_is_named_with_its_stage(host, mark):
    """The whole check takes little longer than half of its budget."""
    thread, outcomes = in_the_background(lambda: smoke(host, budget_s=24, MARK=mark))
    (pid,) = until(lambda: marked(MARK=mark, RANK="1"))
    os.kill(pid, signal.SIGSTOP)
    thread.join()

    (finding,) = outcomes[0].findings
    assert "torchrun-rank-hung" == finding.code
    assert finding.message.startswith("rank 1: nothing came after stage `")
    assert finding.message.endswith("wanted all done in a few; further are rank 0 in `init`")
    assert [1] == finding.evidence["ranks"]


def test_nothing_outlives_a_preflight_that_is_killed(mark, tmp_path):
    """Not even ranks that are in a session of their own and hang."""
    command = [sys.executable, "-m", "trainer_agent", "preflight", "--checks", "torchrun-smoke", "--timeout", "200"]
    agent = os.spawnve(os.P_NOWAIT, sys.executable, command, {**os.environ, "MARK": mark, "TMPDIR": str(tmp_path)})
    for rank in ("0", "1"):
        (pid,) = until(lambda: marked(MARK=mark, RANK=rank))  # noqa: B023  # it is called at once
        os.kill(pid, signal.SIGSTOP)

    os.kill(agent, signal.SIGKILL)
    os.waitpid(agent, 0)

    assert until(lambda: not marked(MARK=mark))  # long before the time of the ranks is up


def test_a_rank_cannot_report_more_than_a_line(context):
    """What ranks print besides, or halves of lines, does not count."""
    lines = ['{"rank": 0, "stage": "done", "at": 3}', '{"rank": 9, "stage": "done"}', "[0]", '{"rank": 1, "sta']

    ranks = heard("\n".join(lines), 2)

    assert [("done", 3), ("start", 0)] == [(rank.stage, rank.at) for rank in ranks]


TABLE = """
Failures:
[1]:
  time      : 2026-11-21_12:07:24
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 8955)  (SIGTERM)
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_12:07:24
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -11 (pid: 8956)  (SIGSEGV)
"""


def at(*stages, **more):
    """Return a run whose ranks said these stages last, the first of them second by second."""
    ranks = tuple(replace(r, stage=s, at=float(n)) for n, (r, s) in enumerate(zip(heard("", 9), stages, strict=False)))
    return Run(ranks, **{"wait_s": 20.0, "end": 21.0, **more})


def test_the_exit_codes_are_those_of_torchruns_own_table(context):
    run = at("all-reduce", "init", code=1)

    (finding,) = judge(context, replace(run, ranks=with_codes(run.ranks, TABLE)))

    assert "rank 1 was killed by SIGSEGV in stage `init`, wanted to come to the end" == finding.message


@pytest.mark.parametrize(
    "text, code, action",
    [
        ("NCCL error\nncclInvalidUsage: This usually reflects...", "torchrun-misconfigured", "stop"),
        ("Last error:\nMNNVL is not working (/dev/nvidia-caps-imex-channels)", "torchrun-misconfigured", "stop"),
        ("NCCL error\nncclUnhandledCudaError: Call to CUDA function failed.", "torchrun-rank-failed", "reschedule"),
    ],
)
def test_only_settings_that_nccl_refuses_stop_the_job(context, text, code, action):
    run = at("all-reduce", "all-reduce", code=1, log=("vm:1:1 [0] NCCL WARN Duplicate GPU", "Init START"))
    ranks = (replace(run.ranks[0], error="DistBackendError", text=text), run.ranks[1])

    (finding,) = judge(context, replace(run, ranks=ranks))

    assert (code, action) == (finding.code, finding.action)
    assert ["vm:1:1 [0] NCCL WARN Duplicate GPU"] == finding.evidence["nccl"]


def test_who_failed_first_is_blamed(context):
    """The others only lost their peer."""
    run = at("all-reduce", "all-reduce", code=1)
    words = ("Connection closed by peer", "ECC error")
    ranks = [replace(r, error="RuntimeError", text=t, at=9.0 - r.number) for r, t in zip(run.ranks, words, strict=True)]

    (finding,) = judge(context, replace(run, ranks=tuple(ranks)))

    assert finding.message.startswith("rank 1 failed with RuntimeError: ECC error")
    assert {"0": "RuntimeError: Connection closed by peer"} == finding.evidence["others"]


def test_a_library_that_gives_up_for_a_lost_peer_is_not_to_blame(context):
    run = at("all-gather", "all-reduce", code=1)
    ranks = (replace(run.ranks[0], code=-6), replace(run.ranks[1], error="RuntimeError", text="ECC error", code=1))

    (finding,) = judge(context, replace(run, ranks=ranks))

    assert finding.message.startswith("rank 1 failed with RuntimeError: ECC error")


@pytest.mark.parametrize(
    "run, reason",
    [
        (at("import", "start", hung=True, problem="no answer within 20 s"), "no rank has imported torch by then"),
        (at("init", "init", hung=True, problem="no answer within 20 s", end=10.0), "reached `init` only 9 s before"),
        (
            at("all-reduce", "all-reduce", hung=True, problem="no answer within 20 s", log=("WARN",)),
            "loading its kernels",
        ),
        (at("init", "init", problem="it took more than 5 MiB of memory"), "it took more than 5 MiB of memory"),
        (at("done", "done", code=1, stderr="boom"), "exit code 1 and all ranks were done: boom"),
    ],
    ids=["slow-import", "still-moving", "no-kernels-yet", "memory", "end"],
)
def test_what_says_nothing_of_the_node_is_no_finding(context, run, reason):
    with pytest.raises(ProbeError, match=reason):
        judge(context, run)


def test_torchrun_that_does_not_end_is_a_hang(context):
    (finding,) = judge(context, at("done", "done", hung=True, problem="no answer within 20 s"))

    assert "all ranks are done, and what started them did not end in 20 s" == finding.message


def fake_torch(folder, run):
    (folder / "torch" / "distributed").mkdir(parents=True)
    for package in ("torch", "torch/distributed"):
        (folder / package / "__init__.py").touch()
    if run is not None:
        (folder / "torch" / "distributed" / "run.py").write_text(run)


def test_a_torchrun_that_starts_no_rank_is_a_finding(host, tmp_path):
    fake_torch(tmp_path, "raise OSError('no loopback here')")

    outcome = smoke(host, PYTHONPATH=str(tmp_path))

    message = "torchrun ended with exit code 1 and started no rank: OSError: no loopback here"
    assert [("torchrun-failed", message)] == found(outcome)


@pytest.mark.parametrize(
    "run, reason",
    [
        (None, "cannot import torchrun: this torch has none"),
        ("import sys; sys.exit(2)", "torchrun does not know our options, wanted torch 2.0 or newer"),
    ],
    ids=["none", "too-old"],
)
def test_a_torch_without_a_fitting_torchrun_says_nothing_of_the_node(host, tmp_path, run, reason):
    fake_torch(tmp_path, run)

    with pytest.raises(ProbeError, match=reason):
        smoke(host, PYTHONPATH=str(tmp_path))


def test_a_torch_that_cannot_be_imported_says_nothing_of_the_node(host, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object file')")

    with pytest.raises(ProbeError, match=r"cannot import torchrun: ImportError: libcudart.so.13: cannot open"):
        smoke(host, PYTHONPATH=str(tmp_path))


def test_without_torch_there_is_nothing_to_start(host, tmp_path):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)

    reason = run_check(torchrun_smoke, host, environ=PATH, options=Options(python=str(bare)))

    assert f"{bare} has no torch" == reason


def test_a_folder_is_needed_and_the_finding_names_those_tried(host, context):
    """All ordinary places are read-only in a mount namespace of its own, as with a read-only root."""
    if run_guarded(["unshare", "-rm", "true"], environ=PATH, timeout_s=10).code:
        pytest.skip("needs user namespaces")
    code = (
        "from preflight_checks._ranks import scratch; from types import SimpleNamespace as S; "
        "scratch(S(environ={'TMPDIR': '/nowhere'})).__enter__()"
    )
    mounts = " && ".join(
        f"mount --bind {place} {place} && mount -o remount,bind,ro {place}"
        for place in ("/tmp", "/var/tmp", "/dev/shm")
    )

    ended = run_guarded(
        ["unshare", "-rm", "sh", "-c", f'{mounts} && exec "$@"', "sh", sys.executable, "-c", code],
        environ=PATH,
        timeout_s=20,
    )

    assert "ProbeError: none of /nowhere, /tmp, /var/tmp, /dev/shm can be written" in ended.stderr


@pytest.mark.parametrize(
    "found_here, nproc, wanted",
    [
        (Accelerators("amd", 8, "8"), 4, ("nccl", 4)),
        (Accelerators("amd", 2, "2"), 16, ("nccl", 2)),
        (Accelerators("tpu", 4, "4"), 1, ("gloo", 2)),
        (Accelerators("mig", 4, "4"), 4, ("gloo", 2)),
        (NO_DEVICES, 96, ("gloo", 2)),
    ],
)
def test_a_rank_for_each_process_of_the_job_on_gpus_and_two_without(context, found_here, nproc, wanted):
    assert (*wanted, ()) == plan(replace(context, accelerators=found_here, nproc=nproc))


def test_a_torch_that_cannot_do_it_anywhere_is_a_skip(context):
    run = at("done", "done")
    ranks = (replace(run.ranks[0], facts={"unfit": "torch 2.13.0 was built without NCCL"}), run.ranks[1])

    with pytest.raises(Skip, match="built without NCCL"):
        judge(context, replace(run, ranks=ranks))
