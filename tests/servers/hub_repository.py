"""What a Hub has: repositories, their commits and files, named and hashed as git and LFS do."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

LFS_BYTES = 1 << 20
PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class Blob:
    """
    The content of a file.

    Args:
        oid: what git calls it: for an LFS file, the name of its pointer.
        xet: its Xet hash; empty for a file that is not there.
        plain: it can be had without Xet.
    """

    data: bytes | Path
    size: int
    oid: str
    sha256: str = ""
    pointer_size: int = 0
    xet: str = ""
    plain: bool = True

    @classmethod
    def of(cls, data: bytes | Path, *, lfs: bool, xet: str = "", plain: bool = True) -> Blob:
        """Return the blob of some bytes, or of a file that stays where it is."""
        size = len(data) if isinstance(data, bytes) else data.stat().st_size
        if not lfs:
            return cls(data, size, _digest(data, hashlib.sha1(b"blob %d\0" % size)))
        sha256 = _digest(data, hashlib.sha256())
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()
        oid = hashlib.sha1(b"blob %d\0" % len(pointer) + pointer).hexdigest()
        return cls(data, size, oid, sha256, len(pointer), xet, plain)

    def listed(self, path: str) -> dict:
        """Return the blob as a tree shows it."""
        shown = {"type": "file", "path": path, "size": self.size, "oid": self.oid}
        if self.sha256:
            shown["lfs"] = {"oid": self.sha256, "size": self.size, "pointerSize": self.pointer_size}
        if self.xet:
            shown["xetHash"] = self.xet
        return shown


def _digest(data, digest):
    if isinstance(data, bytes):
        digest.update(data)
        return digest.hexdigest()
    with data.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


@dataclass
class Repo:
    """A repository: commits, and the branches and tags that name them."""

    path: str  # datasets/org/name
    private: bool = False
    gated: bool = False
    refs: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, Blob]] = field(default_factory=dict)

    def commit(self, files, *, branch="main", lfs=None) -> str:
        """Make `files` the content of a branch: {path: bytes, Path or Blob}; `lfs` decides instead of the size."""
        blobs = {path: data if isinstance(data, Blob) else _blob(data, lfs) for path, data in files.items()}
        content = json.dumps([self.path, len(self.commits), sorted((p, b.oid) for p, b in blobs.items())])
        sha = hashlib.sha1(content.encode()).hexdigest()
        self.commits[sha] = blobs
        self.refs[branch] = sha
        return sha


def _blob(data, lfs):
    size = len(data) if isinstance(data, bytes) else data.stat().st_size
    return Blob.of(data, lfs=size > LFS_BYTES if lfs is None else lfs)


def tree_of(files, below):
    """Return all entries below a directory, and the directories between."""
    prefix = f"{below}/" if below else ""
    inside = {path: blob for path, blob in files.items() if path.startswith(prefix)}
    parents = {str(parent) for path in inside for parent in Path(path).parents if len(str(parent)) > len(prefix)}
    folders = [
        {"type": "directory", "path": path, "size": 0, "oid": hashlib.sha1(path.encode()).hexdigest()}
        for path in sorted(parents - {"."})
    ]
    return folders + [blob.listed(path) for path, blob in sorted(inside.items())]
