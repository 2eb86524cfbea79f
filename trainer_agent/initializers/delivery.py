"""
One source and one destination: what is there already, what has to come, and putting it in place.

Unfinished files, the journal of what has arrived and the completion record lie in a hidden directory of the
destination, on the same file system, so that putting a file in place is a rename.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from trainer_agent.cgroup import read_limits
from trainer_agent.errors import FatalError
from trainer_agent.initializers import HIDDEN, Entry, OfflineError, hidden, names, patterns, record, stale
from trainer_agent.initializers.checksums import unmatched
from trainer_agent.initializers.disk import THREADS, Disk
from trainer_agent.initializers.incoming import Incoming
from trainer_agent.initializers.journal import NAME as JOURNAL
from trainer_agent.initializers.journal import Journal, has_identity, part_name
from trainer_agent.initializers.lock import LOCK
from trainer_agent.initializers.record import Kept, Record
from trainer_agent.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trainer_agent.host import Host
    from trainer_agent.initializers.journal import Saved
    from trainer_agent.initializers.lock import Claim, NoClaim
    from trainer_agent.initializers.order import Order

PARTS = "parts"


class Delivery:
    """
    Carry out an order: `survey`, fetch `incoming`, `publish`.

    Args:
        lost: called when what was written may not be on disk; it is to call `forget`.

    Attributes:
        entries: what is wanted.
        kept: what is in place already.
        left_to_kernel: where some of that may not be on disk.
        staged: what an earlier attempt left whole, but not in place.
        incoming: what has to be fetched.
        forgotten: what has come is not kept for another attempt.
    """

    def __init__(
        self, order: Order, claim: Claim | NoClaim, *, boot: str, host: Host, lost: Callable[[], None]
    ) -> None:
        self.order = order
        self.parts = order.hidden / PARTS
        self.claim = claim
        self.boot = boot
        self.host = host
        self.lost = lost
        self.forgotten = False
        self.entries: dict[str, Entry] = {}
        self.kept: dict[str, Kept] = {}
        self.left_to_kernel: list[Path] = []
        self.staged: list[Staged] = []
        self.incoming: list[Incoming] = []
        self.to_come = 0  # bytes

    @cached_property
    def earlier(self) -> Record | None:
        """The record of the last fetch into this destination."""
        return record.read(self.order.hidden)

    @cached_property
    def journal(self) -> Journal:
        """The journal of the attempts since; whatever is written comes after it."""
        if not self.claim.writable:
            self.claim.confirm()
        self.parts.mkdir(parents=True, exist_ok=True)
        return Journal(self.order.hidden, uri=self.order.source.uri, boot=self.boot)

    @cached_property
    def disk(self) -> Disk:
        """The file system of the destination."""
        return Disk(self.order.hidden, host=self.host, lost=self.lost, later=self.order.flush == "later")

    @property
    def in_memory(self) -> bool:
        """Whether what is to come will lie in this container's memory."""
        return bool(self.incoming) and self.disk.in_memory

    def survey(self) -> None:
        """
        List the source and look at the destination.

        Raises:
            AgentError: nothing is there, a name is refused, the source does not answer, or something is in the way.
        """
        self._refuse_another_kind()
        self._list()
        damaged = self._damaged() if self.order.verify == "full" or self._may_be_lost() else frozenset()
        for path, entry in self.entries.items():
            if not self._is_kept(entry) or path in damaged:
                self._plan(entry)
        self.to_come = sum(file.to_come for file in self.incoming)
        if self.incoming or self.staged:
            self._look_ahead()
            self._remove_dead_parts()

    @property
    def complete(self) -> bool:
        """Whether everything is in place, and nothing else of ours, and the record knows each file."""
        earlier, order = self.earlier, self.order
        if self.incoming or self.staged or self.stale or earlier is None:
            return False
        return (earlier.source, earlier.revision, earlier.files) == (order.source.uri, order.source.revision, self.kept)

    @cached_property
    def stale(self) -> list[str]:
        """What the last fetch put here, nobody has changed, and the source has no more."""
        return stale.find(self.order.destination, self.earlier, self.entries)

    def publish(self) -> None:
        """
        Put everything in place and write the record, where that is not done.

        Raises:
            OSError: the destination cannot be written.
            RetryError: another agent has taken it over.
            FatalError: what is in the way is not ours.
        """
        if self.complete:
            self._renew_record()
        else:
            self._put_in_place()
        self._tidy()

    def _put_in_place(self) -> None:
        destination = self.order.destination
        try:
            # Which an earlier attempt may not have waited for.
            self.disk.wait([*(staged.part for staged in self.staged), *self.left_to_kernel])
        except FileNotFoundError:  # another agent that has finished since has removed all parts
            self.claim.confirm()
            raise
        self.claim.confirm()  # waiting may have taken long; another agent's parts have the same names
        whole = [*self.staged, *(Staged(f.entry, f.part, f.actual, f.identity) for f in self.incoming)]
        if self.earlier:  # first: a file that is gone may have become a directory
            stale.remove(destination, self.stale, source=self.earlier.source)
        if self._there() != {HIDDEN}:
            self._tell_replaced(names.check_parents(destination, [s.entry.path for s in whole]))
        parents = [destination / name for name in {s.entry.path.rpartition("/")[0] for s in whole}]
        for parent in parents:
            parent.mkdir(parents=True, exist_ok=True)
        for staged in whole:
            self.claim.check()
            # Not Path.replace: for many files, making paths takes longer than the renames.
            os.replace(staged.part, f"{destination}/{staged.entry.path}")  # noqa: PTH105
            self.kept[staged.entry.path] = staged.kept
        self.disk.wait(parents)
        self.claim.confirm()
        self._write_record(flushed=not self.disk.later)

    def forget(self) -> None:
        """Leave nothing to the next attempt; threads that go on noting what has come note it nowhere."""
        self.forgotten = True
        for name in [JOURNAL, record.NAME] if self.left_to_kernel else [JOURNAL]:
            with suppress(OSError):  # whoever cannot write here cannot publish either
                (self.order.hidden / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Close what is open; unfinished files stay for the next attempt."""
        for file in self.incoming:
            file.close()
        if "journal" in self.__dict__:
            self.journal.close()
        if "disk" in self.__dict__:
            self.disk.close()

    def _refuse_another_kind(self) -> None:
        """What is there and not in the source would be removed: a model must not replace a dataset."""
        earlier, order = self.earlier, self.order
        if earlier and earlier.kind not in {"", order.kind}:
            raise FatalError(
                "output-path-shared",
                f"{order.destination} holds the {earlier.kind} of {earlier.source}, and a {order.kind} is to go there",
                hint=f"give the {order.kind} another OUTPUT_PATH, or remove {order.hidden} if it may be replaced",
            )

    def _list(self) -> None:
        order = self.order
        try:
            listed = list(order.source.entries())
        except OfflineError:
            if not self._is_whole():
                raise
            get_logger().info("the source is not asked, and what was fetched is complete", source=order.source.uri)
            listed = self._recorded()
        chosen, why = patterns.select(
            listed, allow=order.allow, ignore=order.ignore, kind=order.kind, scheme=order.source.uri.partition(":")[0]
        )
        if why:
            get_logger().info(why, kind=order.kind)
        if not chosen:
            raise FatalError(
                "source-empty",
                f"{order.source.uri} holds no file to fetch ({len(listed)} listed, all ignored)"
                if listed
                else f"{order.source.uri} holds no file",
                hint="check the prefix in STORAGE_URI, IGNORE_PATTERNS and --allow-patterns",
            )
        names.refuse_unsafe(chosen)
        self._refuse_folded([entry.path for entry in chosen])
        self.entries = {entry.path: entry for entry in chosen}
        if order.checksums:
            unmatched(order.checksums, [entry.path for entry in listed])
            if lacking := sum(path not in order.checksums for path in self.entries):
                get_logger().warning("--checksums does not name all files", lacking=lacking)

    def _refuse_folded(self, chosen: list[str]) -> None:
        case = hidden.folds_case(self.order.hidden / LOCK)
        unicode = not all(map(str.isascii, chosen)) and hidden.folds_unicode(self.order.hidden)
        if case or unicode:
            names.refuse_folded(chosen, names.folding(case=case, unicode=unicode))

    def _is_whole(self) -> bool:
        """Return whether all that the record of this very source and selection names is in place."""
        earlier, order = self.earlier, self.order
        if earlier is None or (earlier.source, earlier.selection) != (order.source.uri, order.selection):
            return False
        self.order.source.revision = earlier.revision
        return all(earlier.matches(self.order.destination / path, path) for path in earlier.files)

    def _recorded(self) -> list[Entry]:
        files = self.earlier.files if self.earlier else {}
        return [Entry(path, kept.size, path, kept.version, kept.checksum) for path, kept in files.items()]

    def _contradicts(self, entry: Entry, checksum: str) -> bool:
        """Return whether a file was proved by another checksum than the user's list has now."""
        return bool(checksum) and self.order.checksums.get(entry.path, checksum) != checksum

    def _wanted(self, entry: Entry) -> str:
        return self.order.checksums.get(entry.path) or entry.checksum

    def _is_kept(self, entry: Entry) -> bool:
        """Take over a file that the record knows, in this version and with this checksum."""
        kept = self.earlier.files.get(entry.path) if self.earlier else None
        if self.earlier is None or kept is None or not entry.version:
            return False
        if (kept.version, kept.size) != (entry.version, entry.size):
            return False
        if self.earlier.source != self.order.source.uri and entry.checksum != kept.checksum:
            return False  # the same version of another source need not be the same bytes
        path = self.order.destination / entry.path
        listed = self.order.checksums.get(entry.path, kept.checksum)
        if listed != kept.checksum or not self.earlier.matches(path, entry.path):
            kept = record.proved(path, replace(kept, checksum=listed))
        if kept is not None:
            self.kept[entry.path] = kept
            self.left_to_kernel += [] if self.earlier.flushed else [path]
        return kept is not None

    def _damaged(self) -> frozenset[str]:
        """Hash what is there; return the names of what no longer is what was fetched."""
        files = self.earlier.files if self.earlier else {}
        wanted = {path: kept for path, kept in files.items() if path in self.entries}
        threads = max(THREADS, int(read_limits(self.host).cpus))
        damaged = record.damaged(self.order.destination, wanted, threads=threads)
        if damaged:
            first = ", ".join(sorted(damaged)[:3])
            get_logger().warning("files here are damaged or gone, fetching them again", files=len(damaged), first=first)
        return damaged

    def _plan(self, entry: Entry) -> None:
        """Decide how to get one file."""
        self.kept.pop(entry.path, None)
        part = self.parts / part_name(entry.path, entry.version)
        saved = self._saved(entry)
        if saved and saved.identity:
            if has_identity(self.order.destination / entry.path, saved.identity):
                self.left_to_kernel.append(self.order.destination / entry.path)
                self.kept[entry.path] = Kept(entry.size, entry.version, saved.checksum, saved.identity[1])
                return
            if has_identity(part, saved.identity):
                self.staged.append(Staged(entry, part, saved.checksum, saved.identity))
                return
        self.incoming.append(
            Incoming(
                self.order.source,
                entry,
                part,
                self.journal,
                self.disk,
                wanted=self._wanted(entry) if self.order.verify != "size" else "",
                verify=self.order.verify != "size",
                saved=saved if saved and _holds(part, saved) else None,
            )
        )

    def _saved(self, entry: Entry) -> Saved | None:
        """Return what an earlier attempt has noted of this version of a file, as far as it counts now."""
        saved = self.journal.saved.get(entry.path)
        if saved is None or not saved.is_of(entry) or self._contradicts(entry, saved.checksum):
            return None
        if not saved.checksum and self.order.verify != "size":
            saved.identity = None  # its size was its proof then
        return saved

    def _look_ahead(self) -> None:
        """Refuse now what would be in the way of publishing; what is not there cannot be."""
        there = self._there()
        coming = (e.path for e in (*(s.entry for s in self.staged), *(f.entry for f in self.incoming)))
        known = [path for path in coming if path.partition("/")[0] in there]
        leaving = stale.find(self.order.destination, self.earlier, self.entries) if known else ()
        names.check_parents(self.order.destination, known, leaving=leaving)

    def _there(self) -> frozenset[str]:
        with os.scandir(self.order.destination) as found:
            return frozenset(entry.name for entry in found)

    def _remove_dead_parts(self) -> None:
        """Unlink what nobody goes on with: it takes space."""
        alive = {s.part.name for s in self.staged} | {f.part.name for f in self.incoming if f.saved is not None}
        dead = [part for part in self.parts.iterdir() if part.name not in alive]
        for part in dead:
            part.unlink()
        if dead and not alive:  # the disk may have refused them, and would tell it once more
            self.disk.overlook()

    def _tell_replaced(self, there: list[str]) -> None:
        """Warn of files that somebody else put there, or has changed since."""
        earlier, destination = self.earlier, self.order.destination
        others = [path for path in there if earlier is None or not earlier.matches(destination / path, path)]
        if others:
            facts = {"files": len(others), "first": min(others)}
            get_logger().warning("replacing files that are not as a fetch has left them", **facts)

    def _may_be_lost(self) -> bool:
        """Return whether nobody has waited until all that the record names was on disk."""
        lost = self.earlier is not None and not self.earlier.flushed
        if lost:
            get_logger().info("the last fetch left it to the node to put its files on disk: proving them")
        return lost

    def _write_record(self, *, flushed: bool) -> None:
        order = self.order
        found = Record(order.source.uri, order.source.revision, order.selection, self.kept, order.kind, flushed)
        record.write(order.hidden, found)

    def _renew_record(self) -> None:
        """Have the record say what is true now, too; without that all is in place as well."""
        earlier, order = self.earlier, self.order
        self.disk.wait(self.left_to_kernel)
        flushed = not (self.left_to_kernel and self.disk.later)
        same = earlier and (earlier.selection, earlier.kind, earlier.flushed) == (order.selection, order.kind, flushed)
        if same or not self.claim.writable:
            return
        try:
            self.claim.confirm()
            self._write_record(flushed=flushed)  # what was asked for counts offline, too
        except OSError as error:
            get_logger().warning("all is in place, and the record cannot be written anew", why=error.strerror)

    def _tidy(self) -> None:
        """Remove what only unfinished attempts need; one that was killed after it wrote the record has not."""
        if not self.claim.writable:
            return  # somebody else may need it
        shutil.rmtree(self.parts, ignore_errors=True)
        with suppress(OSError):  # the destination may be read-only by now
            (self.order.hidden / JOURNAL).unlink(missing_ok=True)


def _holds(part: Path, saved: Saved) -> bool:
    """Return whether a part is there and has what was noted of it, for behind its end come zeros, and no more."""
    try:
        size = part.stat().st_size
    except FileNotFoundError:
        return False
    return size <= saved.size and all(stop <= size for stop, _ in saved.ranges.values())


@dataclass(frozen=True)
class Staged:
    """A whole and proved file that is not in place yet."""

    entry: Entry
    part: Path
    checksum: str
    identity: tuple[int, int]

    @property
    def kept(self) -> Kept:
        """What the record will say of it."""
        return Kept(self.entry.size, self.entry.version, self.checksum, self.identity[1])
