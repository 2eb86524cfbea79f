"""One file on its way: its ranges, its proof, and the moment when it is whole."""

from __future__ import annotations

import ctypes
import os
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainer_agent.errors import FatalError, RetryError
from trainer_agent.initializers import TransientError, digests
from trainer_agent.initializers.disk import TOO_LARGE
from trainer_agent.initializers.journal import Saved, identity_of
from trainer_agent.initializers.proof import Digest, Proof, Unproved, choose

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trainer_agent.initializers import Entry, Source
    from trainer_agent.initializers.disk import Disk
    from trainer_agent.initializers.journal import Journal

# Digest of files whose source may know no checksum: S3's own default, next to free, kept for `--verify full`.
UNASKED = "crc64nvme"
SYNC_FILE_RANGE_WRITE = 2
# How often the disk is told to begin. Measured: of 2 GiB 0.04 s are left to wait for in the end, else 0.7 s; every 4
# or 8 MiB it takes 1.5 s in all, every 32 MiB 1.9 s. For small files each such request costs more than it saves (2,000
# of 256 KiB took twice as long).
WRITE_BACK_BYTES = 4 << 20
PREALLOCATE_BYTES = 4 << 20
# What a stream with nothing else to do takes from another: a smaller half is not worth a connection, in which a few MB
# are on their way.
SPLIT_BYTES = 8 << 20


class VoidError(Exception):
    """The range belongs to an attempt at the file that was given up."""


class DiffersError(TransientError):
    """The bytes are not those of the checksum; everything has to be fetched again."""


@dataclass(eq=False)
class Job:
    """
    Something to do for a file; a plain one is to ask for its checksum and settle it.

    Args:
        round: of the file; a job of an earlier round is void.
        failures: attempts in a row that brought next to nothing.
    """

    file: Incoming
    round: int
    failures: int = 0

    @property
    def void(self) -> bool:
        """Whether the file has begun again since."""
        return self.round != self.file.round


@dataclass(eq=False)
class Range(Job):
    """
    Fetch the bytes `[start, stop)` of a file; `start` moves on as they arrive.

    Args:
        began: where `digest` began.
        flushed: up to where the disk was told to write.
        lock: for moving `start` and `stop` towards each other.
    """

    start: int = 0
    stop: int = 0
    began: int = 0
    flushed: int = 0
    digest: Digest | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(eq=False)
