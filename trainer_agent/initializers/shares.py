"""
Many small files: shared out among processes, as one interpreter moves some 2,000 of them a second.

Each child is forked, fetches its share by a `Transfer` with connections of its own, and answers once, with what became
of its files. All else stays with this process: the claim, what the disk is still to be waited for, large files and
what an earlier attempt left. It fetches small ones, too, where it has nothing else.
"""

from __future__ import annotations

import gc
import mmap
import os
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from trainer_agent.errors import AgentError, RetryError, exhausted
from trainer_agent.initializers import KILLED_HINT, TIMEOUT_HINT, digests
from trainer_agent.initializers.lock import RENEWER
from trainer_agent.initializers.streams import SMALL_BYTES, TINY_BYTES, Streams
from trainer_agent.initializers.transfer import TICK_S, Transfer
from trainer_agent.isolation import Children, CrashedError, TimedOutError
from trainer_agent.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainer_agent.initializers.incoming import Incoming
    from trainer_agent.isolation import Answer

# Measured: so many take 0.1 s, and a child asks for its first file after 0.02 s.
LEAST_FILES = 250
LEAST_STREAMS = 8
LATE_S = 2.0  # a share has said by then that the time is up
BYTES, FILES, STREAMS = range(3)  # what each child counts
COUNTS = 3
LOADER = "load"


@dataclass
class _Outcome:
    """
    What became of a share.

    Args:
        whole: (number of the file, checksum, identity) of each that is whole.
        failed: the number of the file whose place or source ended it.
        forgotten: what has come may not be on disk.
    """

    whole: list[tuple[int, str, tuple[int, int]]] = field(default_factory=list)
    error: Exception | None = None
    failed: int | None = None
    forgotten: bool = False


