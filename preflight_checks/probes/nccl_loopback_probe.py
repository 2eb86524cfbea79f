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
from typing import Any

import probe_collective as collective
from probe_timing import timings

NO_TORCH = 3
GRACE_S, LOOK_S = 3.0, 0.02  # for the others to say what they saw when one has failed


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
    rows = timings(torch, world, request["sizes"], device=device, seconds=request["seconds"])
    rank.say("barrier", timings=rows)
    dist.barrier()
    rank.say("destroy")
    dist.destroy_process_group()
    rank.say("done")


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    if "rank" in asked:
        collective.Rank(asked["rank"]).run(lambda me: work(me, asked))
    elif importlib.util.find_spec("torch") is None:
        sys.exit(NO_TORCH)
    else:
        start(asked)