class Incoming:
    """
    A file that is being fetched into `part`.

    Args:
        wanted: the checksum that it must have; empty when only the source may know.
        verify: False takes the size for proof.
        saved: what an earlier attempt left.
    """

    source: Source
    entry: Entry
    part: Path
    journal: Journal
    disk: Disk
    wanted: str = ""
    verify: bool = True
    saved: Saved | None = None
    round: int = 0
    actual: str = ""
    identity: tuple[int, int] = (0, 0)
    _given: str = field(init=False)
    _keep: bool = False
    _asked: bool = False
    _fd: int = -1
    _inside: int = 0  # jobs that may use `_fd`
    _left: int = 0
    _differed: str = ""
    _proof: Proof = field(default_factory=Unproved)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._given = self.wanted

    @property
    def to_come(self) -> int:
        """Bytes that an earlier attempt did not leave."""
        return self.entry.size - sum(stop - start for start, (stop, _) in self._saved().items())

    def plan(self, *, range_bytes: int | None) -> list[Job]:
        """Return what is to do, in ranges of at most `range_bytes`; None for servers that know no ranges."""
        with self._lock:
            self.round += 1
            saved = {} if range_bytes is None else self._saved()
            self._keep = bool(saved)
            if not saved:
                self.saved = None
            if self._fd >= 0:
                os.ftruncate(self._fd, 0)
            self._proof = choose(self.wanted or UNASKED, self.entry.size, saved) if self.verify else Unproved()
            step = self.entry.size if range_bytes is None else min(range_bytes, self._proof.range_bytes)
            pairs = _gaps(self.entry.size, max(1, step), saved)
            # The checksum may come with the bytes of a whole file; of others it is asked for meanwhile.
            settle = not pairs or (self.verify and not self.wanted and len(pairs) > 1)
            self._left = len(pairs) + settle
            jobs = [Job(self, self.round)] if settle else []
            return [*(self._range(start, stop) for start, stop in pairs), *jobs]

    @contextmanager
    def opened(self, job: Job) -> Iterator[None]:
        """
        Hold the part open for a job.

        The last job inside closes it when it is whole, and after a failure: any number may wait for another attempt.

        Raises:
            VoidError: the job came too late.
            OSError: it cannot be opened, or what was written is refused when it is closed.
        """
        empty = self._enter(job)
        try:
            if empty and self.entry.size >= PREALLOCATE_BYTES:
                _reserve(self._fd, self.entry.size)
            yield
        except OSError:
            with suppress(OSError):  # the first one says more
                self._leave(failed=True)
            raise
        except BaseException:
            self._leave(failed=True)
            raise
        self._leave(failed=False)

    def write(self, job: Range, piece: bytes | memoryview) -> None:
        """Put the next piece of a range in its place, up to where another stream has taken over."""
        if job.void:
            raise VoidError
        with job.lock:
            at = job.start
            view = memoryview(piece)[: job.stop - at]
            job.start += view.nbytes
        if job.digest is not None:
            job.digest.update(view)
        try:
            while view:
                written = os.pwrite(self._fd, view, at)
                at += written
                view = view[written:]
        except OSError as error:
            self.disk.refused(error)
            raise
        if job.start - job.flushed >= WRITE_BACK_BYTES and not self.disk.later:
            _write_back(self._fd, job.flushed, job.start)
            job.flushed = job.start

    def split(self, job: Range) -> Range | None:
        """Take the second half of a range that is under way; None when too little is left, or it must stay whole."""
        with job.lock:
            middle = (job.start + job.stop) // 2
            if job.void or middle - job.start < SPLIT_BYTES or isinstance(job.digest, digests.Sequential):
                return None
            with self._lock:
                self._left += 1
            half = self._range(middle, job.stop)
            job.stop = middle
            return half

    def range_done(self, job: Range) -> bool:
        """Take a whole range; return whether the file is whole and proved with it."""
        kept = self._proof.done(self._fd, job.began, job.stop, job.digest)
        if (job.began, job.stop) != (0, self.entry.size):
            self._note(job, job.stop, kept)
        return self._one_less(job)

    def keep(self, job: Range) -> None:
        """Note what has come of a range that is given up."""
        if job.began < job.start:
            value = (job.digest.algorithm, job.digest.value) if isinstance(job.digest, digests.RangeDigest) else None
            self._note(job, job.start, value)

    def settle(self, job: Job) -> bool:
        """Ask the source for the checksum if need be; return whether the file is whole and proved now."""
        self._ask()
        return self._one_less(job)

    def start_again(self, *, range_bytes: int | None) -> list[Job]:
        """Forget every byte and plan anew."""
        with self._lock:
            self.round += 1  # first: what a job of this round noted later would count
        self.journal.discard(self.entry)
        self.saved = None
        self.wanted, self._asked = self._given, False  # a source that is asked again looks again
        return self.plan(range_bytes=range_bytes)

    def close(self) -> None:
        """End the fetch of the file: what is there stays for another attempt, and a job that is late is void."""
        with self._lock:
            self.round += 1
        with suppress(OSError):  # the fetch has failed anyway; what is whole was closed before
            self._close()

    def _note(self, job: Range, stop: int, digest: tuple[str, int] | None) -> None:
        with self._lock:
            if not job.void:
                self.journal.range_done(self.entry, job.began, stop, digest)

    def _enter(self, job: Job) -> bool:
        """Take note of a job that uses the part; return whether nothing is there yet, nor space reserved."""
        with self._lock:
            if job.void:
                raise VoidError
            empty = not self._keep
            if empty:
                self.journal.begin(self.entry)
            if self._fd < 0:
                # A part that counts and is gone must not become a new one, full of zeros.
                new = os.O_CREAT | os.O_TRUNC if empty else 0
                self._fd = os.open(self.part, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | new, 0o666)
            self._keep = True
            self._inside += 1
        return empty

    def _leave(self, *, failed: bool) -> None:
        with self._lock:
            self._inside -= 1
            close = failed or not self._left
        if close:
            self._close()

    def _close(self) -> None:
        """Close the part unless a job is inside, whose descriptor must not become another file's."""
        with self._lock:
            if self._fd < 0 or self._inside:
                return
            fd, self._fd = self._fd, -1
        try:
            os.close(fd)
        except OSError as error:  # some clients of servers write only now
            self.disk.refused(error)
            raise

    def _range(self, start: int, stop: int) -> Range:
        return Range(
            self, self.round, start=start, stop=stop, began=start, flushed=start, digest=self._proof.digest(start, stop)
        )

    def _saved(self) -> dict[int, tuple[int, int | None]]:
        """Return {start: (stop, digest)} of what is on disk and can be proved."""
        if self.saved is None or not (self.verify or self.saved.same_boot):
            return {}
        algorithm = (self.wanted or UNASKED).partition(":")[0]
        ranges = {s: (e, d[1] if d and d[0] == algorithm else None) for s, (e, d) in self.saved.ranges.items()}
        return _without_overlap(ranges)

    def _one_less(self, job: Job) -> bool:
        with self._lock:
            if job.void:
                return False
            if self._left > 1:
                self._left -= 1
                return False
        self._ask()  # if that fails, the last job is done again
        self._left = 0
        self._prove()
        return True

    def _ask(self) -> None:
        if self.verify and not self.wanted and not self._asked:
            self.wanted = self.source.checksum(self.entry)
            self._asked = True

    def _prove(self) -> None:
        stat = os.fstat(self._fd)
        if stat.st_size != self.entry.size:
            raise RetryError("size-differs", f"{self.entry.path} has {stat.st_size:,} bytes, not {self.entry.size:,}")
        self.actual = self._proof.actual(self._fd) if self.verify else ""
        if self.wanted and self.wanted.partition(":")[0] != self.actual.partition(":")[0]:
            self.actual = digests.of_file(self._fd, self.wanted, self.entry.size)
        if self.wanted and self.actual != self.wanted:
            self._differs()
        elif self.wanted and not self._given:
            self.source.believes(self.wanted, fits=True)
        if not self.wanted and self.saved is not None and not self.saved.same_boot:
            raise DiffersError("resume-unproved", f"{self.entry.path}: nothing proves what an earlier node left")
        self.disk.take(self._fd, self.part, self.entry.size)
        # Servers may give it its time only when it is on disk.
        self.identity = identity_of(stat if self.disk.together else os.fstat(self._fd))
        self.journal.file_done(self.entry, self.actual, self.identity)

    def _differs(self) -> None:
        """Fetch again once; the same wrong bytes twice are the source's own, or what it calls a checksum is none."""
        message = f"{self.entry.path} has {self.actual} and must have {self.wanted}"
        bytes_now = digests.of_file(self._fd, UNASKED, self.entry.size)  # the source may have named another kind
        self.journal.discard(self.entry)
        if self._differed == bytes_now and not self._given and not self.source.believes(self.wanted, fits=False):
            self.wanted, self.actual = "", bytes_now
            return
        if self._differed == bytes_now:
            hint = (
                "the source serves these bytes every time: repair it there, or correct the list of checksums; "
                "--verify size takes them unproved"
            )
            raise FatalError("checksum-differs", f"{message}, twice", hint=hint)
        if self._differed:
            raise RetryError("checksum-differs", message, hint="bytes are damaged on the way, or in this node's memory")
        self._differed = bytes_now
        raise DiffersError("checksum-differs", message)


