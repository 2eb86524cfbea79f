"""Put a bundle into a directory, so that whoever looks sees the old version or the new one, and never a part."""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import json
import os
import re
import shutil
import stat
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from trainer_agent.bundle import MARK
from trainer_agent.bundle.compiled import compiled_of
from trainer_agent.bundle.scripts import PROGRAM, START, outer
from trainer_agent.errors import FatalError, RetryError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainer_agent.bundle.contents import Contents

_MOUNT = "mount a volume such as an emptyDir there"
_MORE = "give the volume more space, or free some on the node"
INCOMING = ".trainer-agent-incoming-"
LOCK = ".trainer-agent-lock"
# Another container that copies into the same volume; on a slow network disk that may take a minute.
LOCK_WAIT_S = 300.0
START_TIMEOUT_S = 60.0
FULL = {errno.ENOSPC, errno.EDQUOT}
# The loader takes these characters of a path for something else.
SPECIAL = ":;$\n"


@dataclass(frozen=True)
class Installed:
    """What an installation came to; `copied` is False when this version was there already."""

    name: str
    files: int
    size: int
    copied: bool


def install(contents: Contents, to: Path) -> Installed:
    """
    Make `to` hold the program, and nothing of older versions but the one that it replaces.

    Somebody may be starting or running that one; the next installation of another version removes it.

    Raises:
        FatalError: the directory is none, is not writable, or programs in it cannot start.
        RetryError: its file system is full, or another installation there does not end.
    """
    target = to / contents.name
    try:
        _check(to)
        # First, as another user may have brought it, or the volume may be mounted read-only.
        copied = not (_in_use(to) == contents.name and _works(target)) and _put(contents, to, target)
    except OSError as error:
        _refuse(error, to)
    sizes = [path.stat().st_size for path in target.rglob("*") if path.is_file()]
    return Installed(contents.name, len(sizes), sum(sizes), copied)


def _put(contents: Contents, to: Path, target: Path) -> bool:
    """Return whether it had to be copied: while we waited for somebody else, that one may have brought it."""
    with _umask(0o022):
        to.mkdir(parents=True, exist_ok=True)
    with _umask(0o022 & ~_group_write(to)), _alone(to):  # who may write to the directory may write below it, too
        for left in to.glob(f"{INCOMING}*"):
            shutil.rmtree(left, ignore_errors=True)
        replaced, copied = _in_use(to), not _works(target)
        if copied:
            _bring(contents, to, target)
        _switch(contents, to)
        if replaced != contents.name:  # the other nodes of a job install the same into a volume that they share
            _remove_versions(to, but={contents.name, replaced})
    return copied


def _check(to: Path) -> None:
    if any(char in str(to.absolute()) for char in SPECIAL):
        message = f"--to={str(to)!r}: the path has one of the characters : ; $ or a line break"
        raise FatalError("install-path", message, hint="name a directory without them")
    if to.exists() and not to.is_dir():
        raise FatalError("install-not-a-directory", f"--to={to} is a file, and a directory is wanted", hint=_MOUNT)


@contextmanager
def _umask(wanted: int) -> Iterator[None]:
    umask = os.umask(wanted)
    try:
        yield
    finally:
        os.umask(umask)


def _group_write(directory: Path) -> int:
    """Return the bit of the mode by which a directory's group, that of fsGroup on a volume, may write to it."""
    return directory.stat().st_mode & stat.S_IWGRP


@contextmanager
def _alone(to: Path) -> Iterator[None]:
    """Wait for other installations into this directory; file systems without locks are taken as they are."""
    deadline = time.monotonic() + LOCK_WAIT_S
    with (to / LOCK).open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    message = f"--to={to}: another installation has not ended within {LOCK_WAIT_S:g} s"
                    raise RetryError("install-busy", message, hint="look for the container that holds it") from None
                time.sleep(0.1)
            except OSError:
                break
        yield


