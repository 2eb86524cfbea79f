"""Send a TrainJob's status: in a process of its own, the latest of what it is told, not too often."""

from __future__ import annotations

import http.client
import json
import os
import re
import select
import signal
import ssl
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

from trainer_agent import __version__
from trainer_agent.env import redact
from trainer_agent.host import Host
from trainer_agent.status import CA_CERT, TOKEN, Endpoint, warn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PREFIX = "trainer_agent_"
TIMEOUT_S = 5.0
MOST_READ = 4096
MOST_TOKEN = 1 << 16
MOST_SHOWN = 200


class Sender:
    """
    Gather what comes through a pipe, a JSON object in each line, and send it.

    Args:
        every_s: seconds between two updates; the last one need not wait.
    """

    def __init__(self, endpoint: Endpoint, every_s: float) -> None:
        self.endpoint = endpoint
        self.every_s = every_s
        self.facts: dict[str, int] = {}
        self.rest = b""
        self.warned = False

    def serve(self, fd: int) -> None:
        """Send until the other end has said that it is the last."""
        sent: dict[str, int] = {}
        ended, due = False, time.monotonic()
        while not ended:
            left = None if self.facts == sent else max(0.0, due - time.monotonic())
            if select.select([fd], [], [], left)[0]:
                ended = self._hear(os.read(fd, 1 << 16))
            if self.facts != sent and (ended or time.monotonic() >= due):
                sent = dict(self.facts)
                self._send(sent)
                due = time.monotonic() + self.every_s

    def _hear(self, data: bytes) -> bool:
        """Take down what was said; return whether it was the last."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        for news in map(json.loads, lines):
            if news is None:
                return True
            self.facts |= news
        return not data

    def _send(self, facts: Mapping[str, int]) -> None:
        why = post(self.endpoint, body_of(facts, now=Host().now()), timeout_s=TIMEOUT_S)
        if why and not self.warned:
            self.warned = True
            warn(why)


def body_of(facts: Mapping[str, int], *, now: float) -> bytes:
    """Return the request: numbers under names of our own; percentage and time left are those of the training."""
    metrics = [{"name": f"{PREFIX}{name}", "value": str(value)} for name, value in facts.items()]
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    return json.dumps({"trainerStatus": {"metrics": metrics, "lastUpdatedTime": at}}).encode()


def post(endpoint: Endpoint, body: bytes, *, timeout_s: float) -> str:
    """Send one update within `timeout_s` seconds; return why it was not taken, nothing when it was."""
    token = ""
    try:
        with _within(timeout_s):
            token = _token(endpoint.token)
            said = _ask(endpoint, body, token, timeout_s)
    except (OSError, http.client.HTTPException, ValueError) as error:
        said = str(error) or type(error).__name__
    return redact(said, [token] if token else [])


def _token(path: str) -> str:
    try:
        with open(path, "rb") as file:  # noqa: PTH123  # Path cannot read a part
            text = file.read(MOST_TOKEN).strip().decode()
    except OSError as error:
        raise OSError(f"the file that {TOKEN} names cannot be read: {error.strerror or error}") from error
    if not re.fullmatch(r"[\x21-\x7e]+", text):
        raise ValueError(f"the file that {TOKEN} names holds no token")
    return text


def _ask(endpoint: Endpoint, body: bytes, token: str, timeout_s: float) -> str:
    """Ask the server without a proxy; a redirect is an answer like any other, so that the token goes nowhere else."""
    try:
        context = ssl.create_default_context(cafile=endpoint.ca)
    except OSError as error:
        raise OSError(f"{CA_CERT}={endpoint.ca} holds no certificates: {error.strerror or error}") from error
    parts = urlsplit(endpoint.url)
    # Without a port, it would take the end of an IPv6 address for one.
    port = parts.port or http.client.HTTPS_PORT
    connection = http.client.HTTPSConnection(parts.hostname or "", port, timeout=timeout_s, context=context)
    headers = {
        "Authorization": f"Bearer {token}",
        "Content-Type": "application/json",
        "User-Agent": f"trainer-agent/{__version__}",
        "Connection": "close",
    }
    with closing(connection):
        connection.request("POST", parts._replace(scheme="", netloc="", fragment="").geturl() or "/", body, headers)
        answer = connection.getresponse()
        return "" if 200 <= answer.status < 300 else f"the server answered {answer.status}{_message(answer)}"


def _message(answer: http.client.HTTPResponse) -> str:
    """Return what a Kubernetes status says, as far as it can be shown."""
    try:
        said: Any = json.loads(answer.read(MOST_READ))["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return ": " + "".join(c if c.isprintable() else " " for c in str(said))[:MOST_SHOWN]


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Raise TimeoutError after `seconds`, whatever trickles in meanwhile; only a process's main thread may do this."""

    def late(_signum: int, _frame: object) -> NoReturn:
        raise TimeoutError(f"no answer within {seconds:g} s")

    previous = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
