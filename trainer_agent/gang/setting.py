"""Where a node is: who it is in the job, and by which address and interface others reach it."""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer_agent.gang import peers

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainer_agent.gang.course import Plan
    from trainer_agent.gang.door import Door
    from trainer_agent.gang.torch_side import TorchSide
    from trainer_agent.host import Host
    from trainer_agent.topology import Topology


@dataclass(frozen=True)
class Setting:
    """
    Where a node is, and how it reaches the others.

    Args:
        port: of the meeting place; the doors are on the next one.
        hello: what it tells of itself.
        born: when it started, in seconds since 1970.
        tell: takes how many nodes are here.
    """

    topology: Topology
    host: Host
    side: TorchSide
    door: Door
    plan: Plan
    port: int
    hello: dict[str, Any]
    born: float
    tell: Callable[..., None] = lambda **_: None

    @property
    def rank(self) -> int:
        """This node's rank."""
        return self.topology.node_rank

    def name(self, rank: int) -> str:
        """Return what a message calls a node."""
        name = self.hello["hostname"] if rank == self.rank else peers.hostname_of(rank, self.topology)
        return f"node {rank} ({name})" if name else f"node {rank}"


def address_towards(address: str, port: int) -> str:
    """Return the address of this machine from which packets go to another, nothing when there is no route."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:  # nothing is sent
        sock.connect((address, port))
        return str(sock.getsockname()[0])
    return ""


def interface_of(address: str) -> dict[str, str]:
    """
    Return the variable that tells gloo to use the interface with an address.

    Without it gloo looks up the host name, and takes loopback, where nobody reaches it, when there is none.
    """
    import psutil

    if not address:  # as some interfaces have
        return {}
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in entries):
            return {"GLOO_SOCKET_IFNAME": name}
    return {}
