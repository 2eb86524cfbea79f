"""What can go wrong between client and server, and what was seen of it: the vocabulary of `breaker`."""

import math
import re
import threading
import time
from dataclasses import dataclass, field
from urllib.parse import unquote

PIECE_BYTES = 256 << 10
STEP_S = 0.02


@dataclass(frozen=True)
class Answer:
    """An answer of our own instead of the server's."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


def s3_error(status, code, **headers):
    """Return an error as S3 words it; `Retry_After="1"` becomes a header."""
    body = f"<?xml version='1.0' encoding='UTF-8'?>\n<Error><Code>{code}</Code><Message>scripted</Message></Error>"
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, body.encode(), {"Content-Type": "application/xml", **named})


@dataclass(eq=False)
class Fault:
    """
    What happens to the requests that match.

    Args:
        match: a regular expression, searched in `METHOD path?query`.
        ranged: only requests with a Range (True) or without (False).
        skip, times: how many matching requests pass first, and how many are affected then; None is all.
        latency_s: wait before the first byte.
        bytes_per_s: most that the body flows.
        answer: given instead of the server's.
        flip: the byte of the body of which one bit is turned.
        reset_after, cut_after, stall_after: bytes of the body after which the connection is reset, ends, or says
            nothing until `release` or until the client goes.

    Attributes:
        seen, done: how many requests matched, and to how many it happened: others ended before that byte.
    """

    match: str
    ranged: bool | None = None
    skip: int = 0
    times: int | None = 1
    latency_s: float = 0.0
    bytes_per_s: float = math.inf
    answer: Answer | None = None
    flip: int | None = None
    reset_after: int | None = None
    cut_after: int | None = None
    stall_after: int | None = None
    seen: int = field(default=0, init=False)
    done: int = field(default=0, init=False)

    @property
    def end(self):
        """The byte of the body before which the connection breaks."""
        return min((n for n in (self.reset_after, self.cut_after, self.stall_after) if n is not None), default=math.inf)

    def hits(self, exchange):
        """Return whether this request is affected; counts those that match."""
        if self.ranged not in {None, bool(exchange.range)} or not re.search(self.match, exchange.line):
            return False
        self.seen += 1
        return self.seen > self.skip and (self.times is None or self.seen <= self.skip + self.times)


@dataclass(eq=False)
class Exchange:
    """A request, and how many bytes of the answer's body went out; `at` is on the monotonic clock."""

    method: str
    target: str
    range: str = ""
    at: float = field(default_factory=time.monotonic)
    status: int = 0
    sent: int = 0
    ours: bool = False

    @property
    def line(self):
        """What faults are matched against."""
        return f"{self.method} {unquote(self.target)}"

    @property
    def path(self):
        """The path, decoded and without a query."""
        return unquote(self.target.partition("?")[0])

    @property
    def bytes(self):
        """How many bytes of an object went out, not of a list."""
        of_object = self.method == "GET" and self.status in {200, 206} and "list-type=" not in self.target
        return self.sent if of_object and not self.ours else 0

    @property
    def span(self):
        """Which bytes of the object, as (start, stop)."""
        found = re.match(r"bytes=(\d+)-", self.range)
        start = int(found[1]) if found and self.status == 206 else 0
        return start, start + self.bytes


class Pace:
    """So many bytes per second, evenly, for whoever shares it."""

    def __init__(self, bytes_per_s):
        self.bytes_per_s = bytes_per_s
        self._free_at = 0.0
        self._lock = threading.Lock()

    @property
    def step(self):
        """How many bytes to send at once."""
        return PIECE_BYTES if self.bytes_per_s == math.inf else max(1, int(self.bytes_per_s * STEP_S))

    def wait_s(self, size):
        """Take a turn with `size` bytes; return how long to wait for it."""
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + size / self.bytes_per_s
            return self._free_at - now


def covered(spans):
    """Return how many bytes lie in at least one of the spans (start, stop)."""
    total = at = 0
    for start, stop in sorted(spans):
        total += max(0, stop - max(start, at))
        at = max(at, stop)
    return total