def _without_overlap(ranges: dict[int, tuple[int, int | None]]) -> dict[int, tuple[int, int | None]]:
    """Return the ranges from the first that do not overlap; two attempts may have cut differently."""
    kept, at = {}, 0
    for start in sorted(ranges):
        if start >= at:
            kept[start] = ranges[start]
            at = ranges[start][0]
    return kept


def _gaps(size: int, step: int, saved: dict[int, tuple[int, int | None]]) -> list[tuple[int, int]]:
    """Return the ranges of at most `step` bytes that are not saved; an empty file has one empty range."""
    gaps, at = [], 0
    for start in [*sorted(saved), size]:
        gaps += [(a, min(a + step, start)) for a in range(at, start, step)]
        at = saved[start][0] if start in saved else at
    return gaps or ([(0, 0)] if not saved else [])


def _write_back(fd: int, start: int, stop: int) -> None:
    """Let the disk begin to write what `fsync` will wait for at the end."""
    ctypes.CDLL(None).sync_file_range(fd, ctypes.c_int64(start), ctypes.c_int64(stop - start), SYNC_FILE_RANGE_WRITE)


def _reserve(fd: int, size: int) -> None:
    """Reserve the space, where the file system can do so without writing it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(fd, 0, ctypes.c_int64(0), ctypes.c_int64(size)) != 0:
        error = ctypes.get_errno()
        if error in TOO_LARGE:
            raise OSError(error, os.strerror(error))
        os.ftruncate(fd, size)
