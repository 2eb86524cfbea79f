"""report: its JSON form, saved and read again, and the compact form, which never exceeds what Kubernetes keeps."""

import json
import os
import stat
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_agent.check import CheckResult, Status, finding_as_dict
from trainer_agent.errors import Action, FatalError, Finding, Severity
from trainer_agent.policy import Suspect, Verdict
from trainer_agent.report import Report, compact, load, show, worst_first, write_whole
from trainer_agent.termination import TERMINATION_BYTES

SMALL = Finding("shm-small", "64 MiB, wanted 1 GiB", hint="mount an emptyDir", evidence={"bytes": 67108864})
SLOW = Finding("slow", "3 GB/s, wanted 10 GB/s", Severity.WARNING, action=Action.CONTINUE)
SHM = finding_as_dict(SMALL)
REPORT = Report(
    verdict=Verdict.FATAL,
    action=Action.STOP,
    hostname="node-a",
    node_rank=1,
    nnodes=2,
    suspects=[Suspect("node", "node-a", 1, "it is slow")],
    checks=[
        CheckResult("clock", Status.PASS, "0.1 ms off", duration_s=0.0123),
        CheckResult("bandwidth", Status.WARN, "slow", findings=(SLOW,)),
        CheckResult("shm", Status.FAIL, "64 MiB", Action.STOP, 0.5, (SMALL,), {"bytes": 67108864}),
        CheckResult("rdma", Status.SKIP, "no device"),
        CheckResult("cuda", Status.ERROR, "the check broke"),
    ],
    started_at="2026-01-01T00:00:00.000+00:00",
    duration_s=1.23456,
)


@pytest.fixture
def data():
    return REPORT.as_dict()


def test_json(data):
    """The schema's keys and values, whole."""
    versions = data.pop("versions")
    assert ["trainer-agent", "python", "kernel"] == list(versions)
    shm = data["checks"][2]
    assert {
        "schema": "trainer-agent.preflight/v1",
        "verdict": "fatal",
        "exit_code": 30,
        "action": "stop",
        "node": {"hostname": "node-a", "rank": 1, "nnodes": 2},
        "suspects": [{"kind": "node", "id": "node-a", "node_rank": 1, "reason": "it is slow"}],
        "checks": data["checks"],
        "started_at": "2026-01-01T00:00:00.000+00:00",
        "duration_s": 1.235,
    } == data
    assert {
        "name": "shm",
        "status": "fail",
        "action": "stop",
        "duration_s": 0.5,
        "message": "64 MiB",
        "findings": [
            {
                "code": "shm-small",
                "severity": "error",
                "message": "64 MiB, wanted 1 GiB",
                "hint": "mount an emptyDir",
                "evidence": {"bytes": 67108864},
            }
        ],
        "measurements": {"bytes": 67108864},
    } == shm
    assert ["clock", "bandwidth", "shm", "rdma", "cuda"] == [c["name"] for c in data["checks"]]


def test_a_report_has_a_gang_only_where_there_was_one(data):
    """It stands behind the checks, as it was given."""
    with_gang = replace(REPORT, gang={"summary": "s"}).as_dict()

    assert "gang" not in data
    assert {**data, "gang": {"summary": "s"}} == with_gang
    assert ["checks", "gang", "started_at"] == list(with_gang)[6:9]


def test_load_gives_back_what_was_saved(data, tmp_path):
    """A saved report is read whole."""
    write_whole(tmp_path / "r.json", json.dumps(data))
    assert data == load(str(tmp_path / "r.json"))


