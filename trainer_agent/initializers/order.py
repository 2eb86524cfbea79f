"""What a user wants fetched, and where it is to go."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainer_agent.initializers import HIDDEN

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trainer_agent.initializers import Source


@dataclass(frozen=True)
class Order:
    """
    What a user wants.

    Args:
        kind: `dataset` or `model`.
        allow, ignore: shell patterns; `allow` is None for the defaults of the kind.
        checksums: path to checksum, the user's own list.
        verify: `size`, `auto` (checksums of what comes) or `full` (of what is there too).
        flush: `wait` until all is on disk, or leave that to the kernel for `later`, where the disk is the node's own.
    """

    kind: str
    source: Source
    destination: Path
    allow: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    checksums: Mapping[str, str] = field(default_factory=dict)
    verify: str = "auto"
    flush: str = "wait"

    @property
    def hidden(self) -> Path:
        """The directory of our own in the destination."""
        return self.destination / HIDDEN

    @property
    def selection(self) -> str:
        """What chooses among the files of the source."""
        return f"allow={self.allow} ignore={self.ignore}"
