"""
Who has to hear of a signal to a shell: what it waits for hears nothing of it.

Whoever runs a shell as its child tells these processes, too, and waits for them. The module needs Python 3.8 alone, as
mpi/rank_shim.py takes it along to where nothing else of ours is.
"""

# What is started for every rank waits for this module, and pathlib would cost it 4 ms more.
# ruff: noqa: PTH123, PTH208

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

SHELLS = {"sh", "bash", "dash", "ash", "zsh", "ksh"}
OF_TERMINALS = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # there, all in the foreground get them
INT_AND_QUIT = 0b110
# Whoever is told by others needs a moment to end; who is told twice may give up in the middle of a checkpoint.
ALONE_S = 2.0


def is_shell(argv: Sequence[str]) -> bool:
    """Return whether a command is a shell with a script of its own."""
    return argv[0].rpartition("/")[2].lstrip("-") in SHELLS


class BelowShells:
    """
    What the shells among our children wait for, and who tells it of a signal.

    A shell without a trap ends at once, and tells nobody. One with a trap runs it when the command in its foreground
    has ended; bash with a trap of EXIT alone ends at once, too. A program in the foreground that has a handler hears
    from us; others may be a loop's `sleep`, or one more round before the end that the trap asks for. What is in the
    background is the trap's to tell, as `trap 'kill $!; wait' TERM` does. Who lives on after that shell hears from us.

    One that reads what another of them writes, as tee does, and has no handler gets no signal: it ends by itself, when
    it has the other's last words. Where it lives on without anybody who writes, as in `yes | python train.py`, it is
    told.

    Attributes:
        told: those that hear of a shell's signals from us, in the order in which they should.
        heirs: those that are a shell's to tell, each with that shell.
        spared: those that read what others write.
    """

    def __init__(self) -> None:
        self.told: dict[int, None] = {}
        self.heirs: dict[int, int] = {}
        self.spared: set[int] = set()
        self._shells: set[int] = set()  # those that have got a signal
        self._alone: dict[int, float] = {}  # since when nobody else tells these, or writes to them
        self._signum = 0

    @property
    def awaited(self) -> set[int]:
        """All of them: who is told, and who ends by what others do, has its time."""
        return {*self.told, *self.heirs, *self.spared}

    def look(self, pid: int, signum: int) -> None:
        """Add what is below a child that is about to get a signal, where it is a shell."""
        self._signum = signum
        if not is_shell(words(pid)):
            return
        below = dict(self._below(pid, signum, _children()))
        writers = {pipe: each for each in (pid, *below) for pipe in (_pipe(each, 1), _pipe(each, 2)) if pipe}
        for child, shell in below.items():
            if child in self.told:
                continue
            self._release(child)
            if writers.get(_pipe(child, 0), child) != child and not catches(child, signum):
                self.spared.add(child)
            elif shell:
                self.heirs[child] = shell
            else:
                self.told[child] = None

    def _below(
        self, shell: int, signum: int, children: Mapping[int, Sequence[int]], teller: int = 0
    ) -> Iterator[tuple[int, int]]:
        """
        Yield what a shell and the shells below it wait for, each with the shell that is to tell it, 0 for us.

        A shell comes before its children, as it would go on after one, and the last child first: in a pipeline that is
        the reader, for whom the end of the writer is the end of its data.
        """
        # What a shell that has been told before has in its foreground may be its trap's own command.
        traps, again = catches(shell, signum), shell in self._shells
        if not teller:
            self._shells.add(shell)
        for child in reversed(children.get(shell, [])):
            a_shell = is_shell(words(child))
            hears = a_shell or signum in OF_TERMINALS or catches(child, signum)
            left = traps and (again or not hears or not _in_foreground(child, shell))
            its_teller = shell if left or teller else 0
            yield child, its_teller
            if a_shell:
                yield from self._below(child, signum, children, its_teller)

    def tell_late(self, now: float) -> None:
        """Tell those that live on although for a while nobody else has been there to tell them, or to write to them."""
        alone = [pid for pid in living([*self.heirs, *self.spared]) if not self._has_somebody(pid)]
        self._alone = {pid: self._alone.get(pid, now) for pid in alone}
        for pid in alone:
            if now - self._alone[pid] >= ALONE_S:
                self._tell(pid)

    def tell_last(self) -> dict[int, str]:
        """Tell those that are still a shell's to tell, as there is no time left for it; return what each runs."""
        late = {pid: _program(pid) for pid in living(self.heirs)}
        for pid in late:
            self._tell(pid)
        return late

    def _tell(self, pid: int) -> None:
        if pid not in self.told:
            known = len(self.told)
            self._release(pid)
            self.told[pid] = None
            self.look(pid, self._signum)
            tell([*self.told][known:], self._signum)

    def _has_somebody(self, pid: int) -> bool:
        if pid in self.heirs:
            return bool(living([self.heirs[pid]]))
        pipe = _pipe(pid, 0)
        known = {*self._shells, *self.awaited}  # first, as there may be thousands of others
        others = (each for some in (known, _pids()) for each in some if each != pid)
        return bool(pipe) and any(pipe in (_pipe(each, 1), _pipe(each, 2)) for each in others)

    def forget(self, pid: int) -> None:
        """Leave out a process that has been collected: its number may be another's soon."""
        self._release(pid)
        self.told.pop(pid, None)
        self._shells.discard(pid)

    def _release(self, pid: int) -> None:
        self.heirs.pop(pid, None)
        self.spared.discard(pid)


