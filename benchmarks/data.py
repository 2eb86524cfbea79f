"""
What the benchmarks fetch, and its checksums: `python data.py DIRECTORY [--divide N]`.

It is noise, which neither compresses nor repeats: Xet stores what repeats only once.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

PART_BYTES = 8 << 20  # of a multipart upload, as aws s3 cp makes them
MANIFEST = "manifest.json"
OBJECTS = "objects"


@dataclass(frozen=True)
class Workload:
    """`files` files of `size` bytes in a directory of their own."""

    name: str
    files: int
    size: int

    def divided(self, by: int) -> Workload:
        """Return the same, smaller; `by` is 1 for the real thing."""
        return Workload(self.name, -(-self.files // by), -(-self.size // by))


WORKLOADS = (
    Workload("large", 1, 2 << 30),
    Workload("medium", 20, 64 << 20),
    Workload("small", 2000, 256 << 10),
    Workload("many", 10_000, 1 << 10),
    Workload("hub/weights", 1, 1 << 30),
    Workload("hub/texts", 500, 32 << 10),
)


def make(directory: Path, *, divide: int = 1) -> None:
    """Write `objects/` and `manifest.json`."""
    manifest = {}
    for workload in (w.divided(divide) for w in WORKLOADS):
        (directory / OBJECTS / workload.name).mkdir(parents=True)
        for number in range(workload.files):
            key = f"{workload.name}/{number:05}.bin"
            manifest[key] = _write(directory / OBJECTS / key, key, workload.size)
    (directory / MANIFEST).write_text(json.dumps(manifest))


def _write(path: Path, key: str, size: int) -> dict[str, Any]:
    """Write one file; return what a server says about it."""
    from awscrt.checksums import crc64nvme

    md5s, sha256, git, crc = [], hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False), 0
    with path.open("wb") as file:
        for part in _parts(key, size):
            file.write(part)
            md5s.append(hashlib.md5(part, usedforsecurity=False))
            sha256.update(part)
            git.update(part)
            crc = crc64nvme(part, crc)
    whole = hashlib.md5(b"".join(md5.digest() for md5 in md5s), usedforsecurity=False).hexdigest()
    return {
        "size": size,
        "etag": f"{whole}-{len(md5s)}" if len(md5s) > 1 else md5s[0].hexdigest(),
        "crc64nvme": base64.b64encode(crc.to_bytes(8, "big")).decode(),
        "sha256": sha256.hexdigest(),
        "git": git.hexdigest(),
    }


def _parts(key: str, size: int) -> Iterator[bytes]:
    for start in range(0, size, PART_BYTES):
        yield random.Random(f"{key}:{start}").randbytes(min(PART_BYTES, size - start))  # noqa: S311  # no secret


def main() -> None:
    """Write what the benchmarks fetch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--divide", type=int, default=1)
    given = parser.parse_args()
    make(given.directory, divide=given.divide)


if __name__ == "__main__":
    main()
