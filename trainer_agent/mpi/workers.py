"""Wait for the workers of a job, and know how to reach them."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer_agent.addresses import wait_for_addresses
from trainer_agent.hostfile import render
from trainer_agent.mpi import keys, ssh
from trainer_agent.mpi.host_keys import known_hosts
from trainer_agent.mpi.network import interface_of, own_address
from trainer_agent.mpi.plan import Place
from trainer_agent.mpi.ready import wait_for_sshd

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from trainer_agent.host import Host
    from trainer_agent.mpi.plan import Plan


@dataclass(frozen=True)
class Access:
    """How ssh may be used: `key` is the private key's path or None, `check` `auto`, `strict` or `off`."""

    key: str | None = None
    check: str = "auto"


@dataclass(frozen=True)
class Workers:
    """
    The hosts of a job that are all there.

    Args:
        place: what the command of mpirun needs.
        addresses: of every host by its name; `remote` has those that are not this pod.
        here: our own address, as they see it.
    """

    place: Place
    addresses: Mapping[str, str]
    remote: Mapping[str, str]
    here: str


@contextmanager
def reach(plan: Plan, access: Access, host: Host, *, timeout_s: float) -> Iterator[Workers]:
    """
    Yield the hosts when all have addresses and answer ssh; keys and hostfile are on memory until the end.

    Raises:
        RetryError: workers are missing after `timeout_s` seconds.
        FatalError: keys or hosts that cannot be used.
    """
    began = time.monotonic()
    addresses = wait_for_addresses(plan.hosts.names, host, timeout_s=timeout_s)
    hosts = plan.hosts.with_addresses(addresses)
    with keys.private_folder() as folder:
        remote = {name: address for name, address in addresses.items() if host.claim(address, 0) != "free"}
        left = max(0.0, timeout_s - (time.monotonic() - began))
        words = _ssh_words(plan, access, remote, folder=folder, host=host, left_s=left)
        path = folder / "hostfile"
        path.write_text(render(hosts, plan.implementation.kind))
        here = own_address(next(iter((remote or addresses).values())))
        interface = interface_of(here) if plan.implementation.kind != "openmpi" else ""
        yield Workers(Place(str(path), words, interface), addresses, remote, here)


def _ssh_words(
    plan: Plan, access: Access, remote: Mapping[str, str], *, folder: Path, host: Host, left_s: float
) -> tuple[str, ...]:
    """Wait for the workers; return the words for ssh."""
    if not remote:
        return plan.ssh_args
    key = keys.find_key(access.key, plan.environ.get("HOME", ""))
    copy, public = keys.copy_key(key, folder) if key else (None, "")
    port = ssh.port_of(plan.ssh_args, next(iter(remote.values())), plan.environ)
    wait_for_sshd(remote, port, host, timeout_s=left_s)
    known = known_hosts(access.check, public, remote, port=port, folder=folder, environ=plan.environ)
    return ssh.arguments(plan.ssh_args, port=port, key=copy, known_hosts=known)
