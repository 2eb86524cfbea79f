"""What a fetch did; light, for the process that only reports it."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainer_agent.initializers.delivery import Delivery


@dataclass
class Summary:
    """What was done: files and bytes in all, files and bytes that were fetched, seconds of each phase."""

    files: int = 0
    size: int = 0
    fetched_files: int = 0
    fetched_size: int = 0
    phases: dict[str, float] = field(default_factory=dict)

    def of(self, deliveries: Sequence[Delivery]) -> Summary:
        """Return this with the sums of what was delivered."""
        entries = [entry for delivery in deliveries for entry in delivery.entries.values()]
        self.files, self.size = len(entries), sum(entry.size for entry in entries)
        self.fetched_files = sum(len(delivery.incoming) for delivery in deliveries)
        self.fetched_size = sum(delivery.to_come for delivery in deliveries)
        return self

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure a phase."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.phases[name] = round(time.monotonic() - started, 2)
