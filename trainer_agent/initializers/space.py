"""What the places of the files must hold, looked at before the first byte."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from trainer_agent.cgroup import read_limits
from trainer_agent.errors import FatalError, RetryError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from trainer_agent.host import Host
    from trainer_agent.initializers.delivery import Delivery
    from trainer_agent.initializers.incoming import Incoming

# For the file system's own bookkeeping; in memory, for that and our threads (measured: 15 MB).
MARGIN_BYTES = 16 << 20


def check(deliveries: Sequence[Delivery], host: Host) -> None:
    """
    Refuse what the file systems, or the memory that some are made of, cannot hold.

    Raises:
        FatalError: not even when they are empty.
        RetryError: not with what they hold now.
    """
    for place, size, files in _wanted(deliveries):
        with suppress(OSError):  # some file systems have no numbers
            _check_file_system(place, os.statvfs(place), size, files)
    if size := in_memory(deliveries):
        _check_memory(next(d.order.destination for d in deliveries if d.in_memory), size, host)


def in_memory(deliveries: Sequence[Delivery]) -> int:
    """Return how many of the bytes to come will lie in this container's memory, as in an emptyDir of that medium."""
    return sum(_missing(file) for delivery in deliveries if delivery.in_memory for file in delivery.incoming)


def _wanted(deliveries: Sequence[Delivery]) -> Iterator[tuple[Path, int, int]]:
    """Yield a place, bytes and files of each file system."""
    wanted: dict[int, tuple[Path, int, int]] = {}
    for delivery in deliveries:
        device = delivery.order.hidden.stat().st_dev
        _, size, files = wanted.get(device, (None, 0, 0))
        size += sum(_missing(f) for f in delivery.incoming)
        wanted[device] = (delivery.order.destination, size, files + len(delivery.incoming))
    yield from wanted.values()


def _check_file_system(place: Path, stat: os.statvfs_result, size: int, files: int) -> None:
    free = stat.f_bavail * stat.f_frsize
    if stat.f_blocks and size and size + MARGIN_BYTES > free:
        hint = "give the volume more space"
        message = f"{place} has {free:,} bytes free of {stat.f_blocks * stat.f_frsize:,}, and {size:,} are to come"
        # An empty volume that is too small stays too small; a full one may be another on another node.
        kind = FatalError if size > stat.f_blocks * stat.f_frsize else RetryError
        raise kind("no-space", message, hint=hint)
    if stat.f_files and files > stat.f_favail:
        message = f"{place} has room for {stat.f_favail:,} more files, and {files:,} are to come"
        raise RetryError("no-inodes", message, hint="use a file system with more inodes, or fewer and larger files")


def _check_memory(place: Path, size: int, host: Host) -> None:
    """What lies in memory counts to the container's limit, and whoever exceeds that is killed without a word."""
    limits = read_limits(host)
    if limits.memory_limit is None or limits.memory_left is None:
        return
    if size + MARGIN_BYTES > limits.memory_left + _free_swap(host):
        message = (
            f"{place} lies in memory, of which this container has {limits.memory_left:,} bytes left "
            f"of {limits.memory_limit:,}, and {size:,} are to come"
        )
        hint = "raise the container's limit of memory, or take a volume on disk, such as an emptyDir without a medium"
        raise (FatalError if size > limits.memory_limit else RetryError)("no-space", message, hint=hint)


def _free_swap(host: Host) -> int:
    found = re.search(r"^SwapFree: +([0-9]+) kB$", host.read("/proc/meminfo") or "", re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def _missing(file: Incoming) -> int:
    """Return the bytes that a file still takes on disk."""
    if file.saved is None:
        return file.entry.size  # what there was of it has been removed
    try:
        there = file.part.stat().st_blocks * 512
    except OSError:
        there = 0
    return max(0, file.entry.size - there)
