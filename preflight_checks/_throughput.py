"""How fast a directory is written and read, measured for a bounded time with a file that goes away."""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MIB = 1 << 20
MEASURE_S = 2.0  # each way
LARGEST_CHUNK = 8 * MIB
LEAST_BYTES = 8 * MIB
SHARE = 100  # at most one part in a hundred of what is free


def measurable_bytes(wanted: int, *, free: int) -> int:
    """Return how much may be written here, 0 when too little to tell anything."""
    size = min(wanted, free // SHARE)
    return size if size >= LEAST_BYTES else 0


def throughput(file: Path, size: int, *, seconds: float = MEASURE_S) -> dict[str, float]:
    """
    Return the MB/s of writing up to `size` bytes and of reading them back, past the page cache; it may give up early.

    Each chunk is forced to the disk or server before the next, so that no cache hides it and no flush outlasts it.
    Nothing is returned of a bucket that is mounted as a directory and takes a file in one go only.
    """
    payload = memoryview(os.urandom(min(size, LARGEST_CHUNK)))
    try:
        with file.open("xb+", buffering=0) as stream:
            with suppress(OSError):  # where a file cannot lose its name while it is open, it does at the end
                file.unlink()
            fd = stream.fileno()
            written, write_s = _timed(lambda count: _write(fd, payload[:count]), size, seconds)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.lseek(fd, 0, os.SEEK_SET)
            read, read_s = _timed(lambda count: len(os.read(fd, count)), written, seconds)
    except OSError as error:
        # 1 MiB found room; how much more there is, others say. Mountpoint for S3 refuses to write after a sync (EIO).
        if error.errno in (errno.ENOSPC, errno.EDQUOT) or _is_fuse(file.parent):
            return {}
        raise
    finally:
        file.unlink(missing_ok=True)
    if not (written and read):
        return {}
    return {"write_mb_per_s": round(written / write_s / 1e6, 1), "read_mb_per_s": round(read / read_s / 1e6, 1)}


def _is_fuse(directory: Path) -> bool:
    """Return whether a program serves a directory, by the line of its device in proc(5)'s mountinfo."""
    device = directory.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    lines = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return any(fields[2] == number and fields[fields.index("-") + 1].startswith("fuse") for fields in lines)


def _timed(move: Callable[[int], int], size: int, seconds: float) -> tuple[int, float]:
    """Return how many bytes were moved, and in how many seconds."""
    began = time.monotonic()
    done = 0
    for chunk in _chunks(size):
        moved = move(chunk)
        done += moved
        if not moved or time.monotonic() - began > seconds:
            break
    return done, max(time.monotonic() - began, 1e-6)


def _chunks(size: int) -> Iterator[int]:
    """Yield 1 MiB, then twice as much each time: a slow place is given up early."""
    left, chunk = size, MIB
    while left > 0:
        yield min(left, chunk)
        left -= chunk
        chunk = min(2 * chunk, LARGEST_CHUNK)


def _write(fd: int, payload: memoryview) -> int:
    written = os.write(fd, payload)
    os.fdatasync(fd)
    return written
