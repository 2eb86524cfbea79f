"""A bucket: its address, signed requests to it, and what its refusals mean."""

from __future__ import annotations

import re
import string
import time
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import quote, urljoin, urlsplit

from trainer_agent.env import redact
from trainer_agent.errors import FatalError, RetryError
from trainer_agent.initializers import STALL_S, ChangedError, TransientError, s3_xml
from trainer_agent.initializers.http import HttpClient, Response, may_pass, raise_transient, shown
from trainer_agent.initializers.s3_credentials import DOMAINS, YES, Credentials, Keeper, choose, domain_of, first
from trainer_agent.initializers.sigv4 import quoted, sign
from trainer_agent.initializers.wire import origin_of
from trainer_agent.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from trainer_agent.initializers.http import Stream

ENDPOINTS = ("ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_S3_ENDPOINT")
REGIONS = ("REGION", "AWS_REGION", "AWS_DEFAULT_REGION")
STYLES = ("auto", "path", "virtual")
DOMAIN = "|".join(map(re.escape, DOMAINS.values()))
AMAZON = re.compile(rf"\.({DOMAIN})$")
# Its service by name, which is wherever a bucket is; other hosts of Amazon's are another way to it.
SERVICE = re.compile(rf"https://s3(?:[.-]([a-z]{{2,4}}(?:-[a-z]+)+-[0-9]))?\.({DOMAIN})")
# Google's sends what is stored compressed as it is to those who can take it; to others it unpacks it, and neither size
# nor checksum are as listed.
GOOGLE = re.compile(r"(^|\.)storage\.googleapis\.com$")
# A label of a host name; with dots in it Amazon's certificate would not match.
HOST_LABEL = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
# A path segment that HTTP clients resolve away, unless its dots are encoded.
DOT_SEGMENT = re.compile(r"(?<=/)\.{1,2}(?=/|$)")
# As many as the frame has streams; more would be opened and thrown away.
CONNECTIONS = 64
REASON_CHARS = 300
# AIStore's gateways send everybody on to the server that has the object; three as its own clients follow.
REDIRECTS = frozenset({301, 302, 303, 307, 308})
MOST_REDIRECTS = 3

CHECKSUMS = {"x-amz-checksum-mode": "ENABLED"}
# The name is that of GDAL, which wants `requester`, and of Rust's object_store, which wants `true`.
PAYER = "AWS_REQUEST_PAYER"
# To a question for a part: of versitygw, SeaweedFS, Ozone and others that do not know it, or number parts otherwise.
NOT_TOLD = frozenset({400, 405, 416, 501})
EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"})
BAD_KEYS = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "InvalidSecurity"})


class AccessDeniedError(FatalError):
    """The keys are right, and may not do this."""


