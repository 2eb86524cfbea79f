"""Fetch dataset and model: claim the destinations, see what is there, fetch the rest, put it in place, record it."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
import time
from collections import defaultdict
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trainer_agent.cgroup import read_limits
from trainer_agent.errors import AgentError, FatalError, RetryError, exhausted
from trainer_agent.initializers import HIDDEN, digests, hidden, names, space
from trainer_agent.initializers.delivery import PARTS, Delivery
from trainer_agent.initializers.disk import NO_ROOM
from trainer_agent.initializers.lock import NoClaim, claimed
from trainer_agent.initializers.progress import Progress
from trainer_agent.initializers.shares import LOADER, Shares
from trainer_agent.initializers.summary import Summary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trainer_agent.host import Host
    from trainer_agent.initializers.lock import Claim
    from trainer_agent.initializers.order import Order

MOST_STREAMS = 128
# Amazon's S3 answers 5,500 requests a second and prefix, which three or four processes bring.
MOST_PROCESSES = 8
BOOT_ID = "/proc/sys/kernel/random/boot_id"
# Measured: the agent with its libraries takes 60 MB, a stream less than 1 MB, another process up to 15 MB.
BASE_BYTES, STREAM_BYTES, PROCESS_BYTES = 72 << 20, 1 << 20, 24 << 20
# Open files: our own with those of a library that is being loaded, and of a stream its connection and its part.
BASE_FILES, STREAM_FILES = 40, 2
M_ARENA_MAX = -8
# What a file system says to a name that it cannot have.
NO_NAME = frozenset({errno.EINVAL, errno.EILSEQ, errno.ENAMETOOLONG})


@dataclass(frozen=True)
class Bounds:
    """
    How far a fetch may go.

    Args:
        streams: most connections at once.
        timeout_s: seconds in all, waiting for another agent included.
        attempts: failures in a row of one range that end the fetch.
        processes: most that fetch small files, this one included.
        cpus: that they may use.
    """

    streams: int = MOST_STREAMS
    timeout_s: float = 6 * 3600.0
    # With pauses that double up to 20 s this is more than a minute of trying.
    attempts: int = 10
    processes: int = MOST_PROCESSES
    cpus: float = 1.0


def fetch(
    orders: Sequence[Order],
    *,
    host: Host,
    bounds: Bounds,
    meanwhile: Callable[[], None] = lambda: None,
    tell: Callable[..., None] = lambda **_: None,
) -> Summary:
    """
    Carry out all orders side by side, within one number of streams.

    Its threads may outlive it, waiting for a server: call it in a process that ends.

    Args:
        meanwhile: called about ten times a second while bytes come; what it raises ends the fetch.
        tell: takes how far it is, as often.

    Raises:
        FatalError: a source refuses, is empty or hostile, or no attempt can succeed.
        RetryError: another attempt may succeed, and goes on where this one ended.
    """
    _few_arenas()
    deadline = time.monotonic() + bounds.timeout_s
    summary = Summary()
    with ExitStack() as stack:
        with summary.phase("claim"):
            deliveries = _claim_all(orders, stack, host=host, deadline=deadline)
        with summary.phase("list"):
            _survey(deliveries, host)
        check = partial(_check, deliveries, meanwhile)
        with summary.phase("transfer"):
            _transfer(deliveries, check, bounds=_within_limits(bounds, host, deliveries), deadline=deadline, tell=tell)
        with summary.phase("publish"):
            check()
            _publish(deliveries)
    return summary.of(deliveries)


def _claim_all(orders: Sequence[Order], stack: ExitStack, *, host: Host, deadline: float) -> list[Delivery]:
    boot = (host.read(BOOT_ID) or "").strip()
    deliveries: list[Delivery] = []
    disks: defaultdict[int, list[Delivery]] = defaultdict(list)
    for order in orders:
        claim = stack.enter_context(_claim(order, boot=boot, deadline=deadline))
        there = disks[order.hidden.stat().st_dev]
        there.append(Delivery(order, claim, boot=boot, host=host, lost=partial(_forget, there)))
        deliveries.append(there[-1])
    for delivery in deliveries:
        stack.callback(delivery.close)
    return deliveries


def _forget(deliveries: Sequence[Delivery]) -> None:
    for delivery in deliveries:  # all: what a disk refuses may be any file there, and is told once
        delivery.forget()


def _survey(deliveries: Sequence[Delivery], host: Host) -> None:
    # Loading what hashes takes as long as the first answer of a far server.
    with suppress(RuntimeError):  # no more threads
        threading.Thread(target=digests.load, name=LOADER, daemon=True).start()
    for delivery in deliveries:
        with _writing(delivery):
            delivery.survey()
    space.check(deliveries, host)


def _check(deliveries: Sequence[Delivery], meanwhile: Callable[[], None]) -> None:
    meanwhile()
    for delivery in deliveries:
        delivery.claim.check()


def _transfer(
    deliveries: Sequence[Delivery],
    check: Callable[[], None],
    *,
    bounds: Bounds,
    deadline: float,
    tell: Callable[..., None],
) -> None:
    files = [file for delivery in deliveries for file in delivery.incoming]
    if not files:
        return
    size = sum(file.to_come for file in files)
    # The largest begin first: the small ones then fill the streams that the end of a large one leaves idle.
    groups = [sorted(d.incoming, key=lambda f: f.entry.size, reverse=True) for d in deliveries]
    shares = Shares(
        groups,
        processes=bounds.processes,
        cpus=bounds.cpus,
        streams=bounds.streams,
        deadline=deadline,
        attempts=bounds.attempts,
    )
    with shares, Progress(size=size, files=len(files), tell=tell) as progress:

        def tick() -> None:
            check()
            progress.update(moved=shares.moved, files=shares.files, streams=shares.streams)

        try:
            shares.run(tick)
        except OSError:
            if shares.failed is None:  # it was about something else, such as the log
                raise
            with _writing(next(d for d in deliveries if shares.failed in d.incoming)):
                raise


def _publish(deliveries: Sequence[Delivery]) -> None:
    for delivery in deliveries:
        with _writing(delivery):
            delivery.publish()


@contextmanager
def _claim(order: Order, *, boot: str, deadline: float) -> Iterator[Claim | NoClaim]:
    """Hold a destination; none where it is read-only or full, which is fine if it is complete."""
    claim: Claim | NoClaim
    with ExitStack() as stack:
        try:
            hidden.prepare(order.hidden, inner=PARTS)
            claim = stack.enter_context(claimed(order.hidden, boot=boot, deadline=deadline))
        except OSError as error:
            reason = _disk_error(order.destination, error)
            if not _can_be_read(order, error):
                raise reason from error
            claim = NoClaim(reason)
        yield claim


def _can_be_read(order: Order, error: OSError) -> bool:
    refused = error.errno in {errno.EROFS, *NO_ROOM} or not os.access(order.hidden, os.W_OK)
    return refused and os.access(order.hidden, os.R_OK | os.X_OK)


def _few_arenas() -> None:
    """Let the threads share two heaps of glibc; with one each, what they free is kept (measured: twice the memory)."""
    with suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 2)


def _within_limits(bounds: Bounds, host: Host, deliveries: Sequence[Delivery]) -> Bounds:
    """Return the bounds with as many streams and processes as this container allows."""
    limits = read_limits(host)
    processes = min(bounds.processes, max(1, int(limits.cpus)))
    files = host.rlimit("NOFILE")
    streams = bounds.streams if files is None else max(1, min(bounds.streams, (files - BASE_FILES) // STREAM_FILES))
    bounds = replace(bounds, processes=processes, cpus=limits.cpus, streams=streams)
    if limits.memory_left is None:
        return bounds
    left = limits.memory_left - space.in_memory(deliveries)
    streams = max(1, min(bounds.streams, (left - BASE_BYTES) // STREAM_BYTES))
    more = max(0, left - BASE_BYTES - streams * STREAM_BYTES) // PROCESS_BYTES
    return replace(bounds, streams=streams, processes=min(processes, 1 + more))


@contextmanager
def _writing(delivery: Delivery) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _disk_error(delivery.order.destination, error, kept=not delivery.forgotten) from error


def _disk_error(destination: Path, error: OSError, *, kept: bool = True) -> AgentError:
    if error.errno in NO_ROOM:
        message = f"{destination} is full: {error.strerror}"
        left = "what has arrived is kept" if kept else "what had arrived may be damaged, and is fetched again"
        return RetryError("no-space", message, hint=f"give the volume more space; {left}")
    if known := exhausted(error):
        return known
    path = error.filename2 or error.filename
    name = f" ({path})" if path else ""
    if blocked := _blocked(destination, error):
        return blocked
    if error.errno == errno.EFBIG:  # by its file system (FAT) or by a limit of the container, as on every node
        hint = "use a file system that takes larger files, or raise the container's limit (ulimit -f)"
        return FatalError(
            "destination-not-writable", f"{destination} takes no files so large: {error.strerror}", hint=hint
        )
    if path and error.errno in NO_NAME and (refused := _refused_name(destination, Path(path), error)):
        return refused
    message = f"cannot write to {destination}: {error.strerror}{name}"
    if error.errno in {errno.EACCES, errno.EPERM}:  # the same on every node
        return FatalError("destination-not-writable", message, hint=_who_may(destination, Path(path or destination)))
    return RetryError("destination-not-writable", message, hint="check the volume, and whether it is mounted read-only")


def _refused_name(destination: Path, path: Path, error: OSError) -> AgentError | None:
    """Say whose name it is; None for those of our own, which are fine wherever OUTPUT_PATH leaves them room."""
    ours = path.is_relative_to(destination / HIDDEN)
    if destination in path.parents and not ours:
        message = f"the file system refuses the name {names.shown(str(path))}: {error.strerror}"
        hint = "rename it at the source, add it to IGNORE_PATTERNS, or use another file system"
        return FatalError("unsafe-name", message, hint=hint)
    if ours and error.errno != errno.ENAMETOOLONG:
        return None
    message = f"the file system refuses OUTPUT_PATH={names.shown(str(destination))}: {error.strerror}"
    return FatalError("destination-not-writable", message, hint="choose another OUTPUT_PATH")


def _blocked(destination: Path, error: OSError) -> FatalError | None:
    """Say what lies where a directory must be: a file, or a link to nothing; None for any other error."""
    on_the_way = (destination, *destination.parents)
    if error.errno == errno.ENOTDIR and (file := next(filter(Path.is_file, on_the_way), None)):
        hint = "remove it, or choose another OUTPUT_PATH"
        return FatalError("destination-in-the-way", f"{file} is a file, and must be a directory", hint=hint)
    dangling = (place for place in on_the_way if place.is_symlink() and not place.exists())
    if error.errno == errno.EEXIST and (link := next(dangling, None)):
        hint = "mount what it leads to, or choose another OUTPUT_PATH"
        message = f"{link} is a link to {link.readlink()}, which is not there"
        return FatalError("destination-in-the-way", message, hint=hint)
    return None


def _who_may(destination: Path, refused: Path) -> str:
    """Say for whom what has to be writable: the volume, or what another user has left there."""
    groups = ", ".join(str(group) for group in sorted({os.getegid(), *os.getgroups()}))
    who = f"writable for uid {os.geteuid()}, groups {groups}"
    if os.geteuid() == 0:
        who += " (root has no further rights there: root_squash of NFS, or no CAP_DAC_OVERRIDE)"
    below = [path for path in (refused, *refused.parents) if destination in path.parents]
    left = next((path for path in below if os.path.lexists(path) and not os.access(path, os.W_OK)), None)
    if left is None:
        return f"make the volume {who}{_owned(destination)}"
    ours = destination / HIDDEN
    what = f"{ours} and all in it" if left.is_relative_to(ours) else left
    return f"make {what} {who}, or remove it{_owned(left)}"


def _owned(place: Path) -> str:
    """Say whose a directory is, or the nearest one above it that can be looked at."""
    for path in (place, *place.parents):
        with suppress(OSError):
            facts = path.stat()
            return f"; {path} is of {facts.st_uid}:{facts.st_gid}, mode {facts.st_mode & 0o7777:04o}"
    return ""
