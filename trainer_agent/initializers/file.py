"""file://: a directory or a file of a mounted volume."""

from __future__ import annotations

import os
import re
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from trainer_agent.errors import AgentError, FatalError
from trainer_agent.initializers import HIDDEN, PATIENCE_S, STALL_S, ChangedError, Entry, TransientError
from trainer_agent.initializers.disk import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

CHUNK_BYTES = 256 * 1024
# Where the kubelet keeps the files of a ConfigMap or Secret; the names that users gave are links into it.
OF_KUBERNETES = re.compile(r"\.\.(data|[0-9]{4}_.+)")
# Where fsck puts what it finds, in the root of ext2 to ext4; only root may look.
OF_FSCK = "lost+found"
# FUSE (linux/magic.h): gcsfuse, Mountpoint for S3 and others number a file anew once the kernel has forgotten it, or
# with each mount.
RENUMBERING = frozenset({0x65735546})


class FileSource:
    """The files below a path; their version is the time of their last change, and their inode where it stays."""

    revision = ""

    def __init__(
        self,
        rest: str,
        environ: Mapping[str, str],
        *,
        kind: str = "dataset",
        stall_s: float = STALL_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.root = Path("/" + rest.lstrip("/"))
        self.uri = f"file://{self.root}"
        self._renumbers: dict[int, bool] = {}  # by device
        self._places: Sequence[Path] = ()
        self._left_out: Callable[[str], bool] = lambda _: False

    def keep_out(self, places: Sequence[Path], *, left_out: Callable[[str], bool]) -> None:
        """
        Refuse destinations that are part of the source: each run would fetch what the one before has fetched.

        Args:
            left_out: tells whether patterns leave out a file, given its path here, or all below a directory, given
                its path and `/`. What they leave out need not be readable.

        Raises:
            FatalError: one is; `entries` raises it for one that a link leads to.
        """
        self._places, self._left_out = places, left_out
        self._refuse_places(self.root)

    def entries(self) -> Iterator[Entry]:
        """List the files below the path, or the file that it is."""
        try:
            yield from self._files()
        except OSError as error:
            raise _told(error, str(self.root)) from error

    def read(self, entry: Entry, start: int, stop: int) -> Iterator[bytes]:
        """Yield bytes of one file."""
        try:
            with Path(entry.key).open("rb", buffering=0) as file:
                file.seek(start)
                while start < stop:
                    piece = file.read(min(CHUNK_BYTES, stop - start))
                    # After each piece: of a range that another stream takes over, nobody asks for the last one.
                    _check_same(entry, os.fstat(file.fileno()))
                    if not piece:
                        return
                    start += len(piece)
                    yield piece
        except OSError as error:
            raise _told(error, entry.key) from error

    def believes(self, checksum: str, *, fits: bool) -> bool:
        """Return True: what is told as a checksum is one."""
        return True

    def checksum(self, entry: Entry) -> str:
        """Return nothing: a file system knows no checksums."""
        return ""

    def _files(self) -> Iterator[Entry]:
        if self.root.is_file():
            yield self._entry(self.root, self.root.name)
            return
        if not self.root.is_dir():
            raise FatalError(
                "source-not-found",
                f"{self.root} does not exist",
                hint="check STORAGE_URI and that the volume is mounted in this container",
            )
        for directory, below, names in os.walk(self.root, onerror=self._refuse_unreadable, followlinks=True):
            # In a destination of ours, what is the agent's own is no data.
            below[:] = [name for name in below if name != HIDDEN and not OF_KUBERNETES.fullmatch(name)]
            if OF_FSCK in below and os.path.ismount(os.path.realpath(directory)):
                below.remove(OF_FSCK)
            below[:] = [name for name in below if not self._leads_back(Path(directory, name))]
            for name in names:
                path = Path(directory, name)
                if path.is_file():
                    yield self._entry(path, self._named(path))
                elif path.is_symlink() and not self._left_out(self._named(path)):
                    raise _unusable(path, "which does not exist", pattern=self._named(path))

    def _named(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _entry(self, path: Path, name: str) -> Entry:
        stat = path.stat()
        if stat.st_dev not in self._renumbers:
            self._renumbers[stat.st_dev] = _is_renumbering(path)
        return Entry(name, stat.st_size, str(path), _version(stat, renumbers=self._renumbers[stat.st_dev]))

    def _refuse_unreadable(self, error: OSError) -> None:
        """Refuse a directory that cannot be listed, unless it is left out."""
        path = Path(error.filename)
        if path == self.root or not self._left_out(f"{self._named(path)}/"):
            raise error

    def _leads_back(self, path: Path) -> bool:
        """Return whether a link leads to where the way to it has been; refuse it, unless it is left out."""
        if not path.is_symlink():
            return False
        real = path.resolve()
        way = takewhile(lambda parent: parent.is_relative_to(self.root), path.parents)
        if any(parent.resolve().is_relative_to(real) for parent in way):
            name = self._named(path)
            if not self._left_out(f"{name}/"):
                raise _unusable(path, "which leads back to it", pattern=f"{name}/*")
            return True
        self._refuse_places(path)
        return False

    def _refuse_places(self, way: Path) -> None:
        """Refuse the destinations that lie below where a way leads, unless they are left out."""
        real = os.path.realpath(way)
        for place in self._places:
            found = Path(os.path.realpath(place))
            if not found.is_relative_to(real):
                continue
            parts = (way.relative_to(self.root) / found.relative_to(real)).parts
            if not self._left_out("".join(f"{part}/" for part in parts)):
                raise _into_itself(place, self.uri, name="/".join(parts), linked=way != self.root)


def _unusable(path: Path, why: str, *, pattern: str) -> FatalError:
    hint = f"remove the link, mount what it leads to, or add {pattern} to IGNORE_PATTERNS"
    return FatalError("source-link-unusable", f"{path} is a link to {path.readlink()}, {why}", hint=hint)


def _into_itself(place: Path, uri: str, *, name: str, linked: bool) -> FatalError:
    hint = "choose an OUTPUT_PATH elsewhere, or name a part of the source without it in STORAGE_URI"
    if name:
        hint = f"{hint}, or add {name}/* to IGNORE_PATTERNS"
    message = f"OUTPUT_PATH={place} is part of {uri}{f' as {name}' * linked}, and would be fetched into itself"
    return FatalError("output-path-in-source", message, hint=hint)


def _is_renumbering(path: Path) -> bool:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        return kind_of(fd) in RENUMBERING
    finally:
        os.close(fd)


def _version(stat: os.stat_result, *, renumbers: bool) -> str:
    return f"{'' if renumbers else stat.st_ino}-{stat.st_mtime_ns}"


def _check_same(entry: Entry, stat: os.stat_result) -> None:
    now = _version(stat, renumbers=entry.version.startswith("-"))
    if (now, stat.st_size) != (entry.version, entry.size):
        hint = "let whoever writes there finish first"
        raise ChangedError("source-changed", f"{entry.key} changed after it was listed", hint=hint)


def _told(error: OSError, name: str) -> AgentError:
    """Return what a file system's refusal means; `name` is for those that name no file."""
    message = f"{error.filename or name} cannot be read: {error.strerror}"
    if isinstance(error, PermissionError):
        hint = "let this container's user read it (fsGroup, file modes)"
        return FatalError("source-refused", message, hint=hint)
    return TransientError("source-unavailable", message)
