"""
Where data comes from.

A source is a class with two methods: `entries()` lists what it has, `read(entry)` yields its bytes.
Everything else (filtering, paths, disk space, temporary names) is shared, in `fetch`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from trainer_agent.errors import FatalError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# scheme of STORAGE_URI: module:class
SOURCES = {
    "file": "trainer_agent.initializers.file:FileSource",
    "s3": "trainer_agent.initializers.s3:S3Source",
}


@dataclass(frozen=True)
class Entry:
    """One file of a source: `path` relative to what the URI names, `size` in bytes, `key` as the source calls it."""

    path: str
    size: int
    key: str


class Source(Protocol):
    """What a source can do. Both raise `FatalError` (30) or `RetryError` (20)."""

    def entries(self) -> Sequence[Entry]:
        """List what the URI names."""

    def read(self, entry: Entry) -> Iterator[bytes]:
        """Yield the bytes of one file."""


def open_source(uri: str, environ: Mapping[str, str]) -> Source:
    """
    Return the source that `uri` names; nothing is read yet.

    Raises:
        FatalError: nobody knows the scheme, or the URI names nothing.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator or scheme not in SOURCES or not rest.strip("/"):
        known = ", ".join(f"{s}://…" for s in SOURCES)
        raise FatalError(
            "storage-uri-invalid",
            f"STORAGE_URI={uri!r} is not one of {known}",
            hint="write it as s3://bucket/prefix or file:///path",
        )
    module, _, name = SOURCES[scheme].partition(":")
    source: Source = getattr(importlib.import_module(module), name)(rest, environ)
    return source
