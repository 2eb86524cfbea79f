import pytest

from trainer_agent.check import CheckResult, Status
from trainer_agent.errors import Action, ExitCode, Finding, Severity
from trainer_agent.policy import Suspect, Verdict, decide, ignore, suspects


def result(name, status, action=Action.CONTINUE, *findings):
    return CheckResult(name, status, "a message", action, findings=findings)


PASS = result("a", Status.PASS)
SKIP = result("b", Status.SKIP)
WARN = result("c", Status.WARN)
BROKE = result("d", Status.ERROR)
RETRY = result("e", Status.FAIL, Action.RETRY)
RESCHEDULE = result("f", Status.FAIL, Action.RESCHEDULE)
STOP = result("g", Status.FAIL, Action.STOP)


@pytest.mark.parametrize(
    "results, verdict, action",
    [
        ([], Verdict.PASS, Action.CONTINUE),
        ([PASS, SKIP], Verdict.PASS, Action.CONTINUE),
        ([PASS, WARN], Verdict.WARN, Action.CONTINUE),
        ([PASS, BROKE], Verdict.WARN, Action.CONTINUE),
        ([WARN, RETRY], Verdict.RETRY, Action.RETRY),
        ([RESCHEDULE, RETRY], Verdict.RETRY, Action.RESCHEDULE),
        ([STOP, RESCHEDULE, RETRY], Verdict.FATAL, Action.STOP),
        ([BROKE, STOP], Verdict.FATAL, Action.STOP),
        # A check that fails and asks for nothing must not let the job begin.
        ([result("h", Status.FAIL, Action.CONTINUE)], Verdict.RETRY, Action.CONTINUE),
    ],
)
def test_the_worst_failure_decides(results, verdict, action):
    assert (verdict, action) == decide(results)
    assert (verdict, action) == decide(results[::-1])


def test_every_verdict_has_its_exit_code():
    expected = {"pass": ExitCode.PASS, "warn": ExitCode.WARN, "retry": ExitCode.RETRY, "fatal": ExitCode.FATAL}
    assert expected == {str(v): v.exit_code for v in Verdict}


def test_ignoring_demotes_and_still_shows():
    finding = Finding("full", "no room, wanted some", Severity.ERROR, "delete", Action.STOP, {"free": 0})
    note = Finding("note", "a note", Severity.INFO, "", Action.CONTINUE)
    failed = CheckResult("storage", Status.FAIL, "no room", Action.STOP, 0.5, (finding, note), {"free": 0})

    expected = CheckResult(
        "storage",
        Status.WARN,
        "no room (failure ignored by --ignore storage)",
        Action.CONTINUE,
        0.5,
        (Finding("full", "no room, wanted some", Severity.WARNING, "delete", Action.CONTINUE, {"free": 0}), note),
        {"free": 0},
    )
    assert [expected, STOP] == ignore([failed, STOP], ["storage"])


@pytest.mark.parametrize("name", ["all", "d"])
def test_a_check_that_broke_can_be_ignored_too(name):
    expected = CheckResult("d", Status.WARN, "a message (failure ignored by --ignore d)")
    assert [expected] == ignore([BROKE], [name])


def test_all_ignores_every_failure_and_changes_nothing_else():
    ignored = ignore([PASS, SKIP, WARN, STOP, RETRY], ["all"])

    assert [PASS, SKIP, WARN] == ignored[:3]
    assert (Verdict.WARN, Action.CONTINUE) == decide(ignored)


GPU3 = {"index": 3, "uuid": "GPU-3", "pci": "00000000:56:00.0"}
GPU5 = {"index": 5, "uuid": "GPU-5", "pci": "00000000:57:00.0"}
LABELS = {3: "GPU 3 (GPU-3, 00000000:56:00.0)", 5: "GPU 5 (GPU-5, 00000000:57:00.0)"}


def elsewhere(message, action=Action.RESCHEDULE, **evidence):
    return Finding("a-code", message, action=action, evidence=evidence)


def suspected(*findings):
    results = [result("a", Status.FAIL, Action.RESCHEDULE, *findings)]
    return [(s.kind, s.id, s.reason) for s in suspects(results, hostname="worker-3", node_rank=3)]


