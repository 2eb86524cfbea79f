"""Names that may become files below a destination, and nothing else."""

from __future__ import annotations

import errno
import os
import stat
import sys
from itertools import pairwise, takewhile
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from trainer_agent.errors import FatalError
from trainer_agent.initializers import HIDDEN

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from trainer_agent.initializers import Entry

# Linux: NAME_MAX of a component, PATH_MAX of a path with the destination before it.
COMPONENT_BYTES = 255
PATH_BYTES = 3800
# The most that a key of S3, of 1,024 bytes, can have; Python makes and walks directories by recursion.
MOST_COMPONENTS = 512
ENCODING = sys.getfilesystemencoding()
UTF8 = ENCODING == "utf-8"  # as everywhere but in an old locale, where PYTHONUTF8=0 forbids another


def refuse_unsafe(entries: Iterable[Entry]) -> None:
    """
    Raise `FatalError` for a name that could not be a file below the destination, or that two files want.

    A name is refused when it leads outside or into our own directory, is too long, occurs twice, or is a directory of
    another.
    """
    names = []
    for entry in entries:
        reason = _unsafe(entry.path)
        if reason:
            raise _unsafe_name(entry.path, reason)
        if not (UTF8 or entry.path.isascii()):
            message = f"the source has the name {shown(entry.path)}, and the locale's encoding is {ENCODING}, not UTF-8"
            raise FatalError("unsafe-name", message, hint="set PYTHONUTF8=1")
        names.append(entry.path)
    _refuse_collisions(names)


def refuse_folded(names: Iterable[str], fold: Callable[[str], str]) -> None:
    """
    Raise `FatalError` for names that are different at the source and one on a file system that folds them.

    Directories too: of those that become one, nobody could tell whose the files are.

    Args:
        names: safe ones.
        fold: returns what the file system makes of a name.
    """
    spelled = sorted(names, key=fold)
    folded = [fold(name) for name in spelled]
    for name, found in zip(spelled, folded, strict=True):
        if f"{found}/".startswith(f"{HIDDEN}/"):
            raise _unsafe_name(name, "is here the directory that is ours")
    for (one, other), pair in zip(pairwise(spelled), pairwise(folded), strict=True):
        _refuse_other_spelling(one.split("/"), other.split("/"), [name.split("/") for name in pair])
    _refuse_collisions(folded)


def folding(*, case: bool, unicode: bool) -> Callable[[str], str]:
    """Return what turns names that such a file system takes for one into one."""
    import unicodedata

    def fold(name: str) -> str:
        name = unicodedata.normalize("NFC", name) if unicode else name
        name = name.casefold() if case else name
        return unicodedata.normalize("NFC", name) if unicode else name

    return fold


def is_below(name: str) -> bool:
    """Return whether a name is a plain path below the directory that it is taken in."""
    return "\0" not in name and not any(part in f"/{name}/" for part in ("//", "/./", "/../"))


def _refuse_collisions(names: list[str]) -> None:
    """Compare neighbours: a set of all directories would hold 50 million for 100,000 keys of 500 components each."""
    names.sort()
    # What the current name begins with, shortest first: for a/x perhaps a, although a-b stands between the two. What
    # follows the shorter ones in it was looked at when the longer ones came.
    beginnings: list[str] = []
    for name in names:
        while beginnings and not name.startswith(beginnings[-1]):
            beginnings.pop()
        if beginnings and name == beginnings[-1]:
            raise _collision(f"the source has {shown(name)} twice")
        if beginnings and name[len(beginnings[-1])] == "/":
            raise _collision(f"{shown(beginnings[-1])} is a file and the directory of others")
        beginnings.append(name)


def _refuse_other_spelling(one: list[str], other: list[str], folded: list[list[str]]) -> None:
    """Compare the neighbours of a sorted list as far as they are one: what is below a directory stands together."""
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*folded, strict=False)))
    if one[:same] != other[:same]:
        first, second = (shown("/".join(name[:same])) for name in (one, other))
        raise _collision(f"the source has {first} and {second}, which are one name on this file system")


