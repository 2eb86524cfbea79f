"""meet: what a node says of itself, what rank 0 plans, and how the verdict gets into the report and the history."""

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from trainer_agent.accelerators import Accelerators
from trainer_agent.check import CheckResult, Options, Rule, Status
from trainer_agent.errors import Action, Severity
from trainer_agent.gang.course import Plan, Work
from trainer_agent.gang.door import Door
from trainer_agent.gang.meet import (
    HISTORY_S,
    MOST_FINDINGS,
    Asked,
    Gathering,
    _remember,
    hello_of,
    merged,
    nccl_log,
    plan_of,
)
from trainer_agent.gang.speeds import read_history
from trainer_agent.gang.torch_side import TorchSide
from trainer_agent.policy import decide
from trainer_agent.testing import NO_DEVICES, FakeHost, context_on

ASKED = Asked(timeout_s=300.0, port=0, attempt="a1", node_name="gpu-17", history=None)
MIB = 1 << 20
RULE = Rule("bad-thing", when="it is bad", hint="mend it", action=Action.RESCHEDULE)
ODD = Rule("odd-thing", when="it is odd", hint="look at it", severity=Severity.WARNING)
BOTH = ("consistency", "collective")


@pytest.fixture
def context(tmp_path):
    """A function that returns what rank 1 of four nodes is told, with GPUs and options."""
    shape = {"PET_NNODES": "4", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "job1-node-0-0.job1"}

    def make(accelerators=NO_DEVICES, *, nproc=1, **options):
        options = Options(running=BOTH, **options)
        return context_on(FakeHost(tmp_path), environ=shape, accelerators=accelerators, nproc=nproc, options=options)

    return make


def row(name, status, message="", **facts):
    return CheckResult(name, status, message, **facts)


# ---- what NCCL writes down


def test_nccl_writes_down_what_it_uses_in_a_folder_that_goes_again(context):
    with nccl_log(context(Accelerators("nvidia", 8, "NVML"))) as variables:
        folder = Path(variables["NCCL_DEBUG_FILE"]).parent

        assert ("INFO", "INIT,NET") == (variables["NCCL_DEBUG"], variables["NCCL_DEBUG_SUBSYS"])
        assert "%p" == Path(variables["NCCL_DEBUG_FILE"]).name
        assert folder.is_dir()
    assert not folder.exists()


def test_without_gpus_and_where_the_user_has_a_file_of_his_own_nothing_is_set(context):
    ours = context(Accelerators("nvidia", 8, "NVML"))
    theirs = replace(ours, environ={**ours.environ, "NCCL_DEBUG_FILE": "/logs/%h"})
    with nccl_log(context()) as on_cpus, nccl_log(theirs) as written_already:
        assert {} == on_cpus == written_already


# ---- what a node says of itself


def test_a_well_node_says_what_it_is_made_of(context):
    """Of the checks those that looked; of the fingerprint all of it."""
    marks = {"torch": "2.13.0", "gpus": "8 x H100"}
    results = [
        row("consistency", Status.PASS, measurements=marks),
        row("rdma", Status.SKIP, "no devices"),
        row("clock", Status.WARN, findings=(ODD.found("odd"),)),
    ]

    assert {
        "hostname": "fake-host",
        "node": "gpu-17",
        "nnodes": 4,
        "nproc": 8,
        "marks": {**marks, "checks": ["consistency", "clock"]},
        "born": 12.5,
        "local": {"verdict": "warn", "exit_code": 10, "message": "", "findings": []},
    } == hello_of(context(nproc=8), results, ASKED, 12.5)


def test_a_node_that_failed_says_why(context):
    """Its errors, not its warnings, and not more than anybody reads."""
    errors = tuple(RULE.found(f"bad {number}") for number in range(9))
    results = [row("gpu-health", Status.FAIL, action=Action.RESCHEDULE, findings=(ODD.found("odd"), *errors))]
    said = hello_of(context(), results, ASKED, 0.0)

    assert ("retry", "bad 0", {"checks": ["gpu-health"]}) == (
        said["local"]["verdict"],
        said["local"]["message"],
        said["marks"],
    )
    assert said["local"]["exit_code"] > 0
    assert [{"check": "gpu-health", "code": "bad-thing", "message": f"bad {n}"} for n in range(MOST_FINDINGS)] == (
        said["local"]["findings"]
    )


def test_what_it_says_is_plain_json(context):
    said = hello_of(context(), [row("consistency", Status.PASS, measurements={"clique": None})], ASKED, 0.0)

    assert said == json.loads(json.dumps(said))


# ---- what rank 0 plans


@pytest.mark.parametrize("profile", ["quick", "standard", "deep"])
def test_without_gpus_one_rank_of_each_node_uses_gloo(context, profile):
    plan = plan_of(context(nproc=8, profile=profile), ASKED)

    assert ("gloo", 1, 4, "a1", 300.0) == (
        plan.backend,
        plan.per_node,
        plan.nnodes,
        plan.attempt,
        plan.gang_timeout_s,
    )
    assert ("", "") == (plan.consistency, plan.collective)


