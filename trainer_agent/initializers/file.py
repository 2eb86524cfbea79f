"""file://: a directory or a file of a mounted volume."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from trainer_agent.errors import FatalError
from trainer_agent.initializers import HIDDEN, PATIENCE_S, STALL_S, ChangedError, Entry, TransientError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CHUNK_BYTES = 256 * 1024
# Where the kubelet keeps the files of a ConfigMap or Secret; the names that users gave are links into it.
OF_KUBERNETES = re.compile(r"\.\.(data|[0-9]{4}_.+)")


class FileSource:
    """The files below a path; their version is the time of their last change."""

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

    def entries(self) -> Iterator[Entry]:
        """List the files below the path, or the file that it is."""
        if self.root.is_file():
            yield _entry(self.root, self.root.name)
            return
        if not self.root.is_dir():
            raise FatalError(
                "source-not-found",
                f"{self.root} does not exist",
                hint="check STORAGE_URI and that the volume is mounted in this container",
            )
        for directory, below, names in os.walk(self.root, onerror=_unreadable, followlinks=True):
            if Path(directory) == self.root and HIDDEN in below:
                below.remove(HIDDEN)  # this is a destination of ours; what lies there is no data
            below[:] = [name for name in below if not OF_KUBERNETES.fullmatch(name)]
            for name in below:
                _refuse_loop(Path(directory, name))
            for name in names:
                path = Path(directory, name)
                if path.is_file():
                    yield _entry(path, path.relative_to(self.root).as_posix())
                elif path.is_symlink():
                    raise _unusable(path, "which does not exist")

    def read(self, entry: Entry, start: int, stop: int) -> Iterator[bytes]:
        """Yield bytes of one file."""
        try:
            with Path(entry.key).open("rb", buffering=0) as file:
                if _version(os.fstat(file.fileno())) != entry.version:
                    hint = "let whoever writes there finish first"
                    raise ChangedError("source-changed", f"{entry.key} changed after it was listed", hint=hint)
                file.seek(start)
                while start < stop and (piece := file.read(min(CHUNK_BYTES, stop - start))):
                    start += len(piece)
                    yield piece
        except PermissionError as error:
            raise _refused(error) from error
        except OSError as error:
            raise TransientError("source-unavailable", f"{entry.key} cannot be read: {error.strerror}") from error

    def checksum(self, entry: Entry) -> str:
        """Return nothing: a file system knows no checksums."""
        return ""


def _refuse_loop(path: Path) -> None:
    if path.is_symlink() and path.parent.resolve().is_relative_to(path.resolve()):
        raise _unusable(path, "which it lies in")


def _unusable(path: Path, why: str) -> FatalError:
    hint = "remove the link, leave it out of what STORAGE_URI names, or mount what it leads to"
    return FatalError("source-link-unusable", f"{path} is a link to {path.readlink()}, {why}", hint=hint)


def _entry(path: Path, name: str) -> Entry:
    stat = path.stat()
    return Entry(name, stat.st_size, str(path), _version(stat))


def _version(stat: os.stat_result) -> str:
    return f"{stat.st_ino}-{stat.st_mtime_ns}"


def _unreadable(error: OSError) -> None:
    raise _refused(error) from error


def _refused(error: OSError) -> FatalError:
    hint = "let this container's user read it (fsGroup, file modes)"
    return FatalError("source-refused", f"{error.filename} cannot be read: {error.strerror}", hint=hint)
