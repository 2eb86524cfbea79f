"""
One agent at a time in a destination, also when several pods share it (ReadWriteMany).

Two things say who is at work. A kernel lock (flock) ends with its holder, at once. But some file systems keep it to one
node or to one mount, or have none; so the holder also renews a lease, a small file.

A lease is created only where there is none, which one agent alone can do. The lease of an agent that had the very
kernel lock that we have is of one that died. Another's that has not changed for `stale_s` seconds is taken over; two
may do so at once, and one that is stopped between looking and writing may do so late, over a holder who lives. So
whoever has taken over waits until such a holder must have noticed, and then looks whose lease it is.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer_agent.errors import AgentError, FatalError, RetryError
from trainer_agent.initializers.hidden import open_plain
from trainer_agent.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LOCK = "lock"
LEASE = "lease"
RENEWER = "lease"  # the thread
# The last is a seccomp profile's.
UNSUPPORTED = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM})
LOG_EVERY_S = 10.0
# A lease has about 150 bytes; a longer one makes no sense.
MOST_BYTES = 4096


@dataclass(frozen=True)
class Times:
    """Seconds: between renewals of the lease, until an unchanged one is nobody's, between looks."""

    renew_s: float = 2.0
    stale_s: float = 15.0
    look_s: float = 0.25

    @property
    def settle_s(self) -> float:
        """After this long a holder who lives has noticed that its lease is another's."""
        return 2 * self.renew_s


@dataclass(frozen=True)
class NoClaim:
    """
    A destination that can only be read, which is fine where it is complete.

    Args:
        reason: why it cannot be written.
    """

    reason: AgentError
    writable = False

    def check(self) -> None:
        """Nobody can take over what is not ours."""

    def confirm(self) -> None:
        """Raise the reason: nothing may be changed."""
        raise self.reason


