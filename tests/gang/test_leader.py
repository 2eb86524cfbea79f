"""What rank 0 makes of a gang, from the roll-call to the verdict; all nodes are simulated, and so is time."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import BEGAN, STEP_S, Gang, failed_local, hello, outcome, plain_json, plan

from preflight_checks.probes import probe_collective
from trainer_agent.errors import Severity
from trainer_agent.gang.absent import GATHER_S
from trainer_agent.gang.course import AFTER_FAILURE_S
from trainer_agent.gang.leader import DISAGREE_S, Leader
from trainer_agent.gang.ranks import _row
from trainer_agent.gang.verdict import blame, results

some = settings(max_examples=20)
few = settings(max_examples=8)
SIZES = st.integers(2, 64)
NAMED_S = 10.0  # a node that goes is named within so long


def run(nodes, changes=None, **planned):
    gang = Gang(nodes, changes=changes, **planned)
    gang.run()
    return gang


def rows(gang, rank=0):
    return {name: str(row.status) for name, row in results(gang.leader.verdict, rank).items()}


@st.composite
def nodes_and_some(draw, *, least=2):
    """Return a number of nodes, and some of them other than rank 0."""
    nodes = draw(st.integers(least, 64))
    return nodes, sorted(draw(st.sets(st.integers(1, nodes - 1), min_size=1, max_size=nodes - 1)))


# ---- a gang that is well


@some
@given(SIZES, st.integers(0, 3), st.integers(0, 1 << 16))
def test_a_healthy_gang_passes(nodes, screen, seed):
    """All get the same verdict, which is plain JSON, and its rows pass."""
    gang = run(nodes, screen=screen, seed=seed, noise=0.1)

    assert outcome(gang) == ("pass", [])
    assert {"pass"} == set(rows(gang).values())
    assert all(pod.verdict == gang.leader.verdict for pod in gang.pods)
    assert plain_json(gang.leader.verdict)
    assert 1 + max(screen, 3) >= len(gang.kinds)


def test_a_large_gang_passes():
    gang = run(4096)

    assert outcome(gang) == ("pass", [])
    assert ["all", "pairs"] == gang.kinds
    assert 2048 == len(gang.leader.verdict["pairs"])


def test_what_a_healthy_gang_is_told():
    gang = run(4, {2: {"comes": 1.05}})
    verdict = gang.leader.verdict

    told = (
        "all 4 nodes are here, within 1.1 s; all 4 nodes are alike; 4 ranks with gloo: right numbers, all-reduce 10.00"
    )
    assert f"{told} GB/s" == verdict["summary"]
    assert ["roll-call", "consistency", "collective"] == [phase["name"] for phase in verdict["phases"]]
    row = {"of": "all-reduce", "bytes": 1 << 22, "seconds": 0.000629, "busbw_gbps": 10.0}
    shared = {"backend": "gloo", "ranks": 4, "transport": "tcp", "passed": True, "rows": [row]}
    assert shared | {"message": "4 ranks with gloo: right numbers, all-reduce 10.00 GB/s"} == verdict["collective"]
    node = {"rank": 2, "hostname": "job-node-0-2", "node": "machine-2", "address": "10.0.0.2", "arrived_s": 1.1}
    assert (
        node | {"state": "ready", "note": "", "clock_offset_s": verdict["nodes"][2]["clock_offset_s"]}
        == (verdict["nodes"][2])
    )


def test_checks_that_are_left_out_are_skipped():
    gang = run(4, {1: {"says": {"marks": {"torch": "1.0"}}}}, consistency="left out", collective="--skip")

    assert {"roll-call": "pass", "consistency": "skip", "collective": "skip"} == rows(gang)
    assert [] == gang.kinds


# ---- the roll-call


@some
@given(nodes_and_some())
def test_nodes_that_never_come_are_named_exactly(job):
    nodes, away = job
    gang = run(nodes, {rank: {"comes": None} for rank in away}, gang_timeout_s=5.0)

    assert outcome(gang) == ("retry", [("node-missing", (rank,)) for rank in away])
    assert ["missing"] * len(away) == [node["state"] for node in gang.leader.verdict["nodes"] if node["rank"] in away]
    assert {"roll-call": "fail", "consistency": "skip", "collective": "skip"} == rows(gang)


@some
@given(nodes_and_some(), st.floats(0, 10))
def test_nodes_that_failed_are_named_soon_and_all_others_blame_a_peer(job, comes):
    """Whether or not others are there."""
    nodes, failed = job
    changes = {rank: {"comes": comes, "says": {"local": failed_local(), "nproc": 3}} for rank in failed}
    gang = run(nodes, changes, gang_timeout_s=30.0)

    assert outcome(gang) == ("retry", [("node-failed", (rank,)) for rank in failed])
    assert gang.now < comes + GATHER_S + 5 * STEP_S
    blames = {rank: blame(gang.leader.verdict, rank) for rank in range(nodes)}
    assert {rank: "self" if rank in failed else "peer" for rank in range(nodes)} == blames
    actions = {
        str(results(gang.leader.verdict, rank)["roll-call"].action) for rank in range(nodes) if rank not in failed
    }
    assert {"retry"} == actions


@some
@given(
    st.integers(3, 24),
    st.sampled_from([0.5, "all", "pairs", "again", "localisation"]),
    st.sampled_from(["hang", "error"]),
)
def test_a_node_that_goes_is_named_in_each_phase(nodes, when, trouble):
    """Within ten seconds, and nobody else."""
    changes = {1: {"ends": when}, 2: {"comes": 3.0 if when == 0.5 else 0.0}}
    gang = Gang(nodes, changes=changes, together=[trouble] * 2, screen=2)
    if when == "again":
        gang.pods[1].ends = None
        while gang.kinds.count("all") < 2:
            gang.step()
        gang.pods[1].ends = gang.now
    while gang.pods[1].state != "gone":
        gang.step()
    went = gang.now
    gang.run()

    assert outcome(gang) == ("retry", [("node-lost", (1,))])
    assert gang.now - went < NAMED_S
    assert ["lost"] == [node["state"] for node in gang.leader.verdict["nodes"] if node["rank"] == 1]


@pytest.mark.parametrize("left_out, found_by", [("", "consistency"), ("left out", "roll-call")])
@pytest.mark.parametrize("of", ["nnodes", "nproc"])
def test_nodes_that_disagree_on_their_number_are_told_before_any_collective(of, left_out, found_by):
    """Soon, though some may never come; where their comparison is left out, it is the roll-call that fails."""
    gang = run(8, {3: {"says": {of: 9}}, 4: {"comes": None}}, consistency=left_out)

    assert outcome(gang) == ("fatal", [("shape-differs", ())])
    assert [] == gang.kinds
    assert gang.now < DISAGREE_S + 1
    assert dict.fromkeys(("roll-call", "consistency", "collective"), "skip") | {found_by: "fail"} == rows(gang)
    assert {"none"} == {blame(gang.leader.verdict, rank) for rank in range(8)}


def test_a_rank_that_the_job_does_not_have_is_told():
    gang = Gang(4)
    stray = gang.rejoin(7)
    stray.says = {"nnodes": 8}
    gang.run()

    assert outcome(gang) == ("fatal", [("shape-differs", ())])
    values = [{"value": 4, "ranks": [0, 1, 2, 3]}, {"value": 8, "ranks": [7]}]
    assert [values] == [each["values"] for each in gang.leader.verdict["differences"]]
    assert gang.leader.verdict == stray.verdict


def test_a_node_whose_rank_the_job_does_not_have_may_have_failed():
    """As it does where PET_NNODES is smaller than the number of pods; its machine is to be avoided as any other."""
    gang = Gang(2, changes={1: {"comes": 3.0}})
    stray = gang.rejoin(2)
    stray.says = {"local": failed_local("PET_NODE_RANK=2 is outside 0..1 (PET_NNODES=2)")}
    gang.run()
    verdict = gang.leader.verdict

    assert outcome(gang) == ("retry", [("node-failed", (2,))])
    assert [("node", "job-node-0-2", 2)] == [(s["kind"], s["id"], s["node_rank"]) for s in verdict["suspects"]]
    assert {"hostnames": ["machine-2"], "gpus": []} == verdict["avoid"]
    assert (2, ["ready", "missing", "failed"]) == (verdict["nnodes"], [node["state"] for node in verdict["nodes"]])
    assert ["self", "peer"] == [blame(verdict, rank) for rank in (2, 0)]
    assert verdict == stray.verdict


# ---- whether nodes fit together, and their clocks


@pytest.mark.parametrize(
    "marks,verdict,code,kinds",
    [
        ({"torch": "2.6.0"}, "fatal", "nodes-differ", []),
        ({"driver": "535"}, "warn", "nodes-differ-slightly", ["all", "pairs"]),
        ({"kernel": "6.1"}, "pass", "nodes-differ-slightly", ["all", "pairs"]),
        ({"boot_id": "boot-1"}, "pass", "nodes-share-host", ["all", "pairs"]),
    ],
)
def test_differences_stop_a_gang_or_warn(marks, verdict, code, kinds):
    usual = {"torch": "2.7.1", "driver": "550", "kernel": "6.8"}
    changes = {
        rank: {"says": {"marks": usual | {"boot_id": f"boot-{rank}"} | (marks if rank == 2 else {})}}
        for rank in range(4)
    }
    gang = run(4, changes)

    assert outcome(gang) == (verdict, [(code, ())])
    assert kinds == gang.kinds


@pytest.mark.parametrize(
    "ahead,verdict,codes",
    [
        (0.0, "pass", []),
        (0.8, "pass", []),
        (1.2, "warn", [("clock-skewed", ())]),
        (-1.2, "warn", [("clock-skewed", ())]),
        (29.8, "warn", [("clock-skewed", ())]),
        (30.2, "fatal", [("clock-apart", ())]),
        (-30.2, "fatal", [("clock-apart", ())]),
    ],
)
def test_clocks(ahead, verdict, codes):
    gang = run(4, {2: {"clock_s": ahead}})

    assert outcome(gang) == (verdict, codes)
    offsets = [node["clock_offset_s"] for node in gang.leader.verdict["nodes"]]
    assert pytest.approx([0, 0, ahead, 0], abs=STEP_S) == offsets


@pytest.mark.parametrize("comes", [0.0, 2.0, 2.05])
@pytest.mark.parametrize("planned", [{"screen": 0}, {"screen": 1}, {"collective": "left out"}], ids=str)
@pytest.mark.parametrize("nodes", [2, 5])
def test_the_clock_of_the_last_to_come_is_compared_too(nodes, planned, comes):
    """Whatever is left to do when it is there; and nobody waits for that longer than it takes."""
    gangs = [Gang(nodes, changes={nodes - 1: {"comes": comes, "clock_s": ahead}}, **planned) for ahead in (0, 3600.0)]
    for gang in gangs:
        gang.run()

    assert ["pass", "fatal"] == [gang.leader.verdict["verdict"] for gang in gangs]
    assert [("clock-apart", ())] == gangs[1].codes()
    assert gangs[0].now <= comes + (0.5 if "collective" in planned else 0.7 + planned["screen"] * 0.8)


def test_a_rank_zero_that_is_slow_to_hear_accuses_no_clock():
    """Half of the time that the comparison took may be on one way."""
    gang = Gang(4)
    turn = gang.chair.turn
    gang.chair.turn = lambda now: turn(now) if gang.now >= 4.5 else None
    gang.run()

    assert outcome(gang) == ("pass", [])


# ---- the collective of all ranks


@some
@given(nodes_and_some())
def test_a_rank_that_is_killed_names_its_node_at_once(job):
    nodes, killed = job
    gang = run(nodes, {rank: {"fault": "killed"} for rank in killed})

    assert outcome(gang) == ("retry", [("collective-rank-died", (rank,)) for rank in killed])
    assert ["all"] == gang.kinds
    assert (
        f"node {killed[0]} (job-node-0-{killed[0]}): its rank was killed by signal 9 in stage results"
        == (gang.leader.verdict["summary"])
    )


def at_work():
    """Return rank 0 of two nodes that both are at the collective."""
    leader = Leader(plan(2), lambda _: "")
    for rank in range(2):
        said = {"kind": "hello", "rank": rank, "born": 1.0, "sent": BEGAN, "heard": BEGAN, "now": BEGAN}
        leader.hear(said | hello(rank, 2), now=0.0, wall=BEGAN)
    leader.turn(0.0)
    return leader


def report(leader, rank, now, **row):
    rows = [{"number": 0, "ok": False, "stage": "init", "timings": [], **row}]
    said = {"kind": "result", "rank": rank, "task": "all-1", "ok": False, "ranks": rows}
    leader.hear(said, now=now, wall=BEGAN)
    leader.turn(now)


def test_after_the_first_failure_others_still_say_what_they_saw():
    """A rank that lost its peer may say so before the node of that peer does."""
    leader = at_work()
    report(leader, 0, 1.0, error="RuntimeError")
    leader.turn(0.9 + AFTER_FAILURE_S)
    assert "all-1" == leader.task["id"]
    report(leader, 1, 1.0 + AFTER_FAILURE_S, code=-9)

    assert ["collective-rank-died"] == [charge["code"] for charge in leader.verdict["charges"]]


def test_what_is_said_of_another_task_is_not_heard():
    leader = at_work()
    leader.hear({"kind": "result", "rank": 1, "task": "all-0", "ok": False}, now=0.1, wall=BEGAN)

    assert {} == leader.reports


def test_settings_that_nccl_refuses_stop_everybody():
    gang = run(4, {1: {"fault": "misconfigured"}})

    assert outcome(gang) == ("fatal", [("collective-misconfigured", ())])
    assert "DistBackendError: ncclInvalidUsage: bad NCCL_NET" == gang.leader.verdict["summary"]
    assert ["all"] == gang.kinds


def test_too_little_shared_memory_is_no_fault_of_a_node():
    """It stops everybody with the hint, and nobody looks for a culprit."""
    gang = run(4, {1: {"fault": "shm"}})

    assert outcome(gang) == ("fatal", [("collective-shm-small", ())])
    summary = gang.leader.verdict["summary"]
    assert "ncclSystemError on node 1" in summary
    assert summary.endswith("whose /dev/shm has 5 MiB free, wanted 64 MiB for each of 1 ranks")
    assert ["all"] == gang.kinds


NCCL_SAYS = (
    "NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3384, unhandled system error (run with "
    "NCCL_DEBUG=INFO for details), NCCL version 2.27.5\nncclSystemError: System call (e.g. socket, malloc) or external "
    "library call failed or device error. \nLast error:\n"
)


@pytest.mark.parametrize(
    "cause, code, task",
    [
        ("Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1", [], "pairs-2"),
        ("Error while creating shared memory segment /dev/shm/nccl-Cbs1y4 (size 9)", ["collective-shm-small"], None),
    ],
    ids=["network", "shared memory"],
)
def test_a_system_error_of_the_network_is_looked_for_between_the_nodes(capfd, cause, code, task):
    """Containers have 64 MiB at /dev/shm, whatever fails; from the words of a rank to what all nodes do next."""

    def fails(rank):
        raise RuntimeError(NCCL_SAYS + cause)

    with pytest.raises(SystemExit):
        probe_collective.Rank(0).run(fails)
    said = {"number": 0, **json.loads(capfd.readouterr().out)}
    row = _row(said | ({"shm_free": 54 << 20} if "shm_free" in said else {}), hung=False)
    leader = at_work()
    report(leader, 1, 1.0, **row)
    report(leader, 0, 1.1, error="DistBackendError", text="ncclRemoteError: remote process exited")

    assert code == [charge["code"] for charge in (leader.verdict or {"charges": []})["charges"]]
    assert task == (leader.task and leader.task["id"])


def test_a_torch_that_cannot_is_no_fault():
    gang = run(4, {rank: {"fault": "unfit"} for rank in range(4)})

    assert outcome(gang) == ("pass", [])
    assert {"roll-call": "pass", "consistency": "pass", "collective": "skip"} == rows(gang)
    assert "torch is built without gloo" == results(gang.leader.verdict, 0)["collective"].message


@few
@given(st.integers(2, 16), st.sampled_from(["hang", "error", "wrong"]), st.integers(0, 1 << 16))
def test_what_no_pair_repeats_was_chance_or_remains_unexplained(nodes, trouble, seed):
    """Never is a node accused of it, nor is it forgotten because of pairs that are slow now and then."""
    for together, verdict, code in (
        ([trouble], "warn", ("collective-flaky", ())),
        ([trouble] * 2, "retry", ("collective-failed", tuple(range(nodes)))),
    ):
        gang = Gang(nodes, together=together, noise=0.4, seed=seed)
        gang.run()
        found, codes = outcome(gang)
        of_the_noise = {"collective-link-failed", "slower-node"}
        assert (verdict, [code]) == (found, [each for each in codes if each[0] not in of_the_noise])
        assert set() == gang.culprits()
        errors = [c for c in gang.leader.verdict["charges"] if c["severity"] == Severity.ERROR]
        assert len(together) - 1 == len(errors)
        assert ["all", "all"] == [kind for kind in gang.kinds if kind == "all"]


@pytest.mark.parametrize("speed", [0.4, 0.1])
def test_a_slow_node_does_not_explain_a_failure(speed):
    """A warning alone would let a gang pass whose collective fails."""
    gang = run(8, {3: {"speed": speed}}, together=["hang"] * 2)

    assert "retry" == gang.leader.verdict["verdict"]
