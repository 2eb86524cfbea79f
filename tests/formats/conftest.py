"""Reports to be shown: a node of eight GPUs with two faults, a gang of four, and texts that all mean harm."""

import copy
import json

import pytest

from trainer_agent.check import CheckResult, Status
from trainer_agent.errors import Action, Finding, Severity
from trainer_agent.policy import Suspect, Verdict
from trainer_agent.report import Report

UUIDS = [f"GPU-0000000{n}-aaaa-bbbb-cccc-dddddddddddd" for n in range(8)]
PCI = [f"00000000:{n:X}7:00.0" for n in range(1, 9)]
HOSTILE = "\"'</script><script>alert(1)</script><img src=//evil.example onerror=x>&amp;]]>\x00\x1b[2J\u202e\ud800"


@pytest.fixture
def report():
    """A node of eight GPUs: one with errors in its memory, one with slow links, and /dev/shm too small."""
    memory = Finding(
        "gpu-memory-errors",
        "GPU 5 has 3 uncorrectable memory errors since boot, wanted 0",
        hint="drain node worker-3 and reset GPU 5: nvidia-smi --gpu-reset -i 5",
        action=Action.RESCHEDULE,
        evidence={"gpu": 5, "uuid": UUIDS[5], "errors": 3},
    )
    link = Finding(
        "link-slow",
        "GPU 2 copies 21 GB/s from the host, wanted 48 GB/s or more",
        Severity.WARNING,
        hint="compare `nvidia-smi -q -i 2` with its neighbours",
        action=Action.CONTINUE,
        evidence={"pci": "0000:37:00.0", "host_gbps": 21.4, "expected_host_gbps": 48},
    )
    small = Finding("shm-small", "64 MiB, wanted 8 GiB", Severity.WARNING, "mount an emptyDir", Action.CONTINUE)
    listed = [{"index": n, "uuid": UUIDS[n], "pci": PCI[n]} for n in range(8)]
    rates = [{"index": n, "host_gbps": 21.4 if n == 2 else 53 + n / 8, "expected_host_gbps": 48} for n in range(8)]
    return Report(
        verdict=Verdict.RETRY,
        action=Action.RESCHEDULE,
        hostname="worker-3",
        node_rank=3,
        nnodes=16,
        suspects=[Suspect("node", "worker-3", 3, memory.message)],
        checks=[
            CheckResult("environment", Status.PASS, "torch: nodes 16, this one has rank 3", duration_s=0.012),
            CheckResult("shm", Status.WARN, "0.1 GiB", findings=(small,), measurements={"size_bytes": 67108864}),
            CheckResult("gpu-count", Status.PASS, "8 GPUs", duration_s=0.4, measurements={"gpus": listed}),
            CheckResult("gpu-memory", Status.FAIL, "1 of 8 GPUs is bad", Action.RESCHEDULE, 1.25, (memory,)),
            CheckResult("gpu-link", Status.WARN, "1 is slow", findings=(link,), measurements={"gpus": rates}),
            CheckResult("gpu-clocks", Status.SKIP, "runs from --profile deep on"),
            CheckResult("cuda", Status.ERROR, "the check ran out of time: no answer within 5 s", duration_s=5.0),
        ],
        started_at="2026-01-01T00:00:00.123+00:00",
        duration_s=6.5,
    )


@pytest.fixture
def data(report):
    """Its JSON form, as a file holds it."""
    return json.loads(json.dumps(report.as_dict()))


@pytest.fixture
def hostile(data):
    """The same report, where every text that may be anything is an attack."""
    data = copy.deepcopy(data)
    data["node"]["hostname"] = data["started_at"] = data["action"] = HOSTILE
    data["suspects"] = [{"kind": HOSTILE, "id": HOSTILE, "node_rank": HOSTILE, "reason": HOSTILE}]
    data["versions"] = {HOSTILE: HOSTILE}
    for check in data["checks"]:
        check |= {"name": HOSTILE, "message": HOSTILE, "measurements": {HOSTILE: HOSTILE, "gpus": [{"gpu": HOSTILE}]}}
        check["action"] = "stop"
        for finding in check["findings"]:
            evidence = {HOSTILE: 1, f"expected_{HOSTILE}": 2, "uuid": f"GPU-{HOSTILE}"}
            finding |= {"code": HOSTILE, "message": HOSTILE, "hint": HOSTILE, "evidence": evidence}
    return data


