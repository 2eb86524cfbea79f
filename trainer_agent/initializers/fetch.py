"""Bring a source's files into a directory: whole files only, under their final names."""

from __future__ import annotations

import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from trainer_agent.errors import AgentError, FatalError, RetryError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trainer_agent.initializers import Entry, Source

PARTS = ".trainer-agent"  # unfinished files lie here, on the same file system
STREAMS = 8
DISK_MARGIN_BYTES = 16 << 20  # for the file system's own bookkeeping


@dataclass(frozen=True)
class Fetched:
    """What was brought: files, bytes, seconds."""

    files: int
    size: int
    seconds: float


def fetch(source: Source, destination: Path, *, ignore: Sequence[str] = ()) -> Fetched:
    """
    Copy what `source` has into `destination`, except what `ignore` patterns match.

    Raises:
        FatalError: there is nothing, a name would leave the destination, or the source refuses.
        RetryError: no space, or the source cannot be reached.
    """
    started = time.monotonic()
    entries = [e for e in source.entries() if not any(fnmatch(e.path, p) for p in ignore)]
    if not entries:
        raise FatalError(
            "source-empty",
            "the source holds no file, or all are ignored",
            hint="check the prefix in STORAGE_URI and IGNORE_PATTERNS",
        )
    refuse_unsafe(entries)
    parts = destination / PARTS
    try:
        parts.mkdir(parents=True, exist_ok=True)
        _check_space(destination, entries)
        with ThreadPoolExecutor(STREAMS) as pool:
            list(
                pool.map(
                    lambda pair: _one(source, pair[1], destination, parts / f"{os.getpid()}-{pair[0]}"),
                    enumerate(entries),
                )
            )
    except OSError as error:
        raise _disk_error(destination, error) from error
    finally:
        shutil.rmtree(parts, ignore_errors=True)
    return Fetched(len(entries), sum(e.size for e in entries), time.monotonic() - started)


def refuse_unsafe(entries: Iterable[Entry]) -> None:
    """Raise `FatalError` for a name that would leave the destination, or that another name needs as a directory."""
    names = {e.path for e in entries}
    for name in names:
        path = PurePosixPath(name)
        if not name or path.is_absolute() or ".." in path.parts or "\0" in name or PARTS in path.parts:
            raise FatalError(
                "unsafe-name",
                f"the source has the name {name!r}, which cannot be a file below the destination",
                hint="rename it at the source, or add it to IGNORE_PATTERNS",
            )
        clash = next((str(p) for p in path.parents if str(p) in names), None)
        if clash:
            raise FatalError(
                "name-collision",
                f"{clash!r} is a file and the directory of {name!r}",
                hint="rename one at the source, or add it to IGNORE_PATTERNS",
            )


def _check_space(destination: Path, entries: Sequence[Entry]) -> None:
    wanted, free = sum(e.size for e in entries), shutil.disk_usage(destination).free
    if wanted + DISK_MARGIN_BYTES > free:
        raise RetryError(
            "no-space",
            f"{destination} has {free:,} bytes free, and {wanted:,} are to come",
            hint="give the volume more space",
        )


def _one(source: Source, entry: Entry, destination: Path, part: Path) -> None:
    size = 0
    with part.open("wb") as file:
        for chunk in source.read(entry):
            file.write(chunk)
            size += len(chunk)
        file.flush()
        os.fsync(file.fileno())
    if size != entry.size:
        raise RetryError(
            "size-differs",
            f"{entry.path} has {size:,} bytes, and {entry.size:,} were listed",
            hint="it changed meanwhile, or was cut: try again",
        )
    target = destination / entry.path
    target.parent.mkdir(parents=True, exist_ok=True)
    part.replace(target)


def _disk_error(destination: Path, error: OSError) -> AgentError:
    return RetryError(
        "destination-not-writable",
        f"cannot write to {destination}: {error.strerror}",
        hint="check the volume, its free space and fsGroup",
    )
