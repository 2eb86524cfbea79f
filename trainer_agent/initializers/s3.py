"""s3://: objects of a bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer_agent.errors import FatalError
from trainer_agent.initializers import (
    PATIENCE_S,
    STALL_S,
    ChangedError,
    Entry,
    TransientError,
    s3_checksum,
)
from trainer_agent.initializers.http import demand_range
from trainer_agent.initializers.retry import persist
from trainer_agent.initializers.s3_bucket import AccessDeniedError, Bucket
from trainer_agent.initializers.s3_xml import unquoted
from trainer_agent.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Of parts of different sizes so many are asked for theirs; more questions would take longer than the bytes.
MOST_PARTS = 100


class S3Source:
    """
    The objects below a prefix, taken as a path: `s3://b/dir` is `dir/…`, else the object `dir`, never `dir2/…`.

    Args:
        patience_s: how long a listing is tried.
    """

    revision = ""

    def __init__(
        self,
        rest: str,
        environ: Mapping[str, str],
        *,
        kind: str = "dataset",
        stall_s: float = STALL_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.uri = f"s3://{rest}"
        name, _, prefix = rest.partition("/")
        # One slash at the end may be left out; any other belongs to the keys.
        self.key = prefix.removesuffix("/")
        self.prefix = f"{self.key}/" if prefix else ""
        self.bucket = Bucket(name, environ, stall_s=stall_s)
        self.patience_s = patience_s
        self._asked: set[str] = set()
        self._learned: dict[str, str] = {}
        self._server = ""
        self._etags: bool | None = None  # whether they are made of MD5s; nobody knows before the first one fits

    def entries(self) -> Iterator[Entry]:
        """List the objects page by page; markers of empty directories are left out."""
        found = False
        try:
            for entry in self._below():
                found = True
                yield entry
        except AccessDeniedError:
            # Who may not list may still read an object whose name is known, which is common for public ones.
            single = None if found else self._single(refused_is_none=True)
            if single is None:
                raise
            yield single
            return
        if not found and (single := self._single()):
            yield single

    def read(self, entry: Entry, start: int, stop: int) -> Iterator[bytes | memoryview]:
        """Yield the bytes `[start, stop)`; with those of a whole object comes its checksum, which is kept."""
        whole = (start, stop) == (0, entry.size)
        headers = {"x-amz-checksum-mode": "ENABLED"} if whole else {"Range": f"bytes={start}-{stop - 1}"}
        # If-Match never matches a weak one.
        if entry.version and not entry.version.startswith("W/"):
            headers["If-Match"] = f'"{entry.version}"'
        with self.bucket.open(entry.key, headers) as answer:
            _check_same(entry, answer.headers.get("ETag"))
            if not whole:
                if (total := demand_range(answer, entry.key, start, stop)) != "*":
                    _check_same(entry, None, int(total))
            elif (length := answer.headers.get("Content-Length", "")).isdecimal():
                _check_same(entry, None, int(length))
            if whole and (found := self._told(answer.headers, entry)) is not None:
                self._learned[entry.key] = found
            yield from answer.pieces()

    def checksum(self, entry: Entry) -> str:
        """
        Return what S3 says that the object hashes to.

        Of one that has been read whole, that is what came with its bytes; of an empty one there is nothing to prove.
        """
        if (learned := self._learned.pop(entry.key, None)) is not None:
            return learned
        if not entry.size:
            return ""
        found = self._told(self._head(entry), entry)
        return s3_checksum.of_parts(entry.version, entry.size, self._parts(entry)) if found is None else found

    def believes(self, checksum: str, *, fits: bool) -> bool:
        """
        Take whether a checksum fits; return whether it is one.

        No protocol says that an ETag is an MD5, and lakeFS, FSx and others have some that are none but look so. Where
        one has fitted they are; Amazon's and MinIO's are in any case.
        """
        if checksum.partition(":")[0] not in s3_checksum.OF_ETAGS:
            return True
        if self._etags is None:
            self._etags = fits or self._server.startswith(s3_checksum.HONEST)
            if not self._etags:
                get_logger().warning("this server's ETags are no MD5s and prove nothing", source=self.uri)
        return self._etags

    def _told(self, headers: Mapping[str, str], entry: Entry) -> str | None:
        """Return what an answer says that an object hashes to, None where the sizes of its parts would say it."""
        self._server = headers.get("Server", "")
        if self._etags is False:
            return s3_checksum.of_object(headers, entry.version)
        return s3_checksum.of_answer(headers, entry.version, entry.size)

    def _parts(self, entry: Entry) -> list[int]:
        """
        Return the sizes of an object's parts; none where the server does not tell them.

        The first and the last tell whether the others are like the first; who asks twice makes us look at all.
        """
        again, count = entry.key in self._asked, s3_checksum.count_of(entry.version)
        first = self._head(entry, part=1)
        if first.get("x-amz-mp-parts-count", "") != str(count) or (count > 1 and _size_of(first) >= entry.size):
            return []
        sizes = [_size_of(first)] * count
        sizes[-1] = _size_of(self._head(entry, part=count))
        if (again or sum(sizes) != entry.size) and count <= MOST_PARTS:
            sizes[1:-1] = [_size_of(self._head(entry, part=number)) for number in range(2, count)]
        self._asked.add(entry.key)
        return sizes

    def _below(self) -> Iterator[Entry]:
        after = "", ""
        while True:
            page = persist(lambda: self.bucket.list(self.prefix, *after), patience_s=self.patience_s)  # noqa: B023
            for listed in page.objects:
                if listed.key.startswith(self.prefix) and (listed.size or not listed.key.endswith("/")):
                    yield self._entry(listed.key, listed.size, listed.etag)
            if not (page.token or page.marker):
                return
            if (page.token, page.marker) == after:
                raise TransientError("source-garbled", f"{self.uri}: the list goes round in circles")
            after = page.token, page.marker

    def _single(self, *, refused_is_none: bool = False) -> Entry | None:
        """Return the object that the URI names itself."""
        if not self.key or self.key.endswith("/"):
            return None
        try:
            headers = persist(lambda: self.bucket.head(self.key), patience_s=self.patience_s)
        except AccessDeniedError:
            if refused_is_none:
                return None
            raise
        if headers is None:
            return None
        size = headers.get("Content-Length", "")
        if not size.isdecimal():  # some gateways leave out what is not to be sent
            size = persist(self._told_by_get, patience_s=self.patience_s)
        return Entry(self.key.rpartition("/")[2], int(size), self.key, unquoted(headers.get("ETag", "")))

    def _told_by_get(self) -> str:
        """Return the size of the object that the URI names itself, as a GET tells it."""
        try:
            with self.bucket.open(self.key, {"Range": "bytes=0-0"}) as answer:
                ranged = answer.status == 206
                size = demand_range(answer, self.key, 0, 1) if ranged else answer.headers.get("Content-Length", "")
        except ChangedError:
            if not self._is_empty():
                raise
            return "0"  # it has no first byte (416)
        if not size.isdecimal():
            raise TransientError("source-garbled", f"{self.uri}: the server does not tell how many bytes it has")
        return size

    def _is_empty(self) -> bool:
        """Return whether the object that the URI names itself brings no byte."""
        with self.bucket.open(self.key, {}) as answer:
            return not any(answer.pieces())

    def _entry(self, key: str, size: int, etag: str) -> Entry:
        if key.endswith("/"):
            hint = "rename it at the source"
            raise FatalError("unsafe-name", f"the source has {size:,} bytes under {key!r}, which is no file", hint=hint)
        return Entry(key[len(self.prefix) :], size, key, etag)

    def _head(self, entry: Entry, *, part: int | None = None) -> Mapping[str, str]:
        headers = self.bucket.head(entry.key, part=part)
        if headers is None:
            raise _changed(entry, "it is no longer there")
        if part is None:  # some servers answer with the ETag of the part
            _check_same(entry, headers.get("ETag"))
        return headers


def _size_of(part: Mapping[str, str]) -> int:
    """Return the bytes of a part, given the answer to a HEAD of it; 0 where it does not tell."""
    length = part.get("Content-Length", "")
    return int(length) if length.isdecimal() else 0


def _check_same(entry: Entry, etag: str | None, size: int | None = None) -> None:
    """Raise `ChangedError` for an answer that is about something else than was listed, whatever If-Match did."""
    now = unquoted(etag or "").removeprefix("W/")
    if now and entry.version and now != entry.version.removeprefix("W/"):
        raise _changed(entry, f"its ETag is {now}, and {entry.version} was listed")
    if size is not None and size != entry.size:
        raise _changed(entry, f"it has {size:,} bytes, and {entry.size:,} were listed")


def _changed(entry: Entry, how: str) -> ChangedError:
    hint = "nobody may write below the prefix while it is fetched; start again when they have finished"
    return ChangedError("source-changed", f"{entry.key} has changed since it was listed: {how}", hint=hint)
