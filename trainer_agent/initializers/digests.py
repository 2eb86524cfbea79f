"""
Checksums, written `algorithm:value`.

crc32, crc32c, crc64nvme    of any range, in any order; the values of ranges can be combined
sha512, sha256, sha1, md5   of the bytes from first to last
git-sha1                    of git's blob header and the bytes: what the Hub says of small files
md5-parts:SIZE              S3's ETag of an upload in parts of SIZE bytes: the MD5 of the parts' MD5s, and their number
md5-parts:SIZE,SIZE,...     the same where the parts have different sizes
"""

from __future__ import annotations

import hashlib
import itertools
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

READ_BYTES = 1 << 20
# algorithm: number of hexadecimal digits
CRCS = {"crc32": 8, "crc32c": 8, "crc64nvme": 16}


def load() -> None:
    """Load the library of the CRCs beforehand, which takes 0.03 s; whoever needs it learns why it cannot be."""
    with suppress(ImportError):
        import awscrt.checksums  # noqa: F401


def combinable(checksum: str) -> bool:
    """Return whether ranges can be digested on their own; takes a checksum or an algorithm."""
    return checksum.partition(":")[0] in CRCS


class RangeDigest:
    """The CRC of one range; `value` is that of the bytes so far."""

    def __init__(self, algorithm: str) -> None:
        from awscrt import checksums

        self.algorithm = algorithm
        self.value = 0
        self._function: Any = getattr(checksums, algorithm)

    def update(self, piece: bytes | memoryview) -> None:
        """Take the next bytes."""
        self.value = self._function(piece, self.value)


def combine(algorithm: str, ranges: Iterable[tuple[int, int]]) -> str:
    """Return the checksum of ranges that follow each other, given as (value, bytes)."""
    from awscrt import checksums

    function = getattr(checksums, f"combine_{algorithm}")
    value = 0
    for one, size in ranges:
        value = function(value, one, size)
    return f"{algorithm}:{value:0{CRCS[algorithm]}x}"


class Sequential:
    """
    A hash of bytes from first to last.

    Args:
        checksum: what to compute; only its kind counts, and the size of its parts.
        size: bytes of the whole.

    Raises:
        ValueError: there is no such kind.
    """

    def __init__(self, checksum: str, size: int) -> None:
        self._algorithm = checksum.partition(":")[0]
        self._hash: Any = (
            _Parts(checksum.partition(":")[2].partition(":")[0])
            if self._algorithm == "md5-parts"
            else _new(self._algorithm)
        )
        if self._algorithm == "git-sha1":
            self._hash.update(b"blob %d\0" % size)

    def update(self, piece: bytes | memoryview) -> None:
        """Take the next bytes."""
        self._hash.update(piece)

    def actual(self) -> str:
        """Return the checksum of the bytes so far."""
        return f"{self._algorithm}:{self._hash.hexdigest()}"


class _Parts:
    def __init__(self, sizes: str) -> None:
        numbers = [int(size) for size in sizes.split(",")]
        if min(numbers) < 1:
            raise ValueError(sizes)
        self._sizes = sizes
        self._coming = itertools.chain(numbers, itertools.repeat(numbers[-1]))
        self._part = _new("md5")
        self._size = self._left = next(self._coming)
        self._digests: list[bytes] = []

    def update(self, piece: bytes | memoryview) -> None:
        view = memoryview(piece)
        while view:
            here = view[: self._left]
            self._part.update(here)
            self._left -= here.nbytes
            view = view[here.nbytes :]
            if not self._left:
                self._digests.append(self._part.digest())
                self._part = _new("md5")
                self._size = self._left = next(self._coming)

    def hexdigest(self) -> str:
        digests = list(self._digests)
        if self._left < self._size or not digests:
            digests.append(self._part.digest())
        whole = _new("md5")
        whole.update(b"".join(digests))
        return f"{self._sizes}:{whole.hexdigest()}-{len(digests)}"


def of_file(fd: int, checksum: str, size: int) -> str:
    """Return the checksum that a file of `size` bytes really has, of the kind of `checksum`."""
    algorithm = checksum.partition(":")[0]
    crc = RangeDigest(algorithm) if algorithm in CRCS else None
    digest = crc or Sequential(checksum, size)
    at = 0
    while piece := os.pread(fd, READ_BYTES, at):
        digest.update(piece)
        at += len(piece)
    return combine(algorithm, [(crc.value, at)]) if crc else digest.actual()  # type: ignore[union-attr]


def _new(algorithm: str) -> Any:
    # A hash against damage, not against forgery: allowed where OpenSSL permits only strong ones for security.
    return hashlib.new({"git-sha1": "sha1"}.get(algorithm, algorithm), usedforsecurity=False)