def test_gpus_use_nccl_with_a_rank_each(context):
    """Not more ranks than processes, and not more than GPUs."""
    gpus = Accelerators("nvidia", 8, "8 device nodes")
    plans = [plan_of(context(gpus, nproc=nproc), ASKED) for nproc in (4, 8, 16)]

    assert [("nccl", 4), ("nccl", 8), ("nccl", 8)] == [(plan.backend, plan.per_node) for plan in plans]


@pytest.mark.parametrize("kind", ["amd", "gaudi", "tpu", "none"])
def test_what_torch_does_not_call_cuda_uses_gloo(context, kind):
    plan = plan_of(context(Accelerators(kind, 8 if kind != "none" else 0, "")), ASKED)

    assert ("nccl" if kind == "amd" else "gloo") == plan.backend


@pytest.mark.parametrize(
    "gpus, profile, screen, together, pair",
    [
        (0, "quick", 0, (), Work((), 0.0, 10.0)),
        (0, "standard", 1, (MIB, 8 * MIB), Work((4 * MIB,), 0.1, 10.0)),
        (0, "deep", 10, (MIB, 8 * MIB, 64 * MIB), Work((16 * MIB,), 0.3, 10.0)),
        (8, "quick", 0, (), Work((), 0.0, 30.0)),
        (8, "standard", 1, (64 * MIB, 512 * MIB), Work((256 * MIB,), 0.5, 30.0)),
        (8, "deep", 10, (64 * MIB, 512 * MIB, 16384 * MIB), Work((1024 * MIB,), 1.0, 30.0)),
    ],
)
def test_the_profile_decides_how_much_is_exchanged(context, gpus, profile, *, screen, together, pair):
    devices = Accelerators("nvidia", gpus, "") if gpus else NO_DEVICES
    plan = plan_of(context(devices, nproc=8, profile=profile), ASKED)

    assert (together, pair) == (plan.all_ranks.sizes, plan.pair)
    assert plan.pair.seconds == plan.all_ranks.seconds
    assert plan.all_ranks.timeout_s > plan.pair.timeout_s
    assert screen == plan.screen


def test_what_is_left_out_is_left_out(context, tmp_path):
    context = context_on(FakeHost(tmp_path), options=Options(running=("consistency",)))

    assert ("", "left out") == (plan_of(context, ASKED).consistency, plan_of(context, ASKED).collective)


@pytest.fixture
def first(context):
    """A function that returns what rank 0 is told."""

    def make():
        found = context()
        return replace(found, topology=replace(found.topology, node_rank=0))

    return make


def test_the_history_is_read_if_there_is_one(first, tmp_path):
    """Lines that are none are left out, and so is a file that is none."""
    line = {"backend": "gloo", "nodes": 4, "ranks": 4, "of": "all-reduce", "bytes": MIB, "busbw_gbps": 1.5}
    (tmp_path / "history").write_text(f"{json.dumps(line)}\ntorn {{\n")
    plans = [plan_of(first(), Asked(1.0, 0, "", "", str(tmp_path / name))) for name in ("history", "none")]

    assert [[line], []] == [[kept.as_dict() for kept in plan.history] for plan in plans]


@pytest.mark.lab
def test_a_history_that_does_not_answer_holds_nobody_up(context, first, tmp_path):
    """As on a file server that is gone: a pipe that nobody writes to. Only rank 0 asks for it."""
    os.mkfifo(tmp_path / "history")
    asked = Asked(1.0, 0, "", "", str(tmp_path / "history"))
    began = time.monotonic()
    assert () == plan_of(context(), asked).history
    assert time.monotonic() - began < HISTORY_S

    assert () == plan_of(first(), asked).history
    _remember(asked.history, Plan(4), measured(passed=True))
    assert time.monotonic() - began < 2 * HISTORY_S + 20


# ---- the report


def test_a_row_of_the_gang_takes_the_place_of_one_that_only_waited():
    ours = [row("roll-call", Status.SKIP, "runs with all nodes"), row("clock", Status.PASS, "0.1 s")]
    gang = row("roll-call", Status.PASS, "all 4 nodes are here")

    assert [gang, ours[1]] == merged(ours, {"roll-call": gang})


def test_what_was_left_out_by_the_user_stays_so():
    ours = row("collective", Status.SKIP, "left out by --skip")

    assert [ours] == merged([ours], {"collective": row("collective", Status.WARN, "odd")})


@pytest.mark.parametrize(
    "ours", [[], [row("collective", Status.SKIP, "left out by --skip")]], ids=["--checks", "--skip"]
)
def test_a_failure_of_the_gang_is_left_out_by_nobody(ours):
    """The others exit with it, and so must this node."""
    failed = row("collective", Status.FAIL, "bad", action=Action.RETRY)

    assert [failed] == merged(ours, {"collective": failed, "consistency": row("consistency", Status.WARN, "odd")})


