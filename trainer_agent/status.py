"""
Tell the TrainJob how initialization and preflight go, where the controller says how (KEP-2779).

A child of its own does the talking, so that no server can hold up, slow down or fail what it reports on.
"""

from __future__ import annotations

import json
import math
import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer_agent.env import whole_number
from trainer_agent.host import Host
from trainer_agent.isolation import Children
from trainer_agent.log import get_logger
from trainer_agent.topology import read_topology

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# What Kubeflow Trainer injects since 2.2.0, the first release that has the endpoint; the last two are paths.
URL, CA_CERT, TOKEN = NAMES = tuple(f"KUBEFLOW_TRAINER_SERVER_{word}" for word in ("URL", "CA_CERT", "TOKEN"))
SWITCH = "TRAINER_AGENT_STATUS"
ATTEMPT = "TRAINER_AGENT_PREFLIGHT_ATTEMPT"
# Each update is a write to etcd. Kubeflow's own SDK sends one in 5 s.
EVERY_S = 10.0
LAST_S = 1.0
END = b"null\n"


@dataclass(frozen=True)
class Endpoint:
    """
    Where a TrainJob's status goes.

    Args:
        ca: file with the certificates to trust.
        token: file with the token, which the kubelet replaces before it expires.
    """

    url: str
    ca: str
    token: str


@contextmanager
def reporting(environ: Mapping[str, str], *, every_s: float = EVERY_S) -> Iterator[Callable[..., None]]:
    """
    Return a function that takes numbers by name, of which the latest reach the TrainJob now and then.

    It returns at once, never raises, and may be called from children, too. Where there is nobody to tell it does
    nothing. The block ends at most `LAST_S` seconds later for it, and at once when a signal ends it.
    """
    endpoint = find_endpoint(environ)
    if endpoint is None:
        yield lambda **_: None
        return
    with Children() as children:
        line = _start(children, endpoint, every_s)
        try:
            yield line
        except Exception:
            _end(line, children)
            raise
        _end(line, children)


def _start(children: Children, endpoint: Endpoint, every_s: float) -> _Line:
    """Start the child; without one what is said goes nowhere."""
    line = _Line(-1, -1)
    try:
        line = _Line(*os.pipe())
        children.start(lambda: _send(endpoint, line, every_s), math.inf)
    except OSError as error:  # no process, no memory or no file descriptor is left
        warn(str(error))
    if line.read >= 0:
        os.close(line.read)
    return line


def _send(endpoint: Endpoint, line: _Line, every_s: float) -> None:
    from trainer_agent.status_sender import Sender  # what it needs is loaded in the child alone

    Sender(endpoint, every_s).serve(line.take())


def find_endpoint(environ: Mapping[str, str]) -> Endpoint | None:
    """Return where this pod's progress goes; None when it is not to be told, with a warning where that is a fault."""
    values = [environ.get(name, "").strip() for name in NAMES]
    if not any(values) or environ.get(SWITCH, "").strip() == "0":
        return None
    topology = read_topology(environ, hostname=Host().hostname())
    if topology.node_rank or topology.errors:  # of several pods only one speaks
        return None
    attempt = environ.get(ATTEMPT, "").strip()
    if whole_number(attempt):
        get_logger().info("the TrainJob's status is left as training wrote it", why=f"{ATTEMPT}={attempt}")
        return None
    missing = [name for name, value in zip(NAMES, values, strict=True) if not value]
    why = f"{', '.join(missing)} not set beside the others" if missing else _unfit(values[0])
    if why:
        warn(why)
        return None
    return Endpoint(*values)


def _unfit(url: str) -> str:
    """Return what is wrong with a URL; with http everybody on the way could read the token."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        good = parts.scheme == "https" and parts.hostname and parts.port != 0 and parts.username is None
    except ValueError:
        good = False
    return "" if good else f"{URL} is not https://HOST[:PORT]/PATH"


def warn(why: str) -> None:
    """Say that the status is not updated, and why."""
    hint = f"the job goes on without it; look at the three variables KUBEFLOW_TRAINER_SERVER_…, or set {SWITCH}=0"
    _warn("status-not-sent", f"the TrainJob's status is not updated: {why}", hint)


def _warn(code: str, message: str, hint: str) -> None:
    get_logger().warning(message, code=code, hint=hint)


def _end(line: _Line, children: Children) -> None:
    """Give the child a moment for the last update."""
    line.close()
    if children.running and children.selector.select(LAST_S):
        _, answer = children.next()
        if answer.error:
            warn(str(answer.error))


class _Line:
    """The way to the child; what finds no room is dropped, and said when it has changed again."""

    def __init__(self, read: int, write: int) -> None:
        self.read = read
        self.write = write
        self.said: dict[str, int] = {}
        if write >= 0:
            os.set_blocking(write, False)

    def __call__(self, **facts: int) -> None:
        news = {name: value for name, value in facts.items() if self.said.get(name) != value}
        if news and self.write >= 0:
            self.said |= news
            self._put(json.dumps(news).encode() + b"\n")

    def _put(self, data: bytes) -> None:
        with suppress(BlockingIOError, BrokenPipeError):  # up to 4,096 bytes go whole or not at all
            os.write(self.write, data)

    def take(self) -> int:
        """In the child: return the end to read from."""
        os.close(self.write)
        return self.read

    def close(self) -> None:
        """Say that this is all; others that have been forked meanwhile may hold the pipe open."""
        if self.write >= 0:
            self._put(END)
            os.close(self.write)
        self.write = -1
