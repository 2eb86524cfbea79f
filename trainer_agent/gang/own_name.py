"""Whether the name by which all nodes look for rank 0 leads to rank 0, as rank 0 sees it."""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING

from trainer_agent.gang import rules
from trainer_agent.gang.verdict import Charge
from trainer_agent.host import NameLookupError
from trainer_agent.log import get_logger
from trainer_agent.rendezvous import STALE_NAME_S, MasterElsewhereError

if TYPE_CHECKING:
    from trainer_agent.gang.setting import Setting

NAME_S = 6.0  # for more than one lookup: a packet that is lost costs glibc 5 s
SHARE = 3.0  # of the time that the others wait: so long nobody finds rank 0
LEAST_S = 1.0  # of one lookup
AGAIN_S = 5.0  # until one that nobody has answered is made again
PAUSE_S = 0.5


class OwnName:
    """The name of rank 0 on rank 0 itself, looked up when this is made."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        waits_s = setting.plan.gang_timeout_s
        # With a static rendezvous nothing listens at such a name later. Else others may find rank 0 by way of a
        # Service or another network, and need long to start.
        patience_s = min(STALE_NAME_S, waits_s) if setting.topology.rdzv_backend == "static" else waits_s
        self.patient_until = setting.host.monotonic() + patience_s
        self.ours: list[str] = []
        self.elsewhere: list[str] = []
        self._look_up(min(NAME_S, waits_s / SHARE))

    @property
    def address(self) -> str:
        """
        The address of this node by which others reach it; nothing where the name does not tell.

        A loopback address does not: what /etc/hosts of this node says is nothing to the others.
        """
        return next((address for address in self.ours if not ip_address(address).is_loopback), "")

    def charge(self) -> Charge | None:
        """
        Return what is to be said where the name has led elsewhere for too long, None before that.

        Only while nobody has ever come: others may be told another address, and whoever comes has found the way.
        Nobody is accused: of two nodes with one rank nothing tells which is the wrong one.
        """
        if self.ours or not self.elsewhere or self.setting.host.monotonic() < self.patient_until:
            return None
        if not self._look_up(0.0):  # it may have been that of the pod before this one
            self.patient_until = self.setting.host.monotonic() + AGAIN_S
            return None
        if self.ours or not self.elsewhere:
            return None
        topology = self.setting.topology
        error = MasterElsewhereError(topology.master_variable, topology.master_addr, addresses=self.elsewhere)
        return Charge("roll-call", rules.MASTER_ELSEWHERE.found(error.message, addresses=self.elsewhere))

    def _look_up(self, timeout_s: float) -> bool:
        """Take down where the name leads, and which of that is here; return whether a name server has answered."""
        host, addresses = self.setting.host, self._addresses(timeout_s)
        if addresses is None:
            return False
        claims = {address: host.claim(address, 0) for address in addresses}
        self.ours = [address for address, claim in claims.items() if claim == "free"]
        self.elsewhere = [address for address, claim in claims.items() if claim == "elsewhere"]
        return True

    def _addresses(self, timeout_s: float) -> list[str] | None:
        """Return where the name leads, nothing where it does not exist; None where nobody answers for so long."""
        deadline = self.setting.host.monotonic() + timeout_s
        while True:
            try:
                return self.setting.host.resolve(self.setting.topology.master_addr, timeout_s=max(timeout_s, LEAST_S))
            except NameLookupError as error:
                if error.published is False or self.setting.host.monotonic() >= deadline:
                    get_logger().warning("rank 0 cannot look up its own name", reason=error.message)
                    return [] if error.published is False else None
            self.setting.host.sleep(PAUSE_S)
