"""
What has arrived so far, so that whoever comes next need not fetch it again.

One line of JSON for each range and each file, appended when its bytes have been written. A line that was cut by a
kill is ignored. Bytes that another kernel wrote may have died with it: of those, only what a checksum can prove counts.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainer_agent.initializers.hidden import open_plain

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trainer_agent.initializers import Entry

SCHEMA = "trainer-agent.journal/v1"
NAME = "journal"
ENCODER = json.JSONEncoder(separators=(",", ":"))


@dataclass
class Saved:
    """
    What an earlier attempt left of one version of a file.

    Args:
        version, size: as listed then.
        ranges: {start: (stop, digest)}; the digest is `[algorithm, value]`, None where it must be read again.
        identity: inode and modification time once it was whole, None before.
        checksum: what it was proved to have then.
        same_boot: False when another kernel wrote some of it, so that only a checksum can prove it.
    """

    version: str
    size: int
    ranges: dict[int, tuple[int, tuple[str, int] | None]] = field(default_factory=dict)
    identity: tuple[int, int] | None = None
    checksum: str = ""
    same_boot: bool = True

    def is_of(self, entry: Entry) -> bool:
        """Return whether this is the version that is listed now; a version that nobody knows never is."""
        return bool(entry.version) and (self.version, self.size) == (entry.version, entry.size)


def part_name(path: str, version: str) -> str:
    """Return the name of the unfinished file; another version has another name."""
    return hashlib.sha256(f"{path}\0{version}".encode(errors="surrogatepass")).hexdigest()[:32]


def identity_of(stat: os.stat_result) -> tuple[int, int]:
    """Return what a rename keeps and a write changes: inode and modification time in nanoseconds."""
    return stat.st_ino, stat.st_mtime_ns


def has_identity(path: Path, identity: tuple[int, int]) -> bool:
    """Return whether it is this very file, as it was left."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and identity_of(found) == identity


class Journal:
    """
    The journal of one destination.

    Args:
        directory: where it lies.
        uri: the source; what came from another one does not count.
        boot: the kernel's boot id.
    """

    def __init__(self, directory: Path, *, uri: str, boot: str) -> None:
        self.path = directory / NAME
        self.saved: dict[str, Saved] = {}
        self._load(uri, boot)
        self._fd = open_plain(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._earlier = os.fstat(self._fd).st_size > 0  # there has been an attempt
        self._append(["open", SCHEMA, uri, boot])

    def range_done(self, entry: Entry, start: int, stop: int, digest: tuple[str, int] | None) -> None:
        """Note that `[start, stop)` of a file has been written."""
        self._append(["range", entry.path, entry.version, entry.size, start, stop, digest])

    def file_done(self, entry: Entry, checksum: str, identity: tuple[int, int]) -> None:
        """Note that a file is whole and proved."""
        self._append(["file", entry.path, entry.version, entry.size, checksum, identity])

    def begin(self, entry: Entry) -> None:
        """Note that a file begins anew: nothing that an earlier attempt has noted of it, for any source, counts."""
        if self._earlier:
            self.discard(entry)

    def discard(self, entry: Entry) -> None:
        """Note that nothing of a file counts any more."""
        self._append(["discard", entry.path])

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _append(self, line: list[Any]) -> None:
        # One write to the end of a file is not torn apart by those of others. The first newline ends what
        # the kill of another process may have cut.
        os.write(self._fd, f"\n{ENCODER.encode(line)}\n".encode())

    def _load(self, uri: str, boot: str) -> None:
        same_boot = same_source = False
        for line in self._lines():
            match line:
                case ["open", schema, from_uri, from_boot]:
                    same_source, same_boot = (schema, from_uri) == (SCHEMA, uri), from_boot == boot
                case ["discard", str(path)]:
                    self.saved.pop(path, None)
                case ["range", str(path), str(version), int(size), int(start), int(stop), digest] if (
                    same_source and 0 <= start < stop <= size
                ):
                    saved = self._of(path, version, size)
                    saved.ranges[start] = (stop, _digest(digest) if same_boot else None)
                    saved.same_boot &= same_boot
                case ["file", str(path), str(version), int(size), str(checksum), [int(inode), int(mtime)]] if (
                    same_source and same_boot
                ):
                    saved = self._of(path, version, size)
                    saved.identity, saved.checksum = (inode, mtime), checksum

    def _of(self, path: str, version: str, size: int) -> Saved:
        found = self.saved.get(path)
        if found is None or (found.version, found.size) != (version, size):
            found = self.saved[path] = Saved(version, size)
        return found

    def _lines(self) -> Iterator[Any]:
        try:
            fd = open_plain(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return
        with os.fdopen(fd, "rb") as file:
            for line in file:
                try:
                    yield json.loads(line)
                except (ValueError, RecursionError):
                    continue


def _digest(found: Any) -> tuple[str, int] | None:
    match found:
        case [str(algorithm), int(value)] if 0 <= value < 1 << 64:
            return algorithm, value
    return None
