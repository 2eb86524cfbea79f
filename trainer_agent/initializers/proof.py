"""
What the bytes that arrive hash to, found while they arrive.

Combined    each range is digested by whoever fetches it, in any order, and the results are combined (CRCs)
InOrder     bytes must be hashed from first to last (sha256, md5…), which trails the ranges that are already there
Unproved    the size is enough
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Protocol

from trainer_agent.initializers import digests

if TYPE_CHECKING:
    from collections.abc import Mapping

READ_BYTES = 1 << 20
RANGE_BYTES = 64 << 20
# Hashing in order can only begin when the first range is there, so that one should not be long. Measured with 1 GiB
# and SHA-256: 8 MiB 1.3 s, 16 MiB 1.5 s, 4 MiB 1.7 s.
RANGE_IN_ORDER_BYTES = 8 << 20


class Digest(Protocol):
    """Something that takes bytes."""

    def update(self, piece: bytes | memoryview) -> None:
        """Take the next bytes."""


class Proof(Protocol):
    """How one file is proved; `done` and `actual` may be called by several threads."""

    range_bytes: int

    def digest(self, start: int, stop: int) -> Digest | None:
        """Return what a range that is about to be fetched feeds its bytes to."""

    def done(self, fd: int, start: int, stop: int, digest: Digest | None) -> tuple[str, int] | None:
        """Take a range that has been written; return what may be kept of it for another attempt."""

    def actual(self, fd: int) -> str:
        """Return the checksum of all bytes, once every range is done."""


class Unproved:
    """Nothing is hashed."""

    range_bytes = RANGE_BYTES

    def digest(self, start: int, stop: int) -> None:
        """Feed nothing."""

    def done(self, fd: int, start: int, stop: int, digest: Digest | None) -> None:
        """Keep nothing."""

    def actual(self, fd: int) -> str:
        """Return no checksum."""
        return ""


class Combined:
    """
    CRCs, a range at a time.

    Args:
        saved: {start: (stop, value)} of an earlier attempt; where the value is None the range is read again.
    """

    range_bytes = RANGE_BYTES

    def __init__(self, algorithm: str, saved: Mapping[int, tuple[int, int | None]]) -> None:
        self.algorithm = algorithm
        self._values = dict(saved)

    def digest(self, start: int, stop: int) -> digests.RangeDigest:
        """Digest each range on its own."""
        return digests.RangeDigest(self.algorithm)

    def done(self, fd: int, start: int, stop: int, digest: Digest | None) -> tuple[str, int] | None:
        """Keep the range's value."""
        value = digest.value if isinstance(digest, digests.RangeDigest) else None
        self._values[start] = (stop, value)
        return None if value is None else (self.algorithm, value)

    def actual(self, fd: int) -> str:
        """Combine the ranges from first to last."""
        pairs = []
        for start in sorted(self._values):
            stop, value = self._values[start]
            pairs.append((self._read(fd, start, stop) if value is None else value, stop - start))
        return digests.combine(self.algorithm, pairs)

    def _read(self, fd: int, start: int, stop: int) -> int:
        digest = digests.RangeDigest(self.algorithm)
        feed(digest, fd, start, stop)
        return digest.value


class InOrder:
    """
    Hashes that want the bytes from first to last: read back as far as there is no gap.

    Args:
        saved: {start: (stop, …)} of an earlier attempt.
    """

    range_bytes = RANGE_IN_ORDER_BYTES

    def __init__(self, checksum: str, size: int, saved: Mapping[int, tuple[int, int | None]]) -> None:
        self.size = size
        self._hash = digests.Sequential(checksum, size)
        self._stops = {start: stop for start, (stop, _) in saved.items()}
        self._at = 0
        self._turn = threading.Lock()

    def digest(self, start: int, stop: int) -> Digest | None:
        """Hash a file of one range while its bytes are at hand."""
        return self._hash if (start, stop) == (0, self.size) else None

    def done(self, fd: int, start: int, stop: int, digest: Digest | None) -> None:
        """Hash what now has no gap before it, unless another thread is doing so."""
        if digest is not None:
            return
        self._stops[start] = stop
        if self._turn.acquire(blocking=False):
            try:
                self._advance(fd)
            finally:
                self._turn.release()

    def actual(self, fd: int) -> str:
        """Hash the rest."""
        with self._turn:
            self._advance(fd)
        return self._hash.actual()

    def _advance(self, fd: int) -> None:
        while (stop := self._stops.pop(self._at, None)) is not None:
            feed(self._hash, fd, self._at, stop)
            self._at = stop


def choose(checksum: str, size: int, saved: Mapping[int, tuple[int, int | None]]) -> Proof:
    """Return how to find a checksum of this kind."""
    if digests.combinable(checksum):
        return Combined(checksum.partition(":")[0], saved)
    return InOrder(checksum, size, saved)


def feed(digest: Digest, fd: int, start: int, stop: int) -> None:
    """Give `digest` the bytes `[start, stop)` of a file; a file that ends before is the caller's to notice."""
    while start < stop and (piece := os.pread(fd, min(READ_BYTES, stop - start), start)):
        digest.update(piece)
        start += len(piece)
