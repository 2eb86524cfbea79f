"""One rank that torchrun starts: it joins the others, exchanges numbers with one right result, and leaves."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta

import probe_collective as collective

COUNT = 1 << 16


def work(rank: collective.Rank) -> None:
    """Go through all stages of a job."""
    request = json.loads(sys.argv[1])
    rank.say("import")
    import torch
    import torch.distributed as dist

    backend, world = request["backend"], int(os.environ["WORLD_SIZE"])
    reason = collective.unfit(torch, backend)
    if reason:
        rank.say("done", unfit=reason)
        return
    rank.say("device", torch=torch.__version__)
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    rank.say("init", **collective.gpu_facts(torch, device))
    dist.init_process_group(backend, timeout=timedelta(seconds=request["timeout_s"]))
    wrong = collective.wrong_results(torch, rank, world, device=device, count=COUNT)
    rank.say("barrier", wrong=wrong)
    dist.barrier()
    rank.say("destroy")
    dist.destroy_process_group()
    rank.say("done")


if __name__ == "__main__":
    me = collective.Rank(int(os.environ["RANK"]))
    me.run(work)
