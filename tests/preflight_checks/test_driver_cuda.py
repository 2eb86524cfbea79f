"""Whether torch, driver and GPUs fit together."""

import sys

import pytest
from fault_table import TORCH
from nvml_checks import context_of, found, run_on
from nvml_machines import h100_sxm

from preflight_checks._gpus import Gpu
from preflight_checks.driver_cuda import Torch, driver_cuda, judge, read_torch
from trainer_agent.errors import Action, Severity

pytestmark = pytest.mark.lab

H100 = Gpu(0, uuid="GPU-0", name="NVIDIA H100", capability=(9, 0))
B200 = Gpu(1, uuid="GPU-1", name="NVIDIA B200", capability=(10, 0))
T4 = Gpu(0, name="Tesla T4", capability=(7, 5))
BARE = {"PYTHONHOME": "/nonexistent"}  # no Python runs, and so no torch
ARCHS = ("sm_80", "sm_86", "sm_90")


@pytest.mark.parametrize(
    "cuda, driver, message",
    [
        ("12.8", "525.60.13", ""),
        ("12.8", "570.148.08", ""),
        ("13.0", "580.65.06", ""),
        ("11.8", "450.80.02", ""),
        ("14.0", "580.65.06", ""),  # nobody knows yet
        ("12.8", "470.256.02", "the driver is 470.256.02, wanted 525 or newer for the CUDA 12.8 of torch 2.9"),
        ("13.0", "570.148.08", "the driver is 570.148.08, wanted 580 or newer for the CUDA 13.0 of torch 2.9"),
    ],
)
def test_each_cuda_wants_a_driver(cuda, driver, message):
    """By its major version; another node has the same driver, so that the job stops."""
    findings = judge(Torch("2.9", cuda, ARCHS), driver, [H100], libraries="/usr/lib")

    assert [message][: bool(message)] == [f.message for f in findings]
    assert all((f.code, f.action) == ("driver-too-old", Action.STOP) for f in findings)


@pytest.mark.parametrize(
    "libraries",
    [
        "/usr/local/cuda/compat",
        "/usr/lib:/usr/local/cuda-13.0/compat/",
        "/usr/local/cuda/compat/lib:/usr/local/nvidia/lib64",
        "/usr/local/cuda/compat/lib.real/",
    ],
)
def test_forward_compatibility_may_help(libraries):
    """NVIDIA's images carry libraries for older drivers: it warns."""
    (finding,) = judge(Torch("2.9", "13.0", ARCHS), "570.148.08", [H100], libraries=libraries)

    assert ("driver-too-old", Severity.WARNING, Action.CONTINUE) == (finding.code, finding.severity, finding.action)


@pytest.mark.parametrize("libraries", ["", "/opt/compat/lib64", "/opt/compatible", "/usr/local/cuda/compat/lib/x"])
def test_other_directories_do_not_help(libraries):
    (finding,) = judge(Torch("2.9", "13.0", ARCHS), "570.148.08", [H100], libraries=libraries)

    assert ("driver-too-old", Severity.ERROR) == (finding.code, finding.severity)


@pytest.mark.parametrize("loaded, severity", [(13000, "info"), (14010, "info"), (12080, "error"), (0, "error")])
def test_a_libcuda_that_is_new_enough_is_no_fault(loaded, severity):
    """NGC's images may put it in the way by ld.so.conf, without any variable: it is loaded, so it works."""
    (finding,) = judge(Torch("2.9", "13.0", ARCHS), "570.148.08", [H100], libraries="", loaded=loaded)

    assert ("driver-too-old", severity) == (finding.code, str(finding.severity))


