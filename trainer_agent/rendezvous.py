"""Wait for rank 0's name, and on rank 0 make sure that the name is ours and the port free."""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from trainer_agent.env import whole_number
from trainer_agent.errors import FatalError, RetryError
from trainer_agent.host import NameLookupError
from trainer_agent.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainer_agent.host import Host
    from trainer_agent.topology import Topology

PROGRESS_S = 10.0
PAUSE_S = 0.5
LOOKUP_S = 10.0  # two attempts of glibc's 5 s
# A headless service of Kubernetes has a TTL of 30 s; until then the name may still lead to the pod before this one.
STALE_NAME_S = 60.0
CONNECT_S = 5.0
# XGBoost's versions from which on its tracker is written in C++.
PATIENT = (2, 1)
# Its package has other names, too; to import it takes seconds.
VERSION = """
from importlib.metadata import distributions
print(*[d.version for d in distributions() if d.name in ("xgboost", "xgboost-cpu")][:1])
"""
VERSION_S = 20.0
PYTHON = re.compile(r"python(\d+(\.\d+)?)?")


class NameNeverCameError(RetryError):
    """Rank 0's name did not resolve in time."""

    def __init__(self, variable: str, name: str, *, reason: str, waited_s: float) -> None:
        super().__init__(
            "master-name-missing",
            f"{variable}={name} did not resolve within {waited_s:.0f} s: {reason}",
            hint="check that the pod of rank 0 exists and that its headless Service has publishNotReadyAddresses: true",
        )


class MasterElsewhereError(RetryError):
    """This node has rank 0, but the name leads to another one."""

    def __init__(self, variable: str, name: str, *, addresses: list[str]) -> None:
        super().__init__(
            "master-elsewhere",
            f"this node has rank 0, but {variable}={name} is {', '.join(addresses)}, no address of this node",
            hint=f"two nodes have rank 0, or ranks are swapped: rank 0 must be the pod that {variable} names",
        )


class PortTakenError(RetryError):
    """Somebody listens on the master port."""

    def __init__(self, variable: str, port: int, *, holder: str) -> None:
        super().__init__(
            "master-port-taken",
            f"port {port} of {variable} is taken on this node{holder}",
            hint=f"end the process that holds it, or set another port in {variable} on all nodes",
        )


class TrackerSilentError(RetryError):
    """Nobody listens where XGBoost's tracker should be."""

    def __init__(self, topology: Topology, *, waited_s: float) -> None:
        place = f"DMLC_TRACKER_URI={topology.master_addr} DMLC_TRACKER_PORT={topology.master_port}"
        super().__init__(
            "tracker-silent",
            f"no tracker answers at {place} after {waited_s:.0f} s",
            hint="look at the pod of task 0: it has to run, and its script to start XGBoost's tracker at this port",
        )


class PortForbiddenError(FatalError):
    """The kernel does not let this user listen on the master port."""

    def __init__(self, variable: str, port: int) -> None:
        super().__init__(
            "master-port-forbidden",
            f"port {port} of {variable} may not be opened by this user (EACCES)",
            hint=f"set a port of 1024 or more in {variable} on all nodes, such as 29500",
        )


def tracker_takes_probes(script: Sequence[str], python: str, environ: Mapping[str, str]) -> bool:
    """
    Return whether XGBoost's tracker stands a connection that says nothing: the training's XGBoost is 2.1 or newer.

    Until 2.0 the tracker reads from such a connection for ever, and answers no worker any more. Where nobody can say
    which XGBoost it is, it may be one of those.
    """
    from trainer_agent.guarded import run_guarded

    program = script[0] if script and PYTHON.fullmatch(script[0].rpartition("/")[2]) else python
    try:
        asked = run_guarded([program, "-c", VERSION], environ=environ, timeout_s=VERSION_S)
    except OSError:
        return False
    first, _, rest = asked.last_line.partition(".")
    found = (whole_number(first) or 0, whole_number(rest.partition(".")[0]) or 0)
    return found >= PATIENT


