"""
The directory of our own in a destination, where others may have written before.

What lies there must be plain files, and one directory of such. A link would lead elsewhere what we write, and whoever
opens a fifo waits for somebody at its other end.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from trainer_agent.errors import FatalError

if TYPE_CHECKING:
    from collections.abc import Iterator

# For what appears after it was looked at: links are not followed, and fifos are not waited for.
SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a fifo",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def prepare(directory: Path, *, inner: str) -> None:
    """
    Make our directory where there is none, and look at all that lies there.

    Args:
        inner: the name of the directory that may lie in it.

    Raises:
        FatalError: it is no directory, or holds anything but plain files.
        OSError: it cannot be made or read.
    """
    _refuse_other(directory, stat.S_IFDIR)
    directory.mkdir(parents=True, exist_ok=True)
    _refuse_other(directory / inner, stat.S_IFDIR)
    for path in (*_not_files(directory), *_not_files(directory / inner)):
        if path != directory / inner:
            _refuse_other(path, stat.S_IFREG)


def open_plain(path: Path, flags: int) -> int:
    """
    Open a plain file of our own; never follow a link, and never wait.

    Raises:
        FatalError: something else lies there.
        OSError: it cannot be opened.
    """
    _refuse_other(path, stat.S_IFREG)
    return os.open(path, flags | SAFELY, 0o666)


def folds_case(plain: Path) -> bool:
    """Return whether the name of a plain file, which is there, leads to it in capitals too."""
    return _is_same(plain, plain.with_name(plain.name.upper()))


def folds_unicode(directory: Path) -> bool:
    """Return whether ü and u with a diaeresis of its own are one name; False where no file can be made."""
    composed = directory / "\u00fc"
    try:
        os.close(open_plain(composed, os.O_WRONLY | os.O_CREAT))
        try:
            return _is_same(composed, directory / "u\u0308")
        finally:
            composed.unlink()
    except OSError:
        return False


def _is_same(one: Path, other: Path) -> bool:
    try:
        return os.path.samestat(one.lstat(), other.lstat())
    except OSError:
        return False


def _not_files(directory: Path) -> Iterator[Path]:
    try:
        with os.scandir(directory) as found:
            yield from (Path(entry.path) for entry in found if not entry.is_file(follow_symlinks=False))
    except FileNotFoundError:
        return


def _refuse_other(path: Path, wanted: int) -> None:
    """Refuse what is there and is not of the kind that is wanted."""
    try:
        kind = stat.S_IFMT(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if kind != wanted:
        found = KINDS.get(kind, "something else")
        leads = f" to {path.readlink()}" if kind == stat.S_IFLNK else ""
        message = f"{path} is {found}{leads}, and must be {KINDS[wanted]} of the agent's own"
        raise FatalError("unsafe-destination", message, hint="remove it, or choose another OUTPUT_PATH")