@pytest.mark.parametrize(
    "text, code, message",
    [
        (None, "report-unreadable", "is not a readable JSON report: [Errno 2] No such file or directory"),
        ("", "report-unreadable", "is not a readable JSON report: Expecting value"),
        (b"\xff", "report-unreadable", "is not a readable JSON report: 'utf-8' codec can't decode"),
        ("[" * 100_000, "report-unreadable", "is not a readable JSON report: maximum recursion depth"),
        ("[]", "report-schema", "has schema 'list', wanted 'trainer-agent.preflight/v1'"),
        ('{"schema": "v0"}', "report-schema", "has schema 'v0', wanted 'trainer-agent.preflight/v1'"),
        ("{}", "report-schema", "has schema None, wanted 'trainer-agent.preflight/v1'"),
    ],
)
def test_load_refuses_what_is_no_report(tmp_path, text, code, message):
    """Every file that is no report is refused with its path and the reason."""
    path = tmp_path / "r.json"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(FatalError) as refused:
        load(str(path))
    assert (code, True) == (refused.value.code, refused.value.message.startswith(f"{path} {message}"))
    assert refused.value.hint.startswith("pass the file that --report-file wrote")


@pytest.mark.parametrize(
    "error", [KeyError("node"), IndexError(), TypeError(), ValueError(), AttributeError(), RecursionError()]
)
def test_a_damaged_report_is_refused_with_its_path(data, tmp_path, error):
    """Whatever a writer stumbles over when fields are missing or of another kind."""
    path = tmp_path / "r.json"
    write_whole(path, json.dumps(data))

    def write(_data):
        raise error

    with pytest.raises(FatalError) as refused:
        show(str(path), write)
    message = f"{path} has the right schema, but not its fields: {type(error).__name__}: {error}"
    assert ("report-damaged", message) == (refused.value.code, refused.value.message)


def test_show(data, tmp_path):
    write_whole(tmp_path / "r.json", json.dumps(data))
    assert "node-a" == show(str(tmp_path / "r.json"), lambda data: data["node"]["hostname"])


def test_worst_first():
    """Failures, then broken checks, warnings, passes and skips; among failures the one that asks for most."""
    asked = [("pass", "continue"), ("fail", "retry"), ("skip", "continue"), ("fail", "stop"), ("error", "continue")]
    checks = [{"status": status, "action": action, "findings": []} for status, action in asked]
    assert [checks[n] for n in (3, 1, 4, 0, 2)] == worst_first(checks)


@pytest.mark.parametrize(
    "device, first",
    [
        ({"action": "reschedule", "severity": "error", "evidence": {"gpus": [{"index": 3}]}}, True),
        ({"action": "reschedule", "severity": "error", "evidence": {"nics": [{"device": "mlx5_0"}]}}, True),
        ({"action": "reschedule", "severity": "error", "evidence": {"gpus": []}}, False),
        ({"action": "reschedule", "severity": "warning", "evidence": {"gpus": [{"index": 3}]}}, False),
        ({"action": "retry", "severity": "error", "evidence": {"gpus": [{"index": 3}]}}, False),
    ],
)
def test_a_broken_device_comes_before_a_wrong_configuration(device, first):
    """It can be the reason of the other; what names a device but asks for no other node is no broken device."""
    wrong = {"status": "fail", "action": "stop", "findings": []}
    broken = {"status": "fail", "action": device["action"], "findings": [device]}

    assert [broken, wrong][:: 1 if first else -1] == worst_first([wrong, broken])


def test_compact(data):
    """Verdict and suspects, then findings worst first; a check that broke has its message as one."""
    expected = {
        "verdict": "fatal",
        "exit_code": 30,
        "action": "stop",
        "node": {"hostname": "node-a", "rank": 1, "nnodes": 2},
        "suspects": [{"kind": "node", "id": "node-a", "node_rank": 1, "reason": "it is slow"}],
        "findings": [
            {"check": "shm", "code": "shm-small", "message": "64 MiB, wanted 1 GiB", "hint": "mount an emptyDir"},
            {"check": "cuda", "code": "check-broke", "message": "the check broke"},
            {"check": "bandwidth", "code": "slow", "message": "3 GB/s, wanted 10 GB/s"},
        ],
    }
    assert expected == json.loads(compact(data))


def test_compact_leaves_out_the_mildest(data):
    """What does not fit is counted."""
    short = json.loads(compact(data, limit=370))
    assert (["shm-small", "check-broke"], 1) == ([f["code"] for f in short["findings"]], short["left_out"])


