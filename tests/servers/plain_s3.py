"""
A plain S3 on loopback for one bucket, `bucket`: lists, HEAD, GET with ranges, If-Match and checksums; fast.

It checks no signature: moto and rclone do.
"""

import base64
import hashlib
import os
import re
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

PAGE_KEYS = 1000


@dataclass(frozen=True)
class Stored:
    """One object: where its bytes lie, and what S3 says of them."""

    path: Path
    size: int
    etag: str
    crc64nvme: str

    @classmethod
    def of(cls, path):
        """Return a file as S3 keeps it today: an ETag of one part, and a checksum of the whole."""
        from awscrt import checksums

        body = path.read_bytes()
        crc = base64.b64encode(checksums.crc64nvme(body).to_bytes(8)).decode()
        return cls(path, len(body), hashlib.md5(body, usedforsecurity=False).hexdigest(), crc)


def read_directory(directory):
    """Return the files below a directory as objects by key."""
    return {p.relative_to(directory).as_posix(): Stored.of(p) for p in sorted(directory.rglob("*")) if p.is_file()}


class PlainS3(ThreadingHTTPServer):
    """The server, on a free port; a context manager. What is in `objects` may be replaced at any time."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, objects):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects = dict(objects)

    def __enter__(self):
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def handle_error(self, *_):
        """Say nothing: connections break on purpose."""

    def page(self, query):
        """Return a page of ListObjectsV2; its token is the last key."""
        prefix, after = query.get("prefix", ""), query.get("continuation-token", "")
        keys = sorted(key for key in self.objects if key.startswith(prefix) and key > after)
        page, more = keys[:PAGE_KEYS], len(keys) > PAGE_KEYS
        return (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>bucket</Name><IsTruncated>{str(more).lower()}</IsTruncated>"
            + (f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else "")
            + "".join(
                f"<Contents><Key>{escape(key)}</Key><ETag>&quot;{self.objects[key].etag}&quot;</ETag>"
                f"<Size>{self.objects[key].size}</Size></Contents>"
                for key in page
            )
            + "</ListBucketResult>"
        ).encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # a head in one piece

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        parts = urlsplit(self.path)
        key = unquote(parts.path).removeprefix("/bucket").removeprefix("/")
        stored = self.server.objects.get(key)
        if not key:
            self._send(200, {"Content-Type": "application/xml"}, self.server.page(dict(parse_qsl(parts.query))))
        elif stored is None:
            self._send(404, {}, b"<Error><Code>NoSuchKey</Code></Error>")
        elif self.headers.get("If-Match", stored.etag).strip('"') != stored.etag:
            self._send(412, {}, b"<Error><Code>PreconditionFailed</Code></Error>")
        else:
            self._object(stored)

    def _object(self, stored):
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        start, stop = (int(found[1]), min(int(found[2]) + 1, stored.size)) if found else (0, stored.size)
        headers = {"ETag": f'"{stored.etag}"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        if found:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{stored.size}"
        elif self.headers.get("x-amz-checksum-mode"):
            headers |= {"x-amz-checksum-crc64nvme": stored.crc64nvme, "x-amz-checksum-type": "FULL_OBJECT"}
        self._send(206 if found else 200, {**headers, "Content-Length": str(stop - start)})
        if self.command == "GET":
            with stored.path.open("rb", buffering=0) as file:
                while start < stop:
                    start += os.sendfile(self.connection.fileno(), file.fileno(), start, stop - start)

    def _send(self, status, headers, body=b""):
        self.send_response_only(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()
