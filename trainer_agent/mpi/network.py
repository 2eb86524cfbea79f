"""Which address and interface of this machine the workers are reached by."""

from __future__ import annotations

import socket


def own_address(towards: str) -> str:
    """Return the address that packets to another one leave from; no packet is sent."""
    family = socket.AF_INET6 if ":" in towards else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((towards, 9))
            return str(sock.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def interface_of(address: str) -> str:
    """Return the name of the interface that has an address, empty where none has."""
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == address for each in addresses):
            return str(name)
    return ""