def test_compact_has_errors_before_warnings(data):
    """Also where a check has both, and where a check that broke stands between them."""
    data["checks"][2]["findings"] = [{**data["checks"][1]["findings"][0], "code": "mild"}, SHM]
    data["checks"][0] |= {"status": "fail", "action": "retry", "findings": [{**SHM, "code": "late"}]}

    codes = [f["code"] for f in json.loads(compact(data))["findings"]]
    assert ["shm-small", "late", "check-broke", "mild", "slow"] == codes


def test_compact_with_many_suspects(data):
    """Suspects beyond the limit are counted, and the worst finding stays."""
    data["suspects"] *= 1000
    short = json.loads(compact(data))
    assert 1000 == len(short["suspects"]) + short["suspects_left_out"]
    assert (1, 2) == (len(short["findings"]), short["left_out"])
    assert len(compact(data).encode()) > TERMINATION_BYTES - 100


GANG = {
    "blame": "peer",
    "summary": "node 2 (n2) never arrived",
    "undetermined": [{"ranks": [0, 1], "reason": "they failed with each other only"}],
}


def test_compact_of_a_gang(data):
    """Who is to blame, the summary and what nobody knows stand with the verdict."""
    expected = {
        "verdict": "fatal",
        "exit_code": 30,
        "action": "stop",
        "node": {"hostname": "node-a", "rank": 1, "nnodes": 2},
        "blame": "peer",
        "gang": {"summary": GANG["summary"], "undetermined": GANG["undetermined"]},
        "suspects": [{"kind": "node", "id": "node-a", "node_rank": 1, "reason": "it is slow"}],
    }
    found = json.loads(compact({**data, "gang": GANG, "checks": []}))

    assert (expected, list(expected)) == (found, list(found))


def test_compact_of_a_huge_gang(data):
    """Hundreds of suspects and sets: whole, within the limit, the culprits' names before the rest."""
    suspects = [
        {"kind": "node", "id": f"job1-node-0-{n}", "node_rank": n, "reason": "slow with every partner " * 9}
        for n in range(0, 4096, 8)
    ]
    sets = [{"ranks": list(range(n, 4096)), "reason": "they met nobody else " * 50} for n in range(300)]
    gang = {"blame": "peer", "summary": "node 0 (job1-node-0-0) and 511 more are slow: " * 900, "undetermined": sets}

    text = compact({**data, "suspects": suspects, "gang": gang})

    found = json.loads(text)
    assert TERMINATION_BYTES - 300 < len(text.encode()) <= TERMINATION_BYTES
    assert ["peer", True] == [found["blame"], found["gang"]["summary"].startswith("node 0 (job1-node-0-0) and 511")]
    shown = found["gang"]["undetermined"]
    assert ([list(range(n, n + 16)) for n in range(2)], 298) == (
        [one["ranks"] for one in shown],
        found["gang"]["undetermined_left_out"],
    )
    names = [s["id"] for s in found["suspects"]]
    assert 12 < len(names)
    assert [s["id"] for s in suspects[: len(names)]] == names
    assert 512 == len(names) + found["suspects_left_out"]
    assert 1 == len(found["findings"])


def test_compact_with_an_endless_text(data):
    """Texts are cut where one alone exceeds the limit, and every key stays."""
    data["suspects"][0]["reason"] = "ü" * 100_000
    short = json.loads(compact(data))
    assert ["verdict", "exit_code", "action", "node", "suspects", "findings"] == list(short)
    assert 1280 == len(short["suspects"][0]["reason"])
    assert 3 == len(short["findings"])


