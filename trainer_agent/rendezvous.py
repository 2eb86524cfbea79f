"""Wait for rank 0's name, and on rank 0 make sure that the name is ours and the port free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer_agent.errors import RetryError
from trainer_agent.host import NameLookupError
from trainer_agent.log import get_logger

if TYPE_CHECKING:
    from trainer_agent.host import Host
    from trainer_agent.topology import Topology

PROGRESS_S = 10.0
PAUSE_S = 0.5
LOOKUP_S = 10.0  # two attempts of glibc's 5 s
# A headless service of Kubernetes has a TTL of 30 s; until then the name may still lead to the pod before this one.
STALE_NAME_S = 60.0


class NameNeverCameError(RetryError):
    """Rank 0's name did not resolve in time."""

    def __init__(self, name: str, reason: str, waited_s: float) -> None:
        super().__init__(
            "master-name-missing",
            f"PET_MASTER_ADDR={name} did not resolve within {waited_s:.0f} s: {reason}",
            hint="check that the pod of rank 0 exists and that its headless Service has publishNotReadyAddresses: true",
        )


class MasterElsewhereError(RetryError):
    """This node has rank 0, but the name leads to another one."""

    def __init__(self, name: str, addresses: list[str]) -> None:
        super().__init__(
            "master-elsewhere",
            f"this node has rank 0, but PET_MASTER_ADDR={name} is {', '.join(addresses)}, no address of this node",
            hint="two nodes have PET_NODE_RANK=0, or ranks are swapped: rank 0 must be the pod that PET_MASTER_ADDR names",
        )


class PortTakenError(RetryError):
    """Somebody listens on the master port."""

    def __init__(self, port: int, holder: str) -> None:
        super().__init__(
            "master-port-taken",
            f"PET_MASTER_PORT={port} is taken on this node{holder}",
            hint="end the process that holds it, or set another PET_MASTER_PORT on all nodes (hostNetwork jobs share ports)",
        )


def wait_for_master(topology: Topology, host: Host, *, timeout_s: float) -> None:
    """
    Return when rank 0's name resolves, and on rank 0 leads here with its port free.

    Raises:
        RetryError: not within `timeout_s` seconds; the message says what was missing.

    """
    wait = _Wait(topology, host, timeout_s)
    while True:
        addresses = wait.resolve()
        if topology.node_rank != 0 or topology.rdzv_backend not in ("static", "jax"):
            return
        if addresses and _is_ours(topology, host, addresses):
            return
        wait.elsewhere(addresses)


def _is_ours(topology: Topology, host: Host, addresses: list[str]) -> bool:
    claims = {address: host.claim(address, topology.master_port) for address in addresses}
    if "taken" in claims.values():
        raise PortTakenError(topology.master_port, _holder(topology.master_port))
    return "free" in claims.values()


class _Wait:
    """A bounded wait that says every ten seconds what it waits for."""

    def __init__(self, topology: Topology, host: Host, timeout_s: float) -> None:
        self.name = topology.master_addr
        self.host = host
        self.timeout_s = timeout_s
        self.started = host.monotonic()
        self.told = self.started

    def resolve(self) -> list[str]:
        while True:
            try:
                return self.host.resolve(self.name, timeout_s=max(0.1, min(LOOKUP_S, self._left(self.timeout_s))))
            except NameLookupError as error:
                self._pause(
                    self.timeout_s,
                    NameNeverCameError(self.name, error.message, self.timeout_s),
                    "the master's name to resolve",
                )

    def elsewhere(self, addresses: list[str]) -> None:
        error = MasterElsewhereError(self.name, addresses)
        self._pause(
            min(self.timeout_s, STALE_NAME_S),
            error,
            f"the master's name to lead here instead of {', '.join(addresses)}",
        )

    def _left(self, timeout_s: float) -> float:
        return self.started + timeout_s - self.host.monotonic()

    def _pause(self, timeout_s: float, error: RetryError, what: str) -> None:
        if self._left(timeout_s) <= 0:
            raise error
        if self.host.monotonic() - self.told >= PROGRESS_S:
            self.told = self.host.monotonic()
            waited = round(self.told - self.started)
            get_logger().info(
                f"waiting for {what}", name=self.name, waited_s=waited, timeout_s=timeout_s, last=error.message
            )
        self.host.sleep(max(0.0, min(PAUSE_S, self._left(timeout_s))))


def _holder(port: int) -> str:
    """Return who listens on `port`, as far as this container may see it."""
    import psutil

    try:
        listening = [c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN and c.laddr]
        pids = {c.pid for c in listening if c.pid and c.laddr[1] == port}
        names = [f"{psutil.Process(pid).name()} (pid {pid})" for pid in sorted(pids)]
    except (psutil.Error, OSError):
        return ""
    return f" by {', '.join(names)}" if names else ""