def tell(pids: Iterable[int], signum: int) -> None:
    """Send a signal to those that are there; another user's, as what sudo has started, is not ours to end."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)


def catches(pid: int, signum: int) -> bool:
    """Return whether a process has a handler of its own for a signal."""
    return bool(_signals(pid, b"SigCgt:") >> (signum - 1) & 1)


def living(pids: Iterable[int]) -> list[int]:
    """Return those that have not ended."""
    return [pid for pid in pids if parent(pid)]


def parent(pid: int) -> int:
    """Return a process's parent, -1 for one whose parent is not to be seen, 0 for one that has ended."""
    state, number = _stat(pid)[:2]
    return 0 if state in (b"Z", b"X") else int(number) or -1


def _program(pid: int) -> str:
    """Return the name of what a process runs, which holds no secret as its arguments may."""
    return _read(f"/proc/{pid}/comm").decode(errors="replace").strip()


def words(pid: int) -> list[str]:
    """Return the command of a process."""
    return _read(f"/proc/{pid}/cmdline").decode(errors="replace").split("\0")


def file_of(pid: int, fd: int) -> str:
    """Return the name of a process's file, nothing where there is none to be seen."""
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/fd/{fd}")
    return ""


def _in_foreground(pid: int, shell: int) -> bool:
    """
    Return whether a shell waits for a child before it does anything else.

    POSIX has shells start what is in the background with SIGINT and SIGQUIT ignored; after `set -m` they do not, and
    give everything a group of its own. Where a program has handlers for both, as torchrun does, only its standard input
    tells: in the background shells open /dev/null for reading, which is not the file that the shell itself has.
    """
    if _signals(pid, b"SigIgn:") & INT_AND_QUIT or _stat(pid)[2] != _stat(shell)[2]:
        return False
    if _signals(pid, b"SigCgt:") & INT_AND_QUIT != INT_AND_QUIT or file_of(pid, 0) != os.devnull:
        return True
    return _read(f"/proc/{pid}/fdinfo/0") == _read(f"/proc/{shell}/fdinfo/0")


def _children() -> dict[int, list[int]]:
    """Return the living children of every process."""
    found: dict[int, list[int]] = {}
    for pid in _pids():
        found.setdefault(parent(pid), []).append(pid)
    return found


def _pids() -> Iterator[int]:
    yield from (int(name) for name in os.listdir("/proc") if name.isdigit())


def _stat(pid: int) -> list[bytes]:
    """Return state, parent and group of a process."""
    return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[:3] or [b"X", b"0", b"0"]


def _signals(pid: int, field: bytes) -> int:
    """Return a set of signals of a process as bits, SIGHUP's being the lowest: SigCgt or SigIgn of its status."""
    for line in _read(f"/proc/{pid}/status").splitlines():
        if line.startswith(field):
            return int(line.split()[1], 16)
    return 0


def _pipe(pid: int, fd: int) -> str:
    """Return the name of the pipe that a process has as a file, nothing where it is none."""
    name = file_of(pid, fd)
    return name if name.startswith("pipe:") else ""


def _read(path: str) -> bytes:
    """Return a file of /proc, nothing of a process that is gone."""
    with suppress(OSError), open(path, "rb") as file:
        return file.read()
    return b""
