"""The names of the other nodes, as far as the name of rank 0 tells."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer_agent.topology import Topology

# <job>-node-0-<index>, the name that JobSet gives to the pods of a TrainJob, before the name of its service.
FIRST = re.compile(r"^(?P<job>.+-node-[0-9]+-)0(?P<service>\..+)?$")


def name_of(rank: int, topology: Topology) -> str:
    """Return the name of a node's pod, nothing when it cannot be told from the name of rank 0."""
    if rank == 0:
        return topology.master_addr
    match = FIRST.match(topology.master_addr)
    return f"{match['job']}{rank}{match['service'] or ''}" if match else ""


def hostname_of(rank: int, topology: Topology) -> str:
    """Return what a node most probably calls itself."""
    return short(name_of(rank, topology))


def short(name: str) -> str:
    """Return the first part of a name; all of an address."""
    try:
        return str(ip_address(name))
    except ValueError:
        return name.partition(".")[0]
