"""Let one GPU copy: inside its memory, from the host and to it; or all GPUs to each other."""

from __future__ import annotations

import fcntl
import statistics
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator

import probe_gpu

MIB = 1 << 20
LEAST = 20
INT32_BYTES = 4


def work(torch: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Return bytes per second in GB/s, and when each of them was measured."""
    if request.get("pairs"):
        return {"pairs": pairs(torch, request)}
    device = request["device"]
    answer = {"not_done": {}, **memory(torch, request, device)}
    try:
        answer.update(host(torch, request, device))
    except BlockingIOError:
        answer["not_done"]["host"] = "the other GPUs kept the links busy"
    except OSError as error:  # a file system without locks: all GPUs at once would say nothing of one
        answer["not_done"]["host"] = f"this file cannot be locked: {error.strerror}"
    return answer


def memory(torch: Any, request: dict[str, Any], device: str) -> dict[str, Any]:
    """
    Read and write inside the GPU, far more than its caches hold.

    By a kernel: `copy_` has the driver copy, which reaches three quarters of an H100's peak (NCCL #1264), and less of
    newer ones (PyTorch #161518).
    """
    numbers = min(request["memory_bytes"], int(0.4 * probe_gpu.free_bytes(torch, device))) // INT32_BYTES
    source, target = (torch.empty(numbers, dtype=torch.int32, device=device) for _ in range(2))
    clock = probe_gpu.Clock(torch, device)
    probe_gpu.at("first copy")
    source.fill_(1)
    clock.times(lambda: torch.add(source, 1, out=target), count=3)
    probe_gpu.at("copies")
    began = time.monotonic()
    times = clock.repeated(lambda: torch.add(source, 1, out=target), least=LEAST, box_s=request["box_s"])
    size = numbers * INT32_BYTES
    gbps = 2 * size / statistics.median(times) / 1e9
    return {"memory_gbps": gbps, "memory_bytes": size, "memory_window": [began, time.monotonic()]}


def host(torch: Any, request: dict[str, Any], device: str) -> dict[str, Any]:
    """
    Copy from the host and back through pinned memory.

    One GPU after another: on many boards two of them share a link, and all of them the host's memory. The fastest copy
    counts, as whatever disturbs makes one slower and nothing makes it faster than the link.
    """
    size = min(request["host_bytes"], probe_gpu.free_bytes(torch, device) // 4)
    probe_gpu.at("pinned memory")
    try:
        here = torch.empty(size, dtype=torch.uint8, pin_memory=device.startswith("cuda"))
    except RuntimeError as error:  # the host's memory is scarce, or may not be locked: no fault of the GPU
        if (probe_gpu.cuda_error(torch, error) or {}).get("kind") != "memory":
            raise
        return {"not_done": {"host": f"no pinned memory: {error}".split("\n")[0]}}
    there = torch.empty(size, dtype=torch.uint8, device=device)
    clock = probe_gpu.Clock(torch, device)
    probe_gpu.at("waiting for the others")
    with turn(request["turn_s"]):
        probe_gpu.at("host copies")
        began = time.monotonic()
        up = clock.repeated(lambda: there.copy_(here, non_blocking=True), least=10, box_s=request["host_box_s"])
        down = clock.repeated(lambda: here.copy_(there, non_blocking=True), least=10, box_s=request["host_box_s"])
        window = [began, time.monotonic()]
    speeds = {"h2d_gbps": size / min(up) / 1e9, "d2h_gbps": size / min(down) / 1e9}
    return {**speeds, "host_bytes": size, "host_window": window}


@contextmanager
def turn(wait_s: float) -> Iterator[None]:
    """Hold a lock on this file, which all the probes have; BlockingIOError when it is not free in time."""
    deadline = time.monotonic() + wait_s
    with Path(__file__).open("rb") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        yield


def pairs(torch: Any, request: dict[str, Any]) -> list[dict[str, Any]]:
    """Copy from each GPU to each other one."""
    found = []
    count = torch.cuda.device_count()
    for source in range(count):
        for target in range(count):
            if source != target:
                probe_gpu.at(f"copy from {source} to {target}")
                found.append({"from": source, "to": target, "gbps": pair(torch, request, source, target)})
    return found


def pair(torch: Any, request: dict[str, Any], source: int, target: int) -> float:
    """Return the fastest of some copies."""
    size = int(request["pair_bytes"])
    with torch.cuda.device(source):
        here = torch.empty(size, dtype=torch.uint8, device=f"cuda:{source}")
        there = torch.empty(size, dtype=torch.uint8, device=f"cuda:{target}")
        clock = probe_gpu.Clock(torch, "cuda")
        clock.times(lambda: there.copy_(here, non_blocking=True), count=2)
        times = clock.times(lambda: there.copy_(here, non_blocking=True), count=10)
    return float(size / min(times) / 1e9)


if __name__ == "__main__":
    probe_gpu.run(work)
