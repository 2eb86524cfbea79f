"""Find checks: ours and other people's come through the same entry-point group."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from trainer_agent.check import PROFILES, Check
from trainer_agent.errors import FatalError
from trainer_agent.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

GROUP = "trainer_agent.checks"
OURS = "trainer-agent"  # the entry point of our own catalogue; its names cannot be taken by others


@dataclass(frozen=True)
class Listed:
    """Where a check is to be found: `module:attribute`, and the entry point that lists it."""

    name: str
    target: str
    provider: str

    def load(self) -> Check:
        """
        Import the check.

        Raises:
            FatalError: its module does not import, or holds something else.
        """
        try:
            module, _, attribute = self.target.partition(":")
            found = getattr(importlib.import_module(module), attribute)
        except (Exception, SystemExit) as error:  # other people's modules fail in any way
            raise self._error(f"{type(error).__name__}: {error}") from error
        if not isinstance(found, Check):
            raise self._error(f"it is a {type(found).__name__}, not a Check; decorate the function with @check")
        if found.name != self.name:
            raise self._error(f"it calls itself {found.name}; both names must be the same")
        if found.profile not in PROFILES:
            raise self._error(f"its profile {found.profile!r} is none of {', '.join(PROFILES)}")
        return found

    def _error(self, reason: str) -> FatalError:
        hint = f"reinstall or remove the package that provides {self.provider!r}, or run with --skip {self.name}"
        return FatalError(
            "check-not-loadable", f"check {self.name} ({self.target}) cannot be loaded: {reason}", hint=hint
        )


def list_checks() -> dict[str, Listed]:
    """Return all installed checks by name, ours first, in the order of their catalogues."""
    found = sorted(
        entry_points(group=GROUP), key=lambda e: (e.name != OURS or (e.dist and e.dist.name) != OURS, e.name)
    )
    catalogues = []
    for entry in found:
        try:
            catalogues.append((entry.name, dict(entry.load())))
        except (Exception, SystemExit) as error:  # noqa: BLE001  # one broken package must not take others' checks away
            get_logger().warning(
                "a package of checks cannot be loaded", provider=entry.name, target=entry.value, error=repr(error)
            )
    return merge(catalogues)


def merge(catalogues: Iterable[tuple[str, Mapping[str, str]]]) -> dict[str, Listed]:
    """Merge (provider, {name: "module:attribute"}) pairs; the first that has a name keeps it."""
    merged: dict[str, Listed] = {}
    for provider, catalogue in catalogues:
        for name, target in catalogue.items():
            if name in merged:
                get_logger().warning(
                    "a check with this name exists already, the later one is ignored", check=name, provider=provider
                )
                continue
            merged[name] = Listed(name, target, provider)
    return merged
