"""The completion record: what lies in a destination, written last. Without it, nothing there counts as fetched."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from trainer_agent.initializers import digests, names
from trainer_agent.initializers.disk import fsync
from trainer_agent.initializers.hidden import SAFELY, open_plain
from trainer_agent.initializers.threads import on_each

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SCHEMA = "trainer-agent.fetched/v1"
NAME = "record.json"


@dataclass(frozen=True)
class Kept:
    """One file that was fetched: bytes, version and checksum at the source, modification time here in nanoseconds."""

    size: int
    version: str
    checksum: str
    mtime_ns: int


@dataclass(frozen=True)
class Record:
    """
    What a destination holds.

    Args:
        source: the URI.
        revision: the commit, empty where the source has none.
        selection: the patterns that chose the files.
        files: path to what was kept.
        kind: `dataset` or `model`; empty in records of before there was one.
        flushed: all are on disk; else only what is proved counts.
    """

    source: str
    revision: str
    selection: str
    files: Mapping[str, Kept]
    kind: str = ""
    flushed: bool = True

    def matches(self, path: Path, name: str) -> bool:
        """Return whether the file is still as it was left, by size and modification time."""
        kept = self.files.get(name)
        try:
            stat = path.lstat()
        except OSError:
            return False
        return kept is not None and (stat.st_size, stat.st_mtime_ns) == (kept.size, kept.mtime_ns)


def read(directory: Path) -> Record | None:
    """
    Return the record in `directory`, None when there is none that makes sense.

    Raises:
        FatalError: it is no plain file.
    """
    try:
        with os.fdopen(open_plain(directory / NAME, os.O_RDONLY), "rb") as file:
            data = json.load(file)
        if data["schema"] != SCHEMA:
            return None
        files = {path: _kept(path, values) for path, values in data["files"].items()}
        kind, flushed = str(data.get("kind", "")), data.get("flushed", True) is True
        return Record(data["source"], data["revision"], data["selection"], files, kind, flushed)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _kept(path: str, values: Any) -> Kept:
    match values:
        # What the source no longer has is removed: a path that leads outside is not ours to name.
        case [int(size), str(version), str(checksum), int(mtime_ns)] if names.is_below(path):
            return Kept(size, version, checksum, mtime_ns)
    raise ValueError(path)


def proved(path: Path, kept: Kept) -> Kept | None:
    """Return what is kept when the file still has its checksum, with the time that it has now; else None."""
    try:
        # Whatever lies there now: a link is not followed, and nobody waits for the other end of a fifo.
        with os.fdopen(os.open(path, os.O_RDONLY | SAFELY), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_size != kept.size or not kept.checksum:
                return None
            actual = digests.of_file(file.fileno(), kept.checksum, kept.size)
    except (OSError, ValueError):  # or the record names a kind of checksum that there is not
        return None
    return Kept(kept.size, kept.version, kept.checksum, found.st_mtime_ns) if actual == kept.checksum else None


def damaged(directory: Path, files: Mapping[str, Kept], *, threads: int) -> frozenset[str]:
    """Hash what lies in `directory`; return the names of what no longer is what was kept."""
    found: set[str] = set()

    def prove(name: str) -> None:
        if proved(directory / name, files[name]) is None:
            found.add(name)

    on_each(prove, files, threads=threads)
    return frozenset(found)


def write(directory: Path, record: Record) -> None:
    """Put the record in place, whole and on disk."""
    data = {
        "schema": SCHEMA,
        "source": record.source,
        "revision": record.revision,
        "selection": record.selection,
        "kind": record.kind,
        "flushed": record.flushed,
        "files": {path: [k.size, k.version, k.checksum, k.mtime_ns] for path, k in record.files.items()},
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    part = directory / f"{NAME}.part"
    try:
        with os.fdopen(open_plain(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w", encoding="ascii") as file:
            file.write(json.dumps(data, separators=(",", ":")))  # json.dump takes five times as long
            file.flush()
            os.fsync(file.fileno())
        part.replace(directory / NAME)
    except OSError:
        part.unlink(missing_ok=True)  # it takes room, of which there may be none
        raise
    fsync(directory)
