"""The names of the other nodes, as far as the name of rank 0 tells."""

from __future__ import annotations

import re
from dataclasses import replace
from ipaddress import ip_address
from typing import TYPE_CHECKING

from trainer_agent.env import whole_number
from trainer_agent.topology import DEFAULT_PORT, MAX_PORT

if TYPE_CHECKING:
    from trainer_agent.topology import Topology

# <job>-node-0-<index>, the name that JobSet gives to the pods of a TrainJob, before the name of its service.
FIRST = re.compile(r"^(?P<job>.+-node-[0-9]+-)0(?P<service>\..+)?$")


def at_rank_zero(topology: Topology) -> Topology:
    """
    Return a topology with address and port of rank 0, which PET_RDZV_ENDPOINT may not have.

    That of etcd or of another server is no node of the job, and for c10d it may be any: PET_MASTER_ADDR says it then.
    The address is empty where nothing does.
    """
    said = {setting.name: setting.value for setting in topology.settings}
    address = said.get("PET_MASTER_ADDR", "").strip("[]")
    if not said.get("PET_RDZV_ENDPOINT") or topology.rdzv_backend == "static" or address == topology.master_addr:
        return topology
    if not address:
        return topology if topology.rdzv_backend == "c10d" else replace(topology, master_addr="")
    others = tuple(setting for setting in topology.settings if setting.name != "PET_RDZV_ENDPOINT")
    port = whole_number(said["PET_MASTER_PORT"]) or 0
    known = port if 0 < port <= MAX_PORT else DEFAULT_PORT
    return replace(topology, master_addr=address, master_port=known, settings=others)


def job_of(topology: Topology) -> str:
    """
    Return what all nodes of a job call rank 0, however much of its name each was told; nothing where they may differ.

    Another job may be met at an address that it has taken over, or on a machine whose network it shares.
    """
    return short(topology.master_addr) if FIRST.match(topology.master_addr) else ""


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