def _unsafe(name: str) -> str:
    """Return why a name cannot be a file below the destination, empty when it can."""
    if "\0" in name:
        return "holds a NUL byte"
    if not is_below(name):
        return "is no plain path below the destination"
    if f"{name}/".startswith(f"{HIDDEN}/"):
        return "lies in the directory that is ours"
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        return "is no UTF-8"
    components = encoded.split(b"/")
    if len(components) > MOST_COMPONENTS:
        return f"has {len(components):,} components, and {MOST_COMPONENTS} are the most"
    longest = max(map(len, components))
    if longest > COMPONENT_BYTES:
        return f"has a component of {longest:,} bytes, and {COMPONENT_BYTES} are the most"
    if len(encoded) > PATH_BYTES:
        return f"has {len(encoded):,} bytes, and {PATH_BYTES:,} are the most"
    return ""


def _unsafe_name(name: str, reason: str) -> FatalError:
    hint = "rename it at the source, or add it to IGNORE_PATTERNS"
    return FatalError("unsafe-name", f"the source has the name {shown(name)}, which {reason}", hint=hint)


def _collision(message: str) -> FatalError:
    return FatalError("name-collision", message, hint="rename one at the source, or add it to IGNORE_PATTERNS")


def shown(name: str) -> str:
    """Return a name for a message: quoted, and not endless."""
    return repr(name if len(name) <= 200 else f"{name[:200]}…")


def check_parents(destination: Path, names: Iterable[str], *, leaving: Collection[str] = ()) -> list[str]:
    """
    Refuse what already lies in the destination and would lead a file elsewhere, or be in its way.

    Args:
        leaving: names of files that will be gone by then.

    Returns:
        Names of files, or of links to some, that are there.

    Raises:
        FatalError: a parent is a link or a file, or a name is a directory.
        PermissionError: this user may make no file in one of the directories.
    """
    gone = frozenset(destination / name for name in leaving)
    there: list[str] = []
    before: list[str] = []
    exists = True
    for name in sorted(names):  # then what lies in one directory follows each other, so that it is looked at once
        directories = name.split("/")[:-1]
        if directories != before:
            known = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, directories, strict=False)))
            exists = _check_directories(destination.joinpath(*directories[:known]), directories[known:], gone)
            before = directories
        mode = _mode(f"{destination}/{name}") if exists else 0
        if stat.S_ISDIR(mode) and not _goes(destination / name, gone):
            raise _in_the_way(destination / name, "is a directory, and the source has a file of that name")
        if mode and not stat.S_ISDIR(mode):
            there.append(name)
    return there


def leads_elsewhere(destination: Path, name: str) -> bool:
    """Return whether a directory of a name below the destination is a link."""
    return any((destination / parent).is_symlink() for parent in PurePath(name).parents if parent.name)


def _goes(directory: Path, gone: Collection[Path]) -> bool:
    """Return whether a directory goes with its files: nobody removes empty ones, or links to others."""
    unread: list[OSError] = []
    for folder, below, files in os.walk(directory, onerror=unread.append):
        here = Path(folder)
        stays = any(here / name not in gone for name in files) or any((here / name).is_symlink() for name in below)
        if stays or not (files or below):
            return False
    return not unread


def _check_directories(parent: Path, below: Sequence[str], gone: Collection[Path]) -> bool:
    """Return whether they are there."""
    for component in below:
        parent /= component
        mode = 0 if parent in gone else _mode(parent)
        if stat.S_ISLNK(mode):
            raise _in_the_way(parent, f"is a link to {parent.readlink()}, which is not followed")
        if not mode:
            _refuse_unwritable(parent.parent)
            return False
        if not stat.S_ISDIR(mode):
            raise _in_the_way(parent, "is a file, and the source has a directory of that name")
    _refuse_unwritable(parent)
    return True


def _refuse_unwritable(directory: Path) -> None:
    """Raise what the kernel would say to a new file there."""
    if not os.access(directory, os.W_OK | os.X_OK):
        code = errno.EROFS if os.statvfs(directory).f_flag & os.ST_RDONLY else errno.EACCES
        raise OSError(code, os.strerror(code), str(directory))


def _mode(path: str | Path) -> int:
    """Return the mode of what is there, a link's own; 0 where there is nothing."""
    try:
        return os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _in_the_way(path: Path, why: str) -> FatalError:
    return FatalError("destination-in-the-way", f"{path} {why}", hint="remove it, or choose another OUTPUT_PATH")
