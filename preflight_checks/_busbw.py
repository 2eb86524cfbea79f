"""How fast NCCL exchanges between the GPUs of a healthy node, as far as anybody has published it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trainer_agent.gang import speeds

busbw_gbps = speeds.busbw_gbps
MIB, GIB = 1 << 20, 1 << 30
LARGE = 16 * GIB  # the largest of nccl-tests as cluster operators run it; 64 MiB does not saturate NVLink


@dataclass(frozen=True)
class Known:
    """
    A bus bandwidth that was measured, in GB/s as nccl-tests counts it.

    Args:
        model: the whole name of the GPU without `NVIDIA `.
        nvls: whether NVLink SHARP was in use; None where the collective or the model has none.
    """

    model: str
    of: str
    ranks: int
    size: int
    nvls: bool | None
    gbps: float


RING, NVLS = False, True
A100, H100, H200, B200 = r"A100-SXM4-80GB", r"H100 80GB HBM3", r"H200", r"B200"
# Collected from azurehpc-health-checks, ml-engineering and reports of nccl-tests. All-gather never uses NVLS, so it has
# one number for a model; all-reduce has one for each number of GPUs, size, and NVLS on or off.
KNOWN = (
    Known(A100, "all-gather", 8, LARGE, None, 234),
    Known(A100, "all-reduce", 8, LARGE, None, 234),
    Known(H100, "all-gather", 8, LARGE, None, 361),
    Known(H100, "all-reduce", 8, LARGE, RING, 370),
    Known(H100, "all-reduce", 8, LARGE, NVLS, 480),
    Known(H200, "all-gather", 8, LARGE, None, 361),
    Known(H200, "all-reduce", 8, LARGE, RING, 367),
    Known(H200, "all-reduce", 4, LARGE, NVLS, 363),
    Known(H200, "all-reduce", 5, LARGE, NVLS, 414),
    Known(H200, "all-reduce", 6, LARGE, NVLS, 436),
    Known(H200, "all-reduce", 7, LARGE, NVLS, 460),
    Known(H200, "all-reduce", 8, LARGE, NVLS, 473),
    Known(H200, "all-reduce", 8, 64 * MIB, NVLS, 346),
    Known(H200, "all-reduce", 8, 256 * MIB, NVLS, 436),
    Known(B200, "all-reduce", 8, LARGE, RING, 682),
    Known(B200, "all-reduce", 4, LARGE, NVLS, 673),
    Known(B200, "all-reduce", 5, LARGE, NVLS, 678),
    Known(B200, "all-reduce", 6, LARGE, NVLS, 778),
    Known(B200, "all-reduce", 7, LARGE, NVLS, 811),
    Known(B200, "all-reduce", 8, LARGE, NVLS, 838),
)
SIZES = (64 * MIB, 256 * MIB, LARGE)


def expected(model: str, of: str, ranks: int, size: int, *, nvls: bool | None) -> float | None:
    """Return what a healthy node reaches in GB/s, None where that is not known; `nvls` None means not known, too."""
    plain = model.removeprefix("NVIDIA ")
    rows = [k for k in KNOWN if re.fullmatch(k.model, plain) and (k.of, k.ranks, k.size) == (of, ranks, size)]
    either = {row.nvls for row in rows}
    if nvls is None and either not in ({None}, {RING, NVLS}):
        return None  # the number holds only with NVLS, and it may be off
    return min((row.gbps for row in rows if nvls is None or row.nvls in (None, nvls)), default=None)