@pytest.fixture
def gang():
    """Four nodes: one never arrived, and of two that did one is slow, or the other."""
    return {
        "attempt": "a1",
        "epoch": 1,
        "written_by": 0,
        "nnodes": 4,
        "verdict": "retry",
        "action": "reschedule",
        "blame": "peer",
        "summary": "node 2 (job1-node-0-2) never arrived: its name does not resolve",
        "nodes": [
            {**_node(0), "arrived_s": 0.0, "state": "ready"},
            {**_node(1), "arrived_s": 0.5, "state": "ready", "clock_offset_s": -0.012},
            {**_node(2), "state": "missing", "note": "its name does not resolve", "node": "", "address": ""},
            {**_node(3), "arrived_s": 1.5, "state": "ready"},
        ],
        "differences": [
            {
                "key": "driver",
                "severity": "warning",
                "values": [{"value": "550.54", "ranks": [0, 3]}, {"value": "535.1", "ranks": [1]}],
                "minority": [1],
            }
        ],
        "collective": _collective(),
        "pairs": [
            {"a": 0, "b": 1, "round": 0, "passed": True, "gbps": 1.25, "why": ""},
            {"a": 0, "b": 1, "round": 1, "passed": True, "gbps": 1.5, "why": ""},
            {"a": 1, "b": 3, "round": 2, "passed": False, "gbps": 0.1, "why": "0.1 GB/s, wanted 0.6 GB/s"},
        ],
        "suspects": [
            {"kind": "node", "id": "job1-node-0-2", "node_rank": 2, "reason": "it never arrived"},
            {"kind": "gpu", "id": UUIDS[5], "node_rank": 1, "reason": "it is slow"},
        ],
        "undetermined": [{"ranks": [1, 3], "reason": "they failed with each other only"}],
        "avoid": {"hostnames": ["gpu-18", "gpu-20"], "gpus": [UUIDS[5]]},
        "phases": [{"name": "roll-call", "seconds": 30.0}, {"name": "consistency", "seconds": 0.02}],
    }


def _collective():
    rows = [
        {"of": "all-reduce", "bytes": 1048576, "seconds": 0.003, "busbw_gbps": 0.5, "expected_busbw_gbps": 1.0},
        {"of": "all-gather", "bytes": 1024, "seconds": 0.001, "busbw_gbps": 0.25},
    ]
    said = {"passed": True, "rows": rows, "message": "exact on all ranks"}
    return {"backend": "gloo", "ranks": 3, "transport": "tcp", **said}


def _node(rank):
    names = {"rank": rank, "hostname": f"job1-node-0-{rank}", "node": f"gpu-{17 + rank}", "address": f"10.77.0.{rank}"}
    return {**names, "arrived_s": None, "note": "", "clock_offset_s": None}


@pytest.fixture
def well(gang):
    """The same four nodes when all is well."""
    gang = copy.deepcopy(gang)
    for node in gang["nodes"]:
        node |= {"state": "ready", "arrived_s": node["arrived_s"] or 0.25, "note": ""}
    gang["pairs"] = gang["pairs"][:2]
    gang["phases"][0]["seconds"] = 1.5
    nothing = {"suspects": [], "undetermined": [], "differences": [], "avoid": {"hostnames": [], "gpus": []}}
    return {**gang, **nothing, "verdict": "pass", "action": "continue", "blame": "none", "summary": "all is well"}


@pytest.fixture
def hostile_gang(gang):
    """The gang of four, where every text that may be anything is an attack."""
    words = {"verdict", "action", "blame", "state", "severity"}

    def attack(value, key=""):
        if isinstance(value, dict):
            return {name: attack(below, name) for name, below in value.items()}
        if isinstance(value, list):
            return [attack(below, key) for below in value]
        return HOSTILE if isinstance(value, str) and key not in words else value

    return attack(gang)
