"""
How many connections at once.

A near server is saturated by a few; a far one needs many, because each is limited by latency or by the server.
Whoever is asked to slow down (429, 503) halves them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

# Where the processor is busy with a few streams, others only take it from each other. Measured with two cores against
# nginx on loopback: 4 streams move 2 GiB in 1.64 s, 8 in 1.69 s, 16 in 1.94 s; in two processes 2,000 files of 256 KiB
# in 1.12 s, 1.18 s, 1.28 s.
FEW = 4
# A server that caps each connection is not far, but leaves the processor idle; 16 bring twice as much of it as 8.
NEAR = 16
IDLE = 1 / 3  # measured: 1.2 of two cores against nginx, 0.3 against a server that caps connections at 80 MB/s
# Where a few keep the processor so busy, half of them do as much with a tenth less of it: two that write to one file
# wait for each other, and two of one interpreter.
BUSY = 1 / 2
IDLE_S = 0.08
# Files that take less than this to fetch need more than a few streams where the first byte takes longer.
TINY_BYTES = 1 << 20
CLOSE_S = 0.001
# Measured with 30 ms to the first byte and 80 MB/s a connection: 32 streams saturate large files; of small ones 128
# bring twice what 64 do.
FAR, FAR_SMALL = 32, 128
FAR_S = 0.010
ENOUGH = 4  # answers, of which the fastest decides
ENOUGH_KEPT = 4 * FEW  # answers, most of them on connections that were there already
SMALL_BYTES = 4 << 20
PROBE_S = 2.0
# A step that brings less than this is not worth its memory.
WORTHWHILE = 1.10
HOLD_S = 20.0
HALVE_EVERY_S = 1.0


@dataclass
class Streams:
    """
    The number of streams that may be open, `allowed`; told about first bytes, errors and progress.

    Args:
        most: never more.
        small: the files are so small that a request is mostly waiting.
        tiny: none of the files has more than `TINY_BYTES`.
        cpus: that may be used; with tiny files the interpreter is busy with one.
    """

    most: int
    small: bool
    tiny: bool = False
    cpus: float = 1.0
    allowed: int = 0
    _answers: int = 0
    _nearest_s: float = field(default=float("inf"))
    _level: tuple[int, float] = (0, 0.0)  # streams and bytes per second before the last step
    _mark: tuple[float, int] | None = None  # when this level began, and the bytes by then
    _hold_until: float = 0.0
    _halved_at: float = float("-inf")
    _used: tuple[float, float] | None = None  # when it was last looked at, and the processor's seconds by then

    def __post_init__(self) -> None:
        self.allowed = min(FEW, self.most)

    def first_byte(self, seconds: float) -> None:
        """Take the time from a request to its first bytes; the fastest of all says how far the server is."""
        self._answers += 1
        self._nearest_s = min(self._nearest_s, seconds)
        if self._answers == ENOUGH and self._nearest_s >= FAR_S:
            self.allowed = min(self.most, FAR_SMALL if self.small else FAR)
        elif self.tiny and self._answers == ENOUGH_KEPT and self._nearest_s >= CLOSE_S:
            self._at_least(NEAR)

    def slow_down(self, now: float) -> None:
        """Halve: the server is busy, or breaks connections."""
        if now - self._halved_at >= HALVE_EVERY_S:
            self.allowed = max(1, self.allowed // 2)
            self._halved_at, self._hold_until, self._mark = now, now + HOLD_S, None

    def tick(self, now: float, moved: int, cpu_s: float) -> None:
        """
        Every two seconds, try half as many more and keep them when they bring more.

        Args:
            now: on the monotonic clock.
            moved: bytes so far.
            cpu_s: seconds of processors that this process has used so far.
        """
        self._fit_the_processor(now, cpu_s)
        if self._mark is None:
            self._mark = (now, moved)
        since, before = self._mark
        if now - since < PROBE_S or now < self._hold_until:
            return
        rate = (moved - before) / (now - since)
        streams, earlier = self._level
        self._mark = (now, moved)
        if streams and streams < self.allowed and rate < earlier * WORTHWHILE:
            self.allowed, self._hold_until = streams, now + HOLD_S
            self._level = (0, 0.0)
            return
        self._level = (self.allowed, rate)
        self.allowed = min(self.most, self.allowed + max(1, self.allowed // 2))

    def _fit_the_processor(self, now: float, cpu_s: float) -> None:
        if self._used is None:
            self._used = (now, cpu_s)
        since, before = self._used
        if now - since < IDLE_S:
            return
        self._used = (now, cpu_s)
        busy = (cpu_s - before) / (now - since) / (min(1.0, self.cpus) if self.tiny else self.cpus)
        if busy < IDLE and now >= self._hold_until:
            self._at_least(NEAR)
        elif busy > BUSY and self.allowed == FEW:
            self.allowed, self._mark = FEW // 2, None

    def _at_least(self, streams: int) -> None:
        if self.allowed < min(streams, self.most):
            self.allowed, self._mark = min(streams, self.most), None