def test_this_node_is_suspected_when_a_failure_asks_for_another():
    hung = Finding("storage-hung", "/data hangs", action=Action.RESCHEDULE)
    wrong = Finding("nnodes-invalid", "0 nodes", action=Action.STOP)
    late = Finding("clock-wrong", "90 s behind", action=Action.RESCHEDULE)
    results = [
        result("storage", Status.FAIL, Action.STOP, hung, wrong),
        result("clock", Status.FAIL, Action.RESCHEDULE, late),
        result("ignored", Status.WARN, Action.CONTINUE, hung),
    ]

    expected = [Suspect("node", "worker-3", 3, "/data hangs; 90 s behind")]
    assert expected == suspects(results, hostname="worker-3", node_rank=3)


def test_gpus_that_failures_name_are_suspects():
    """After their node, who has most failures first; their names stand once, not before every reason."""
    shared = elsewhere(f"{LABELS[3]}, {LABELS[5]}: 0 NVLinks are active, wanted 18", gpus=[GPU3, GPU5])
    own = elsewhere(f"{LABELS[5]}: it has 91 degrees, wanted: less", gpus=[GPU5])

    assert [
        ("node", "worker-3", "/data hangs; of its devices GPU 5, GPU 3"),
        ("gpu", "GPU-5", "GPU 5: 0 NVLinks are active, wanted 18; it has 91 degrees, wanted: less"),
        ("gpu", "GPU-3", "GPU 3: 0 NVLinks are active, wanted 18"),
    ] == suspected(shared, elsewhere("/data hangs"), own)


@pytest.mark.parametrize(
    "names, id_",
    [
        ({"index": 3, "uuid": "", "pci": "0000:56:00.0"}, "0000:56:00.0"),
        ({"index": 3, "uuid": "", "pci": ""}, "3"),
        ({"index": 3}, "3"),
    ],
)
def test_a_gpu_that_never_said_its_uuid(names, id_):
    """Its PCI address or its index is its name then."""
    finding = elsewhere("GPU 3: NVML says `GPU is lost`, wanted answers", gpus=[names])

    assert ("gpu", id_, "GPU 3: NVML says `GPU is lost`, wanted answers") == suspected(finding)[1]


def test_nics_that_failures_name_are_suspects():
    """By device and port, as RDMA numbers them."""
    port = elsewhere("mlx5_0 port 1: the link is down, wanted up", nics=[{"device": "mlx5_0", "port": 1}])
    whole = elsewhere("mlx5_1 is missing, wanted it", nics=[{"device": "mlx5_1", "port": None}])

    assert [
        ("node", "worker-3", "of its devices mlx5_0 port 1, mlx5_1"),
        ("nic", "mlx5_0:1", "mlx5_0 port 1: the link is down, wanted up"),
        ("nic", "mlx5_1", "mlx5_1: mlx5_1 is missing, wanted it"),
    ] == suspected(port, whole)


def test_devices_of_warnings_and_of_wrong_configurations_are_no_suspects():
    """A torch without kernels for a GPU is no fault of the GPU."""
    warned = Finding("warm", "GPU 3: warm", Severity.WARNING, action=Action.CONTINUE, evidence={"gpus": [GPU3]})

    assert [] == suspected(elsewhere("no kernels", Action.STOP, gpus=[GPU3]), warned)


def test_a_failure_that_names_other_nodes_is_theirs():
    """The launcher of an MPI job finds out about its hosts, and is none of them."""
    other = elsewhere("no device", nodes=[{"name": "job-node-0-2", "node_rank": 2}])
    found = suspects([result("mpi", Status.FAIL, Action.RESCHEDULE, other)], hostname="launcher", node_rank=0)

    assert [Suspect("node", "job-node-0-2", 2, "no device")] == found


@pytest.mark.parametrize("nodes", [2, ["a"], [{"name": "a"}], [{"name": "", "node_rank": 1}], [{"node_rank": 1}]])
def test_evidence_of_other_kinds_names_nobody(nodes):
    """Somebody else's check may mean anything by these names."""
    odd = elsewhere("odd", gpus=8, nics=["mlx5_0"], nodes=nodes)

    assert [("node", "worker-3", "odd")] == suspected(odd)


def test_nobody_is_suspected_of_a_wrong_configuration():
    wrong = Finding("nnodes-invalid", "0 nodes", action=Action.STOP)

    assert [] == suspects([result("a", Status.FAIL, Action.STOP, wrong)], hostname="worker-3", node_rank=3)
