"""
The transfer: one queue of (file, range) jobs for all sources, and as many streams as help.

A range that fails goes back into the queue from its last byte on, and rests there for a while.
Streams are daemon threads: one that waits for a dead server ends with the process, which is a child of ours.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from trainer_agent.errors import RetryError
from trainer_agent.initializers import ChangedError, NoRangesError, TransientError
from trainer_agent.initializers.incoming import DiffersError, Range, VoidError
from trainer_agent.initializers.retry import LONGEST_RETRY_AFTER_S, pause_s
from trainer_agent.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from trainer_agent.initializers.incoming import Incoming, Job
    from trainer_agent.initializers.streams import Streams

TICK_S = 0.1
LEAVE_S = 0.3
# A server that cuts every body after a few bytes makes no progress worth counting.
PROGRESS_BYTES = 1 << 20
MOST_STREAMS_OF_A_FILE = 64
SHORTEST_RANGE_BYTES = 8 << 20


class Lane:
    """The jobs of one source; a server that asks for quiet gets it without holding up the others."""

    def __init__(self, files: Iterable[Incoming]) -> None:
        self.quiet_until = 0.0
        self.whole = False  # its server knows no ranges
        self.planned: deque[Job] = deque()
        self._files = deque(files)
        self._later: list[tuple[float, int, Job]] = []
        self._count = itertools.count()

    def take(self, now: float, range_bytes: int) -> Job | None:
        """Return the next job that may run now; `range_bytes` for the files that begin with it."""
        if now < self.quiet_until:
            return None
        if self._later and self._later[0][0] <= now:
            return heapq.heappop(self._later)[2]
        while not self.planned and self._files:
            self.planned.extend(self._files.popleft().plan(range_bytes=None if self.whole else range_bytes))
        return self.planned.popleft() if self.planned else None

    def again(self, job: Job, at: float) -> None:
        """Take a job back until `at`."""
        heapq.heappush(self._later, (at, next(self._count), job))


class Transfer:
    """
    Fetch files side by side.

    Args:
        groups: the files of each source, in the order in which they begin.
        streams: how many at once.
        deadline: on the monotonic clock.
        attempts: failures in a row of one range that end the transfer.
    """

    def __init__(
        self, groups: Iterable[Sequence[Incoming]], *, streams: Streams, deadline: float, attempts: int
    ) -> None:
        groups = [group for group in groups if group]
        self.streams = streams
        self.deadline = deadline
        self.attempts = attempts
        self.moved = 0  # bytes from the sources, those that came twice too
        self.done: list[Incoming] = []
        self._left = sum(map(len, groups))
        self._size = sum(file.to_come for group in groups for file in group)
        self._lanes = {id(group[0].source): Lane(group) for group in groups}
        self._turns = itertools.cycle(self._lanes.values())
        self._running: set[Job] = set()
        self._threads = 0
        self.failed: Incoming | None = None  # whose place or source ended it
        self._failure: BaseException | None = None
        self._stopping = False
        self._changed = threading.Condition()
        self._wake = threading.Event()

    def run(self, tick: Callable[[Transfer], None]) -> None:
        """
        Fetch everything, calling `tick` about ten times a second.

        Raises:
            AgentError: a source refuses, fails too often, or time is up.
            OSError: the destination cannot be written.
        """
        try:
            while self._left and self._failure is None:
                self._start_threads()
                self._wake.wait(TICK_S)
                self._wake.clear()
                now = time.monotonic()
                self.streams.tick(now, self.moved, time.process_time())
                tick(self)
                if now > self.deadline:
                    hint = "raise --timeout, or look at the source; what has arrived is kept for the next attempt"
                    raise RetryError("fetch-timeout", f"the time is up with {self._left} files to come", hint=hint)
        finally:
            with self._changed:
                self._stopping = True
                self._changed.notify_all()
                # Streams that are moving note how far they came; one that hangs is left behind.
                self._changed.wait_for(lambda: not self._running, LEAVE_S)
        if self._failure is not None:
            raise self._failure

    def _start_threads(self) -> None:
        with self._changed:
            for number in range(self._threads, min(self.streams.allowed, self._left * MOST_STREAMS_OF_A_FILE)):
                try:
                    threading.Thread(target=self._work, name=f"stream-{number + 1}", daemon=True).start()
                except RuntimeError:  # no more threads: a limit of the container, or somebody else's moment
                    if not self._threads:
                        raise
                    return
                self._threads += 1

    def _work(self) -> None:
        """Do jobs until there are none."""
        try:
            while (job := self._next()) is not None:
                try:
                    self._attempt(job)
                finally:
                    with self._changed:
                        self._running.discard(job)
                        if self._stopping:
                            self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001  # whatever it is, `run` raises it
            self._fail(error)

    def _attempt(self, job: Job) -> None:
        """Do one job, or put it back."""
        try:
            whole = self._do(job)
        except VoidError:
            pass
        except NoRangesError as error:
            if isinstance(job, Range) and (job.start, job.stop) == (0, job.file.entry.size):
                self._again(job, error)  # which it was asked for
            else:
                self._start_again(job, error)
        except DiffersError as error:
            self._start_again(job, error)
        except TransientError as error:
            self._again(job, error)
        except BaseException:
            self.failed = self.failed or job.file
            raise
        else:
            if whole:
                self._whole(job.file)

    def _next(self) -> Job | None:
        """Return the next job, None when there will be none."""
        with self._changed:
            while self._left and not self._stopping and self._failure is None:
                if len(self._running) < self.streams.allowed and (job := self._take()) is not None:
                    self._running.add(job)
                    return job
                self._changed.wait(TICK_S)
            self._threads -= 1
            return None

    def _take(self) -> Job | None:
        """Return a job of the source whose turn it is, or of one after it."""
        now, size = time.monotonic(), self._range_bytes()
        turns = itertools.islice(self._turns, len(self._lanes))
        job = next((job for lane in turns if (job := lane.take(now, size)) is not None), None)
        return job or self._half()

    def _range_bytes(self) -> int:
        """Return ranges so short that there are two for each stream."""
        return max(SHORTEST_RANGE_BYTES, self._size // (2 * self.streams.allowed))

    def _half(self) -> Job | None:
        """Return the second half of the range that has the most to come, so that nobody waits for a slow one."""
        ranges = (j for j in self._running if isinstance(j, Range) and not self._lane(j).whole)
        longest = max(ranges, key=lambda job: job.stop - job.start, default=None)
        return longest.file.split(longest) if longest is not None else None

    def _do(self, job: Job) -> bool:
        """Do one job; return whether its file is whole with it."""
        with job.file.opened(job):
            if not isinstance(job, Range):
                return job.file.settle(job)
            if job.start < job.stop:
                self._receive(job)
            return job.start == job.stop and not job.void and job.file.range_done(job)

    def _receive(self, job: Range) -> None:
        file, asked_at, first, asked = job.file, time.monotonic(), job.start, job.stop
        for piece in file.source.read(file.entry, first, asked):
            if self._stopping or self._failure is not None:
                file.keep(job)
                return
            at = job.start
            if at == first:
                self._first_byte(time.monotonic() - asked_at)
            if at + len(piece) > asked:
                raise TransientError("source-too-long", f"{file.entry.path}: the source sends more than was asked for")
            file.write(job, piece)
            self.moved += job.start - at
            if job.start - first >= PROGRESS_BYTES and not self._lane(job).whole:
                job.failures = 0
            if job.start == job.stop:
                return
        if job.start < job.stop:
            raise TransientError(
                "source-cut", f"{file.entry.path}: the body ended {job.stop - job.start:,} bytes early"
            )

    def _first_byte(self, seconds: float) -> None:
        before = self.streams.allowed
        self.streams.first_byte(seconds)
        if self.streams.allowed > before:
            self._wake.set()

    def _whole(self, file: Incoming) -> None:
        with self._changed:
            self.done.append(file)
            self._left -= 1
            if not self._left:
                self._changed.notify_all()
                self._wake.set()

    def _again(self, job: Job, error: TransientError) -> None:
        """Put a job back for later; the server may have asked for fewer, and for quiet."""
        job.failures += 1
        if isinstance(error, ChangedError) or job.failures >= self.attempts:
            self._fail(error)
            return
        now = time.monotonic()
        pause = pause_s(job.failures, error.retry_after_s)
        facts = {
            "code": error.code,
            "file": job.file.entry.path,
            "attempt": job.failures,
            "again_in_s": round(pause, 1),
        }
        get_logger().warning(error.message, **facts)
        with self._changed:
            lane = self._lane(job)
            for later in self._from_the_start(job) if lane.whole else [job]:
                lane.again(later, now + pause)
            if error.busy:
                self.streams.slow_down(now)
                lane.quiet_until = max(lane.quiet_until, now + min(error.retry_after_s or 0.0, LONGEST_RETRY_AFTER_S))

    def _lane(self, job: Job) -> Lane:
        return self._lanes[id(job.file.source)]

    def _from_the_start(self, job: Job) -> list[Job]:
        """Return what to do where a server cannot go on in the middle of a file."""
        if job.void or not isinstance(job, Range) or job.start in {0, job.stop}:
            return [job]
        jobs = self._anew(job.file, range_bytes=None)
        for anew in jobs:
            anew.failures = job.failures
        return jobs

    def _start_again(self, job: Job, error: TransientError) -> None:
        """Begin a file anew: its bytes were wrong, or its server sends whole files only."""
        with self._changed:
            if job.void:
                return
            lane = self._lane(job)
            if isinstance(error, DiffersError):
                get_logger().warning(error.message, code=error.code, file=job.file.entry.path, then="fetching it again")
            else:
                lane.whole = True
            lane.planned.extend(self._anew(job.file, range_bytes=None if lane.whole else self._range_bytes()))

    def _anew(self, file: Incoming, *, range_bytes: int | None) -> list[Job]:
        try:
            return file.start_again(range_bytes=range_bytes)
        except OSError:
            self.failed = self.failed or file
            raise

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()
            self._wake.set()