def _bring(contents: Contents, to: Path, target: Path) -> None:
    _check_space(contents, to)
    incoming = Path(tempfile.mkdtemp(prefix=INCOMING, dir=to))
    try:
        _copy(contents, incoming)
        if reason := _why_not(incoming):
            raise _unusable(to, reason)
        if target.exists():
            shutil.rmtree(target)
        incoming.rename(target)
    finally:
        shutil.rmtree(incoming, ignore_errors=True)


def _check_space(contents: Contents, to: Path) -> None:
    space = os.statvfs(to)
    free = space.f_bavail * space.f_frsize
    wanted = sum(path.stat().st_size for path in contents.files.values())
    if free < wanted:
        message = f"--to={to}: {free / 1e6:.0f} MB are free there, and the copy takes {wanted / 1e6:.0f} MB or more"
        raise RetryError("install-no-space", message, hint=_MORE)


def _copy(contents: Contents, root: Path) -> None:
    directories = {root, *(root / place for file in contents.files for place in Path(file).parents)}
    for directory in sorted(directories):
        directory.mkdir(exist_ok=True)
    root.chmod(0o755 | _group_write(root.parent))  # mkdtemp has its own opinion
    for place, path in contents.files.items():
        _copy_file(path, root / place)
        if path.suffix == ".py" and not contents.facts.get("compiled"):
            _add_compiled(path, root / place)
    for place, text in contents.scripts.items():
        _write(root / place, text)
    _write(root / MARK, json.dumps({**contents.facts, "compiled": True}))


def _copy_file(path: Path, place: Path) -> None:
    shutil.copyfile(path, place)
    facts = path.stat()
    place.chmod(0o755 if facts.st_mode & 0o100 else 0o644)
    os.utime(place, ns=(facts.st_mtime_ns, facts.st_mtime_ns))


def _add_compiled(path: Path, place: Path) -> None:
    if data := compiled_of(path, place.read_bytes()):
        cached = Path(importlib.util.cache_from_source(str(place)))
        cached.parent.mkdir(exist_ok=True)
        cached.write_bytes(data)


def _write(place: Path, text: str) -> None:
    """Write a small file whole, so that it is there or not, and everybody may run it."""
    place.parent.mkdir(exist_ok=True)
    part = place.with_name(f"{INCOMING}{place.name}")
    part.write_text(text)
    part.chmod(0o755 if text.startswith("#!") else 0o644)
    part.rename(place)


def _switch(contents: Contents, to: Path) -> None:
    for place, text in outer(contents.name, contents.facts["interpreter"], contents.facts["loader"]).items():
        _write(to / place, text)


def _in_use(to: Path) -> str:
    """Return the version that `to` leads to, nothing when there is none."""
    with suppress(OSError):
        found = re.search(r"lib-[^/\"\s]+", (to / PROGRAM).read_text(errors="replace"))
        return found[0] if found else ""
    return ""


def _remove_versions(to: Path, *, but: set[str]) -> None:
    for mark in to.glob(f"lib-*/{MARK}"):
        if mark.parent.name not in but:
            shutil.rmtree(mark.parent, ignore_errors=True)


def _works(root: Path) -> bool:
    return root.is_dir() and not _why_not(root)


def _why_not(root: Path) -> str:
    """Return why the copied program does not start, nothing when it does."""
    argv = [str(root / "bin/python3"), str(root / START), "--version"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=START_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else f"exit code {done.returncode}: {done.stderr.strip()[-500:]}"


def _unusable(to: Path, reason: str) -> FatalError:
    if os.statvfs(to).f_flag & os.ST_NOEXEC:
        message = f"--to={to}: the volume is mounted noexec, and programs are to run from it"
        return FatalError("install-noexec", message, hint="mount a volume without noexec, such as an emptyDir")
    message = f"--to={to}: the copied program does not start ({reason})"
    return FatalError("install-broken", message, hint="report this, with the image that `install` ran in")


def _refuse(error: OSError, to: Path) -> NoReturn:
    reason = f"--to={to}: {error.strerror}"
    if error.errno in FULL:
        raise RetryError("install-no-space", reason, hint=_MORE) from error
    raise FatalError("install-not-writable", reason, hint=_MOUNT + ", writable for this user (fsGroup)") from error
