"""One rank of a node, for one collective after the other: exact results first, then how fast the ranks exchange."""

from __future__ import annotations

import json
import os
import re
import socket
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import probe_collective as collective
from probe_timing import timings

NETWORK = re.compile(r"NCCL INFO Using network ([^\n]+)")


class Worker:
    """What a rank keeps between two tasks: its connection to the store, and its GPU."""

    def __init__(self, torch: Any, number: int) -> None:
        self.torch = torch
        self.number = number
        self.stores: dict[tuple[str, int], Any] = {}

    def work(self, rank: collective.Rank, task: dict[str, Any]) -> None:
        """Go through all stages of a task."""
        torch, dist = self.torch, self.torch.distributed
        backend, world = task["backend"], task["world"]
        rank.say("device")
        for name, value in task["environ"].items():
            os.environ.setdefault(name, value)
        reason = collective.unfit(torch, backend)
        if reason:
            rank.say("done", unfit=reason)
            return
        device = torch.device("cuda", self.number) if backend == "nccl" else torch.device("cpu")
        if device.type == "cuda":
            torch.cuda.set_device(device)
        rank.say("init", **collective.gpu_facts(torch, device))
        limit = timedelta(seconds=task["timeout_s"])
        store = dist.PrefixStore(task["prefix"], self._store(task["host"], task["port"], limit))
        dist.init_process_group(backend, store=store, rank=task["rank"], world_size=world, timeout=limit)
        wrong = collective.wrong_results(torch, rank, world, device=device, count=task["numbers"], own=task["rank"])
        rank.say("timing", wrong=wrong[:4])
        rows = timings(torch, world, task["sizes"], device=device, seconds=task["seconds"])
        rank.say("barrier", timings=rows, transport=_transport(backend))
        dist.barrier()
        rank.say("destroy")
        dist.destroy_process_group()
        rank.say("done")

    def _store(self, host: str, port: int, limit: timedelta) -> Any:
        if (host, port) not in self.stores:
            how = {"is_master": False, "wait_for_workers": False, "timeout": limit}
            self.stores[host, port] = self.torch.distributed.TCPStore(host, port, None, **how)
        self.stores[host, port].set_timeout(limit)
        return self.stores[host, port]


def serve(torch: Any, number: int, tasks: int) -> None:
    """Do one task after the other; end with the first that fails, as what it used may be broken."""
    worker = Worker(torch, number)
    with os.fdopen(tasks, "rb") as lines:
        for line in lines:
            task = json.loads(line)
            rank = collective.Rank(number, task=task["id"], pid=os.getpid())
            rank.run(lambda me, task=task: worker.work(me, task))


def _transport(backend: str) -> str:
    """Return what NCCL says that it uses between nodes, nothing where it writes no log; `tcp` for gloo."""
    if backend == "gloo":
        return "tcp"
    log = os.environ.get("NCCL_DEBUG_FILE", "").replace("%p", str(os.getpid())).replace("%h", socket.gethostname())
    with suppress(OSError):
        found = NETWORK.findall(Path(log).read_text(errors="replace"))
        return str(found[-1]).strip() if found else ""
    return ""
