"""What S3 says an object must hash to."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MD5 = re.compile(r"[0-9a-f]{32}")
PARTS = re.compile(r"[0-9a-f]{32}-([1-9][0-9]{0,4})")
# The cheapest first: algorithm, bytes of its value.
ALGORITHMS = (("crc64nvme", 8), ("crc32c", 4), ("crc32", 4), ("sha256", 32), ("sha1", 20), ("md5", 16), ("sha512", 64))
OF_ETAGS = ("md5", "md5-parts")
HONEST = ("AmazonS3", "MinIO")  # servers whose ETags are MD5s where they look so
ENCRYPTION = "x-amz-server-side-encryption"


def of_object(headers: Mapping[str, str], etag: str) -> str:
    """Return the cheapest checksum of the whole object; that of its parts' checksums (COMPOSITE) is none."""
    kind = headers.get("x-amz-checksum-type", "").upper() or ("COMPOSITE" if PARTS.fullmatch(etag) else "FULL_OBJECT")
    if kind != "FULL_OBJECT":
        return ""
    for algorithm, size in ALGORITHMS:
        try:
            value = base64.b64decode(headers.get(f"x-amz-checksum-{algorithm}", ""), validate=True)
        except ValueError:
            continue
        if len(value) == size:
            return f"{algorithm}:{value.hex()}"
    return ""


def is_md5(headers: Mapping[str, str]) -> bool:
    """Return whether ETags may be made of MD5s: not of objects that are encrypted, but by S3's own keys."""
    return headers.get(ENCRYPTION, "") in ("", "AES256") and f"{ENCRYPTION}-customer-algorithm" not in headers


def of_answer(headers: Mapping[str, str], etag: str, size: int) -> str | None:
    """
    Return what the headers of a HEAD or of a whole GET say that an object hashes to, empty when they say nothing.

    None where its ETag would say it to those who know the sizes of its parts.
    """
    found = of_object(headers, etag)
    if found or not is_md5(headers):
        return found
    if MD5.fullmatch(etag):
        return f"md5:{etag}"
    if not PARTS.fullmatch(etag):
        return ""
    # MinIO without --compat, as all of 2019's and Kubeflow Pipelines' is, ends random ETags in -1, too.
    one_part, server = count_of(etag) == 1, headers.get("server", "")
    if one_part and server == "AmazonS3":
        return of_parts(etag, size, [size])
    return "" if one_part and server.startswith("MinIO") else None


def count_of(etag: str) -> int:
    """Return the number of parts in a multipart ETag."""
    return int(etag.rpartition("-")[2])


def of_parts(etag: str, size: int, parts: Sequence[int]) -> str:
    """Return the checksum in a multipart ETag, given the sizes of the parts; empty when these do not add up."""
    if not parts or sum(parts) != size or min(parts) < 1:
        return ""
    # Equal ones, of which the last may be shorter, are written as one.
    equal = set(parts[:-1]) <= {parts[0]} and parts[-1] <= parts[0]
    return f"md5-parts:{parts[0] if equal else ','.join(map(str, parts))}:{etag}"
