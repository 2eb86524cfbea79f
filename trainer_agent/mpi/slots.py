"""Ranks on each host, by the same decision as for torch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trainer_agent.errors import FatalError
from trainer_agent.nproc import Decision

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainer_agent.accelerators import Accelerators
    from trainer_agent.hostfile import Entry, Hostfile


def decide_slots(
    hosts: Hostfile,
    *,
    hostname: str,
    asked: int | str | None,
    find: Callable[[], Accelerators],
    decide: Callable[..., Decision],
) -> Decision:
    """
    Return the ranks of each host, `changed` where the hostfile says something else.

    The launcher sees its own devices only. Where it is one of the hosts, the others have what it has: Trainer gives all
    pods of a job the same resources.

    Args:
        asked: --nproc, None without.
        find: counts the devices of this pod.
        decide: `nproc.decide` with all that this pod is known by.

    Raises:
        FatalError: devices are asked for on a launcher that is no host, or there are none.
    """
    given = max(entry.slots for entry in hosts.entries)
    own = own_entry(hosts, hostname)
    if own is None:
        return _elsewhere(asked, given)
    found = find()
    if asked is None and not found.count:
        return Decision(given, f"{given} on each host, as the hostfile says")
    written, variable = (own.slots, "slots") if asked is None else (asked, "--nproc")
    decision = decide(written, found, variable=variable)
    if not isinstance(decision.value, int):  # only torch could count these devices
        return Decision(given, f"{given} on each host, as the hostfile says: {decision.reason}")
    changed = decision.value != own.slots if asked is None else differs(hosts, decision.value)
    return replace(decision, changed=changed)


def differs(hosts: Hostfile, slots: int) -> bool:
    """Return whether the hostfile gives any host another number."""
    return any(entry.slots != slots for entry in hosts.entries)


def own_entry(hosts: Hostfile, hostname: str) -> Entry | None:
    """Return the line of this pod, None where it is none of the hosts."""
    short = hostname.partition(".")[0]
    return next((entry for entry in hosts.entries if entry.name.partition(".")[0] == short), None)


def _elsewhere(asked: int | str | None, given: int) -> Decision:
    if asked is None:
        return Decision(given, f"{given} on each host, as the hostfile says; this launcher is none of them")
    if isinstance(asked, int):
        return Decision(asked, f"{asked} on each host, as --nproc says", changed=True)
    raise FatalError(
        "nproc-not-known",
        f"--nproc={asked!r} asks for the devices of the hosts, and this launcher is none of them",
        hint="give a number, or set runLauncherAsNode: true in the runtime",
    )
