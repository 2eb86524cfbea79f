"""Names that may become files below a destination, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer_agent.errors import FatalError
from trainer_agent.initializers import HIDDEN

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from trainer_agent.initializers import Entry

# Linux: NAME_MAX of a component, PATH_MAX of a path with the destination before it.
COMPONENT_BYTES = 255
PATH_BYTES = 3800


def refuse_unsafe(entries: Iterable[Entry]) -> None:
    """
    Raise `FatalError` for a name that could not be a file below the destination, or that two files want.

    A name is refused when it leads outside or into our own directory, is too long, occurs twice, or is a directory of
    another.
    """
    files: set[str] = set()
    directories: set[str] = set()
    for entry in entries:
        reason = _unsafe(entry.path)
        if reason:
            raise FatalError(
                "unsafe-name",
                f"the source has the name {_shown(entry.path)}, which {reason}",
                hint="rename it at the source, or add it to IGNORE_PATTERNS",
            )
        if entry.path in files:
            raise _collision(f"the source has {_shown(entry.path)} twice")
        files.add(entry.path)
        parent = entry.path.rpartition("/")[0]
        while parent and parent not in directories:
            directories.add(parent)
            parent = parent.rpartition("/")[0]
    if both := files & directories:
        raise _collision(f"{_shown(min(both))} is a file and the directory of others")


def _unsafe(name: str) -> str:
    """Return why a name cannot be a file below the destination, empty when it can."""
    components = name.split("/")
    if "\0" in name:
        return "holds a NUL byte"
    if any(c in ("", ".", "..") for c in components):
        return "is no plain path below the destination"
    if components[0] == HIDDEN:
        return "lies in the directory that is ours"
    try:
        size, longest = len(name.encode()), max(len(c.encode()) for c in components)
    except UnicodeEncodeError:
        return "is no UTF-8"
    if longest > COMPONENT_BYTES:
        return f"has a component of {longest:,} bytes, and {COMPONENT_BYTES} are the most"
    if size > PATH_BYTES:
        return f"has {size:,} bytes, and {PATH_BYTES:,} are the most"
    return ""


def _collision(message: str) -> FatalError:
    return FatalError("name-collision", message, hint="rename one at the source, or add it to IGNORE_PATTERNS")


def _shown(name: str) -> str:
    return repr(name if len(name) <= 200 else f"{name[:200]}…")


def check_parents(destination: Path, names: Sequence[str]) -> None:
    """
    Refuse what already lies in the destination and would lead a file elsewhere, or be in its way.

    Raises:
        FatalError: a parent is a link or a file, or a name is a directory.
    """
    seen = {destination}
    for name in names:
        target = destination / name
        if target.is_dir() and not target.is_symlink():
            raise _in_the_way(target, "is a directory, and the source has a file of that name")
        parent = target.parent
        while parent not in seen:
            seen.add(parent)
            if parent.is_symlink():
                raise _in_the_way(parent, f"is a link to {parent.readlink()}, which is not followed")
            if parent.exists() and not parent.is_dir():
                raise _in_the_way(parent, "is a file, and the source has a directory of that name")
            parent = parent.parent


def _in_the_way(path: Path, why: str) -> FatalError:
    return FatalError("destination-in-the-way", f"{path} {why}", hint="remove it, or choose another OUTPUT_PATH")
