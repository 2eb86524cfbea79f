"""`trainer-agent preflight` on machines of the stand-in: who is named, in how many words, and after what time."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pynvml
import pytest
from nvml_faults import FAULTS, SOON
from nvml_machines import bus_id, h100_sxm, uuid

pytestmark = pytest.mark.lab

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "report.schema.json").read_text())
GPU_CHECKS = "gpu-count,gpu-health,gpu-memory,gpu-link,gpu-clocks"
# GPU by GPU; what shows in messages of different lengths.
EIGHT = (
    "sram-uncorrected",
    "remap-failed",
    "recovery-action-4",
    "link-down",
    "narrow-pcie",
    "too-hot",
    "fabric-route-unhealthy",
    "compute-prohibited",
)


@pytest.fixture
def preflight(nvml_standin, tmp_path):
    """Run the program on a machine: its exit code, its report, which is valid, and its termination message."""

    def run(scenario, *arguments, **more):
        log = tmp_path / "termination-log"
        argv = [sys.executable, "-m", "trainer_agent", "preflight", "--output", "json", "--termination-log", str(log)]
        environ = {**os.environ, **nvml_standin.environ(scenario), **more}
        done = subprocess.run([*argv, *arguments], env=environ, capture_output=True, timeout=60, check=False)
        report = json.loads(done.stdout)
        jsonschema.validate(report, SCHEMA)
        return done.returncode, report, log.read_bytes()

    return run


def eight_faults():
    made = h100_sxm()
    for gpu, fault in enumerate(EIGHT):
        made = FAULTS[fault](made, gpu)
    return made


def test_eight_gpus_with_eight_faults_are_all_named(preflight):
    """In 4,096 bytes, each with its UUID, its finding and what was wanted; what is missing are hints."""
    code, report, log = preflight(eight_faults(), "--checks", GPU_CHECKS, **SOON)
    message = json.loads(log)

    assert (20, "retry", "reschedule") == (code, message["verdict"], message["action"])
    assert len(log) <= 4096
    assert report["suspects"][0] | {"kind": "node", "node_rank": 0} == report["suspects"][0]
    assert [("gpu", uuid(gpu)) for gpu in range(8)] == sorted((s["kind"], s["id"]) for s in message["suspects"][1:])
    assert {True} == {s["reason"].startswith(f"GPU {s['id'][4]}: ") for s in message["suspects"][1:]}
    errors = [f for c in report["checks"] for f in c["findings"] if f["severity"] == "error"]
    assert sorted(f["code"] for f in errors) == sorted(f["code"] for f in message["findings"])
    assert {f["code"]: f["message"] for f in errors} == {f["code"]: f["message"] for f in message["findings"]}
    assert "left_out" not in message
    assert "hint" in message["findings"][0]


def test_two_faults_of_one_gpu_are_one_suspect(preflight):
    """Beside its node, with both reasons; the finding has all its names."""
    faulty = FAULTS["link-down"](FAULTS["remap-failed"](h100_sxm(), 5), 5)
    _, report, _ = preflight(faulty, "--checks", GPU_CHECKS, **SOON)

    node, gpu = report["suspects"]
    reason = "GPU 5: a row of memory could not be remapped, wanted no such failure; 17 NVLinks are active, wanted 18"
    assert ("of its devices GPU 5", uuid(5), reason) == (node["reason"], gpu["id"], gpu["reason"])
    health = next(c for c in report["checks"] if c["name"] == "gpu-health")
    assert health["findings"][0]["message"].startswith(f"GPU 5 ({uuid(5)}, {bus_id(5)}): ")


@pytest.mark.parametrize(
    "fault, finder, suspects, skipped",
    [
        ("hung-driver", "gpu-count", ["node"], ["gpu-clocks", "gpu-health", "gpu-link", "gpu-memory"]),
        ("hung-gpu", "gpu-clocks", ["node", "gpu"], []),
    ],
)
def test_a_hang_asks_for_another_node_within_the_budget(preflight, fault, finder, suspects, skipped):
    """One check says so. The quick profile has 15 s; a driver that has never answered gets 20."""
    code, report, _ = preflight(FAULTS[fault](h100_sxm(), 3), "--profile", "quick", "--checks", GPU_CHECKS)

    checks = {c["name"]: c for c in report["checks"]}
    assert (20, "reschedule") == (code, report["action"])
    assert [finder] == [name for name, c in checks.items() if "nvml-hung" in [f["code"] for f in c["findings"]]]
    assert suspects == [s["kind"] for s in report["suspects"]]
    assert skipped == sorted(n for n, c in checks.items() if c["message"] == "NVML hangs; gpu-count says more")
    assert {"error"}.isdisjoint(c["status"] for c in report["checks"])
    assert report["duration_s"] < 40


def test_a_check_alone_says_itself_that_the_driver_hangs(preflight):
    """Nobody else would."""
    code, report, _ = preflight(FAULTS["hung-driver"](h100_sxm(), 3), "--profile", "quick", "--checks", "gpu-health")

    assert (20, "reschedule") == (code, report["action"])
    assert ["nvml-hung"] == [f["code"] for c in report["checks"] for f in c["findings"]]


def test_what_nvml_does_not_say_costs_only_what_needs_it(preflight):
    """Without libcuda there is no version of CUDA, some drivers have no events; a sick GPU is found all the same."""
    silent = h100_sxm().fails("nvmlSystemGetCudaDriverVersion_v2", pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    silent = silent.fails("nvmlSystemGetDriverVersion", pynvml.NVML_ERROR_UNKNOWN)
    silent = silent.fails("nvmlEventSetCreate", pynvml.NVML_ERROR_NOT_SUPPORTED)
    code, report, _ = preflight(FAULTS["remap-failed"](silent, 2), "--checks", GPU_CHECKS)

    checks = {c["name"]: c for c in report["checks"]}
    assert (20, "8 x NVIDIA H100 80GB HBM3, driver unknown") == (code, checks["gpu-count"]["message"])
    assert ["row-remap-failed"] == [f["code"] for f in checks["gpu-health"]["findings"]]
    assert [uuid(2)] == [s["id"] for s in report["suspects"] if s["kind"] == "gpu"]
    reasons = {"driver": "Unknown Error", "cuda": "NVML Shared Library Not Found", "xids": "Not Supported"}
    assert reasons == {name: checks["gpu-health"]["measurements"]["not_read"][name] for name in reasons}


def test_gpus_of_others_are_not_accused(preflight):
    """Where a device cgroup leaves a container two of eight, NVML counts all and gives no handle for the rest."""
    scenario = h100_sxm()
    for gpu in (0, 1, 2, 4, 5, 6):
        scenario = scenario.fails("nvmlDeviceGetHandleByIndex_v2", pynvml.NVML_ERROR_NO_PERMISSION, gpu=gpu)
    code, report, _ = preflight(FAULTS["remap-failed"](scenario, 7), "--checks", f"{GPU_CHECKS},environment")

    assert (20, ["gpu-health"]) == (code, [c["name"] for c in report["checks"] if c["status"] in ("fail", "error")])
    assert [("gpu", uuid(7))] == [(s["kind"], s["id"]) for s in report["suspects"][1:]]
    checks = {c["name"]: c for c in report["checks"]}
    assert "2 x NVIDIA H100 80GB HBM3, driver 580.105.08" == checks["gpu-count"]["message"]
    assert [3, 7] == [gpu["index"] for gpu in checks["gpu-clocks"]["measurements"]["gpus"]]


def test_a_gpu_without_a_handle_has_a_reason(preflight):
    scenario = h100_sxm().fails("nvmlDeviceGetHandleByIndex_v2", pynvml.NVML_ERROR_IRQ_ISSUE, gpu=3)
    _, report, _ = preflight(scenario, "--checks", "gpu-health")

    (finding,) = report["checks"][0]["findings"]
    assert "gpu-lost" == finding["code"]
    assert "`NVML gives no handle for it: Interrupt Request Issue`" in finding["message"]


@pytest.mark.parametrize("processes, failed", [("2", []), ("8", ["gpu-health", "gpu-memory"])])
def test_nobody_fails_for_the_gpus_of_others(preflight, processes, failed):
    """A pod without a request for GPUs sees the whole node: a neighbour trains on one, and another is sick."""
    scenario = FAULTS["remap-failed"](FAULTS["leftover-memory-much"](h100_sxm(), 3), 5)
    pod = {"NVIDIA_VISIBLE_DEVICES": "all", "KUBERNETES_SERVICE_HOST": "10.0.0.1", "PET_NPROC_PER_NODE": processes}

    code, report, _ = preflight(scenario, "--checks", GPU_CHECKS, "--profile", "quick", **pod)

    assert (20 if failed else 0, failed) == (code, [c["name"] for c in report["checks"] if c["status"] == "fail"])
    skipped = {c["message"] for c in report["checks"] if c["status"] == "skip"}
    nobody_knows = "of 8 GPUs that are visible the job uses 2, and nothing tells which: "
    assert (set() if failed else {nobody_knows + "have this container request nvidia.com/gpu"}) == skipped
