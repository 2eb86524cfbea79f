"""Driver, CUDA and torch: whether what the image was built with can run on this driver and these GPUs."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from preflight_checks._gpus import READ_S, gpu_check, models, present, read_gpus
from trainer_agent.check import Context, Outcome, Rule
from trainer_agent.errors import Severity
from trainer_agent.guarded import END_S, run_guarded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight_checks._gpus import Gpu
    from trainer_agent.errors import Finding

TORCH_S = 30.0
# NVIDIA's CUDA compatibility guide, table of minor version compatibility: CUDA major version, first driver branch.
MIN_BRANCH = {11: 450, 12: 525, 13: 580}
# CUDA's packages and images have `compat`, NVIDIA's images of frameworks (NGC) `compat/lib`, which may be a link to
# `compat/lib.real`.
FORWARD = re.compile(r"(^|/)compat(/lib(\.real)?)?/?$")
# Runs in a Python that may not be ours. `_cuda_getArchFlags` answers without a GPU, get_arch_list does not.
PROBE = """
import json
import torch
flags = torch._C._cuda_getArchFlags() if torch.version.cuda else ""
print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "archs": (flags or "").split()}))
"""

TOO_OLD = Rule(
    "driver-too-old",
    when="the driver is older than torch's CUDA needs (CUDA 11: 450, 12: 525, 13: 580); a warning where a directory "
    "of forward compatibility libraries is in LD_LIBRARY_PATH, and only informs where the libcuda that is loaded here "
    "is new enough",
    hint="upgrade the driver of the nodes, or take an image with an older CUDA",
    source="NVIDIA's CUDA compatibility guide, minor version compatibility",
)
CPU_BUILD = Rule(
    "torch-without-cuda",
    when="this machine has NVIDIA GPUs, and torch was built without CUDA",
    hint="install torch from PyTorch's index for CUDA in the image; in an init container with an image of its own this "
    "says nothing of the trainer's",
    severity=Severity.WARNING,
    source="torch.version.cuda",
)
NO_KERNELS = Rule(
    "torch-without-architecture",
    when="torch has no kernels for the compute capability of a GPU, and no PTX that could become some",
    hint="take an image with a newer torch, or build torch with this architecture in TORCH_CUDA_ARCH_LIST",
    source="torch's architecture list: sm_XY runs on X.Y and above within X, compute_XY on all above",
)


@dataclass(frozen=True)
class Torch:
    """What a torch was built with; `cuda` is None for a build without it."""

    version: str
    cuda: str | None
    archs: tuple[str, ...] = ()


@gpu_check(
    "driver-cuda", rules=(TOO_OLD, CPU_BUILD, NO_KERNELS), timeout_s=READ_S + TORCH_S + END_S, profile="standard"
)
def driver_cuda(context: Context) -> Outcome:
    """Can the torch of this image run on this driver and these GPUs?"""
    reading = read_gpus(context, "capability")
    gpus = present(reading)
    torch, reason = read_torch(context, context.python)
    runs = f"driver {reading.driver or 'unknown'} runs up to CUDA {_dotted(reading.cuda)}"
    measured: dict[str, Any] = {"driver": reading.driver, "cuda_driver": reading.cuda, "gpus": models(gpus)}
    measured["not_read"] = dict(reading.unread)
    if torch is None:
        return Outcome(f"{runs}; torch not compared: {reason}", (), measured)
    measured |= {"torch": torch.version, "cuda": torch.cuda, "architectures": list(torch.archs)}
    libraries = context.environ.get("LD_LIBRARY_PATH", "")
    findings = judge(torch, reading.driver, gpus, libraries=libraries, loaded=reading.cuda)
    return Outcome(f"{runs}; torch {torch.version} has CUDA {torch.cuda or 'none'}", tuple(findings), measured)


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}" if version else "unknown"


def read_torch(context: Context, python: str, *, timeout_s: float = TORCH_S) -> tuple[Torch | None, str]:
    """Return what the torch of a Python says of itself, or the reason why there is none."""
    try:
        ended = run_guarded([python, "-c", PROBE], environ=context.environ, timeout_s=timeout_s)
    except OSError as error:
        return None, f"`import torch` with {python}: {error}"
    if ended.problem:
        return None, f"`import torch` with {python}: {ended.problem}"
    try:
        plain = json.loads(ended.last_line)
        return Torch(plain["torch"], plain["cuda"], tuple(plain["archs"])), ""
    except (ValueError, LookupError, TypeError):
        return None, f"{python} cannot import torch (exit code {ended.code})"


def judge(torch: Torch, driver: str, gpus: Sequence[Gpu], *, libraries: str, loaded: int = 0) -> list[Finding]:
    """Return what does not fit; `loaded` is the CUDA version that NVML reads from libcuda, as 12080."""
    if torch.cuda is None:
        message = f"torch {torch.version} was built without CUDA, wanted one with CUDA for {models(gpus)}"
        return [CPU_BUILD.found(message, torch=torch.version)]
    return [*_driver(torch, driver, libraries, loaded), *_architectures(torch, gpus)]


def _driver(torch: Torch, driver: str, libraries: str, loaded: int) -> list[Finding]:
    major, branch = (int(text.partition(".")[0] or 0) for text in (torch.cuda or "", driver))
    wanted = MIN_BRANCH.get(major)
    if not branch or wanted is None or branch >= wanted:
        return []
    forward = [path for path in libraries.split(":") if FORWARD.search(path)]
    rule = replace(TOO_OLD, severity=Severity.WARNING) if forward else TOO_OLD
    # An old driver's own libcuda is older: this one is of forward compatibility, whoever has put it in the way.
    if loaded // 1000 >= major:
        rule = replace(TOO_OLD, severity=Severity.INFO)
    message = f"the driver is {driver}, wanted {wanted} or newer for the CUDA {torch.cuda} of torch {torch.version}"
    return [rule.found(message, driver=driver, cuda=torch.cuda, forward_compatibility=forward)]


def _architectures(torch: Torch, gpus: Sequence[Gpu]) -> list[Finding]:
    missing = sorted({g.capability for g in gpus if g.capability and not _runs(g.capability, torch.archs)})
    return [
        NO_KERNELS.found(
            f"torch {torch.version} has {', '.join(torch.archs)}, wanted sm_{major}{minor} for "
            f"{models([g for g in gpus if g.capability == (major, minor)])}",
            wanted=f"sm_{major}{minor}",
            architectures=list(torch.archs),
            gpus=[g.id for g in gpus if g.capability == (major, minor)],
        )
        for major, minor in missing
    ]


def _runs(capability: tuple[int, int], archs: Sequence[str]) -> bool:
    """A letter at the end (sm_90a) binds kernels to exactly that capability; without a list nothing is known."""
    if not archs:
        return True
    for arch in archs:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", arch)
        if not match:
            continue
        have, exact = (int(match[2]), int(match[3])), bool(match[4])
        if have == capability or (
            not exact and have <= capability and (match[1] == "compute" or have[0] == capability[0])
        ):
            return True
    return False
