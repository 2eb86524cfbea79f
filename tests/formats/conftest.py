"""Reports to be shown: a node of eight GPUs with two faults, and one whose every text means harm."""

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
