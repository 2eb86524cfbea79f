"""A source of given bytes that can be told to misbehave; for what every source shares."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from typing import TYPE_CHECKING

from trainer_agent.initializers import STALL_S, Entry, NoRangesError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PIECE = 256 * 1024


class Memory:
    """
    Files from a dict.

    Args:
        checksums: path to what `checksum` answers.
        listed: path to the size in the listing, where it is not the true one.
        hook: called with (path, offset) before each piece; may raise, or return other bytes for the piece.

    Attributes:
        served: bytes given out of each file.
        reads: (path, start, stop) of each call of `read`.
    """

    revision = ""
    stall_s = STALL_S

    def __init__(
        self,
        files: dict[str, bytes],
        *,
        uri: str = "memory://test",
        checksums: dict[str, str] | None = None,
        listed: dict[str, int] | None = None,
        hook: Callable[[str, int], bytes | None] = lambda path, at: None,
    ) -> None:
        self.files = files
        self.uri = uri
        self.checksums = checksums or {}
        self.listed = listed or {}
        self.hook = hook
        self.served: Counter[str] = Counter()
        self.reads: list[tuple[str, int, int, bool]] = []
        self.asked: Counter[str] = Counter()
        self._lock = threading.Lock()

    def entries(self) -> Iterator[Entry]:
        for path, body in self.files.items():
            yield Entry(path, self.listed.get(path, len(body)), path, version=hashlib.md5(body).hexdigest())

    def read(self, entry: Entry, start: int, stop: int) -> Iterator[bytes]:
        with self._lock:
            self.reads.append((entry.path, start, stop))
        body = self.files[entry.key]
        while start < min(stop, len(body)):
            piece = body[start : min(start + PIECE, stop)]
            other = self.hook(entry.path, start)
            with self._lock:
                self.served[entry.path] += len(piece)
            yield piece if other is None else other
            start += len(piece)

    def believes(self, checksum: str, *, fits: bool) -> bool:
        """Return True: what is told as a checksum is one."""
        return True

    def checksum(self, entry: Entry) -> str:
        with self._lock:
            self.asked[entry.path] += 1
        return self.checksums.get(entry.path, "")


class Whole(Memory):
    """A server that knows no ranges."""

    def read(self, entry: Entry, start: int, stop: int) -> Iterator[bytes]:
        if (start, stop) != (0, entry.size):
            raise NoRangesError("no-ranges", "200 to a range")
        return super().read(entry, start, stop)