class Bucket:
    """
    One bucket, for many threads.

    Args:
        environ: endpoint, region, addressing style, credentials, who pays, proxies.
    """

    def __init__(self, name: str, environ: Mapping[str, str], *, stall_s: float = STALL_S) -> None:
        if not name:
            hint = "write it as s3://bucket/prefix; look for a variable in it that is empty"
            raise FatalError("storage-uri-invalid", "STORAGE_URI=s3:///… names no bucket", hint=hint)
        self.name = name
        self.http = HttpClient(environ, connections=CONNECTIONS, stall_s=stall_s)
        named = _endpoint(environ, bucket=name)
        service = SERVICE.fullmatch(named)
        self.region = first(environ, *REGIONS) or (service and service[1]) or "us-east-1"
        self.endpoint = "" if service and service[2] == domain_of(self.region) else named
        self.virtual = self._is_virtual(environ)
        host = urlsplit(self.endpoint).hostname or ""
        self.unsigned = {"Accept-Encoding": "gzip"} if GOOGLE.search(host) else {}
        pays = first(environ, PAYER).lower() in {"requester", *YES}
        self.pays = {"x-amz-request-payer": "requester"} if pays else {}
        self.foreign = bool(self.endpoint) and not AMAZON.search(host)
        if not self.foreign:
            _refuse_another_thing(name)
        self.keeper = Keeper(choose(environ, self.http, region=self.region, foreign=self.foreign))

    @property
    def service(self) -> str:
        """The address of the service, without the bucket."""
        return self.endpoint or f"https://s3.{self.region}.{domain_of(self.region)}"

    @property
    def host(self) -> str:
        """The address of the service; with a virtual host, of the bucket itself."""
        scheme, _, rest = self.service.partition("://")
        return f"{scheme}://{self.name}.{rest}" if self.virtual else self.service

    def url(self, key: str = "", query: Mapping[str, str] | None = None) -> str:
        """Return the address of an object, or of the bucket."""
        bucket = "" if self.virtual else f"/{quoted(self.name)}"
        path = DOT_SEGMENT.sub(lambda dots: dots[0].replace(".", "%2E"), f"/{quoted(key, safe='/')}" if key else "")
        pairs = "&".join(f"{quoted(k)}={quoted(v)}" for k, v in sorted((query or {}).items()))
        return f"{self.host}{bucket}{path or ('/' if self.virtual else '')}" + (f"?{pairs}" if pairs else "")

    def list(self, prefix: str, token: str = "", marker: str = "") -> s3_xml.Page:
        """Return one page of the objects whose keys begin with `prefix`."""
        # Huawei's, which has no second version, begins anew where a marker comes with an encoding.
        query = {"marker": marker} if marker else {"list-type": "2", "encoding-type": "url"}
        query |= {"prefix": prefix} if prefix else {}
        query |= {"continuation-token": token} if token else {}
        answer = self._request("GET", "", query=query, headers={})
        return s3_xml.page(answer.data, url=shown(self.url()))

    def head(self, key: str, *, part: int | None = None) -> Mapping[str, str] | None:
        """Return the headers of an object, or of a part of it, of which many servers tell nothing; None without one."""
        query = {"partNumber": str(part)} if part else {}
        told = NOT_TOLD if part else frozenset()
        try:
            return self._request("HEAD", key, query=query, headers=CHECKSUMS, fine=told).headers
        except ChangedError:
            return None

    @contextmanager
    def open(self, key: str, headers: Mapping[str, str]) -> Iterator[Stream]:
        """Open a GET; whatever is not the object, or a part of it, is raised."""
        credentials, url = self.keeper.get(), self.url(key)
        for _ in range(MOST_REDIRECTS + 1):
            signed = self._signed(credentials, "GET", url, headers)
            with self.http.stream(url, headers=signed | self.unsigned) as answer:
                if answer.status in {200, 206}:
                    yield answer
                    return
                refusal = Response(url, answer.status, answer.headers, answer.error_body())
            url = self._sent_on(refusal)
            if not url:
                break
        self._refuse(key, refusal, credentials)

    def _request(
        self,
        method: str,
        key: str,
        *,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        fine: Collection[int] = (),
    ) -> Response:
        """Return the answer if it is a good one, or has a `fine` status, following the bucket to its region once."""
        credentials, region = self.keeper.get(), self.region
        answer = self._ask(method, key, query=query, headers=headers, credentials=credentials)
        if answer.status in {301, 307, 400, 403} and self._move(answer, region):
            answer = self._ask(method, key, query=query, headers=headers, credentials=credentials)
        if answer.status not in {200, 206, *fine}:
            if method == "HEAD" and answer.status in {400, 403}:
                self._ask_why(key, credentials)
            self._refuse(key, answer, credentials)
        return answer

    def _ask_why(self, key: str, credentials: Credentials | None) -> None:
        """Raise what a GET is refused for: no answer to a HEAD has room for a reason."""
        with suppress(ChangedError), self.open(key, {}):
            if self.keeper.get() != credentials:
                raise TransientError("credentials-expired", f"s3://{self.name}/{key}: the credentials had expired")

    def _ask(
        self,
        method: str,
        key: str,
        *,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        credentials: Credentials | None,
    ) -> Response:
        url = self.url(key, query)
        for _ in range(MOST_REDIRECTS + 1):
            signed = self._signed(credentials, method, url, headers)
            answer = self.http.request(method, url, headers=signed | (self.unsigned if method == "HEAD" else {}))
            url = self._sent_on(answer)
            if not url:
                break
        return answer

    def _signed(
        self, credentials: Credentials | None, method: str, url: str, headers: Mapping[str, str]
    ) -> dict[str, str]:
        """Sign what goes to the endpoint's host; a signature for another could serve whoever sends us there."""
        known = None if self._is_elsewhere(url) else credentials
        return sign(known, method, url, headers={**headers, **self.pays}, region=self.region)

    def _is_elsewhere(self, url: str) -> bool:
        return urlsplit(url).hostname != urlsplit(self.host).hostname

    def _sent_on(self, answer: Response) -> str:
        """Return where a server wants to be asked instead; Amazon's mean another region, which wants a signature."""
        location = answer.headers.get("Location", "")
        if not self.foreign or answer.status not in REDIRECTS or not location:
            return ""
        # Gateways in Go name keys as they are; `quote` makes of the header's bytes what can be sent.
        try:
            target = urljoin(answer.url, quote(location, safe=string.punctuation, encoding="latin-1"))
        except ValueError:
            return ""
        return target if target.startswith(("https://", f"{urlsplit(answer.url).scheme}://")) else ""

    def _move(self, answer: Response, asked: str) -> bool:
        """Return whether the bucket is in another region than the one that was asked; from now on that one is."""
        region = answer.headers.get("x-amz-bucket-region") or s3_xml.texts(answer.data, ("Region",)).get("Region", "")
        # It becomes part of an address, so it must look like one.
        if not HOST_LABEL.fullmatch(region) or region == asked:
            return False
        get_logger().info("the bucket is in another region", bucket=self.name, asked=asked, region=region)
        self.region = region
        return True

    def _is_virtual(self, environ: Mapping[str, str]) -> bool:
        style = first(environ, "AWS_S3_ADDRESSING_STYLE").lower() or "auto"
        if style not in STYLES:
            hint = "unset it, or set path for https://host/bucket, virtual for https://bucket.host"
            raise FatalError("style-invalid", f"AWS_S3_ADDRESSING_STYLE={style!r} is not one of {STYLES}", hint=hint)
        if style == "auto":
            return not self.endpoint and HOST_LABEL.fullmatch(self.name) is not None
        return style == "virtual"

    def _refuse(self, key: str, answer: Response, credentials: Credentials | None) -> NoReturn:
        """Raise what an answer that brings nothing means."""
        status, headers, said = answer.status, answer.headers, s3_xml.texts(answer.data, ("Code", "Message"))
        code = said.get("Code", "")[: s3_xml.CODE_CHARS]
        what, elsewhere = f"s3://{self.name}/{key}".rstrip("/"), self._is_elsewhere(answer.url)
        if code in EXPIRED:
            self.keeper.expired(credentials)
            origin = credentials.origin if credentials else "nobody"
            raise TransientError("credentials-expired", f"{what}: the credentials of {origin} had expired")
        if status in {412, 416}:
            raise ChangedError("source-changed", f"{what} is no longer what was listed (answer {status})")
        if status == 404 and key and code in {"", "NoSuchKey"}:
            raise ChangedError("source-changed", f"{what} is no longer there")
        if status == 404:
            hint = "check the bucket in STORAGE_URI, ENDPOINT and REGION"
            raise FatalError("source-not-found", f"{what} does not exist at {self.service}: {code or 404}", hint=hint)
        if code == "RequestTimeTooSkewed":
            raise _clock(what, headers)
        if may_pass(status) or code == "RequestTimeout":
            raise_transient(answer.url, status, headers, detail=code)
        if code == "InvalidObjectState":
            hint = "restore it first, or add it to IGNORE_PATTERNS"
            raise FatalError("object-archived", f"{what} lies in an archive and cannot be read", hint=hint)
        reason = redact(said.get("Message", ""), credentials.secrets if credentials else [])
        who = f"{origin_of(shown(answer.url))}, to which {self.service} sends us," if elsewhere else self.service
        message = f"{who} refuses {what}: {code or status}" + f" ({reason[:REASON_CHARS]})" * bool(reason)
        if elsewhere:
            hint = "nothing is signed there: let it be read so, or set AIStore's feature S3-Reverse-Proxy"
            raise FatalError("source-refused", message, hint=hint)
        raise self._denied(message, status, code, credentials)

    def _denied(self, message: str, status: int, code: str, credentials: Credentials | None) -> FatalError:
        """Return the error of an answer that will not change by itself, with the settings to look at."""
        if code in BAD_KEYS and credentials:
            return FatalError("source-refused", message, hint=f"check {credentials.origin}, and ENDPOINT")
        if credentials is None:
            hint = "no credentials were found: give ACCESS_KEY_ID and SECRET_ACCESS_KEY, or a role"
        elif code == "SecondLevelDomainForbidden":
            hint = "set AWS_S3_ADDRESSING_STYLE=virtual"
        elif status in {401, 403}:
            hint = f"let {credentials.origin} do s3:ListBucket and s3:GetObject here"
            if not self.foreign and not self.pays:
                hint += f"; where whoever reads is to pay, set {PAYER}=requester"
        else:
            hint = "check STORAGE_URI, ENDPOINT, REGION and AWS_S3_ADDRESSING_STYLE"
        return (AccessDeniedError if status in {401, 403} else FatalError)("source-refused", message, hint=hint)


