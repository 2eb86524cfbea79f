"""How fast the ranks of a process group exchange."""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Callable

REPEATS, MOST = 4, 20  # the best of so many, each of at most so many calls


def timings(torch: Any, world: int, sizes: list[int], *, device: Any, seconds: float) -> list[dict[str, Any]]:
    """
    Return the seconds of each collective by size; all ranks decide alike what is too large or too slow.

    Args:
        sizes: of the whole buffer in bytes, the smallest first.
        seconds: that each row may take, or little more.
    """
    dist = torch.distributed
    # Its newest name, and the one that torch had before.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    room = agreed(torch, torch.cuda.mem_get_info()[0] if device.type == "cuda" else float("inf"), device, least=True)
    rows: list[dict[str, Any]] = []
    slowest = 0.0  # seconds for each byte
    for size in sizes:
        if size * (1 + 1 / world) > room * 0.8 or slowest * size > seconds:
            break
        part = torch.zeros(size // 4 // world, device=device)
        whole = torch.zeros(part.numel() * world, device=device)
        works = {
            "all-gather": partial(gather, whole, part),
            "all-reduce": partial(dist.all_reduce, whole),
        }
        for name, call in works.items():
            taken = repeated(torch, call, device, limit_s=seconds)
            rows.append({"of": name, "bytes": size, "seconds": taken})
            slowest = max(slowest, agreed(torch, min(taken), device) / size)
    return rows


def repeated(torch: Any, call: Callable[[], Any], device: Any, *, limit_s: float) -> list[float]:
    """Return the seconds of one call, several times measured, within `limit_s` seconds or little more."""
    call()  # the first one connects
    first = agreed(torch, timed(torch, call, device, times=1), device)
    times = int(min(MOST, max(1, limit_s / REPEATS / first)))
    repeats = int(min(REPEATS, max(1, limit_s / first)))
    return [first, *(timed(torch, call, device, times=times) for _ in range(repeats))]


def timed(torch: Any, call: Callable[[], Any], device: Any, *, times: int) -> float:
    """Return the seconds of one call as the mean of some in a row, begun by all ranks together."""
    torch.distributed.barrier()
    settle(torch, device)
    began = time.perf_counter()
    for _ in range(times):
        call()
    settle(torch, device)
    return round((time.perf_counter() - began) / times, 9)


def settle(torch: Any, device: Any) -> None:
    """Wait until the device has done all that it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def agreed(torch: Any, value: float, device: Any, *, least: bool = False) -> float:
    """Return the largest, or least, value of all ranks."""
    shared = torch.tensor([value], dtype=torch.float64, device=device)
    how = torch.distributed.ReduceOp.MIN if least else torch.distributed.ReduceOp.MAX
    torch.distributed.all_reduce(shared, op=how)
    return float(shared.item())
