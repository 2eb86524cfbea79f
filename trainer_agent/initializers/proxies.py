"""Which proxy leads to an address, after the usual variables."""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping


def proxy_of(url: str, environ: Mapping[str, str]) -> str:
    """Return the proxy for `url`, empty for none; small letters win, as everywhere."""
    parts = urlsplit(url)
    proxy = _variable(f"{parts.scheme}_proxy", environ)
    if not proxy or _is_direct(parts.netloc.rpartition("@")[2], parts.hostname or "", environ):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _variable(name: str, environ: Mapping[str, str]) -> str:
    return environ.get(name) or environ.get(name.upper()) or ""


def _is_direct(netloc: str, host: str, environ: Mapping[str, str]) -> bool:
    """Return whether `NO_PROXY` has its name, a domain above it, its address or a network of it, as for Go."""
    listed = _variable("no_proxy", environ)
    if not listed:
        return False
    from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]  # typeshed lacks it

    names = [name.strip() for name in listed.split(",")]
    if "*" in names or proxy_bypass_environment(netloc, {"no": listed}):
        return True
    with suppress(ValueError):  # a name: nobody asks here which address it has
        address = ipaddress.ip_address(host)
        return any(address in network for network in map(_network, names) if network)
    return False


def _network(name: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """Return the network that an entry of `NO_PROXY` is, None for a name."""
    with suppress(ValueError):
        return ipaddress.ip_network(name.strip("[]"), strict=False)
    return None
