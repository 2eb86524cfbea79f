"""What this container may use: CPU and memory limits from cgroup v1 or v2, and the CPU affinity."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from trainer_agent.env import whole_number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainer_agent.host import Host

# A v1 memory limit of "none" is the largest page-aligned 63-bit number; anything this large means no limit.
NO_LIMIT = 1 << 60
PROGRAMS_PART = 0.9  # of the memory that is left; the rest is for the checks beside it


@dataclass(frozen=True)
class Limits:
    """
    Limits of this container.

    Args:
        version: 1 or 2, or 0 when no cgroup file system is mounted.
        cpu_quota: CPUs' worth of time, None without a quota.
        cpus_allowed: number of CPUs in the affinity mask.
        memory_limit: bytes, None without a limit.
        memory_used: bytes without the page cache that can be dropped, None when unknown.
        oom_kills: processes of this cgroup killed for memory so far, None when unknown.
        pids_limit: most processes and threads, None without a limit.
    """

    version: int
    cpu_quota: float | None
    cpus_allowed: int
    memory_limit: int | None
    memory_used: int | None
    oom_kills: int | None
    pids_limit: int | None

    @property
    def cpus(self) -> float:
        """CPUs that may really be used: the smaller of quota and affinity."""
        return min(self.cpu_quota or self.cpus_allowed, self.cpus_allowed)

    @property
    def memory_left(self) -> int | None:
        """Bytes until the limit, None without one."""
        return None if self.memory_limit is None else max(0, self.memory_limit - (self.memory_used or 0))

    def for_a_program(self, share: float = 1.0) -> float | None:
        """Return how many bytes a program may take that must not take ours; `share` is 1 / n for n side by side."""
        return None if self.memory_left is None else self.memory_left * PROGRAMS_PART * share


@dataclass(frozen=True)
class Pressure:
    """
    What has happened to this cgroup since it was made; None is unknown.

    Args:
        memory_high: bytes above which the kernel slows allocations down, None without such a mark.
        memory_max_hits: how often memory had to be reclaimed because the limit was reached.
        memory_high_hits: how often allocations were slowed down.
        periods, throttled_periods, throttled_s: of the CPU quota.
    """

    memory_high: int | None = None
    memory_max_hits: int | None = None
    memory_high_hits: int | None = None
    periods: int | None = None
    throttled_periods: int | None = None
    throttled_s: float | None = None


def read_pressure(host: Host) -> Pressure:
    """Return what the limits of this process's cgroup have done to it."""
    groups = _Groups(host)
    first = groups.first
    if groups.version != 2:
        nanoseconds = first("cpu", "cpu.stat", "throttled_time")
        return Pressure(
            memory_max_hits=groups.number("memory", "memory.failcnt"),
            periods=first("cpu", "cpu.stat", "nr_periods"),
            throttled_periods=first("cpu", "cpu.stat", "nr_throttled"),
            throttled_s=None if nanoseconds is None else nanoseconds / 1e9,
        )
    microseconds = first("cpu", "cpu.stat", "throttled_usec")
    return Pressure(
        memory_high=groups.smallest("memory", "memory.high"),
        memory_max_hits=first("memory", "memory.events", "max"),
        memory_high_hits=first("memory", "memory.events", "high"),
        periods=first("cpu", "cpu.stat", "nr_periods"),
        throttled_periods=first("cpu", "cpu.stat", "nr_throttled"),
        throttled_s=None if microseconds is None else microseconds / 1e6,
    )


def read_limits(host: Host) -> Limits:
    """Return the limits of the cgroup this process is in; absent files mean no limit."""
    groups = _Groups(host)
    return Limits(
        version=groups.version,
        cpu_quota=groups.cpu_quota(),
        cpus_allowed=len(host.affinity()),
        memory_limit=groups.smallest("memory", "memory.max" if groups.version == 2 else "memory.limit_in_bytes"),
        memory_used=groups.memory_used(),
        oom_kills=groups.oom_kills(),
        pids_limit=groups.smallest("pids", "pids.max"),
    )


class _Groups:
    """The directories of this process's cgroup, from its own up to the root of the mount."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.version = (
            2 if host.exists("/sys/fs/cgroup/cgroup.controllers") else 1 if host.exists("/sys/fs/cgroup/memory") else 0
        )
        self.paths = dict(_memberships(host.read("/proc/self/cgroup") or ""))

    def directories(self, controller: str) -> Iterator[PurePosixPath]:
        mount = PurePosixPath("/sys/fs/cgroup") / ("" if self.version == 2 else controller)
        own = self.paths.get("" if self.version == 2 else controller, "/")
        # Without a cgroup namespace the path is the host's and does not exist under the container's mount.
        path = mount / own.lstrip("/")
        while path != mount:
            yield path
            path = path.parent
        yield mount

    def numbers(self, controller: str, name: str) -> Iterator[int]:
        for directory in self.directories(controller):
            number = whole_number((self.host.read(directory / name) or "").strip())
            if number is not None and number < NO_LIMIT:
                yield number

    def smallest(self, controller: str, name: str) -> int | None:
        return min(self.numbers(controller, name), default=None)

    def number(self, controller: str, name: str) -> int | None:
        return next(self.numbers(controller, name), None)

    def cpu_quota(self) -> float | None:
        quotas = (self._quota(d) for d in self.directories("cpu"))
        return min((q for q in quotas if q is not None), default=None)

    def _quota(self, directory: PurePosixPath) -> float | None:
        if self.version == 2:
            words = (self.host.read(directory / "cpu.max") or "").split()
        else:
            words = [(self.host.read(directory / f"cpu.cfs_{n}_us") or "").strip() for n in ("quota", "period")]
        numbers = [whole_number(word) for word in words]
        return numbers[0] / numbers[1] if len(numbers) == 2 and numbers[0] and numbers[1] else None

    def memory_used(self) -> int | None:
        """Page cache counts as usage but goes when memory is needed, so it is taken off, as the kubelet does."""
        v2 = self.version == 2
        used = self.number("memory", "memory.current" if v2 else "memory.usage_in_bytes")
        cache = next(self.values("memory", "memory.stat", "inactive_file" if v2 else "total_inactive_file"), 0)
        return None if used is None else max(0, used - cache)

    def oom_kills(self) -> int | None:
        return self.first("memory", "memory.events" if self.version == 2 else "memory.oom_control", "oom_kill")

    def first(self, controller: str, name: str, key: str) -> int | None:
        """Return the number after `key` in the nearest file that has it."""
        return next(self.values(controller, name, key), None)

    def values(self, controller: str, name: str, key: str) -> Iterator[int]:
        """Yield the numbers after `key` in files of lines `key number`."""
        for directory in self.directories(controller):
            for line in (self.host.read(directory / name) or "").splitlines():
                if line.startswith(f"{key} "):
                    yield int(line.split()[1])


def _memberships(text: str) -> Iterator[tuple[str, str]]:
    """Yield (controller, path) of /proc/self/cgroup; the v2 hierarchy's controller is the empty string."""
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            yield controller, path