class Shares:
    """
    Fetch files by several processes, which begin when this context manager is entered.

    Args:
        groups: the files of each source, in the order in which they begin.
        processes: the most, this one included; there are fewer for few files.
        cpus: that they may use.
        streams: most connections of all together.
        deadline: on the monotonic clock.
        attempts: failures in a row of one range that end the transfer.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[Incoming]],
        *,
        processes: int,
        cpus: float,
        streams: int,
        deadline: float,
        attempts: int,
    ) -> None:
        self.deadline = deadline
        self.attempts = attempts
        self._streams = streams
        self._own_groups, self._others = _deal(groups, streams, processes)
        self._cpus = cpus
        self._shares: list[list[Incoming]] = []
        self._disks = list({id(group[0].disk): group[0].disk for group in groups if group}.values())
        self._failed: Incoming | None = None
        self._children = Children()
        # Each child writes its own; the kernel's pages are all zero.
        self._counts = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("q")
        self._flushed = 0

    def __enter__(self) -> Self:
        each = _streams_of_others(self._streams, self._own_groups, self._others)
        try:
            for groups in self._others:
                self._fork(groups, each)
            self._own = self._transfer(self._own_groups, self._streams - each * len(self._shares))
        except BaseException:
            self._children.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._children.__exit__(*error)

    @property
    def moved(self) -> int:
        """Bytes from the sources, those that came twice too."""
        return self._own.moved + self._sum(BYTES)

    @property
    def files(self) -> int:
        """Files that are whole."""
        return len(self._own.done) + self._sum(FILES)

    @property
    def streams(self) -> int:
        """Connections that may be open."""
        return self._own.streams.allowed + self._sum(STREAMS)

    @property
    def failed(self) -> Incoming | None:
        """The file whose place or source ended it."""
        return self._failed or self._own.failed

    def run(self, tick: Callable[[], None]) -> None:
        """
        Fetch everything, calling `tick` about ten times a second.

        Raises:
            AgentError: a source refuses, fails too often, or time is up; or a process was ended from outside.
            OSError: the destination cannot be written.
        """

        def look(_own: Transfer | None = None) -> None:
            tick()
            for pid in self._children.pids:  # which stopped with this process
                os.kill(pid, signal.SIGCONT)
            while ended := self._children.ended():
                self._take(*ended)
            self._write_back()

        self._own.run(look)
        while self._children.running:
            self._children.wait(TICK_S)
            look()

    def _fork(self, groups: Sequence[Sequence[Incoming]], streams: int) -> None:
        """Have a child fetch these, or do so ourselves where no more processes may be had."""
        files, transfer = [file for group in groups for file in group], self._transfer(groups, streams)
        run = partial(self._in_child, len(self._shares), files, transfer, parent=os.getpid())
        try:
            self._children.start(run, self.deadline + LATE_S - time.monotonic())
        except OSError as error:
            get_logger().info("fetching by fewer processes", reason=error.strerror)
            self._own_groups = [[*own, *more] for own, more in zip(self._own_groups, groups, strict=True)]
        else:
            self._shares.append(files)

    def _transfer(self, groups: Sequence[Sequence[Incoming]], streams: int) -> Transfer:
        sizes = [file.to_come for group in groups for file in group]
        small, tiny = sum(sizes) <= SMALL_BYTES * len(sizes), max(sizes, default=0) <= TINY_BYTES
        allowed = Streams(streams, small=small, tiny=tiny, cpus=self._cpus)
        return Transfer(groups, streams=allowed, deadline=self.deadline, attempts=self.attempts)

    def _in_child(self, number: int, files: list[Incoming], transfer: Transfer, *, parent: int) -> _Outcome:
        """Fetch a share; return what became of it."""
        gc.freeze()  # else the first collection would copy whatever is shared
        counts, outcome = self._counts[COUNTS * number : COUNTS * (number + 1)], _Outcome()

        def forget(lost: Callable[[], None]) -> None:
            outcome.forgotten = True
            lost()

        for disk in self._disks:
            disk.leave_to_another(lost=partial(forget, disk.lost))

        def tick(transfer: Transfer) -> None:
            counts[BYTES], counts[FILES], counts[STREAMS] = transfer.moved, len(transfer.done), transfer.streams.allowed
            _follow(parent)

        try:
            transfer.run(tick)
        except Exception as error:
            outcome.error = error if isinstance(error, AgentError | OSError) else exhausted(error)
            if outcome.error is None:
                raise
            outcome.failed = files.index(transfer.failed) if transfer.failed in files else None
        tick(transfer)
        numbers = {id(file): at for at, file in enumerate(files)}
        outcome.whole = [(numbers[id(file)], file.actual, file.identity) for file in transfer.done]
        return outcome

    def _take(self, number: int, answer: Answer) -> None:
        """Take what became of a share."""
        files, outcome = self._shares[number], self._outcome(answer)
        for at, actual, identity in outcome.whole:
            file = files[at]
            file.actual, file.identity = actual, identity
            file.disk.take_over(file.part, file.entry.size)
        if outcome.forgotten:
            files[outcome.failed or 0].disk.lost()
        if outcome.error is not None:
            self._failed = None if outcome.failed is None else files[outcome.failed]
            raise outcome.error

    def _outcome(self, answer: Answer) -> _Outcome:
        match answer.error:
            case None:
                outcome: _Outcome = answer.value
                return outcome
            case TimedOutError():
                raise RetryError("fetch-timeout", f"the time is up: {answer.error}", hint=TIMEOUT_HINT)
            case CrashedError(trace=""):
                message = f"a process of the fetch was ended from outside: {answer.error}"
                raise RetryError("fetch-killed", message, hint=KILLED_HINT)
        answer.error.add_note(getattr(answer.error, "trace", ""))
        raise answer.error

    def _write_back(self) -> None:
        """Have the disks begin with what others have written."""
        arrived = self._sum(BYTES)
        for disk in self._disks:
            disk.arrived(arrived - self._flushed)
        self._flushed = arrived

    def _sum(self, what: int) -> int:
        """Return a count of all others."""
        return sum(self._counts[COUNTS * number + what] for number in range(len(self._shares)))


def _is_small(file: Incoming) -> bool:
    """Return whether it comes in one piece, from its first byte on."""
    return file.saved is None and file.entry.size <= SMALL_BYTES


def _deal(
    groups: Sequence[Sequence[Incoming]], streams: int, processes: int
) -> tuple[list[list[Incoming]], list[list[list[Incoming]]]]:
    """Return the files of this process and of each other one."""
    small = [[file for file in group if _is_small(file)] for group in groups]
    rest = [[file for file in group if not _is_small(file)] for group in groups]
    processes = min(processes, sum(map(len, small)) // LEAST_FILES, streams // LEAST_STREAMS)
    if processes < 2 or not _may_fork():
        return [list(group) for group in groups], []
    if _is_busy(rest, small, processes):
        others = processes - 1
        return rest, [[group[number::others] for group in small] for number in range(others)]
    first, *shares = ([group[number::processes] for group in small] for number in range(processes))
    return [[*large, *more] for large, more in zip(rest, first, strict=True)], shares


def _is_busy(rest: Sequence[Sequence[Incoming]], small: Sequence[Sequence[Incoming]], processes: int) -> bool:
    """Return whether what only this process may fetch is more than its share."""
    own, others = (sum(file.to_come for group in groups for file in group) for groups in (rest, small))
    return own * (processes - 1) > others


def _streams_of_others(
    streams: int, own: Sequence[Sequence[Incoming]], others: Sequence[Sequence[Sequence[Incoming]]]
) -> int:
    """Return how many connections each other process gets: half of all where this one has what needs them."""
    has_large = not all(_is_small(file) for group in own for file in group)
    return streams // 2 // max(1, len(others)) if has_large else streams // (len(others) + 1)


def _may_fork() -> bool:
    """Return whether no thread may hold a lock that a child would wait for, for ever."""
    digests.load()  # waits for the thread that is doing so
    return {thread.name for thread in threading.enumerate()} <= {threading.main_thread().name, RENEWER, LOADER}


def _follow(parent: int) -> None:
    """Stop with the one that began, as nobody renews the lease then; end where it did before the kernel could tell."""
    if os.getppid() != parent:
        os._exit(1)
    with suppress(OSError, IndexError):
        if Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[0] in {"T", "t"}:
            os.kill(os.getpid(), signal.SIGSTOP)
