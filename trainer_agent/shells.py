"""
Who has to hear of a signal to a shell: one without a trap ends at once, and hands nothing on.

Whoever runs a shell as its child tells these processes, too, and waits for them. The module needs Python 3.8 alone, as
mpi/rank_shim.py takes it along to where nothing else of ours is.
"""

# What is started for every rank waits for this module, and pathlib would cost it 4 ms more.
# ruff: noqa: PTH123, PTH208

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SHELLS = {"sh", "bash", "dash", "ash", "zsh", "ksh"}


def is_shell(argv: Sequence[str]) -> bool:
    """Return whether a command is a shell with a script of its own."""
    return argv[0].rpartition("/")[2].lstrip("-") in SHELLS


def below_shell(pid: int, signum: int) -> tuple[list[int], list[int]]:
    """
    Return the pids that must get a signal together with a process, and those that must only be awaited.

    These are the commands that a shell without a trap waits for, also in shells below it; of another program there are
    none. One that reads what another of them writes, as tee does, gets no signal: it ends by itself, when it has the
    other's last words. Where it has a handler and the other has none, as in `yes | python train.py`, it is told.
    """
    if not is_shell(_words(pid)):
        return [], []
    children = _children()
    shells, found = [pid], []
    for shell in shells:
        below = [] if catches(shell, signum) else children.get(shell, [])
        found += below
        shells += [child for child in below if is_shell(_words(child))]
    writers = {pipe: each for each in (pid, *found) for pipe in (_pipe(each, 1), _pipe(each, 2)) if pipe}
    told: list[int] = []
    spared: list[int] = []
    for each in found:
        writer = writers.get(_pipe(each, 0), each)
        reads = writer != each and (catches(writer, signum) or not catches(each, signum))
        (spared if reads else told).append(each)
    return told, spared


class BelowShells:
    """
    What the shells among our children wait for.

    Attributes:
        told: those that hear of a shell's signals, too.
        awaited: the same, and those that end by themselves when these have ended.
    """

    def __init__(self) -> None:
        self.told: set[int] = set()
        self.awaited: set[int] = set()

    def look(self, pid: int, signum: int) -> None:
        """Add what is below a child that is about to get a signal, where it is a shell."""
        told, spared = below_shell(pid, signum)
        self.told |= {*told}
        self.awaited |= {*told, *spared}

    def forget(self, pid: int) -> None:
        """Leave out a process that has been collected: its number may be another's soon."""
        self.told.discard(pid)
        self.awaited.discard(pid)


def catches(pid: int, signum: int) -> bool:
    """Return whether a process has a handler of its own for a signal (SigCgt of /proc/PID/status)."""
    for line in _read(f"/proc/{pid}/status").splitlines():
        if line.startswith(b"SigCgt:"):
            return bool(int(line.split()[1], 16) >> (signum - 1) & 1)
    return False


def living(pids: Iterable[int]) -> list[int]:
    """Return those that have not ended."""
    return [pid for pid in pids if _parent(pid)]


def _children() -> dict[int, list[int]]:
    """Return the living children of every process."""
    found: dict[int, list[int]] = {}
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        found.setdefault(_parent(pid), []).append(pid)
    return found


def _parent(pid: int) -> int:
    """Return a process's parent, -1 for one whose parent is not to be seen, 0 for one that has ended."""
    state, parent = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[:2] or (b"X", b"0")
    return 0 if state in (b"Z", b"X") else int(parent) or -1


def _words(pid: int) -> list[str]:
    return _read(f"/proc/{pid}/cmdline").decode(errors="replace").split("\0")


def _pipe(pid: int, fd: int) -> str:
    """Return the name of the pipe that a process has as a file, nothing where it is none."""
    with suppress(OSError):
        name = os.readlink(f"/proc/{pid}/fd/{fd}")
        return name if name.startswith("pipe:") else ""
    return ""


def _read(path: str) -> bytes:
    """Return a file of /proc, nothing of a process that is gone."""
    with suppress(OSError), open(path, "rb") as file:
        return file.read()
    return b""
