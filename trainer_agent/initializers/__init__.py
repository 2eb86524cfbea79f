"""
Where data comes from.

A source lists what it has (`entries`), opens byte ranges (`read`) and knows what a file must hash to (`checksum`).
Everything else is shared: filtering, planning, space, transfer, verification, records, progress.

TransientError      try that range again, after `retry_after_s` where the server said so
├── ChangedError    the file is no longer what was listed
└── NoRangesError   the server sends whole files only: ask for all of it

OfflineError        the source may not be asked
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from trainer_agent.errors import FatalError, RetryError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

# scheme of STORAGE_URI: module:class
SOURCES = {
    "file": "trainer_agent.initializers.file:FileSource",
    "s3": "trainer_agent.initializers.s3:S3Source",
    "hf": "trainer_agent.initializers.hf:HubSource",
}
# The same for what is not fetched but set up, and then serves the trainer.
SERVICES = {"cache": "trainer_agent.initializers.cache:CacheSource"}

# No byte for this long is a stall: that range is asked for again on another connection.
STALL_S = 30.0
# How long a question, such as for a list, is repeated.
PATIENCE_S = 120.0
# How long a service that did not come up takes to remove what it has made.
CLEANUP_S = 15.0
TIMEOUT_HINT = "raise --timeout, or look at the source and the volume; what has arrived is kept"
KILLED_HINT = "if it was for memory, raise the container's limit or lower --streams; what has arrived is kept"
# The directory of our own in a destination: unfinished files, journal, record, lock.
HIDDEN = ".trainer-agent"


@dataclass(frozen=True, slots=True)
class Entry:
    """
    One file of a source.

    Args:
        path: where it goes, relative to the destination, with `/`.
        size: bytes.
        key: what the source calls it.
        version: changes whenever the bytes do (etag, blob id, modification time); empty when nobody knows.
        checksum: `algorithm:value` where the listing gives one, as `digests` understands it; else empty.
    """

    path: str
    size: int
    key: str
    version: str = ""
    checksum: str = ""


class TransientError(RetryError):
    """
    This may pass: a reset, a timeout, a status such as 503.

    Args:
        busy: the server asked for fewer requests (429, 503).
        retry_after_s: seconds that the server asked us to wait, None when it did not say.
    """

    def __init__(
        self, code: str, message: str, *, hint: str = "", busy: bool = False, retry_after_s: float | None = None
    ) -> None:
        super().__init__(code, message, hint=hint)
        self.busy = busy
        self.retry_after_s = retry_after_s


class ChangedError(TransientError):
    """The file is no longer what was listed (412, another size)."""


class NoRangesError(TransientError):
    """The server answered a range with the whole file."""


class OfflineError(FatalError):
    """The source may not be asked; a destination that is complete is good enough."""


class Source(Protocol):
    """
    What a source can do; every method may be called from several threads at once.

    All raise `FatalError` (30), or `TransientError` for what may pass.

    Attributes:
        uri: what it fetches, as it may be shown: without secrets.
        revision: the commit that everything is pinned to once `entries` has begun; empty where there is none.
    """

    uri: str
    revision: str

    def entries(self) -> Iterable[Entry]:
        """List the files that the URI names."""

    def read(self, entry: Entry, start: int, stop: int) -> Iterator[bytes | memoryview]:
        """Yield the bytes `[start, stop)` of a file in pieces of about 256 KiB, each valid until the next."""

    def checksum(self, entry: Entry) -> str:
        """Return what the file's bytes must hash to, asking the server if need be; empty when nobody knows."""

    def believes(self, checksum: str, *, fits: bool) -> bool:
        """
        Take whether a checksum that `checksum` returned fits, and return whether it is one.

        Args:
            fits: False when the same bytes came twice, and hash to something else.
        """


@runtime_checkable
class Service(Protocol):
    """What is set up in the cluster and serves the trainer; nothing is fetched."""

    uri: str

    def serve(self, *, deadline: float) -> None:
        """Return once it serves; `deadline` is on the monotonic clock."""


def open_source(
    uri: str,
    environ: Mapping[str, str],
    *,
    kind: str = "dataset",
    stall_s: float = STALL_S,
    patience_s: float = PATIENCE_S,
) -> Source | Service:
    """
    Return the source or the service that `uri` names; nothing is read yet.

    Args:
        kind: `dataset` or `model`.
        stall_s: a connection that brings no byte for so long is given up.
        patience_s: how long a question, such as for a list, is repeated.

    Raises:
        FatalError: nobody knows the scheme, or the URI names nothing.
    """
    scheme, separator, rest = uri.partition("://")
    known_schemes = SOURCES | SERVICES
    if not separator or scheme not in known_schemes or not rest.strip("/"):
        known = ", ".join(f"{s}://…" for s in known_schemes)
        raise FatalError(
            "storage-uri-invalid",
            f"STORAGE_URI={shown_uri(uri)!r} is not one of {known}",
            hint="write it as s3://bucket/prefix, hf://organisation/name, cache://schema/table or file:///path",
        )
    if uri != shown_uri(uri) and scheme != "hf":
        raise FatalError(
            "storage-uri-invalid",
            f"STORAGE_URI={shown_uri(uri)!r} holds a user or a password",
            hint="give credentials in variables of their own, such as ACCESS_KEY_ID and SECRET_ACCESS_KEY",
        )
    module, _, name = known_schemes[scheme].partition(":")
    source: Source | Service = getattr(importlib.import_module(module), name)(
        rest, environ, kind=kind, stall_s=stall_s, patience_s=patience_s
    )
    return source


def shown_uri(uri: str) -> str:
    """Return a URI without what may be secret: user and password before an `@`, and a query where it is not a name."""
    if uri.partition("://")[0] in SOURCES | SERVICES:  # whose names may hold an `@` and a `?`
        return re.sub(r"://[^/]*:.*@", "://***@", uri, count=1)  # half of S3's secret keys hold a slash
    uri = re.sub(r"//[^/]*@", "//***@", re.split(r"[?#]", uri, maxsplit=1)[0], count=1)
    return re.sub(r"://[^/]*:(?!\d+/).*@", "://***@", uri, count=1)
