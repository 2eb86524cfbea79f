"""nccl-loopback: /dev/shm that is too small for NCCL, which is no fault of a GPU."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from nvml_checks import run_on
from nvml_machines import machine
from nvml_models import L4

from preflight_checks._blame import blame
from preflight_checks._gpus import Gpu
from preflight_checks._probes import FOLDER
from preflight_checks._ranks import Run, heard
from preflight_checks.nccl_loopback import INSIDE, nccl_loopback
from trainer_agent.accelerators import Accelerators
from trainer_agent.check import Options
from trainer_agent.host import Host

pytestmark = pytest.mark.lab

MIB = 1 << 20
GPUS = [Gpu(index, uuid=f"GPU-{index}", pci=f"0000:{index:02x}:00.0") for index in range(3)]
WRONG = {"of": "all-gather", "source": 0, "index": 5, "got": "6.0", "wanted": "5.0", "differ": 1, "of_numbers": 9}


def test_too_little_shared_memory_is_no_fault_of_a_gpu():
    """The pod wants a volume at /dev/shm, and no other node would have one."""
    short = {"error": "DistBackendError", "text": "NCCL error\nncclSystemError: System call (e.g. socket) failed"}
    ranks = [replace(rank, stage="all-reduce", gpu=GPUS[rank.number]) for rank in heard("", 3)]
    ranks = (replace(ranks[0], **short, facts={"shm_free": 64 * MIB}), *ranks[1:])
    (finding,) = blame(Run(ranks, wait_s=20.0), INSIDE)

    assert ("nccl-shm-small", "stop") == (finding.code, finding.action)
    assert "gpus" not in finding.evidence
    assert finding.message.startswith("rank 0 failed with DistBackendError: NCCL error")
    assert finding.message.endswith("; /dev/shm has 64 MiB free, wanted 64 MiB for each of 3 ranks")
    assert "/dev/shm" in finding.hint


RANKS = """#!{python}
import json, time
error = {{"error": "DistBackendError", "text": "ncclSystemError: No space left on device", "shm_free": 1 << 26}}
for rank in range(4):
    for stage in ("import", "device", "init", "all-reduce"):
        print(json.dumps({{"rank": rank, "stage": stage, "at": time.monotonic()}}))
    print(json.dumps({{"rank": rank, "stage": "all-reduce", "at": time.monotonic(), **error}}))
    print(json.dumps({{"rank": rank, "code": 1}}))
"""


def test_the_check_asks_for_a_volume_and_names_no_gpu(nvml_standin, tmp_path):
    """With four GPUs, whose ranks say what NCCL says where /dev/shm has the 64 MiB of containers."""
    python = tmp_path / "python"
    python.write_text(RANKS.format(python=sys.executable))
    python.chmod(0o755)
    options = Options(python=str(python), profile="standard")
    given = Accelerators("nvidia", 4, "NVML: 4 GPUs")
    outcome = run_on(nvml_standin, machine(L4, 4), [nccl_loopback], tmp_path, accelerators=given, options=options)

    (finding,) = outcome["nccl-loopback"].findings
    assert ("nccl-shm-small", "stop") == (finding.code, finding.action)
    assert "gpus" not in finding.evidence


@pytest.mark.parametrize(
    "first, second, code",
    [
        ({"facts": {"shm_free": 3 * 64 * MIB}}, {}, "nccl-rank-failed"),
        ({"facts": {}}, {}, "nccl-rank-failed"),
        ({}, {"code": -11}, "nccl-rank-failed"),
        ({}, {"facts": {"wrong": [WRONG]}}, "nccl-wrong-result"),
    ],
    ids=["room", "another error", "killed", "wrong numbers"],
)
def test_shared_memory_hides_no_fault_that_is_another(first, second, code):
    """There was room, NCCL said something else, or another rank has what no volume mends."""
    ranks = [replace(rank, stage="all-gather", gpu=GPUS[rank.number]) for rank in heard("", 3)]
    failed = {"error": "DistBackendError", "text": "ncclSystemError", "facts": {"shm_free": 0}} | first
    ranks[:2] = replace(ranks[0], **failed), replace(ranks[1], **second)
    found = blame(Run(tuple(ranks), wait_s=20.0), INSIDE)

    assert code == found[0].code
    assert {"reschedule"} == {str(finding.action) for finding in found}
    assert all("gpus" in finding.evidence for finding in found)


RAISES = """
import sys
sys.path.insert(0, sys.argv[1])
import probe_collective
def work(rank):
    raise RuntimeError(sys.argv[2])
probe_collective.Rank(0).run(work)
"""


def said_of(text):
    """Return what a rank says when it raises this."""
    argv = [sys.executable, "-c", RAISES, str(FOLDER), text]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    return json.loads(done.stdout)


def test_a_rank_that_meets_a_system_error_tells_the_room_in_shared_memory():
    said = said_of("NCCL error\nncclSystemError: System call failed")

    assert said["shm_free"] == pytest.approx(Host().space("/dev/shm").free, abs=64 * MIB)


SYSTEM = "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. "
FAR = f"NCCL error in: {'x' * 600}.cpp:3384, unhandled system error\n{SYSTEM}\nLast error:\n"


@pytest.mark.parametrize(
    "text, tells",
    [
        (f"{FAR}Error while creating shared memory segment /dev/shm/nccl-Cbs1y4 (size 9637888)", True),
        (f"{FAR}Error: failed to extend /dev/shm/nccl-WU88OE to 9637892 bytes", True),
        (f"{FAR}Call to posix_fallocate failed : No space left on device", True),
        (f"{SYSTEM}\nLast error:\n", True),
        (f"{SYSTEM}\nLast error:\n\nException raised from create at /pytorch/NCCLUtils.cpp:81", True),
        (f"{SYSTEM}\nLast error: Unknown NCCL Error\n", True),
        (f"{FAR}Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1", False),
        (f"{FAR}socketStartConnect: Connect to 10.0.0.2<40861> failed : Software caused connection abort", False),
        ("ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure", False),
        ("Error while creating shared memory segment", False),
    ],
)
def test_shared_memory_is_told_of_only_where_it_may_be_why(text, tells):
    """NCCL names the same result for sockets and RDMA cards; what it says of the cause may be beyond what is kept."""
    assert tells is ("shm_free" in said_of(text))