TEXTS = st.text(max_size=30) | st.integers(0, 3000).map(lambda n: "\x00ü" * n) | st.just("\udcff")
FINDINGS = st.lists(
    st.fixed_dictionaries(
        {
            "code": TEXTS,
            "message": TEXTS,
            "hint": TEXTS,
            "severity": st.sampled_from([str(s) for s in Severity]),
            "evidence": st.sampled_from([{}, {"gpus": [{"index": 0}]}]),
        }
    ),
    max_size=8,
)
CHECKS = st.fixed_dictionaries(
    {
        "name": TEXTS,
        "status": st.sampled_from([str(s) for s in Status]),
        "action": st.sampled_from([str(a) for a in Action]),
        "message": TEXTS,
        "findings": FINDINGS,
    }
)
SUSPECTS = st.fixed_dictionaries({"kind": st.just("node"), "id": TEXTS, "node_rank": st.integers(), "reason": TEXTS})


UNDETERMINED = st.fixed_dictionaries({"ranks": st.lists(st.integers(0, 4096), max_size=40), "reason": TEXTS})
GANGS = st.fixed_dictionaries(
    {"blame": st.just("peer"), "summary": TEXTS, "undetermined": st.lists(UNDETERMINED, max_size=9)}
)


@given(
    st.lists(CHECKS, max_size=4),
    st.lists(SUSPECTS, max_size=40),
    TEXTS,
    st.integers(1200, TERMINATION_BYTES),
    st.none() | GANGS,
)
def test_compact_is_always_whole(checks, suspects, hostname, limit, gang):
    """Whatever the texts are, the result is valid JSON within the limit, and the worst finding is the first."""
    head = {"verdict": "warn", "exit_code": 10, "action": "continue"}
    node = {"hostname": hostname, "rank": 0, "nnodes": 1}
    gangs = {} if gang is None else {"gang": gang}
    text = compact({**head, "node": node, "suspects": suspects, "checks": checks, **gangs}, limit=limit)
    found = json.loads(text)
    assert (None if gang is None else "peer") == found.get("blame")
    assert len(text.encode()) <= limit
    assert head == {k: found[k] for k in head}
    order = [s for s in ("fail", "error", "warn", "pass", "skip") for c in checks if c["status"] == s for _ in shown(c)]
    assert len(found.get("findings", ())) + found.get("left_out", 0) == len(order)


def shown(check):
    return check["findings"] or ([check] if check["status"] == "error" else [])


def test_write_whole(tmp_path):
    """The file appears with its folder, readable by all, and nothing half stays beside it."""
    target = tmp_path / "a/b/r.json"
    write_whole(target, "one")
    write_whole(target, "ü\udcff")
    assert ("ü?", ["r.json"]) == (target.read_text(), [p.name for p in target.parent.iterdir()])
    assert 0o644 == stat.S_IMODE(target.stat().st_mode)


def test_write_whole_to_a_place_that_is_none(tmp_path):
    """Where nothing can be written, the path and the reason are said and nothing is left."""
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for path, reason in ((tmp_path / "file/r.json", "File exists"), (tmp_path / "folder", "Is a directory")):
        with pytest.raises(FatalError) as refused:
            write_whole(path, "x")
        expected = ("not-writable", f"cannot write {path}: {reason}", "give a path on a writable volume")
        assert expected == (refused.value.code, refused.value.message, refused.value.hint)
    assert ["file", "folder"] == sorted(p.name for p in tmp_path.iterdir())


def test_write_whole_never_replaces_what_is_no_file(tmp_path):
    """A pipe stays a pipe, as /dev/null must stay a device, and a link stays a link."""
    pipe, link, file = tmp_path / "pipe", tmp_path / "link", tmp_path / "file"
    os.mkfifo(pipe)
    link.symlink_to(file)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    write_whole(pipe, "into the pipe")
    write_whole(link, "through the link")

    assert b"into the pipe" == os.read(reader, 100)
    assert (True, True) == (pipe.is_fifo(), link.is_symlink())
    assert "through the link" == file.read_text()
    os.close(reader)


def test_write_whole_over_links_in_a_circle(tmp_path):
    """They lead nowhere, so one of them becomes the file."""
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    write_whole(tmp_path / "a", "x")
    assert "x" == (tmp_path / "a").read_text()
