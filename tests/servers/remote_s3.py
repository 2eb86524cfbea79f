"""
An S3 server as it looks from far away: a latency before each first byte, and a cap on what a connection carries.

    with RemoteS3(read_directory(directory), latency_s=0.03, bytes_per_s=80e6) as server:
        server.endpoint

Signatures are not looked at and buckets have no names: what comes first in a path is the bucket, whatever it is.
As a program it serves a directory, `python remote_s3.py DIRECTORY`, and says on standard output where.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import re
import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Mapping

PIECE_BYTES = 256 * 1024
PAGE_KEYS = 1000
DATE = "Thu, 01 Jan 2026 00:00:00 GMT"


@dataclass(frozen=True)
class Object:
    """
    One object.

    Args:
        crc64nvme: its full-object checksum, as in the header; empty when it was stored without one.
    """

    path: Path
    size: int
    etag: str
    crc64nvme: str = ""

    def headers(self, *, with_checksum: bool) -> dict[str, str]:
        """Return what every answer about the object says."""
        checksum = {"x-amz-checksum-crc64nvme": self.crc64nvme, "x-amz-checksum-type": "FULL_OBJECT"}
        return {
            "Content-Type": "application/octet-stream",
            "ETag": f'"{self.etag}"',
            "Last-Modified": DATE,
            "Accept-Ranges": "bytes",
            **(checksum if with_checksum and self.crc64nvme else {}),
        }

    def listed(self, key: str) -> str:
        """Return the object's element in a listing."""
        checksum = "<ChecksumAlgorithm>CRC64NVME</ChecksumAlgorithm><ChecksumType>FULL_OBJECT</ChecksumType>"
        return (
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>&quot;{self.etag}&quot;</ETag>{checksum if self.crc64nvme else ''}<Size>{self.size}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
        )


def read_directory(directory: Path) -> dict[str, Object]:
    """Return the files below a directory as objects by key, their ETags as of uploads in one part."""
    files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    return {
        path.relative_to(directory).as_posix(): Object(
            path, path.stat().st_size, hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
        )
        for path in files
    }


def read_manifest(manifest: Path, directory: Path) -> dict[str, Object]:
    """Return the files below a directory as objects, with the `size`, `etag` and `crc64nvme` that a JSON file gives."""
    facts = json.loads(manifest.read_text())
    return {key: Object(directory / key, f["size"], f["etag"], f["crc64nvme"]) for key, f in facts.items()}


@dataclass(frozen=True)
class Request:
    """One request: methods other than GET and HEAD have no business here."""

    method: str
    target: str
    headers: dict[str, str]

    @classmethod
    def parse(cls, head: bytes) -> Request:
        """Return the request of a head."""
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ")
        headers = (line.partition(":") for line in lines)
        return cls(method, target, {name.strip().lower(): value.strip() for name, _, value in headers})

    def range(self, size: int) -> tuple[int, int] | None:
        """Return the bytes that are asked for, None for all."""
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", ""))
        return (int(found[1]), min(size, int(found[2]) + 1) if found[2] else size) if found else None


