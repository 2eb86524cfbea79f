"""
What the probes of a single GPU share: how far they are, how they tell a CUDA error from a mistake, and their clock.

They see one GPU, the one that CUDA_VISIBLE_DEVICES leaves. With `"device": "cpu"` in the request they work there.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from typing import Any, Callable

import probe_base

BEGAN = time.monotonic()
STAGES: dict[str, float] = {}  # the longest that each stage took which is over, in seconds
NOW: list[Any] = []  # the stage of now, and when it began
# cudaError_t: what the image, the driver and the GPU do not have in common; no fault of the GPU.
MISMATCH = (35, 36, 98, 209, 222, 801, 803, 804)
NOT_READY, OUT_OF_MEMORY = 802, 2
# Before torch 2.8 a CUDA error is a plain RuntimeError, and one of CUDA's start is so to this day: nothing but its text
# tells it from a mistake in the probe. These are the beginnings that c10/cuda and torch.cuda give it.
BEGINNINGS = (
    "CUDA error",
    "CUDA driver error",
    "HIP error",
    "Unexpected error from cudaGetDeviceCount",
    "CUDA unknown error",
    "CUDA driver initialization failed",
    "No CUDA GPUs are available",
    "No HIP GPUs are available",
    "The NVIDIA driver on your system is too old",
    "Found no NVIDIA driver",
)
KINDS = (
    ("not-ready", r"system not yet initialized"),
    ("mismatch", r"no kernel image|driver on your system is too old|Found no NVIDIA driver|driver version is insuff"),
    ("mismatch", r"unsupported (toolchain|display driver)|forward compatibility was attempted"),
    # Of an image without kernels for this GPU, and of a vGPU that cannot do what this torch asks of it.
    ("mismatch", r"invalid device function|operation not supported"),
    ("memory", r"out of memory|(CU|HIP)BLAS_STATUS_ALLOC_FAILED"),
)
# cuBLAS says the same of an image with two versions of it, which is for the check to call a broken probe; hipBLAS of a
# kind of number that this GPU lacks, as MI300 does the fp8 of others.
LIBRARY = r"(CU|HIP)BLAS_STATUS_(?!EXECUTION_FAILED)(?!ALLOC_FAILED)|(CU|HIP)SOLVER_|CUDNN_|MIOPEN"


def at(stage: str) -> None:
    """Say what comes next, so that it is known where the probe hung."""
    passed()
    NOW[:] = [stage, time.monotonic()]
    sys.stderr.write(f"at: {stage} after {time.monotonic() - BEGAN:.1f} s\n")
    sys.stderr.flush()


def passed() -> None:
    """Note how long the stage took that is over."""
    if NOW:
        stage, began = NOW
        STAGES[stage] = max(STAGES.get(stage, 0.0), round(time.monotonic() - began, 1))


def run(work: Callable[[Any, dict[str, Any]], dict[str, Any]]) -> None:
    """Answer with what `work` returns for torch and the request, or with the CUDA error that it met."""
    probe_base.main(lambda request: _leave(_worked(work, request)))


def _worked(work: Callable[[Any, dict[str, Any]], dict[str, Any]], request: dict[str, Any]) -> dict[str, Any]:
    import torch

    facts = {"torch": str(torch.__version__), "cuda": torch.version.cuda, "hip": getattr(torch.version, "hip", None)}
    if request["device"] == "cuda" and not (facts["cuda"] or facts["hip"]):
        return facts
    try:
        if request["device"] == "cuda":
            at("context")
            torch.cuda.init()
            torch.cuda.synchronize()
            properties = torch.cuda.get_device_properties(0)
            facts["name"] = str(properties.name)
            facts["capability"] = [properties.major, properties.minor]
        facts.update(work(torch, request))
        passed()
        facts["stages"] = STAGES
    except RuntimeError as error:
        said = cuda_error(torch, error)
        if said is None:
            raise
        facts["error"] = said
    return facts


def _leave(facts: dict[str, Any]) -> dict[str, Any]:
    """End here: after a CUDA error the destructors of torch may abort or hang, and the answer would be lost."""
    sys.stdout.write("\n" + json.dumps(facts) + "\n")
    sys.stdout.flush()
    os._exit(0)


def cuda_error(torch: Any, error: RuntimeError) -> dict[str, Any] | None:
    """Return kind, number and words of a CUDA error; None for any other."""
    text = str(error).strip().split("\n")[0]
    memory = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError
    named = tuple(t for t in (getattr(torch, "AcceleratorError", None), torch.cuda.CudaError, memory) if t)
    if not isinstance(error, named) and not text.startswith(BEGINNINGS):
        return None
    if re.search(LIBRARY, text):
        return None
    told = re.search(r"Error (\d+):|\((\d+)\)$", text)
    code = getattr(error, "error_code", None) or (int(told[1] or told[2]) if told else None)
    kind = next((kind for kind, pattern in KINDS if re.search(pattern, text)), "failed")
    if isinstance(error, memory) or code == OUT_OF_MEMORY:
        kind = "memory"
    elif code == NOT_READY:
        kind = "not-ready"
    elif code in MISMATCH:
        kind = "mismatch"
    return {"kind": kind, "code": code, "text": text}


class Clock:
    """Marks on the time of the device: CUDA events, or the wall clock where there is no GPU."""

    def __init__(self, torch: Any, device: str) -> None:
        self.torch = torch
        self.cuda = device.startswith("cuda")

    def mark(self) -> Any:
        """Return a mark behind what was given to the device so far."""
        if not self.cuda:
            return time.perf_counter()
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self) -> None:
        """Return when the device has done everything."""
        if self.cuda:
            self.torch.cuda.synchronize()

    def seconds(self, begin: Any, end: Any) -> float:
        """Return the time between two marks that have been passed."""
        return float(begin.elapsed_time(end)) / 1000 if self.cuda else float(end - begin)

    def times(self, work: Callable[[], Any], *, count: int) -> list[float]:
        """Return how long each of `count` repetitions took."""
        marks = [self.mark()]
        for _ in range(count):
            work()
            marks.append(self.mark())
        self.wait()
        return [max(self.seconds(a, b), 1e-9) for a, b in zip(marks, marks[1:])]

    def repeated(self, work: Callable[[], Any], *, least: int, box_s: float) -> list[float]:
        """Return times of at least `least` repetitions, or of what three times the box of `box_s` seconds allows."""
        began = time.monotonic()
        found: list[float] = []
        while (spent := time.monotonic() - began) < 3 * box_s and (len(found) < least or spent < box_s):
            found += self.times(work, count=5)
        return found


def free_bytes(torch: Any, device: str) -> int:
    """Return how much memory the device has left; on a CPU a little."""
    return int(torch.cuda.mem_get_info()[0]) if device.startswith("cuda") else 64 << 20
