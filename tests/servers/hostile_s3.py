"""
An S3 for what no real server does on request: any key, scripted failures, wrong ETags, lists that lie.

It checks no signature (moto and rclone do); it can insist on an access key, so that expiry can be tested.
"""

import base64
import hashlib
import itertools
import re
import threading
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, quote_plus, unquote, urlsplit
from xml.sax.saxutils import escape

from trainer_agent.initializers.s3 import S3Source

PAGE_KEYS = 1000
BODY = bytes(range(256)) * 4


@dataclass
class Thing:
    """
    One object.

    Args:
        etag: the MD5 of the body when empty.
        headers: further ones of GET and HEAD; None leaves one out.
        parts: the sizes of its parts, for `?partNumber=…`; one number where all but the last have it.
        size: as listed, when that is a lie.
    """

    body: bytes = b""
    etag: str = ""
    headers: dict[str, str | None] = field(default_factory=dict)
    parts: int | tuple[int, ...] = 0
    size: int | None = None

    def __post_init__(self):
        self.etag = self.etag or hashlib.md5(self.body, usedforsecurity=False).hexdigest()

    def part(self, number):
        """Return the bytes of one part, and how many parts there are."""
        sizes = self.parts if isinstance(self.parts, tuple) else (self.parts,) * -(-len(self.body) // self.parts)
        start = sum(sizes[: number - 1])
        return self.body[start : start + sizes[number - 1]], len(sizes)


@dataclass(frozen=True)
class Fault:
    """An answer instead of the right one; `cut` sends that many bytes of the right one and hangs up."""

    status: int = 503
    code: str = ""
    message: str = ""
    headers: dict[str, str | None] = field(default_factory=dict)
    body: bytes | None = None
    cut: int | None = None


@dataclass(frozen=True)
class Seen:
    """A request as it came."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: str = ""

    @property
    def access_key(self):
        """Who signed it, empty for nobody."""
        found = re.search(r"Credential=([^/]+)/", self.headers.get("authorization", ""))
        return found[1] if found else ""


class HostileS3:
    """
    A server on a free port of loopback; a context manager.

    Args:
        tls: an `ssl.SSLContext` with its certificate, to be an https server.

    Attributes:
        objects: {key: Thing} of the only bucket, `bucket`.
        faults: {path or "list": [Fault, …]}, used up one by one.
        valid: access keys that have not expired; None takes any.
        ranges: False answers every range with the whole object.
        if_match: False ignores If-Match.
        no_parts: the status of questions for parts.
        first_version: lists are those of ListObjects, whatever is asked for; with an encoding they begin anew.
        requester_pays: refuse who does not say so.
        sends_on: (status, where) of all questions for objects, as AIStore's gateways do; path and query are appended.
        names_keys_raw: it does so without percent-encoding.
        seen: every request.
    """

    def __init__(self, objects=None, *, page_keys=PAGE_KEYS, tls=None):
        self.objects = {k: v if isinstance(v, Thing) else Thing(v) for k, v in (objects or {}).items()}
        self.page_keys = page_keys
        self.faults = {}
        self.valid = None
        self.ranges = True
        self.if_match = True
        self.no_parts = 0
        self.first_version = False
        self.requester_pays = False
        self.sends_on = None
        self.names_keys_raw = False
        self.seen = []
        self._sorted = []
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.world = self
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.endpoint = f"{'https' if tls else 'http'}://127.0.0.1:{self._server.server_port}"
        self.environ = {"ENDPOINT": self.endpoint, "ACCESS_KEY_ID": "AKIDTEST", "SECRET_ACCESS_KEY": "not-for-logs"}

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def requests(self, method="GET"):
        """Return what was asked for: (path, Range)."""
        return [(s.path, s.headers.get("range")) for s in self.seen if s.method == method]

    def fault(self, path):
        """Return the fault that is due for `path`."""
        return self.faults[path].pop(0) if self.faults.get(path) else None

    def listing(self, query):
        """Return a page of ListObjectsV2, or of ListObjects."""
        if len(self._sorted) != len(self.objects):
            self._sorted = sorted(self.objects)
        prefix, after = query.get("prefix", ""), query.get("continuation-token", "")
        encoded = query.get("encoding-type") == "url"
        if self.first_version:
            after, encoded = "" if encoded else query.get("marker", ""), False
        at = bisect_right(self._sorted, after) if after else bisect_left(self._sorted, prefix)
        keys = itertools.takewhile(lambda k: k.startswith(prefix), itertools.islice(self._sorted, at, None))
        page = list(itertools.islice(keys, self.page_keys + 1))
        more, page = len(page) > self.page_keys, page[: self.page_keys]
        token = more and not self.first_version
        return (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            + ("<EncodingType>url</EncodingType>" if encoded else "")
            + f"<Name>bucket</Name><IsTruncated>{str(more).lower()}</IsTruncated>"
            + (f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if token else "")
            + "".join(self._contents(key, encoded=encoded) for key in page)
            + "</ListBucketResult>"
        ).encode()

    def _contents(self, key, *, encoded):
        thing = self.objects[key]
        name = quote_plus(key, safe="/", errors="surrogateescape") if encoded else escape(key)
        size = len(thing.body) if thing.size is None else thing.size
        return f"<Contents><Key>{name}</Key><ETag>&quot;{thing.etag}&quot;</ETag><Size>{size}</Size></Contents>"


def crc_header(algorithm, value, *, kind="FULL_OBJECT"):
    """Return the headers of a checksum, given its value as a number of `bytes`."""
    return {
        f"x-amz-checksum-{algorithm}": base64.b64encode(value).decode(),
        "x-amz-checksum-type": kind,
    }


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    @property
    def world(self):
        return self.server.world

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_POST(self):
        self.do_GET()

    def do_GET(self):
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        seen = Seen(self.command, parts.path, query, {k.lower(): v for k, v in self.headers.items()}, self._body())
        self.world.seen.append(seen)
        key = self._key(parts)
        fault = self.world.fault(key or "list")
        if fault and fault.cut is None:
            self._error(fault)
        elif self.world.valid is not None and seen.access_key not in self.world.valid:
            self._error(Fault(400, "ExpiredToken", "The provided token has expired."))
        elif self.world.requester_pays and self.headers.get("x-amz-request-payer") != "requester":
            self._error(Fault(403, "AccessDenied"))
        elif not key:
            self._send(200, self.world.listing(query))
        elif self.world.sends_on:
            self._send_on(*self.world.sends_on)
        elif key not in self.world.objects:
            self._error(Fault(404, "NoSuchKey"))
        else:
            self._object(self.world.objects[key], query, cut=fault.cut if fault else None)

    def _send_on(self, status, where):
        path = unquote(self.path, encoding="latin-1") if self.world.names_keys_raw else self.path
        self._error(Fault(status, "TemporaryRedirect", headers={"Location": where + path}))

    def _body(self):
        return self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()

    def _key(self, parts):
        path = unquote(parts.path, errors="surrogateescape")
        host = parts.netloc or self.headers["Host"]
        return path[1:] if host.startswith("bucket.") else path.removeprefix("/bucket").removeprefix("/")

    def _object(self, thing, query, *, cut):
        headers = {"ETag": f'"{thing.etag}"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT", **thing.headers}
        match = self.headers.get("If-Match", "").strip('"')
        if self.world.if_match and match and match != thing.etag:
            self._error(Fault(412, "PreconditionFailed"))
            return
        body, size = thing.body, len(thing.body)
        if self.world.no_parts and "partNumber" in query:
            self._error(Fault(self.world.no_parts))
            return
        if thing.parts and "partNumber" in query:
            part, count = thing.part(int(query["partNumber"]))
            self._send(206, part, {**headers, "x-amz-mp-parts-count": str(count)})
            return
        asked = re.fullmatch(r"bytes=([0-9]+)-([0-9]+)", self.headers.get("Range", "")) if self.world.ranges else None
        if not asked:
            self._send(200, body, headers, cut=cut)
        elif int(asked[1]) >= size:
            self._error(Fault(416, "InvalidRange"))
        else:
            start, stop = int(asked[1]), min(int(asked[2]) + 1, size)
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
            self._send(206, body[start:stop], headers, cut=cut)

    def _error(self, fault):
        body = f"<Error><Code>{fault.code}</Code><Message>{escape(fault.message)}</Message></Error>".encode()
        self._send(fault.status, body if fault.body is None else fault.body, fault.headers)

    def _send(self, status, body, headers=None, *, cut=None):
        self.send_response_only(status)
        sent = {"Date": self.date_time_string(), "Content-Length": str(len(body)), **(headers or {})}
        for name, value in sent.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True


def opened(server, rest="bucket/d", **environ):
    """Return a source and its entries."""
    source = S3Source(rest, {**server.environ, **environ}, patience_s=0.0)
    return source, list(source.entries())
