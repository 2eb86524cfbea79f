"""Counters of RDMA ports, read only of ports that are in use: on others a read can flood the kernel's log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight_checks._rdma import ROOT
from trainer_agent.env import whole_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from preflight_checks._rdma import Port
    from trainer_agent.host import Host

LINK_DOWNED = "link_downed"
# Those of the physical layer, and of RoCE those that a healthy but busy network leaves alone.
WANTED = {
    "counters": (
        LINK_DOWNED,
        "symbol_error",
        "port_rcv_errors",
        "port_rcv_remote_physical_errors",
        "link_error_recovery",
        "local_link_integrity_errors",
        "excessive_buffer_overrun_errors",
    ),
    "hw_counters": (
        "rx_icrc_encapsulated",
        "local_ack_timeout_err",
        "packet_seq_err",
        "req_transport_retries_exceeded",
    ),
}


def read_counters(host: Host, ports: Sequence[Port]) -> dict[Port, dict[str, int]]:
    """
    Return counters by their path below the port.

    Restricted functions answer EINVAL and a line in the kernel's log; after a first one the device is left alone.
    """
    return {port: dict(_counters(host, port)) for port in ports}


def _counters(host: Host, port: Port) -> Iterator[tuple[str, int]]:
    base = f"{ROOT}/{port.device}/ports/{port.number}"
    for folder in ("counters", "hw_counters") if port.layer == "Ethernet" else ("counters",):
        there = set(host.names(f"{base}/{folder}"))
        for name in WANTED[folder]:
            text = host.read(f"{base}/{folder}/{name}") if name in there else ""
            if text is None:
                return
            number = whole_number(text.strip())  # virtual functions say `N/A (no PMA)`
            if number is not None:
                yield f"{folder}/{name}", number


def rises(host: Host, before: dict[Port, dict[str, int]]) -> dict[Port, dict[str, int]]:
    """Return what has risen since; a counter that could not be read then is not read again."""
    return {port: dict(_rises(host, port, values)) for port, values in before.items()}


def _rises(host: Host, port: Port, before: dict[str, int]) -> Iterator[tuple[str, int]]:
    for path, number in before.items():
        text = host.read(f"{ROOT}/{port.device}/ports/{port.number}/{path}")
        now = whole_number((text or "").strip())
        if now is not None and now > number:
            yield path.partition("/")[2], now - number
