"""
A volume whose server we are: FUSE, spoken with the kernel itself.

It is like a bucket behind a mount: fsync is nothing, and closing a file uploads it. What it refuses is given by name:

FLUSH=n     the first n uploads of unfinished files end with EIO, and what was to be uploaded is dropped
CREATE      no file can be made: EINVAL
WRITE       nothing can be written: ENOSPC
READ        what is read is not what was written
AGAIN       nothing can be written after fsync, which uploads here: EIO, as of Mountpoint for S3
REMOVE      no file can be removed: EPERM, as of Mountpoint for S3 without --allow-delete
FSYNCDIR    no directory can be put on disk: EINVAL, as where a file system has no such operation
INODES      a file has another inode whenever it is looked up, as of gcsfuse once the kernel has forgotten it

Run as `fuse_volume.py PLACE REFUSED COMMAND…` by root, in a mount namespace of its own: the volume lives as long as the
command, whose exit code it returns.
"""

import ctypes
import errno
import os
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

MOST_BYTES = 1 << 17
REQUEST = struct.Struct("<IIQQIIII")  # length, operation, id, inode and four more
ANSWER = struct.Struct("<IiQ")
WITHOUT_ANSWER = {2, 36, 42}  # forget, interrupt, batch_forget
# Version 7.31; 32 is for writes of more than a page.
INITIALIZED = struct.pack("<IIIIHHIIHH8I", 7, 31, MOST_BYTES, 32, 12, 9, MOST_BYTES, 1, *[0] * 10)
MNT_DETACH = 2
SIZE_IS_SET = 8
DIRECTORY, FILE = 0o40755, 0o100644


class RefusedError(Exception):
    """An errno."""


@dataclass
class Node:
    """A file or a directory; what is not uploaded yet is dirty."""

    mode: int
    children: dict[bytes, int] = field(default_factory=dict)
    content: bytearray = field(default_factory=bytearray)
    uploaded: bytes = b""
    dirty: bool = False
    synced: bool = False
    mtime: int = 0


