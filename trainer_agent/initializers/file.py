"""file://: a directory or a file of a mounted volume."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trainer_agent.errors import FatalError
from trainer_agent.initializers import Entry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CHUNK_BYTES = 1 << 20


class FileSource:
    """The files below a path."""

    def __init__(self, rest: str, environ: Mapping[str, str]) -> None:  # every source gets the environment
        self.root = Path("/" + rest.lstrip("/"))

    def entries(self) -> list[Entry]:
        """List the files below the path, or the file that it is."""
        if self.root.is_file():
            return [Entry(self.root.name, self.root.stat().st_size, str(self.root))]
        if not self.root.is_dir():
            raise FatalError(
                "source-not-found",
                f"{self.root} does not exist",
                hint="check STORAGE_URI and that the volume is mounted in this container",
            )
        files = sorted(p for p in self.root.rglob("*") if p.is_file())
        return [Entry(p.relative_to(self.root).as_posix(), p.stat().st_size, str(p)) for p in files]

    def read(self, entry: Entry) -> Iterator[bytes]:
        """Yield the bytes of one file."""
        with Path(entry.key).open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
