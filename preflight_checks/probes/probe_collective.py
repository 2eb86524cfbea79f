"""
What the ranks of a collective share: one line for each stage that they reach, and payloads with one right result.

A rank says a stage before it enters it, so that whoever reads knows where a rank is that says nothing any more.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Callable

WORDS = 600  # characters of an exception that are kept
ABOUT_SHM = ("shared memory", "/dev/shm", "No space left")  # as NCCL's shmutils.cc tells of it
PERIOD = 1009  # prime, so that no two of as many ranks send the same


class Rank:
    """
    One process of the group, which reports as it goes.

    Args:
        always: what it says with every stage.
    """

    def __init__(self, rank: int, **always: Any) -> None:
        self.rank = rank
        self.always = always
        self.stage = "start"

    def say(self, stage: str, **facts: Any) -> None:
        """Report a stage in one write: a pipe then keeps the lines of all ranks whole."""
        self.stage = stage
        line = json.dumps({"rank": self.rank, "stage": stage, "at": time.monotonic(), **self.always, **facts})
        os.write(1, f"\n{line}\n".encode())

    def run(self, work: Callable[[Rank], None]) -> None:
        """Do `work`; report and exit with 1 when it raises."""
        try:
            work(self)
        except BaseException as error:  # noqa: BLE001  # whatever it is, these are the last words
            text = str(error).strip()
            facts = {"shm_free": free_bytes("/dev/shm")} if may_lack_shm(text) else {}
            self.say(self.stage, error=type(error).__name__, text=text[:WORDS], **facts)
            sys.exit(1)


def may_lack_shm(text: str) -> bool:
    """
    Return whether NCCL may have failed for room in shared memory.

    Its ncclSystemError is of any system call: of sockets and RDMA cards, too. Its last words tell them apart, where
    torch has them; there they are often beyond what is kept of the text.
    """
    if "ncclSystemError" not in text:
        return False
    detail = text.partition("Last error:")[2].partition("Exception raised from")[0].strip()
    return detail in ("", "Unknown NCCL Error") or any(words in detail for words in ABOUT_SHM)


def free_bytes(path: str) -> int:
    """Return how much room there is for us, 0 where there is none or the path does not exist."""
    try:
        stat = os.statvfs(path)
    except OSError:
        return 0
    return stat.f_bavail * stat.f_frsize if os.access(path, os.W_OK) else 0


def unfit(torch: Any, backend: str) -> str:
    """Return why this torch cannot use a backend whatever the machine is, nothing when it can."""
    if not torch.distributed.is_available():
        return f"torch {torch.__version__} was built without torch.distributed"
    if backend == "gloo":
        return "" if torch.distributed.is_gloo_available() else f"torch {torch.__version__} was built without gloo"
    if not (torch.version.cuda or torch.version.hip):
        return f"torch {torch.__version__} was built without CUDA"
    return "" if torch.distributed.is_nccl_available() else f"torch {torch.__version__} was built without NCCL"


def gpu_facts(torch: Any, device: Any) -> dict[str, Any]:
    """Return what tells the GPU of this rank from all others, as far as this torch knows."""
    if device.type != "cuda":
        return {}
    properties = torch.cuda.get_device_properties(device)
    uuid = None if torch.version.hip else getattr(properties, "uuid", None)  # AMD's is the hex of its letters
    return {"gpu": properties.name, "uuid": f"GPU-{uuid}" if uuid else ""}


def wrong_results(
    torch: Any, rank: Rank, world: int, *, device: Any, count: int, own: int | None = None
) -> list[dict[str, Any]]:
    """
    Exchange `count` small whole numbers and return what came out wrong.

    Args:
        own: the rank in the process group, where that is another than the one it reports as.

    With up to 16,000 ranks every sum is below 2^24, so float32 holds it exactly in whatever order it was added.
    """
    dist = torch.distributed
    own = rank.rank if own is None else own
    circle = torch.arange(PERIOD, dtype=torch.int32, device=device)
    place = torch.arange(count, device=device).remainder_(PERIOD)

    def turned(of: int) -> Any:
        return circle.add(7919 * of).remainder_(PERIOD)

    def payload(of: int) -> Any:
        return turned(of)[place].float()

    rank.say("all-reduce")
    total = payload(own)
    dist.all_reduce(total)
    wanted = sum(turned(of) for of in range(world))[place].float()
    wrong = _differences(torch, total, wanted, of="all-reduce")
    rank.say("all-gather")
    parts = [torch.empty_like(total) for _ in range(world)]
    dist.all_gather(parts, payload(own))
    for source, part in enumerate(parts):
        wrong += _differences(torch, part, payload(source), of="all-gather", source=source)
    return wrong


def _differences(torch: Any, got: Any, wanted: Any, **facts: Any) -> list[dict[str, Any]]:
    if torch.equal(got, wanted):
        return []
    places = (got != wanted).nonzero().flatten()
    first = int(places[0])
    # A NaN has no place in JSON.
    values = {"got": repr(got[first].item()), "wanted": repr(wanted[first].item())}
    return [{**facts, **values, "index": first, "differ": int(places.numel()), "of_numbers": int(got.numel())}]
