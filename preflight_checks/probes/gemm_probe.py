"""
Let one GPU multiply matrices: exactly, so that a single wrong bit shows, and fast.

The matrices hold -1, 0 and 1, and no row of the left one has more non-zero numbers than the type of the result can
count to. So no sum on the way is ever rounded, in whatever order and precision a kernel adds: only one result is right.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import probe_gemm
import probe_gpu

HOT_PAUSE = 10  # products that are timed between two that are verified
SLOW_S = 0.1
MOST_WRONG = 8  # enough to be sure


def work(torch: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Verify products of every kind and shape asked for, then measure the speed, with one of them in between."""
    device = request["device"]
    answer: dict[str, Any] = {"verified": 0, "wrong": [], "not_done": {}}
    hot = None
    for kind, *shape in request["cases"]:
        probe_gpu.at("first product")
        try:
            case = probe_gemm.Case(torch, kind, shape, device)
            case.multiply()
        except (AttributeError, NotImplementedError, RuntimeError) as error:
            if not optional(torch, kind, error):
                raise
            answer["not_done"][f"{kind} {'x'.join(map(str, shape))}"] = str(error).split("\n")[0][:200]
            continue
        answer["wrong"] += case.verify(request["repeat"])
        answer["verified"] += request["repeat"]
        hot = hot or case
    answer.update(speed(torch, request, hot, answer))
    return answer


def optional(torch: Any, kind: str, error: Exception) -> bool:
    """Whether a kind of product may be missing here: an older torch, or a GPU or library without it."""
    fault = isinstance(error, RuntimeError) and probe_gpu.cuda_error(torch, error) is not None
    return not fault and (kind in probe_gemm.OPTIONAL or isinstance(error, (AttributeError, NotImplementedError)))


def speed(torch: Any, request: dict[str, Any], hot: Any, answer: dict[str, Any]) -> dict[str, Any]:
    """Return the median speed of square products of random numbers, as the reference numbers were measured."""
    device, size = request["device"], request["size"]
    kind = "bf16" if not device.startswith("cuda") or torch.cuda.get_device_capability()[0] >= 8 else "fp16"
    while size > 512 and 8 * size * size > probe_gpu.free_bytes(torch, device):  # three of them, and some more
        size //= 2
    dtype = getattr(torch, probe_gemm.KINDS[kind][0])
    clock = probe_gpu.Clock(torch, device)
    probe_gpu.at("first product")
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty(size, size, device=device, dtype=dtype)
    once = clock.times(lambda: torch.mm(left, right, out=out), count=3)[-1]
    count = HOT_PAUSE if once < SLOW_S else 1
    began = time.monotonic()
    times: list[float] = []
    while time.monotonic() - began < request["box_s"] or not times:
        probe_gpu.at("product")
        times += clock.times(lambda: torch.mm(left, right, out=out), count=count)
        if hot is not None and len(answer["wrong"]) < MOST_WRONG:
            answer["wrong"] += hot.verify(1)
            answer["verified"] += 1
    window = [began, time.monotonic()]
    while len(times) < request["least"] and time.monotonic() - began < 3 * request["box_s"]:
        probe_gpu.at("product")
        times += clock.times(lambda: torch.mm(left, right, out=out), count=count)
    tflops = 2 * size**3 / statistics.median(times) / 1e12
    return {"kind": kind, "size": size, "matmul_tflops": tflops, "products": len(times), "window": window}


if __name__ == "__main__":
    probe_gpu.run(work)
