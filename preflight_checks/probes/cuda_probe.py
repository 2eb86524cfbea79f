"""Let one GPU do the least that training needs: a context, memory, a kernel, and its result read back."""

from __future__ import annotations

from typing import Any

import probe_gpu


def work(torch: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Compute `numbers` integers twice and return which of them are wrong."""
    device, count = request["device"], request["numbers"]
    probe_gpu.at("allocation")
    there = torch.empty(count, dtype=torch.int64, device=device)
    clock = probe_gpu.Clock(torch, device)
    probe_gpu.at("kernel")  # the first one loads it from the image, or compiles it
    compute(torch, there)
    clock.wait()
    probe_gpu.at("synchronize")
    compute(torch, there)
    clock.wait()
    probe_gpu.at("copy")
    back = there.to("cpu")
    return {"wrong": wrong(torch, back), "numbers": count}


def compute(torch: Any, there: Any) -> None:
    """Fill a vector with 3 i + 1, in place."""
    torch.arange(there.numel(), out=there)
    there.mul_(3).add_(1)


def wrong(torch: Any, back: Any) -> dict[str, Any] | None:
    """Return how many numbers are wrong, and the first one."""
    expected = torch.arange(1, 3 * back.numel() + 1, 3, dtype=torch.int64)
    places = (back != expected).nonzero().flatten().tolist()
    if not places:
        return None
    first = places[0]
    return {"count": len(places), "index": first, "expected": int(expected[first]), "got": int(back[first])}


if __name__ == "__main__":
    probe_gpu.run(work)
