"""
Putting files on disk before anybody calls them whole.

A small file's own `fdatasync` commits the file system's journal, which on a network disk takes milliseconds. `syncfs`
commits once for all, but waits for whatever else is dirty there: it is used where that is little.

When the disk refuses what the kernel has taken already, the kernel drops it and says so once; whoever reads may still
find it in memory. So nothing that was not put in place before counts any more.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import stat
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from trainer_agent.initializers.threads import on_each

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from trainer_agent.host import Host

# Larger files are put on disk by whoever fetches them, while others move bytes.
ALONE_BYTES = 8 << 20
# As soon as so much has come, the disk begins; measured, 2,000 files of 256 KiB then end 0.25 s earlier.
BATCH_BYTES = 64 << 20
# Fewer are put on disk one by one.
MANY = 32
THREADS = 8
# Where syncfs does what fsync does (linux/magic.h): ext2 to ext4, XFS, Btrfs, overlay. Others may have servers of
# their own that it does not reach.
LOCAL = frozenset({0xEF53, 0x58465342, 0x9123683E, 0x794C7630})
MEMORY = frozenset({0x01021994, 0x858458F6})  # tmpfs and ramfs
# Where a write that finds no room says nothing about earlier ones. NFS tells of earlier ones so.
KEEPING = LOCAL | MEMORY
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
TOO_LARGE = NO_ROOM | {errno.EFBIG}
# To a call that a seccomp profile does not list.
FORBIDDEN = frozenset({errno.EPERM, errno.ENOSYS})
# Since Linux 5.8 syncfs tells errors of writing (man 2 syncfs).
KERNEL = (5, 8)
# Of other programs.
MOST_DIRTY_BYTES = 1 << 30


class Disk:
    """
    The file system of one directory.

    Args:
        directory: an existing one.
        host: where /proc/meminfo is.
        lost: called when what was written may not be on disk, although it seems to be.
        later: leave it to the kernel when all gets there, if the disk is this node's own.

    Attributes:
        together: small files may be put on disk at once.
        later: nobody waits, and nobody learns what the disk refuses.
        in_memory: it is made of this container's memory.
    """

    def __init__(
        self, directory: Path, *, host: Host, lost: Callable[[], None] = lambda: None, later: bool = False
    ) -> None:
        self.host = host
        self.lost = lost
        # Opened before the first byte: errors since then are told.
        self._fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        kind = kind_of(self._fd)
        self.together = _tells_errors() and kind in LOCAL
        self.later = later and kind in LOCAL
        self.in_memory = kind in MEMORY
        self._keeps = kind in KEEPING
        self._waiting: list[Path] = []
        self._size = self._fresh = 0
        self._lock = threading.Lock()
        self._early: threading.Thread | None = None
        self._error: OSError | None = None
        self._leaves = False

    def leave_to_another(self, *, lost: Callable[[], None]) -> None:
        """In a forked child: leave to the parent what is put on disk together (`arrived`, `take_over`)."""
        self._leaves, self.lost = True, lost

    def take(self, fd: int, path: Path, size: int) -> None:
        """
        Put an open file on disk, now or with the others in `wait`.

        Raises:
            OSError: it could not be written, or what was taken before.
        """
        if self.later:
            return
        if self._error is not None:
            raise self._error
        if not self.together or size >= ALONE_BYTES:
            with self._telling():
                os.fdatasync(fd)
            copy = os.dup(fd)
            with self._telling():
                os.close(copy)  # clients of object stores may know no fsync, and upload what is closed
            return
        if not self._leaves:
            self.take_over(path, size)
            self.arrived(size)

    def take_over(self, path: Path, size: int) -> None:
        """Take a closed file that a child has written, to be put on disk with the others if it was not yet."""
        if self.together and size < ALONE_BYTES and not self.later:
            with self._lock:
                self._waiting.append(path)
                self._size += size

    def arrived(self, size: int) -> None:
        """Begin to put on disk what has come, once it is enough."""
        with self._lock:
            self._fresh += size
            if self.later or not self.together or self._fresh < BATCH_BYTES or (self._early and self._early.is_alive()):
                return
            self._fresh = 0
            early = threading.Thread(target=self._begin, name="disk", daemon=True)
            with suppress(RuntimeError):  # no more threads: it is put on disk in the end
                early.start()
                self._early = early

    def wait(self, more: Collection[Path] = ()) -> None:
        """
        Wait until all that was taken, and `more` files or directories, are on disk.

        Raises:
            OSError: something could not be written.
        """
        if self.later:
            return
        if self._early:
            self._early.join()
        paths = [*self._waiting, *more]
        if self.together and len(paths) >= MANY and self._is_calm() and self._sync():
            paths = list(more)  # clean now; but only each for itself tells what failed before the disk was opened
        with self._telling():
            on_each(fsync, paths, threads=THREADS)
        if self._error is not None:
            raise self._error
        self._waiting, self._size = [], 0

    def overlook(self) -> None:
        """Have the kernel tell of what failed before anything was written for us, unless that would take long."""
        if self.together and self._is_calm():
            ctypes.CDLL(None).syncfs(self._fd)

    def refused(self, error: OSError) -> None:
        """Take note of a write that failed; earlier ones may have failed with it."""
        if not (self._keeps and error.errno in TOO_LARGE):
            self.lost()

    def close(self) -> None:
        """Wait for nothing any more."""
        if self._early is None or not self._early.is_alive():
            os.close(self._fd)

    def _begin(self) -> None:
        if self._is_calm():
            self._sync()

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self.lost()
            raise

    def _sync(self) -> bool:
        """Put all on disk; return whether there is such a call."""
        libc = ctypes.CDLL(None, use_errno=True)
        error = ctypes.get_errno() if libc.syncfs(self._fd) != 0 else 0
        if error in FORBIDDEN:
            return False
        if error:
            self.lost()
            self._error = OSError(error, os.strerror(error))
        return True

    def _is_calm(self) -> bool:
        """Return whether others have left little to write."""
        lines = re.findall(r"^(?:Dirty|Writeback): +([0-9]+) kB$", self.host.read("/proc/meminfo") or "", re.MULTILINE)
        return bool(lines) and sum(map(int, lines)) * 1024 <= self._size + MOST_DIRTY_BYTES


def _tells_errors() -> bool:
    found = re.match(r"([0-9]+)\.([0-9]+)", os.uname().release)
    return found is not None and (int(found[1]), int(found[2])) >= KERNEL


def kind_of(fd: int) -> int:
    """Return the kind of file system: a struct statfs, of at most 120 bytes, begins with it."""
    buffer = ctypes.create_string_buffer(256)
    if ctypes.CDLL(None).fstatfs(fd, buffer) != 0:
        return 0
    return int.from_bytes(buffer.raw[: ctypes.sizeof(ctypes.c_long)], "little")


def fsync(path: Path) -> None:
    """Wait until one file or directory is on disk; the latter where the file system can (vboxsf, AFS cannot)."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL or not stat.S_ISDIR(os.fstat(fd).st_mode):
            raise
    finally:
        os.close(fd)
