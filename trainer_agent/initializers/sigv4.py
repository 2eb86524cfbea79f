"""AWS Signature Version 4 in headers, as S3 and STS check it."""

from __future__ import annotations

import hashlib
import hmac
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote_to_bytes, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainer_agent.initializers.s3_credentials import Credentials

DEFAULT_PORTS = {"http": 80, "https": 443}


def quoted(text: str, *, safe: str = "") -> str:
    """Return `text` percent-encoded as S3 does: everything but letters, digits and `-._~`."""
    return quote(text, safe=safe, errors="surrogateescape")


def sign(
    credentials: Credentials | None,
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    region: str,
    service: str = "s3",
    body: bytes = b"",
    now: datetime | None = None,
) -> dict[str, str]:
    """Return the headers to send: `headers` with a signature over all of them; without credentials as they are."""
    if credentials is None:
        return dict(headers)
    time = f"{now or datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    digest = hashlib.sha256(body).hexdigest()
    sent = {**headers, "x-amz-date": time, "x-amz-content-sha256": digest}
    if credentials.token:
        sent["x-amz-security-token"] = credentials.token
    signed = {"host": _host(url), **{name.lower(): value.strip() for name, value in sent.items()}}
    names = ";".join(sorted(signed))
    lines = [f"{name}:{signed[name]}" for name in sorted(signed)]
    canonical = "\n".join([method, _path(url), _query(url), *lines, "", names, digest])
    scope = f"{time[:8]}/{region}/{service}/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", time, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = _key(credentials.secret_key, scope)
    sent["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope},"
        f"SignedHeaders={names},Signature={_hmac(key, text).hex()}"
    )
    return sent


@lru_cache(maxsize=8)
def _key(secret: str, scope: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = _hmac(key, part)
    return key


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")


def _host(url: str) -> str:
    """Return the Host header as HTTP clients send it: without the scheme's own port."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2].lower()
    return host.removesuffix(f":{DEFAULT_PORTS.get(parts.scheme)}")


def _path(url: str) -> str:
    # Servers decode and encode again: a dot that travels as %2E, so that no client removes it, is signed as a dot.
    return quote(unquote_to_bytes(urlsplit(url).path), safe="/") or "/"


def _query(url: str) -> str:
    pairs = sorted(pair.partition("=")[::2] for pair in urlsplit(url).query.split("&") if pair)
    return "&".join(f"{name}={value}" for name, value in pairs)