def _refuse_another_thing(name: str) -> None:
    """Raise for what Amazon's service does not know as a bucket."""
    if name.startswith("arn:"):
        hint = "name the bucket, or the access point by its alias, which ends in -s3alias"
        raise FatalError("storage-uri-invalid", f"STORAGE_URI=s3://{name}/… names an ARN, and no bucket", hint=hint)
    if name.endswith("--x-s3"):
        hint = "name a general purpose bucket, or mount this one (Mountpoint for S3) and name it as file:///…"
        message = f"STORAGE_URI=s3://{name}/… names a directory bucket (S3 Express One Zone), which cannot be read yet"
        raise FatalError("storage-uri-invalid", message, hint=hint)


def _clock(what: str, headers: Mapping[str, str]) -> RetryError:
    try:
        off = f"{time.time() - parsedate_to_datetime(headers.get('Date', '')).timestamp():+,.0f} s"
    except ValueError:
        off = "more than 15 minutes"
    hint = "set the clock of this node (chrony, NTP)"
    return RetryError("clock-skewed", f"{what}: this node's clock is off by {off} for the server", hint=hint)


def _endpoint(environ: Mapping[str, str], *, bucket: str) -> str:
    """Return the endpoint that is set, empty for Amazon's, in any form that Kubeflow's opendal takes."""
    name = next((n for n in ENDPOINTS if environ.get(n, "").strip()), "")
    endpoint = first(environ, *ENDPOINTS).rstrip("/")
    if not endpoint:
        return ""
    if ":" not in endpoint:  # one with a port may be meant for http
        endpoint = f"https://{endpoint}"
    endpoint = endpoint.replace(f"://{bucket}.", "://", 1)
    try:
        parts = urlsplit(endpoint)
        good = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good or "@" in parts.netloc or parts.query or parts.fragment:
        # Not shown: what is wrong with it may be a password.
        hint = "write it as https://host or http://host:port"
        raise FatalError("endpoint-invalid", f"{name} is not the address of a server", hint=hint)
    return endpoint