@pytest.mark.parametrize("worse", ["ours", "gang"])
def test_of_two_rows_the_worse_decides(worse):
    """Both messages and all findings stay, and so do our measurements."""
    found, odd = RULE.found("bad"), ODD.found("odd")
    bad = {"status": Status.FAIL, "action": Action.RESCHEDULE, "findings": (found,), "message": "bad"}
    well = {"status": Status.WARN, "findings": (odd,), "message": "odd"}
    first, second = (bad, well) if worse == "ours" else (well, bad)
    ours = CheckResult("consistency", duration_s=1.0, measurements={"torch": "2.13"}, **first)
    gang = CheckResult("consistency", duration_s=0.5, measurements={}, **second)

    [one] = merged([ours], {"consistency": gang})

    assert (Status.FAIL, Action.RESCHEDULE, 1.5) == (one.status, one.action, one.duration_s)
    assert f"{ours.message}; {gang.message}" == one.message
    assert (*gang.findings, *ours.findings) == one.findings
    assert {"torch": "2.13"} == one.measurements


def test_a_row_that_the_gang_skipped_stays_ours():
    ours = row("consistency", Status.PASS, "torch 2.13")

    assert [ours] == merged([ours], {"consistency": row("consistency", Status.SKIP, "left out")})


# ---- a node that cannot take part


@pytest.fixture
def met(context, tmp_path):
    """A function that returns the rows of a node whose torch side is some Python text."""

    def meet(text):
        program, door = tmp_path / "program.py", Door(0)
        program.write_text(f"import os, sys\n{text}\n")
        ours = [row("roll-call", Status.SKIP, "the nodes did not meet"), row("clock", Status.PASS)]
        try:
            with TorchSide(sys.executable, str(program), {"PATH": os.environ["PATH"]}) as side:
                rows, gang = Gathering(context(), ASKED, side=side, door=door, tell=lambda **_: None).meet(ours)
        finally:
            door.close()
        assert gang is None
        assert ours[1:] == rows[1:]
        return rows

    return meet


@pytest.mark.lab
def test_a_node_that_breaks_the_gang_exits_as_the_others_do(met):
    """They wait for it, and exit with 20; it must not go on to training alone."""
    rows = met("os.kill(os.getpid(), 9)")

    assert ("retry", Action.RETRY) == decide(rows)
    assert (Status.FAIL, ["torch-side-ended"]) == (rows[0].status, [finding.code for finding in rows[0].findings])
    told = "the nodes did not meet: the process that connects this node with the others was killed by signal 9"
    assert [told, told] == [rows[0].message, rows[0].findings[0].message]


@pytest.mark.lab
@pytest.mark.parametrize(
    "code, reason", [(3, "has no torch: no torch"), (4, "cannot do it with its torch: no torch")], ids=["none", "unfit"]
)
def test_a_node_whose_image_has_no_torch_for_it_goes_on(met, code, reason):
    """It is so on all nodes, and the rest decides."""
    rows = met(f"sys.stderr.write('no torch')\nsys.exit({code})")

    assert ("pass", Action.CONTINUE) == decide(rows)
    assert Status.SKIP == rows[0].status
    assert rows[0].message.endswith(reason)


# ---- the history


def measured(*, passed):
    rows = [{"of": "all-reduce", "bytes": MIB, "seconds": 0.1, "busbw_gbps": 1.5}]
    return {"collective": {"passed": passed, "ranks": 4, "rows": rows}}


def test_what_was_measured_is_added_to_the_history(tmp_path):
    """And is read again as it was."""
    path = tmp_path / "history"
    path.write_text("")
    for _ in range(2):
        _remember(str(path), Plan(4), measured(passed=True))

    kept = {"backend": "gloo", "nodes": 4, "ranks": 4, "of": "all-reduce", "bytes": MIB, "busbw_gbps": 1.5}
    assert [kept, kept] == [one.as_dict() for one in read_history(path.read_text().splitlines())]


def test_a_line_that_was_torn_takes_no_other_with_it(tmp_path):
    """As one that was being written when its pod was killed."""
    path = tmp_path / "history"
    path.write_text('{"backend": "gl')
    _remember(str(path), Plan(4), measured(passed=True))

    assert 1 == len(read_history(path.read_text().splitlines()))
    assert path.read_text().startswith('{"backend": "gl\n{')


@pytest.mark.parametrize("verdict", [measured(passed=False), {"collective": None}], ids=["failed", "none"])
def test_what_did_not_pass_is_not_remembered(tmp_path, verdict):
    _remember(str(tmp_path / "history"), Plan(4), verdict)

    assert (tmp_path / "history").read_text() == ""


def test_a_history_that_cannot_be_written_is_no_failure(tmp_path):
    _remember(str(tmp_path / "no" / "history"), Plan(4), measured(passed=True))

    assert [] == list(tmp_path.iterdir())