class Volume:
    """Answer the kernel's requests; each method is an operation, and takes inode and body."""

    def __init__(self, refused: str) -> None:
        self.refused, _, times = refused.partition("=")
        self.times = int(times or 0)
        self.nodes = {1: Node(DIRECTORY)}
        self.names: dict[int, bytes] = {}
        self.operations = {
            1: self.lookup,
            3: lambda inode, body: struct.pack("<QII", 0, 0, 0) + self._attributes(inode),
            4: self.setattr,
            9: lambda inode, body: self._make(inode, body[8:], DIRECTORY),
            10: self.unlink,
            11: self.remove,
            12: lambda inode, body: self.rename(inode, body, 8),
            14: lambda inode, body: bytes(16),
            15: self.read,
            16: self.write,
            17: lambda inode, body: struct.pack("<5Q4I6I", *[1 << 20] * 5, 4096, 255, 4096, 0, *[0] * 6),
            18: self.release,
            20: self.fsync,
            25: self.flush,
            26: lambda inode, body: INITIALIZED,
            27: lambda inode, body: bytes(16),
            28: self.readdir,
            29: lambda inode, body: b"",
            30: self.fsyncdir,
            35: self.create,
            45: lambda inode, body: self.rename(inode, body, 16),
        }

    def serve(self, fd: int) -> None:
        while True:
            try:
                request = os.read(fd, 2 * MOST_BYTES)
            except OSError as error:
                if error.errno in {errno.EINTR, errno.ENOENT}:
                    continue
                return  # it is not mounted any more
            _, operation, unique, inode, *_ = REQUEST.unpack_from(request)
            if operation in WITHOUT_ANSWER:
                continue
            code, body = 0, b""
            try:
                body = self.operations.get(operation, self.unknown)(inode, request[REQUEST.size :])
            except RefusedError as refused:
                code = refused.args[0]
            os.write(fd, ANSWER.pack(ANSWER.size + len(body), -code, unique) + body)

    def unknown(self, inode: int, body: bytes) -> bytes:
        """The kernel does not ask again."""
        raise RefusedError(errno.ENOSYS)

    def lookup(self, inode: int, body: bytes) -> bytes:
        child = self.nodes[inode].children.get(_name(body))
        if child is None:
            raise RefusedError(errno.ENOENT)
        if self.refused == "INODES" and self.nodes[child].mode == FILE:
            self.nodes[max(self.nodes) + 1] = self.nodes[child]
            child = max(self.nodes)
        return self._entry(child)

    def setattr(self, inode: int, body: bytes) -> bytes:
        what, _, _, size = struct.unpack_from("<IIQQ", body)
        if what & SIZE_IS_SET:
            self._put(inode, size, b"")
            del self.nodes[inode].content[size:]
        return struct.pack("<QII", 0, 0, 0) + self._attributes(inode)

    def create(self, inode: int, body: bytes) -> bytes:
        if self.refused == "CREATE":
            raise RefusedError(errno.EINVAL)
        return self._make(inode, body[16:], FILE) + bytes(16)

    def unlink(self, inode: int, body: bytes) -> bytes:
        if self.refused == "REMOVE":
            raise RefusedError(errno.EPERM)
        return self.remove(inode, body)

    def remove(self, inode: int, body: bytes) -> bytes:
        del self.nodes[inode].children[_name(body)]
        return b""

    def rename(self, inode: int, body: bytes, names_at: int) -> bytes:
        (to,) = struct.unpack_from("<Q", body)
        old, new = body[names_at:].split(b"\0")[:2]
        self.nodes[to].children[new] = self.nodes[inode].children.pop(old)
        return b""

    def read(self, inode: int, body: bytes) -> bytes:
        _, at, size = struct.unpack_from("<QQI", body)
        found = bytes(self.nodes[inode].content[at : at + size])
        return found[::-1] if self.refused == "READ" else found

    def write(self, inode: int, body: bytes) -> bytes:
        _, at, size = struct.unpack_from("<QQI", body)
        if self.refused == "WRITE" and self._is_unfinished(inode):
            raise RefusedError(errno.ENOSPC)
        if self.nodes[inode].synced:
            raise RefusedError(errno.EIO)
        self._put(inode, at, body[40 : 40 + size])
        return struct.pack("<II", size, 0)

    def fsync(self, inode: int, body: bytes) -> bytes:
        if self.refused != "AGAIN":
            return self.unknown(inode, body)
        self.nodes[inode].synced = True
        return b""

    def fsyncdir(self, inode: int, body: bytes) -> bytes:
        raise RefusedError(errno.EINVAL if self.refused == "FSYNCDIR" else errno.ENOSYS)

    def flush(self, inode: int, body: bytes) -> bytes:
        """Upload."""
        node = self.nodes[inode]
        if node.dirty and self.refused == "FLUSH" and self.times and self._is_unfinished(inode):
            self.times -= 1
            raise RefusedError(errno.EIO)
        node.uploaded, node.dirty = bytes(node.content), False
        return b""

    def release(self, inode: int, body: bytes) -> bytes:
        """Drop what could not be uploaded."""
        node = self.nodes[inode]
        node.content, node.dirty = bytearray(node.uploaded), False
        return b""

    def readdir(self, inode: int, body: bytes) -> bytes:
        _, begin, size = struct.unpack_from("<QQI", body)
        found = b""
        for at, (name, child) in list(enumerate(self.nodes[inode].children.items(), 1))[begin:]:
            entry = struct.pack("<QQII", child, at, len(name), self.nodes[child].mode >> 12) + name
            entry += bytes(-len(entry) % 8)
            if len(found) + len(entry) > size:
                break
            found += entry
        return found

    def _is_unfinished(self, inode: int) -> bool:
        parts = [number for number, name in self.names.items() if name == b"parts"]
        return any(inode in self.nodes[number].children.values() for number in parts)

    def _put(self, inode: int, at: int, piece: bytes) -> None:
        node = self.nodes[inode]
        node.content.extend(bytes(max(0, at - len(node.content))))
        node.content[at : at + len(piece)] = piece
        node.dirty, node.mtime = True, time.time_ns()

    def _make(self, inode: int, name: bytes, mode: int) -> bytes:
        child = max(self.nodes) + 1
        self.nodes[child] = Node(mode, mtime=time.time_ns(), dirty=mode == FILE)
        self.names[child] = _name(name)
        self.nodes[inode].children[_name(name)] = child
        return self._entry(child)

    def _entry(self, inode: int) -> bytes:
        return struct.pack("<4Q2I", inode, 0, 0, 0, 0, 0) + self._attributes(inode)

    def _attributes(self, inode: int) -> bytes:
        node = self.nodes[inode]
        size, (seconds, rest) = len(node.content), divmod(node.mtime, 10**9)
        times = *[seconds] * 3, *[rest] * 3
        return struct.pack("<6Q10I", inode, size, -(-size // 512), *times, node.mode, 1, 0, 0, 0, 4096, 0)


def _name(body: bytes) -> bytes:
    return body.split(b"\0")[0]


def beside(place: Path, refused: str, *command: str | Path) -> str:
    """Run a program beside a volume that lies in `place`; return what it prints. pytest ends where there is no FUSE."""
    import pytest

    place.mkdir()
    namespace = ["unshare", "-m" if os.geteuid() == 0 else "-rm"]
    argv = [*namespace, sys.executable, __file__, place, refused, *command]
    ended = subprocess.run(argv, cwd=place.parent, capture_output=True, text=True, check=False, timeout=60)
    if ended.returncode and any(word in ended.stderr for word in ("unshare:", "fuse:", "/dev/fuse")):
        missing = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        missing(f"no FUSE can be mounted here: {ended.stderr.strip()[-200:]}")
    assert (0, "") == (ended.returncode, ended.stderr)
    return ended.stdout


def main(place: str, refused: str, *command: str) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0"
    if libc.mount(b"bucket", place.encode(), b"fuse", 0, options.encode()) != 0:
        print("fuse:", os.strerror(ctypes.get_errno()), file=sys.stderr)
        return 1
    codes = []

    def run() -> None:
        codes.append(subprocess.call(command))
        libc.umount2(place.encode(), MNT_DETACH)

    waiting = threading.Thread(target=run)
    waiting.start()
    Volume(refused).serve(fd)
    waiting.join()
    return codes[0]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
