"""The XML that S3 and STS speak, by expat, which refuses entity bombs since 2.4.1."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING
from urllib.parse import unquote_plus
from xml.etree import ElementTree as ET

from trainer_agent.env import whole_number
from trainer_agent.errors import FatalError
from trainer_agent.initializers import TransientError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# A declaration and a comment may come before the root element.
ROOT_BYTES = 1000
CODE_CHARS = 60
FIELDS = frozenset({"Key", "Size", "ETag", "IsTruncated", "NextContinuationToken", "EncodingType"})


@dataclass(frozen=True, slots=True)
class Listed:
    """One object of a listing: key, bytes, and its ETag without quotes."""

    key: str
    size: int
    etag: str


@dataclass(frozen=True, slots=True)
class Page:
    """
    One page of a listing.

    Args:
        token: asks for the next one, empty on the last.
        marker: does so where the server knows only the first version of listings, which goes on behind a key.
    """

    objects: list[Listed]
    token: str
    marker: str = ""


def unquoted(etag: str) -> str:
    """Return an ETag without its quotes, which some servers leave out of listings; a weak one keeps its `W/`."""
    return etag.strip().replace('"', "")


def texts(data: bytes, names: Iterable[str]) -> dict[str, str]:
    """Return the first text of each of the elements `names`, wherever they are; of what is not XML, nothing."""
    wanted = set(names)
    found: dict[str, str] = {}
    try:
        for name, element in _elements(data):
            if name in wanted and element.text:
                found.setdefault(name, element.text.strip())
    except ET.ParseError:
        pass
    return found


def page(data: bytes, *, url: str) -> Page:
    """
    Return what one answer to ListObjectsV2, or to ListObjects, lists.

    Raises:
        TransientError: it was cut, or makes no sense, or the server failed after it had said 200.
        FatalError: this is not S3.
    """
    _refuse_other(data[:ROOT_BYTES], url)
    objects: list[Listed] = []
    fields: dict[str, str] = {}
    try:
        for name, element in _elements(data):
            if name == "Contents":
                objects.append(_listed(fields))
                element.clear()
            elif name in FIELDS:
                fields[name] = element.text or ""
    except (ET.ParseError, KeyError, ValueError) as error:
        raise TransientError("source-garbled", f"{url} answers with a list that makes no sense") from error
    if fields.get("EncodingType", "").strip() == "url":
        objects = [Listed(unquote_plus(o.key, errors="surrogateescape"), o.size, o.etag) for o in objects]
    if fields.get("IsTruncated", "").strip() != "true":
        return Page(objects, "")
    if token := fields.get("NextContinuationToken", ""):
        return Page(objects, token)
    if not objects:
        raise TransientError("source-garbled", f"{url} answers with part of a list, and does not say how to go on")
    return Page(objects, "", marker=objects[-1].key)


def _refuse_other(beginning: bytes, url: str) -> None:
    """Raise for an answer that is no list, such as an error that AWS's own clients take for a 500, too."""
    if b"<Error" in beginning:
        code = texts(beginning, ("Code",)).get("Code", "")[:CODE_CHARS]
        raise TransientError("source-unavailable", f"{url} answers 200 ({code})", hint="the server is busy or broken")
    if beginning and b"ListBucketResult" not in beginning:
        hint = "check ENDPOINT: it must be the address of the S3 API, not of a console or a website"
        raise FatalError("endpoint-invalid", f"{url} does not answer as S3 does: {beginning[:30]!r}…", hint=hint)


def _listed(fields: dict[str, str]) -> Listed:
    """Take what was said about one object; nothing of it may count for the next one."""
    key, size, etag = fields.pop("Key"), fields.pop("Size").strip(), fields.pop("ETag", "")
    number = whole_number(size)
    if number is None:
        raise ValueError(size)
    return Listed(key, number, unquoted(etag))


def _elements(data: bytes) -> Iterator[tuple[str, ET.Element]]:
    """Yield (name without namespace, element) as elements end."""
    for _, element in ET.iterparse(BytesIO(data)):  # noqa: S314  # expat bounds what entities unfold to
        yield str(element.tag).rpartition("}")[2], element
