"""What S3 says an object must hash to."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

MD5 = re.compile(r"[0-9a-f]{32}")
PARTS = re.compile(r"([0-9a-f]{32})-([0-9]{1,5})")
# The cheapest first: algorithm, bytes of its value.
ALGORITHMS = (("crc64nvme", 8), ("crc32c", 4), ("crc32", 4), ("sha256", 32), ("sha1", 20))
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
    """Return whether ETags are made of MD5s: not of objects that are encrypted with a key of KMS or of the customer."""
    kms = headers.get(ENCRYPTION, "").startswith("aws:kms")
    return not kms and f"{ENCRYPTION}-customer-algorithm" not in headers


def of_parts(etag: str, size: int, first_part: Mapping[str, str]) -> str:
    """Return the checksum in a multipart ETag, given the headers of part 1; empty when the parts do not add up."""
    found = PARTS.fullmatch(etag)
    length, count = (first_part.get(name, "") for name in ("Content-Length", "x-amz-mp-parts-count"))
    if not found or not length.isdecimal() or int(length) == 0:
        return ""
    if count != found[2] or int(count) != -(-size // int(length)):
        return ""
    return f"md5-parts:{length}:{etag}"