def wait_for_master(topology: Topology, host: Host, *, timeout_s: float, probe: bool = False) -> None:
    """
    Return when rank 0's name resolves, and on rank 0 leads here with its port free.

    Args:
        probe: whether to wait for XGBoost's tracker, too, which its workers on other nodes try to reach for 6 s only.

    Raises:
        RetryError: not within `timeout_s` seconds; the message says what was missing.
        FatalError: the port is one that this user may not open.
    """
    wait = _Wait(topology, host, timeout_s)
    while True:
        addresses = wait.resolve()
        if probe and topology.node_rank != 0 and not _answers(addresses, topology.master_port):
            wait.silent(topology)
            continue
        if topology.node_rank != 0 or topology.rdzv_backend not in ("static", "jax"):
            return
        if addresses and _is_ours(topology, host, addresses):
            return
        wait.elsewhere(addresses)


def _is_ours(topology: Topology, host: Host, addresses: list[str]) -> bool:
    port, variable = topology.master_port, topology.port_variable
    claims = {host.claim(address, port) for address in addresses}
    if "taken" in claims:
        raise PortTakenError(variable, port, holder=_holder(port))
    if "EACCES" in claims:
        raise PortForbiddenError(variable, port)
    return "free" in claims


def _answers(addresses: list[str], port: int) -> bool:
    for address in addresses:
        with suppress(OSError), socket.create_connection((address, port), CONNECT_S):
            return True
    return False


class _Wait:
    """A bounded wait that says every ten seconds what it waits for."""

    def __init__(self, topology: Topology, host: Host, timeout_s: float) -> None:
        self.name = topology.master_addr
        self.variable = topology.master_variable
        self.host = host
        self.timeout_s = timeout_s
        self.started = host.monotonic()
        self.told = self.started
        self.stale_since: float | None = None

    def resolve(self) -> list[str]:
        while True:
            try:
                return self.host.resolve(self.name, timeout_s=max(0.1, min(LOOKUP_S, self._left(self.timeout_s))))
            except NameLookupError as error:
                last = error.message
                never = NameNeverCameError(self.variable, self.name, reason=last, waited_s=self.timeout_s)
                self._pause(self.timeout_s, never, what="the master's name to resolve", last=last)

    def elsewhere(self, addresses: list[str]) -> None:
        error = MasterElsewhereError(self.variable, self.name, addresses=addresses)
        if self.stale_since is None:  # a name that came late may be stale as long as one that was there at once
            self.stale_since = self.host.monotonic() - self.started
        what = f"the master's name to lead here instead of {', '.join(addresses)}"
        self._pause(min(self.timeout_s, self.stale_since + STALE_NAME_S), error, what=what, last=error.message)

    def silent(self, topology: Topology) -> None:
        error = TrackerSilentError(topology, waited_s=self.timeout_s)
        self._pause(self.timeout_s, error, what="the tracker to answer", last=error.message)

    def _left(self, timeout_s: float) -> float:
        return self.started + timeout_s - self.host.monotonic()

    def _pause(self, timeout_s: float, error: RetryError, *, what: str, last: str) -> None:
        if self._left(timeout_s) <= 0:
            raise error
        if self.host.monotonic() - self.told >= PROGRESS_S:
            self.told = self.host.monotonic()
            waited = round(self.told - self.started)
            get_logger().info(f"waiting for {what}", name=self.name, waited_s=waited, timeout_s=timeout_s, last=last)
        self.host.sleep(max(0.0, min(PAUSE_S, self._left(timeout_s))))


def _holder(port: int) -> str:
    """Return who listens on `port`, as far as this container may see it."""
    import psutil

    try:
        listening = [c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        pids = {c.pid for c in listening if c.pid and tuple(c.laddr)[1:2] == (port,)}
        names = [f"{psutil.Process(pid).name()} (pid {pid})" for pid in sorted(pids)]
    except (psutil.Error, OSError):
        return ""
    return f" by {', '.join(names)}" if names else ""
