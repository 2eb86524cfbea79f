"""Wait until the sshd of every worker answers, not only listens."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from trainer_agent.errors import RetryError
from trainer_agent.log import get_logger
from trainer_agent.mpi.census import listed
from trainer_agent.mpi.sshd import BANNER, first_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainer_agent.host import Host

AT_A_TIME = 64
TRY_S = 5.0
PAUSE_S = 0.2
PROGRESS_S = 10.0


class WorkersMissingError(RetryError):
    """The sshd of some workers did not answer in time."""

    def __init__(self, missing: Mapping[str, str], *, hosts: int, waited_s: float) -> None:
        reasons = listed([f"{name}: {reason}" for name, reason in missing.items()])
        super().__init__(
            "mpi-workers-missing",
            f"{len(missing)} of {hosts} workers do not answer ssh after {waited_s:g} s: {reasons}",
            hint="look at these pods: do they exist, do they run sshd (`trainer-agent worker`), on this port?",
        )
        self.missing = missing


def wait_for_sshd(addresses: Mapping[str, str], port: int, host: Host, *, timeout_s: float) -> None:
    """
    Return when the sshd of every host answers with its banner.

    Args:
        addresses: of each host by its name.

    Raises:
        WorkersMissingError: not within `timeout_s` seconds; it names all that are missing.
    """
    if not addresses:
        return
    started = told = host.monotonic()
    missing = dict.fromkeys(addresses, "not asked")
    with ThreadPoolExecutor(min(AT_A_TIME, len(addresses))) as pool:
        while True:
            left = started + timeout_s - host.monotonic()
            ask = partial(greeting_missing, port=port, timeout_s=max(0.1, min(TRY_S, left)))
            answers = pool.map(ask, [addresses[name] for name in missing])
            missing = {name: why for name, why in zip(list(missing), answers, strict=True) if why}
            if not missing:
                return
            if host.monotonic() - started >= timeout_s:
                raise WorkersMissingError(missing, hosts=len(addresses), waited_s=timeout_s)
            if host.monotonic() - told >= PROGRESS_S:
                told = host.monotonic()
                waited = round(told - started)
                get_logger().info("waiting for sshd", missing=missing, waited_s=waited, timeout_s=timeout_s)
            host.sleep(PAUSE_S)


def greeting_missing(address: str, *, port: int, timeout_s: float) -> str:
    """Return why there is no sshd at an address, nothing where there is one."""
    try:
        said = first_line(address, port, timeout_s=timeout_s)
    except TimeoutError:
        return f"{address} port {port} gives no answer"
    except OSError as error:
        return f"{address} port {port}: {error.strerror or error}"
    if said.startswith(BANNER):
        return ""
    return f"{address} port {port} says {said[:40]!r}, which is no SSH" if said else f"{address} port {port} hangs up"
