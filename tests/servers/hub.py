"""
A Hugging Face Hub on loopback, real enough for huggingface_hub itself; for tests and benchmarks.

    with Hub() as hub:
        repo = hub.repository("datasets/org/name")
        commit = repo.commit({"a.txt": b"alpha", "big.bin": Path("/data/big.bin")})

Large files lie on a CDN, which is another origin and wants a signature that expires; it never sees a token.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from hub_repository import Blob, Repo, tree_of

NAME = r"(?P<name>[^/]+(?:/[^/]+)?)"
REPO = rf"(?P<kind>models|datasets)/{NAME}"
HANG_S = 60.0
POLL_S = 0.01


@dataclass
class Fault:
    """
    Something that goes wrong with the next `times` requests that `where` matches in `hub GET /path?query`.

    Args:
        status: answer this instead; with `headers` and `body`.
        cut: close the connection after so many bytes of the body.
        whole: answer a range with 200 and everything.
        corrupt: send zeros.
        hang: send nothing until the Hub stops.
    """

    where: str
    times: int = 1
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut: int | None = None
    whole: bool = False
    corrupt: bool = False
    hang: bool = False


@dataclass(frozen=True)
class Request:
    """One request that came: to the `hub` or to the `cdn`."""

    server: str
    method: str
    target: str
    headers: dict[str, str]
    status: int


class Hub:
    """
    The Hub and its CDN, each on a port of its own.

    Args:
        page: entries on one page of a tree, as on the real one.
        signed_s: seconds that the signature of a CDN location is valid.
        cas: where Xet's data lies: `local:///directory`.
        below: a path that everything of the Hub lies under, as with some mirrors.
        tls: a context with a certificate, to be two https servers; then files must be bytes.
    """

    def __init__(self, *, page: int = 1000, signed_s: float = 3600.0, cas: str = "", below: str = "", tls=None) -> None:
        self.page, self.signed_s, self.cas = page, signed_s, cas
        self.repos: dict[str, Repo] = {}
        self.moved: dict[str, str] = {}  # old path: new path
        self.tokens: dict[str, set[str]] = {}  # token: repositories that it may read
        self.faults: list[Fault] = []
        self.log: list[Request] = []
        self.also: dict[str, str] = {}  # more lines of each head, as a proxy adds them
        self.small_redirects = False  # small files answer 307 to the cache, as most do on the real one
        self.stopped = threading.Event()
        self._lock = threading.Lock()
        self._key = os.urandom(16)
        self._servers = [_Server(self, "hub"), _Server(self, "cdn")]
        scheme = "https" if tls else "http"
        self.endpoint, self.cdn = (f"{scheme}://127.0.0.1:{s.server_port}" for s in self._servers)
        self.endpoint, self.below = self.endpoint + below, below
        for server in self._servers if tls else ():
            server.socket = tls.wrap_socket(server.socket, server_side=True)

    def __enter__(self) -> Self:
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(POLL_S,), daemon=True).start()
        return self

    def __exit__(self, *unused: object) -> None:
        self.stopped.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def repository(self, path: str, *, private: bool = False, gated: bool = False) -> Repo:
        """Create `datasets/org/name` or `models/org/name`, without a commit."""
        self.repos[path] = Repo(path, private, gated)
        return self.repos[path]

    def fault(self, where: str, **what) -> None:
        """Make something go wrong; see `Fault`."""
        self.faults.append(Fault(where, **what))

    def requests(self, where: str) -> list[Request]:
        """Return the requests that `where` matches in `hub GET /path?query`."""
        return [r for r in list(self.log) if re.search(where, f"{r.server} {r.method} {r.target}")]

    def expire(self) -> None:
        """Make every signature given so far invalid."""
        self._key = os.urandom(16)

    def sign(self, sha256: str) -> str:
        """Return where the CDN has a file, for a while."""
        expires = int(time.time() + self.signed_s)
        return f"{self.cdn}/lfs/{sha256}?Expires={expires}&Signature={self._signature(sha256, expires)}"

    def valid(self, sha256: str, query: dict[str, str]) -> bool:
        """Return whether the CDN accepts a signature."""
        expires = query.get("Expires", "")
        fresh = expires.isdigit() and int(expires) > time.time()
        return fresh and hmac.compare_digest(query.get("Signature", ""), self._signature(sha256, int(expires)))

    def find(self, sha256: str) -> Blob | None:
        """Return the blob with that hash."""
        every = (blob for repo in self.repos.values() for files in repo.commits.values() for blob in files.values())
        return next((blob for blob in every if blob.sha256 == sha256), None)

    def take_fault(self, request: str) -> Fault:
        """Return what goes wrong with a request; nothing, usually."""
        with self._lock:
            for fault in self.faults:
                if fault.times > 0 and re.search(fault.where, request):
                    fault.times -= 1
                    return fault
        return Fault("")

    def _signature(self, sha256: str, expires: int) -> str:
        return hmac.new(self._key, f"{sha256} {expires}".encode(), "sha256").hexdigest()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, hub: Hub, role: str) -> None:
        self.hub, self.role = hub, role
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request, client_address):
        """Say nothing: clients that go away are what tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, *args):
        """Keep quiet; the Hub has a log of its own."""

    def do_HEAD(self):
        self.do_GET()

    def do_POST(self):
        self.form = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.do_GET()

    def do_GET(self):
        self.hub = self.server.hub
        parts = urlsplit(self.path)
        self.query = dict(parse_qsl(parts.query))
        self.broken = self.hub.take_fault(f"{self.server.role} {self.command} {self.path}")
        if self.broken.hang:
            self.hub.stopped.wait(HANG_S)
            self.close_connection = True
        elif self.broken.status:
            self.answer(self.broken.status, self.broken.body, self.broken.headers)
        elif self.server.role == "cdn":
            self.cdn(parts.path)
        else:
            self.route(parts.path.removeprefix(self.hub.below))

    def route(self, path):
        for pattern, handle in ROUTES:
            if match := pattern.fullmatch(path):
                found = {name: unquote(text) for name, text in match.groupdict(default="").items()}
                # The web pages of models have no word in front: /org/name/resolve/…
                repo = f"{found.pop('kind') or 'models'}/{found.pop('name')}"
                if self.admitted(repo):
                    handle(self, self.hub.repos[repo], **found)
                return
        self.refuse(404, "", "Sorry, we can't find the page you are looking for.")

    def admitted(self, path):
        """Answer what the real one answers to those who may not read, and to those who ask for an old name."""
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and token not in self.hub.tokens:
            self.refuse(401, "", "Invalid credentials in Authorization header")
            return False
        if path in self.hub.moved:
            old, new = (p.removeprefix("models/") for p in (path, self.hub.moved[path]))
            self.answer(307, headers={"Location": self.path.replace(f"/{old}/", f"/{new}/", 1)})
            return False
        repo = self.hub.repos.get(path)
        if repo is None or (repo.private and path not in self.hub.tokens.get(token, ())):
            self.refuse(404 if token else 401, "RepoNotFound", "Repository not found")
            return False
        return True

    def commit_of(self, repo, rev):
        """Return the commit that a revision names, or answer that there is none."""
        sha = repo.refs.get(rev, rev)
        if sha in repo.commits:
            return sha
        self.refuse(404, "RevisionNotFound", f"Invalid rev id: {rev}")
        return None

    def revision(self, repo, rev):
        if sha := self.commit_of(repo, rev or "main"):
            name = repo.path.partition("/")[2]
            known = {"id": name, "sha": sha, "private": repo.private, "gated": repo.gated, "tags": []}
            known["siblings"] = [{"rfilename": path} for path in repo.commits[sha]]
            wanted = self.query.get("expand")
            self.json({k: v for k, v in known.items() if not wanted or k in {"id", wanted}})

    def tree(self, repo, rev, below=""):
        if not (sha := self.commit_of(repo, rev)):
            return
        entries = tree_of(repo.commits[sha], below)
        if below and not entries:
            self.refuse(404, "EntryNotFound", f"{below} does not exist on {rev}")
            return
        start = int(self.query.get("cursor", "0"))
        after = start + self.hub.page
        headers = {}
        if after < len(entries):
            path = self.path.partition("?")[0].removeprefix(self.hub.below)
            headers["Link"] = f'<{self.hub.endpoint}{path}?recursive=True&cursor={after}>; rel="next"'
        self.json(entries[start:after], headers)

    def paths_info(self, repo, rev):
        if sha := self.commit_of(repo, rev):
            paths = [value for name, value in parse_qsl(self.form.decode()) if name == "paths"]
            self.json([e for e in tree_of(repo.commits[sha], "") if e["path"] in paths])

    def xet_token(self, repo, rev):
        expires = int(time.time()) + 3600
        headers = {"X-Xet-Cas-Url": self.hub.cas, "X-Xet-Access-Token": "xet", "X-Xet-Token-Expiration": str(expires)}
        self.json({"casUrl": self.hub.cas, "accessToken": "xet", "exp": expires}, headers)

    def resolve(self, repo, rev, path):
        blob = self.blob_of(repo, rev, path)
        if blob is None:
            return
        sha = repo.refs.get(rev, rev)
        headers = {"X-Repo-Commit": sha, "ETag": f'"{blob.oid}"'}
        if blob.xet:
            headers |= {
                "X-Xet-Hash": blob.xet,
                "X-Xet-Refresh-Route": f"{self.hub.endpoint}/api/{repo.path}/xet-read-token/{sha}",
            }
        if not blob.plain:
            self.refuse(404, "EntryNotFound", "Only Xet has this file", headers)
        elif blob.sha256:
            linked = {"X-Linked-ETag": f'"{blob.sha256}"', "X-Linked-Size": str(blob.size)}
            self.answer(302, headers=headers | linked | {"Location": self.hub.sign(blob.sha256)})
        elif self.hub.small_redirects:
            location = f"{self.hub.below}/api/resolve-cache/{repo.path}/{sha}/{quote(path)}?etag=%22{blob.oid}%22"
            self.answer(307, headers=headers | {"Location": location})
        else:
            self.content(blob, headers)

    def resolve_cache(self, repo, rev, path):
        blob = self.blob_of(repo, rev, path)
        if blob is not None:
            self.content(blob, {"X-Repo-Commit": rev, "ETag": f'"{blob.oid}"'})

    def blob_of(self, repo, rev, path):
        """Return a blob, or answer why there is none."""
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if repo.gated and repo.path not in self.hub.tokens.get(token, ()):
            self.refuse(403 if token else 401, "GatedRepo", f"Access to {repo.path} is restricted.")
            return None
        sha = self.commit_of(repo, rev)
        if not sha:
            return None
        if path not in repo.commits[sha]:
            self.refuse(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": sha})
        return repo.commits[sha].get(path)

    def cdn(self, path):
        sha256 = path.rpartition("/")[2]
        if not self.hub.valid(sha256, self.query):
            self.answer(403, b"<Error><Code>AccessDenied</Code></Error>", {"Content-Type": "text/xml"})
        elif blob := self.hub.find(sha256):
            self.content(blob, {"ETag": f'"{sha256}"'})
        else:
            self.answer(404)

    def content(self, blob, headers):
        """Answer the bytes of a file, or a range of them."""
        start, stop = self.range_of(blob.size)
        if start >= stop and blob.size:
            self.answer(416, headers={"Content-Range": f"bytes */{blob.size}"})
            return
        headers = headers | {"Accept-Ranges": "bytes", "Content-Length": str(stop - start)}
        if stop - start < blob.size:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{blob.size}"
        self.head(206 if "Content-Range" in headers else 200, headers)
        if self.command != "HEAD":
            self.body(blob, start, stop)

    def range_of(self, size):
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not match or self.broken.whole:
            return 0, size
        return int(match[1]), min(size, int(match[2]) + 1) if match[2] else size

    def body(self, blob, start, stop):
        if self.broken.cut is not None:
            stop, self.close_connection = min(stop, start + self.broken.cut), True
        if self.broken.corrupt:
            self.wfile.write(bytes(stop - start))
        elif isinstance(blob.data, bytes):
            self.wfile.write(memoryview(blob.data)[start:stop])
        else:
            self.wfile.flush()
            with blob.data.open("rb") as file:
                while start < stop:
                    start += os.sendfile(self.connection.fileno(), file.fileno(), start, stop - start)

    def json(self, value, headers=None):
        self.answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"} | (headers or {}))

    def refuse(self, status, code, message, headers=None):
        headers = {"X-Error-Message": message, "Content-Type": "application/json"} | (headers or {})
        self.answer(status, json.dumps({"error": message}).encode(), headers | ({"X-Error-Code": code} if code else {}))

    def answer(self, status, body=b"", headers=None):
        self.head(status, {"Content-Length": str(len(body))} | (headers or {}))
        if self.command != "HEAD":
            self.wfile.write(body)

    def head(self, status, headers):
        server = self.server.role
        self.hub.log.append(Request(server, self.command, self.path, dict(self.headers.items()), status))
        self.send_response(status)
        for name, value in [*headers.items(), *self.hub.also.items()]:
            self.send_header(name, value)
        self.end_headers()


ROUTES = [
    (re.compile(rf"/api/{REPO}(?:/revision/(?P<rev>[^/]+))?"), _Handler.revision),
    (re.compile(rf"/api/{REPO}/tree/(?P<rev>[^/]+)(?:/(?P<below>.+))?"), _Handler.tree),
    (re.compile(rf"/api/{REPO}/paths-info/(?P<rev>[^/]+)"), _Handler.paths_info),
    (re.compile(rf"/api/{REPO}/xet-read-token/(?P<rev>[^/]+)"), _Handler.xet_token),
    (re.compile(rf"/api/resolve-cache/{REPO}/(?P<rev>[0-9a-f]{{40}})/(?P<path>.+)"), _Handler.resolve_cache),
    (re.compile(rf"/(?:(?P<kind>datasets)/)?{NAME}/resolve/(?P<rev>[^/]+)/(?P<path>.+)"), _Handler.resolve),
]