class RemoteS3:
    """
    The server.

    Args:
        objects: by key, of every bucket.
        latency_s: what each answer waits before its first byte.
        bytes_per_s: what one connection carries at most.
    """

    def __init__(
        self,
        objects: Mapping[str, Object],
        *,
        latency_s: float = 0.03,
        bytes_per_s: float = 80e6,
        port: int = 0,
    ) -> None:
        self.objects = dict(sorted(objects.items()))
        self.latency_s = latency_s
        self.bytes_per_s = bytes_per_s
        self.socket = socket.create_server(("127.0.0.1", port), backlog=1024)
        self.socket.settimeout(0)
        self.endpoint = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.requests: list[str] = []

    def __enter__(self) -> Self:
        """Serve from a thread."""
        self._loop = asyncio.new_event_loop()
        self._serving = self._loop.create_task(self.serve())
        self._thread = threading.Thread(target=self._run, name="remote-s3")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._serving.cancel)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(asyncio.wait({self._serving}))

    async def serve(self) -> None:
        """Serve until cancelled."""
        loop = asyncio.get_running_loop()
        with self.socket:
            async with asyncio.TaskGroup() as connections:
                while True:
                    connection, _ = await loop.sock_accept(self.socket)
                    connections.create_task(self._serve(connection))

    async def _serve(self, connection: socket.socket) -> None:
        loop, received = asyncio.get_running_loop(), b""
        # Else a head waits for the acknowledgement of the bytes before it.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection:
            try:
                while more := await loop.sock_recv(connection, 65536):
                    received += more
                    while b"\r\n\r\n" in received:
                        head, _, received = received.partition(b"\r\n\r\n")
                        await asyncio.sleep(self.latency_s)
                        await self._answer(connection, Request.parse(head))
            except (ConnectionError, asyncio.SendfileNotAvailableError):  # the second: it hung up in mid-body
                return

    async def _answer(self, connection: socket.socket, request: Request) -> None:
        self.requests.append(f"{request.method} {request.target}")
        url = urlsplit(request.target)
        _, _, key = unquote(url.path).removeprefix("/").partition("/")
        found = self.objects.get(key)
        if not key:
            query = {name: values[-1] for name, values in parse_qs(url.query).items()}
            await _send(connection, "200 OK", {"Content-Type": "application/xml"}, self._page(query))
        elif found is None:
            body = b"<Error><Code>NoSuchKey</Code><Message>There is no such key.</Message></Error>"
            await _send(connection, "404 Not Found", {}, b"" if request.method == "HEAD" else body)
        elif request.headers.get("if-match", f'"{found.etag}"').strip('"') != found.etag:
            await _send(connection, "412 Precondition Failed", {}, b"")
        else:
            await self._send_object(connection, request, found)

    async def _send_object(self, connection: socket.socket, request: Request, found: Object) -> None:
        wanted = request.range(found.size)
        start, stop = wanted or (0, found.size)
        asked = request.headers.get("x-amz-checksum-mode", "").upper() == "ENABLED"
        headers = found.headers(with_checksum=asked and wanted is None)
        headers["Content-Length"] = str(stop - start)
        if wanted:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{found.size}"
        await _send(connection, "206 Partial Content" if wanted else "200 OK", headers)
        if request.method == "GET":
            await self._send_bytes(connection, found.path, start, stop)

    async def _send_bytes(self, connection: socket.socket, path: Path, start: int, stop: int) -> None:
        """Send evenly from the first byte on: nginx's `limit_rate` gives the first second away."""
        loop = asyncio.get_running_loop()
        began, at = loop.time(), start
        with path.open("rb", buffering=0) as file:
            while at < stop:
                at += await loop.sock_sendfile(connection, file, at, min(PIECE_BYTES, stop - at), fallback=False)
                early = began + (at - start) / self.bytes_per_s - loop.time()
                if early > 0.001:
                    await asyncio.sleep(early)

    def _page(self, query: Mapping[str, str]) -> bytes:
        """Return a page of ListObjectsV2; its token is the last key."""
        prefix, after = query.get("prefix", ""), query.get("continuation-token", query.get("start-after", ""))
        keys = [key for key in self.objects if key.startswith(prefix) and key > after]
        page = keys[: min(PAGE_KEYS, int(query.get("max-keys", PAGE_KEYS)))]
        more = len(page) < len(keys)
        return "".join(
            (
                '<?xml version="1.0" encoding="UTF-8"?>\n',
                '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">',
                f"<Name>bucket</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(page)}</KeyCount>",
                f"<MaxKeys>{PAGE_KEYS}</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>",
                f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else "",
                *(self.objects[key].listed(key) for key in page),
                "</ListBucketResult>",
            )
        ).encode()


async def _send(connection: socket.socket, status: str, headers: Mapping[str, str], body: bytes = b"") -> None:
    lengthed = {"Content-Length": str(len(body)), **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in lengthed.items())
    await asyncio.get_running_loop().sock_sendall(connection, f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body)


def main() -> None:
    """Serve a directory until terminated."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--manifest", type=Path, help="JSON: key to size, etag and crc64nvme; else MD5s are computed")
    parser.add_argument("--latency-ms", type=float, default=30.0)
    parser.add_argument("--mb-per-s", type=float, default=80.0)
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    objects = read_manifest(given.manifest, given.directory) if given.manifest else read_directory(given.directory)
    latency_s, bytes_per_s = given.latency_ms / 1e3, given.mb_per_s * 1e6
    server = RemoteS3(objects, latency_s=latency_s, bytes_per_s=bytes_per_s, port=given.port)
    os.write(1, f"{server.endpoint}\n".encode())
    asyncio.run(server.serve())


if __name__ == "__main__":
    main()
