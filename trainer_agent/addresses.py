"""Wait until names of hosts have addresses."""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING

from trainer_agent.errors import RetryError
from trainer_agent.host import NameLookupError
from trainer_agent.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainer_agent.host import Host

PROGRESS_S = 10.0
PAUSE_S = 0.5
LOOKUP_S = 10.0  # two attempts of glibc's 5 s


class NamesNeverCameError(RetryError):
    """Names did not resolve in time."""

    def __init__(self, errors: Sequence[NameLookupError], *, names: int, waited_s: float) -> None:
        reasons = "; ".join(error.message for error in errors)
        super().__init__(
            "names-missing",
            f"{len(errors)} of {names} hosts have no address after {waited_s:g} s: {reasons}",
            hint="check that these pods exist and that their headless Service has publishNotReadyAddresses: true",
        )


def wait_for_addresses(names: Sequence[str], host: Host, *, timeout_s: float) -> dict[str, str]:
    """
    Return one address of each name, in the order of the names.

    A name has its IPv4 address where it has one: Open MPI is built without IPv6 unless asked (--enable-ipv6).

    Raises:
        NamesNeverCameError: not within `timeout_s` seconds; it names all that are missing.
    """
    wait = _Wait(names, host, timeout_s)
    while errors := wait.look_up():
        wait.pause(errors)
    return {name: wait.found[name] for name in names}


class _Wait:
    """A bounded wait that says every ten seconds whom it waits for."""

    def __init__(self, names: Sequence[str], host: Host, timeout_s: float) -> None:
        self.names = names
        self.host = host
        self.timeout_s = timeout_s
        self.own = _own(names, host.hostname())
        self.started = self.told = host.monotonic()
        self.found = {name: name for name in names if _is_address(name)}

    @property
    def left_s(self) -> float:
        return self.started + self.timeout_s - self.host.monotonic()

    def look_up(self) -> list[NameLookupError]:
        """Ask for all that are missing at the same time; return the errors of those that still are."""
        missing = [name for name in self.names if name not in self.found]
        asked = [*missing, *({self.host.hostname()} if self.own in missing else ())]
        answers = self.host.resolve_all(asked, timeout_s=max(0.1, min(LOOKUP_S, self.left_s))) if asked else {}
        for name in missing:
            if addresses := self._addresses(name, answers):
                self.found[name] = min(addresses, key=lambda address: ip_address(address).version)
        errors = [answers[name] for name in missing if name not in self.found]
        return [error for error in errors if isinstance(error, NameLookupError)]

    def _addresses(self, name: str, answers: Mapping[str, list[str] | NameLookupError]) -> list[str]:
        """
        Return what a name resolves to; for our own, first what this machine says of itself.

        A pod knows its own address from /etc/hosts, also where its name is not published or leads to the pod before it.
        """
        answer = answers[name]
        listed = [] if isinstance(answer, NameLookupError) else answer
        ours = answers.get(self.host.hostname()) if name == self.own else None
        return [a for a in ours if not ip_address(a).is_loopback] + listed if isinstance(ours, list) else listed

    def pause(self, errors: Sequence[NameLookupError]) -> None:
        if self.left_s <= 0:
            raise NamesNeverCameError(errors, names=len(self.names), waited_s=self.timeout_s)
        now = self.host.monotonic()
        if now - self.told >= PROGRESS_S:
            self.told = now
            missing = [name for name in self.names if name not in self.found]
            waited = round(now - self.started)
            get_logger().info("waiting for names", missing=missing, waited_s=waited, timeout_s=self.timeout_s)
        self.host.sleep(max(0.0, min(PAUSE_S, self.left_s)))


def _own(names: Sequence[str], hostname: str) -> str | None:
    """Return which of the names is this machine's, None when that cannot be told."""
    if hostname in names:
        return hostname
    ours = [name for name in names if name.partition(".")[0] == hostname.partition(".")[0]]
    return ours[0] if len(ours) == 1 else None


def _is_address(name: str) -> bool:
    try:
        return bool(ip_address(name))
    except ValueError:
        return False
