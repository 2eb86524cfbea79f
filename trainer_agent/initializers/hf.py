"""
hf://: files of a repository on the Hugging Face Hub.

Everything is pinned to one commit. Xet serves what nothing else does.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainer_agent.initializers import (
    PATIENCE_S,
    STALL_S,
    ChangedError,
    Entry,
    OfflineError,
    TransientError,
    hf_uri,
)
from trainer_agent.initializers.hf_api import CdnRefusedError, HubApi, MissingError
from trainer_agent.initializers.hf_xet import XetReader
from trainer_agent.initializers.http import demand_range

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

YES = frozenset({"1", "on", "yes", "true"})
# The CDN does not send larger files (huggingface_hub's MAX_HTTP_DOWNLOAD_SIZE).
MOST_PLAIN_BYTES = 50_000_000_000
# Files whose place on the CDN is remembered.
MOST_LOCATED = 64
HASH = {"git-sha1": re.compile(r"[0-9a-f]{40}"), "sha256": re.compile(r"[0-9a-f]{64}")}

OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")  # as for huggingface_hub: the second where the first is not set


class HubSource:
    """
    The files of a dataset or a model, or those below a path of it: `hf://org/name@revision/path`, see `hf_uri.parse`.

    A model's paths are relative to the URI's path, where a single file keeps its name.
    A dataset's are those of the repository, as Kubeflow's SDK looks for `…/dataset/data` after `hf://org/name/data`.

    Args:
        environ: HF_ENDPOINT, those of the token, HF_HUB_OFFLINE, proxies and authorities.
        patience_s: how long questions about the repository are repeated.
    """

    def __init__(
        self,
        rest: str,
        environ: Mapping[str, str],
        *,
        kind: str = "dataset",
        stall_s: float = STALL_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.asked = hf_uri.parse(rest, kind=kind)
        self.uri = str(self.asked)
        self.revision = ""
        self.offline = _offline_by(environ)
        self.api = HubApi(self.asked, environ, stall_s=stall_s, patience_s=patience_s)
        self._xet: dict[str, str] = {}
        self._only_xet: set[str] = set()
        self._reader: XetReader | None = None
        self._located: dict[str, _Located] = {}
        self._lock = threading.Lock()

    def entries(self) -> Iterator[Entry]:
        """List the files of the commit that the revision is now."""
        if self.offline:
            raise _offline(self.offline, f"{self.uri} is not here yet")
        self.revision = self.api.commit()
        for listed in self.api.files(self.revision):
            yield self._entry(listed)

    def read(self, entry: Entry, start: int, stop: int) -> Iterator[bytes | memoryview]:
        """Yield the bytes `[start, stop)`: from the Hub, from its CDN, or from Xet."""
        if self.offline:
            raise _offline(self.offline, f"{entry.path} is damaged here, or another than is wanted")
        if start == stop:
            return iter(())
        if entry.key in self._xet and (entry.size > MOST_PLAIN_BYTES or entry.key in self._only_xet):
            return self._read_xet(entry, start, stop)
        if (start, stop) == (0, entry.size):
            pieces = self._read_at(self.api.resolve_url(self.revision, entry.key), entry, start, stop)
        else:
            pieces = self._read_range(entry, start, stop)
        return self._or_xet(pieces, entry, start, stop)

    def believes(self, checksum: str, *, fits: bool) -> bool:
        """Return True: what is told as a checksum is one."""
        return True

    def checksum(self, entry: Entry) -> str:
        """Return what the listing said."""
        return entry.checksum

    def _entry(self, listed: Mapping[str, Any]) -> Entry:
        key, oid, lfs = listed["path"], listed.get("oid"), listed.get("lfs")
        if isinstance(listed.get("xetHash"), str):
            self._xet[key] = listed["xetHash"]
        # What is not in git itself has a pointer there, whose hash says nothing about the bytes.
        algorithm = "" if key in self._xet else "git-sha1"
        if isinstance(lfs, dict):
            oid, algorithm = lfs.get("oid"), "sha256"
        known = algorithm and isinstance(oid, str) and HASH[algorithm].fullmatch(oid)
        return Entry(self._place(key), listed["size"], key, str(oid or ""), f"{algorithm}:{oid}" if known else "")

    def _place(self, key: str) -> str:
        """Return where a file goes, relative to the destination."""
        if self.asked.kind == "datasets":
            return key
        below = self.asked.path
        return key.rpartition("/")[2] if key == below else key.removeprefix(f"{below}/")

    def _or_xet(
        self, pieces: Iterator[bytes | memoryview], entry: Entry, start: int, stop: int
    ) -> Iterator[bytes | memoryview]:
        """Turn to Xet for a file that was listed and cannot be had otherwise."""
        try:
            yield from pieces
        except MissingError as error:
            if entry.key not in self._xet:
                raise _changed(entry, "the Hub no longer has it") from error
            self._only_xet.add(entry.key)
            yield from self._read_xet(entry, start, stop)

    def _read_range(self, entry: Entry, start: int, stop: int) -> Iterator[bytes | memoryview]:
        """Read a part of a file where it lies; the Hub is asked for that place once, and again when it fails."""
        located = self._slot(entry)
        url = self._locate(located, entry)
        try:
            yield from self._read_at(url, entry, start, stop)
        except CdnRefusedError:  # the signature has expired, which is told before the first byte
            yield from self._read_at(self._locate(located, entry, stale=url), entry, start, stop)
        except TransientError:
            located.forget(url)
            raise

    def _read_at(self, url: str, entry: Entry, start: int, stop: int) -> Iterator[bytes | memoryview]:
        whole = (start, stop) == (0, entry.size)
        with self.api.open(url, {} if whole else {"Range": f"bytes={start}-{stop - 1}"}) as answer:
            if whole:
                _check_size(entry, answer.headers.get("Content-Length", ""))
            elif (total := demand_range(answer, entry.key, start, stop)) != "*":
                _check_size(entry, total)
            yield from answer.pieces()

    def _read_xet(self, entry: Entry, start: int, stop: int) -> Iterator[memoryview]:
        with self._lock:
            reader = self._reader = self._reader or XetReader(self.api, self.revision)
        return reader.read(self._xet[entry.key], entry.size, start, stop)

    def _slot(self, entry: Entry) -> _Located:
        with self._lock:
            if entry.key not in self._located and len(self._located) >= MOST_LOCATED:
                del self._located[next(iter(self._located))]
            return self._located.setdefault(entry.key, _Located())

    def _locate(self, located: _Located, entry: Entry, *, stale: str = "") -> str:
        """Return where a file lies; one thread asks the Hub while others wait for its answer."""
        with located.lock:
            if located.url in {"", stale}:
                located.url = self.api.locate(self.api.resolve_url(self.revision, entry.key))
            return located.url


@dataclass
class _Located:
    """Where a file lies, and the lock of who asks for it."""

    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def forget(self, url: str) -> None:
        """Let the next one ask again, unless somebody has."""
        with self.lock:
            if self.url == url:
                self.url = ""


def _check_size(entry: Entry, size: str) -> None:
    if size.isdecimal() and int(size) != entry.size:
        raise _changed(entry, f"it has {size} bytes, and {entry.size} were listed")


def _offline_by(environ: Mapping[str, str]) -> str:
    """Return the variable that says that the Hub may not be asked, empty when it may."""
    name = next((name for name in OFFLINE if environ.get(name, "").strip()), "")
    return name if environ.get(name, "").strip().lower() in YES else ""


def _offline(name: str, what: str) -> OfflineError:
    hint = f"unset {name}, or provide a destination that was completed before"
    return OfflineError("hub-offline", f"{name} is set, and {what}", hint=hint)


def _changed(entry: Entry, how: str) -> ChangedError:
    hint = "a commit does not change: the Hub or a mirror of it is broken, or its history was rewritten"
    return ChangedError("source-changed", f"{entry.key} is not what was listed: {how}", hint=hint)
