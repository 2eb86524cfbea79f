"""What the last fetch has put in place, and the source has no more."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from trainer_agent.initializers import names
from trainer_agent.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from trainer_agent.initializers.record import Record


def find(destination: Path, earlier: Record | None, wanted: Collection[str]) -> list[str]:
    """Return the names of such files that nobody has changed."""
    gone = (path for path in (earlier.files if earlier else ()) if path not in wanted)
    ours = (path for path in gone if earlier and earlier.matches(destination / path, path))
    return [path for path in ours if not names.leads_elsewhere(destination, path)]


def remove(destination: Path, stale: Sequence[str], *, source: str) -> None:
    """Unlink them, and the directories that are empty then."""
    if stale:
        facts = {"files": len(stale), "first": min(stale), "fetched_from": source}
        get_logger().warning("removing what was fetched earlier and is not wanted any more", **facts)
    for path in stale:
        target = destination / path
        target.unlink(missing_ok=True)
        for parent in target.relative_to(destination).parents:
            if parent.name:
                with suppress(OSError):  # it is not empty
                    (destination / parent).rmdir()
