"""
One rank for each GPU: exact results first, then how fast the GPUs exchange.

Started without a rank it starts all of them, waits, and says how each ended.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from datetime import timedelta
from functools import partial
from typing import Any, Callable

import probe_collective as collective

NO_TORCH = 3
GRACE_S, LOOK_S = 3.0, 0.02  # for the others to say what they saw when one has failed
REPEATS, MOST = 4, 20  # the best of so many, each of at most so many calls


def start(request: dict[str, Any]) -> None:
    """Start all ranks and say how each ended; those that wait for one that failed are ended."""
    running = {
        rank: subprocess.Popen([sys.executable, __file__, json.dumps({**request, "rank": rank})])
        for rank in range(request["ranks"])
    }
    deadline = float("inf")
    while running and time.monotonic() < deadline:
        for rank, process in list(running.items()):
            if process.poll() is not None:
                tell(rank, process)
                del running[rank]
                if process.returncode:
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        time.sleep(LOOK_S)
    for process in running.values():
        process.terminate()
    for rank, process in running.items():
        process.wait()
        tell(rank, process)


def tell(rank: int, process: subprocess.Popen[bytes]) -> None:
    """Say how a rank ended."""
    sys.stdout.write("\n" + json.dumps({"rank": rank, "code": process.returncode}) + "\n")
    sys.stdout.flush()


def work(rank: collective.Rank, request: dict[str, Any]) -> None:
    """Go through all stages of a rank."""
    rank.say("import")
    import torch
    import torch.distributed as dist

    backend, world = request["backend"], request["ranks"]
    reason = collective.unfit(torch, backend)
    if reason:
        rank.say("done", unfit=reason)
        return
    rank.say("device", torch=torch.__version__)
    device = torch.device("cuda", rank.rank) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    rank.say("init", **collective.gpu_facts(torch, device))
    dist.init_process_group(
        backend,
        store=dist.FileStore(request["store"], world),
        rank=rank.rank,
        world_size=world,
        timeout=timedelta(seconds=request["timeout_s"]),
    )
    wrong = collective.wrong_results(torch, rank, world, device=device, count=request["count"])
    rank.say("timing", wrong=wrong)
    rank.say("barrier", timings=timings(torch, request, device))
    dist.barrier()
    rank.say("destroy")
    dist.destroy_process_group()
    rank.say("done")


def timings(torch: Any, request: dict[str, Any], device: Any) -> list[dict[str, Any]]:
    """Return the seconds of each collective by size; all ranks decide alike what is too large or too slow."""
    dist, world = torch.distributed, request["ranks"]
    # Its newest name, and the one that torch had before.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    room = agreed(torch, torch.cuda.mem_get_info()[0] if device.type == "cuda" else float("inf"), device, least=True)
    rows: list[dict[str, Any]] = []
    slowest = 0.0  # seconds for each byte
    for size in request["sizes"]:
        if size * (1 + 1 / world) > room * 0.8 or slowest * size > request["seconds"]:
            break
        part = torch.zeros(size // 4 // world, device=device)
        whole = torch.zeros(part.numel() * world, device=device)
        works = {
            "all-gather": partial(gather, whole, part),
            "all-reduce": partial(dist.all_reduce, whole),
        }
        for name, call in works.items():
            seconds = repeated(torch, call, device, limit_s=request["seconds"])
            rows.append({"of": name, "bytes": size, "seconds": seconds})
            slowest = max(slowest, agreed(torch, min(seconds), device) / size)
    return rows


def repeated(torch: Any, call: Callable[[], Any], device: Any, *, limit_s: float) -> list[float]:
    """Return the seconds of one call, several times measured, within `limit_s` seconds or little more."""
    call()  # the first one connects
    first = agreed(torch, timed(torch, call, device, times=1), device)
    times = int(min(MOST, max(1, limit_s / REPEATS / first)))
    repeats = int(min(REPEATS, max(1, limit_s / first)))
    return [timed(torch, call, device, times=times) for _ in range(repeats)]


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


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    if "rank" in asked:
        collective.Rank(asked["rank"]).run(lambda me: work(me, asked))
    elif importlib.util.find_spec("torch") is None:
        sys.exit(NO_TORCH)
    else:
        start(asked)