class Claim:
    """
    The right to change a destination.

    Args:
        directory: where lock and lease lie.
        lock: names the kernel lock that we have: its kernel and its mount; empty without one.
    """

    writable = True

    def __init__(self, directory: Path, *, lock: str, times: Times) -> None:
        self.lease = directory / LEASE
        self.id = secrets.token_hex(8)
        self.lock = lock
        self.times = times
        self._count = 0
        self._lost = False
        self._anew = False
        self._ended = threading.Event()
        self._writing = threading.Lock()

    def check(self) -> None:
        """Raise `RetryError` when another agent has taken the destination over."""
        if self._lost:
            hint = "this node may have been out of touch with the volume; another agent goes on"
            raise RetryError("destination-lost", f"another agent has taken over {self.lease.parent.parent}", hint=hint)

    def confirm(self) -> None:
        """
        Look at the lease itself, and renew it: whoever was stopped or out of touch may not have noticed yet.

        One that was gone meanwhile may have been another's, who has taken over and finished.

        Raises:
            RetryError: another agent has taken the destination over.
            OSError: it cannot be written.
        """
        self.renew_if_ours()
        self._lost = self._lost or self._anew
        self.check()

    def create(self) -> bool:
        """Write the lease where there is none; return whether there was none."""
        try:
            fd = open_plain(self.lease, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            return False
        try:
            self._write(fd)
        except OSError:
            self.lease.unlink()
            raise
        return True

    def renew(self) -> None:
        """Write the lease anew, whosever it was."""
        part = self.lease.with_name(f"{LEASE}.{self.id}")
        try:
            self._write(open_plain(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
            part.replace(self.lease)
        except OSError:
            part.unlink(missing_ok=True)
            raise

    def keep_renewing(self) -> None:
        """Renew until the end, unless the lease has become another's."""
        while not self._ended.wait(self.times.renew_s) and not self._lost:
            with suppress(OSError):  # a volume that does not answer now may do so next time
                self.renew_if_ours()

    def renew_if_ours(self) -> None:
        """Renew once, or note that the lease is another's."""
        with self._writing:
            if self._ended.is_set():
                return
            try:
                there = read_lease(self.lease)
            except FatalError:  # it has become something else than a file
                self._lost = True
                return
            if there is None:
                self._anew = self.create() or self._anew
            elif there.get("id", self.id) == self.id:
                self.renew()
            else:
                self._lost = True

    def end(self) -> None:
        """Remove the lease if it is ours."""
        self._ended.set()
        with suppress(OSError, FatalError), self._writing:
            if (read_lease(self.lease) or {}).get("id") == self.id:
                self.lease.unlink()

    def _write(self, fd: int) -> None:
        self._count += 1
        owner = {"id": self.id, "host": os.uname().nodename, "pid": os.getpid(), "lock": self.lock, "n": self._count}
        with os.fdopen(fd, "w") as file:
            file.write(json.dumps(owner))


@contextmanager
def claimed(
    directory: Path,
    *,
    boot: str,
    deadline: float,
    times: Times = Times(),
    flock: Callable[[int, int], None] = fcntl.flock,
) -> Iterator[Claim]:
    """
    Wait until nobody else works in `directory`, then hold it.

    Args:
        boot: the kernel's boot id, empty when nobody knows.
        deadline: on the monotonic clock.

    Raises:
        RetryError: somebody else still works there at `deadline`.
        FatalError: lock or lease is no plain file.
        OSError: it cannot be written.
    """
    wait = _Wait(directory, times.look_s, deadline)
    fd = open_plain(directory / LOCK, os.O_RDWR | os.O_CREAT)
    try:
        # Two mounts of one network file system on one node may each have a lock of their own.
        known = _lock(fd, flock, wait) and bool(boot)
        claim = Claim(directory, lock=f"{boot}:{os.fstat(fd).st_dev}" if known else "", times=times)
        try:
            _take_lease(claim, wait)
            threading.Thread(target=claim.keep_renewing, name=RENEWER, daemon=True).start()
            yield claim
        finally:
            claim.end()
    finally:
        os.close(fd)


def _lock(fd: int, flock: Callable[[int, int], None], wait: _Wait) -> bool:
    """Wait for the kernel lock; return whether this file system has one."""
    while True:
        try:
            flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            wait.once("flock")
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            return False


def _take_lease(claim: Claim, wait: _Wait) -> None:
    """Return once the lease is ours."""
    while not _try_lease(claim, wait):
        wait.once("lease")


def _try_lease(claim: Claim, wait: _Wait) -> bool:
    """Take the lease if nobody has it, or nobody any more; return whether it is ours."""
    looked_at = time.monotonic()
    there = read_lease(claim.lease)
    if there is None:
        return claim.create()
    dead = bool(claim.lock) and there.get("lock") == claim.lock
    if not dead and _changes(claim, there, wait):
        return False
    claim.renew()
    if dead and time.monotonic() - looked_at < claim.times.renew_s:
        return True  # so soon that nobody can have held it in between without noticing
    time.sleep(claim.times.settle_s)
    return (read_lease(claim.lease) or {}).get("id") == claim.id


def _changes(claim: Claim, there: dict[str, Any], wait: _Wait) -> bool:
    """Return whether the lease changes within `stale_s` seconds."""
    since = time.monotonic()
    while time.monotonic() - since < claim.times.stale_s:
        wait.once("lease")
        if read_lease(claim.lease) != there:
            return True
    return False


class _Wait:
    """Waiting for the one who is at work, with a line now and then."""

    def __init__(self, directory: Path, look_s: float, deadline: float) -> None:
        self.directory = directory
        self.look_s = look_s
        self.deadline = deadline
        self.said_at = float("-inf")

    def once(self, what: str) -> None:
        now = time.monotonic()
        if now > self.deadline:
            message = f"{self.directory.parent} is still being filled by {self._who()}"
            raise RetryError("destination-busy", message, hint="look there, or raise --timeout")
        if now - self.said_at >= LOG_EVERY_S:
            self.said_at = now
            get_logger().info(
                "waiting for another agent", destination=str(self.directory.parent), who=self._who(), by=what
            )
        time.sleep(self.look_s)

    def _who(self) -> str:
        lease = self.directory / LEASE
        match read_lease(lease):
            case {"host": str(host), "pid": int(pid)} if host.isprintable():
                return f"{host} (process {pid})"
        return f"another agent, of which {lease} tells nothing"


def read_lease(lease: Path) -> dict[str, Any] | None:
    """
    Return what a lease says: None when there is none, nothing when it makes no sense.

    Raises:
        FatalError: it is no plain file.
    """
    try:
        with os.fdopen(open_plain(lease, os.O_RDONLY), "rb") as file:
            found = json.loads(file.read(MOST_BYTES))
    except FileNotFoundError:
        return None
    except PermissionError:
        return _changed_at(lease)
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _changed_at(lease: Path) -> dict[str, Any] | None:
    """Return what tells that another user's lease, which we may not read, is renewed."""
    try:
        stat = lease.lstat()
    except FileNotFoundError:
        return None
    return {"id": "", "changed_at": (stat.st_ino, stat.st_mtime_ns)}