def test_nvml_says_which_libcuda_is_loaded(nvml_standin, tmp_path):
    """Driver 570 with a libcuda of 13.0 and a torch of CUDA 13: only informs."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(TORCH.format(cuda="13.0", archs="sm_90"))
    scenario = h100_sxm().on_driver(570).says("nvmlSystemGetCudaDriverVersion_v2", 13000)
    outcomes = run_on(nvml_standin, scenario, [driver_cuda], tmp_path, environ={"PYTHONPATH": str(tmp_path)})

    assert [("driver-cuda", "info", "driver-too-old", [])] == found(outcomes)


@pytest.mark.parametrize(
    "gpu, archs, fits",
    [
        (H100, ARCHS, True),
        (H100, ("sm_80", "sm_100"), False),
        (H100, ("sm_80", "compute_80"), True),
        (H100, ("sm_90a",), True),
        (B200, ("sm_90", "sm_90a", "compute_90a"), False),
        (B200, ("sm_90", "compute_90"), True),
        (B200, ("sm_120",), False),
        (T4, ("sm_70",), True),
        (T4, ("sm_80", "compute_80"), False),
        (H100, (), True),
        (H100, ("gfx90a", "sm_80"), False),
        (Gpu(0), ("sm_80",), True),
    ],
)
def test_kernels_for_a_gpu(gpu, archs, fits):
    """Of the same generation and not newer, or PTX that is not newer; nothing is said without a list."""
    assert fits == (not judge(Torch("2.9", "12.8", archs), "580.1", [gpu], libraries=""))


def test_a_gpu_without_kernels_is_named():
    (finding,) = judge(Torch("2.9", "12.8", ARCHS), "580.1", [H100, B200], libraries="")

    assert "torch 2.9 has sm_80, sm_86, sm_90, wanted sm_100 for 1 x NVIDIA B200" == finding.message
    assert ("torch-without-architecture", Action.STOP, [B200.id]) == (
        finding.code,
        finding.action,
        finding.evidence["gpus"],
    )


def test_the_torch_of_this_machine(nvml_standin, tmp_path):
    """It is built for CPUs, which the check sees through a Python of its own."""
    outcomes = run_on(nvml_standin, h100_sxm(), [driver_cuda], tmp_path)

    assert [("driver-cuda", "warning", "torch-without-cuda", [])] == found(outcomes)
    assert outcomes["driver-cuda"].message.startswith("driver 580.105.08 runs up to CUDA 13.0; torch ")


@pytest.mark.parametrize(
    "script, reason",
    [
        ("exit 1", "cannot import torch (exit code 1)"),
        ("echo 5", "cannot import torch (exit code 0)"),
        ("sleep 60", "no answer within 2 s"),
    ],
)
def test_a_python_without_torch_is_no_fault(tmp_path, script, reason):
    """An init container has its own image; the check says why it does not compare."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    torch, why = read_torch(context_of(tmp_path), str(python), timeout_s=2)

    assert torch is None
    assert why.endswith(reason)


def test_a_python_that_is_not_there(tmp_path):
    torch, why = read_torch(context_of(tmp_path), str(tmp_path / "nothing"))

    assert torch is None
    assert "No such file" in why


def test_torch_is_not_compared_without_one(nvml_standin, tmp_path):
    """The versions of the driver are told all the same."""
    outcomes = run_on(nvml_standin, h100_sxm(), [driver_cuda], tmp_path, environ=BARE)

    assert outcomes["driver-cuda"].message.startswith(
        f"driver 580.105.08 runs up to CUDA 13.0; torch not compared: {sys.executable} cannot import torch"
    )
    assert () == outcomes["driver-cuda"].findings


def test_a_driver_that_does_not_tell_its_versions(nvml_standin, tmp_path):
    """Without libcuda it knows no CUDA; nothing is compared with what is not known."""
    scenario = h100_sxm(1).fails("nvmlSystemGetCudaDriverVersion_v2", 12).fails("nvmlSystemGetDriverVersion", 999)
    outcome = run_on(nvml_standin, scenario, [driver_cuda], tmp_path, nodes=1, environ=BARE)["driver-cuda"]

    assert outcome.message.startswith("driver unknown runs up to CUDA unknown; torch not compared: ")
    assert {"driver", "cuda"} == set(outcome.measurements["not_read"])
    assert [] == judge(Torch("2.9", "13.0", ARCHS), "", [H100], libraries="/usr/lib")
