"""
The Hub's control plane: which commit, which files, where they lie, and what its refusals mean.

huggingface_hub would cost 0.1 s, which is little. But its listing sends the token to whatever origin a Link header
names, proxies and authorities come from the process, and its errors repeat headers. Four GETs are easier to trust.
"""

from __future__ import annotations

import json
import re
import string
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote, urlencode, urljoin, urlsplit

from trainer_agent import __version__
from trainer_agent.errors import FatalError
from trainer_agent.initializers import ChangedError, TransientError, hf_token
from trainer_agent.initializers.hf_uri import NAME
from trainer_agent.initializers.http import HttpClient, may_pass, raise_transient, retry_after, shown
from trainer_agent.initializers.retry import persist
from trainer_agent.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trainer_agent.initializers.hf_uri import HubUri
    from trainer_agent.initializers.http import Response, Stream

ENDPOINT = "https://huggingface.co"
COMMIT = re.compile(r"[0-9a-f]{40}")
NEXT = re.compile(r'<([^>]*)>\s*;[^<]*\brel="?next\b')
# As the Hub says when its quota is full again, where it sends no Retry-After: "api";r=0;t=55.
QUOTA = re.compile(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*([0-9]{1,6})")
HALF = re.compile(r"[\ud800-\udfff]")
REDIRECTS = frozenset({301, 302, 303, 307, 308})
MOST_REDIRECTS = 5
# As many as the frame has streams.
CONNECTIONS = 64
REASON_CHARS = 200


class MovedError(Exception):
    """The answer is a redirect to another origin, `url`."""

    def __init__(self, url: str) -> None:
        super().__init__(shown(url))
        self.url = url


class MissingError(FatalError):
    """The Hub does not have this revision, or this file in it."""


class CdnRefusedError(TransientError):
    """The CDN does not accept the address that the Hub gave."""


class HubApi:
    """
    One repository of a Hub, for many threads.

    Args:
        environ: HF_ENDPOINT, those of the token, proxies and authorities.
        patience_s: how long questions about the repository are repeated.
    """

    def __init__(self, uri: HubUri, environ: Mapping[str, str], *, stall_s: float, patience_s: float) -> None:
        self.uri = uri
        self.name = uri.name
        # AWS_CA_BUNDLE is for an S3 server's authority, and would shut out the Hub's.
        bundles = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
        self.http = HttpClient(environ, connections=CONNECTIONS, stall_s=stall_s, bundles=bundles)
        self.endpoint = _endpoint(environ)
        self.token_name, self._token = hf_token.find(environ)
        self.patience_s = patience_s

    @property
    def page(self) -> str:
        """The repository's page, for people."""
        return f"{self.endpoint}/" + ("datasets/" if self.uri.kind == "datasets" else "") + self.name

    def headers_for(self, url: str) -> dict[str, str]:
        """Return the headers of a request to `url`; only the Hub's own origin sees the token."""
        headers = {"User-Agent": f"trainer-agent/{__version__}"}
        if self._token and _origin(url) == _origin(self.endpoint):
            headers["Authorization"] = f"Bearer {self._token}"
        return headers

    def commit(self) -> str:
        """Return the commit that the revision is now."""
        revision = self.uri.revision or "main"
        if COMMIT.fullmatch(revision):
            return revision
        url = self._api(f"revision/{quote(revision, safe='')}")
        try:
            answer = self._json(f"{url}?expand=sha")
        except FatalError as error:
            if error.code != "hub-endpoint-invalid":
                raise
            answer = self._json(url)  # Artifactory's Hub knows no such question (huggingface_hub #2974)
        commit = answer.get("sha") if isinstance(answer, dict) else None
        if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
            raise self._no_hub(url, "names no commit")
        self._rename(answer.get("id"))
        return commit

    def files(self, commit: str) -> Iterator[dict[str, Any]]:
        """List the files below the URI's path, or the file that it is."""
        path = self.uri.path
        found = self._info(commit, path) if path else {"type": "directory"}
        if found is None:  # a mirror that knows revision, tree and resolve, which is all that huggingface_hub asks
            below = [entry for entry in self._tree(commit, "") if f"{entry['path']}/".startswith(f"{path}/")]
            yield from below or self._refuse_path(path)
        elif found["type"] == "directory":
            yield from self._tree(commit, path)
        else:
            yield found

    def resolve_url(self, commit: str, path: str) -> str:
        """Return where a file of a commit is asked for."""
        return f"{self.page}/resolve/{commit}/{quote(path)}"

    def locate(self, url: str) -> str:
        """Return where the bytes of a file really lie: a signed address of a CDN, or one of the Hub itself."""
        try:
            return self._follow("HEAD", url)[0]
        except MovedError as moved:
            return moved.url

    def xet_token(self, commit: str) -> tuple[str, dict[str, Any]]:
        """Return where Xet's tokens are to be had, and one: `casUrl`, `accessToken`, `exp`."""
        url = self._api(f"xet-read-token/{commit}")
        answer = self._json(url)
        wanted = {"casUrl": str, "accessToken": str, "exp": int}
        if not isinstance(answer, dict) or not all(isinstance(answer.get(k), t) for k, t in wanted.items()):
            raise self._no_hub(url, "names no Xet storage")
        return url, answer

    @contextmanager
    def open(self, url: str, headers: Mapping[str, str]) -> Iterator[Stream]:
        """Open a GET of a file, wherever it lies; whatever is not the file, or a part of it, is raised."""
        for _ in range(MOST_REDIRECTS + 1):
            with self.http.stream(url, headers={**self.headers_for(url), **headers}) as answer:
                if answer.status in {200, 206}:
                    yield answer
                    return
                answer.error_body()  # so that the connection can be used again
                if answer.status not in REDIRECTS:
                    self.refuse(url, answer.status, answer.headers)
                url = _sent_on(url, answer.headers)
        raise TransientError("source-garbled", f"{shown(url)}: more than {MOST_REDIRECTS} redirects")

    def refuse(self, url: str, status: int, headers: Mapping[str, str]) -> NoReturn:
        """Raise what an answer that brings nothing means."""
        code = headers.get("X-Error-Code", "")
        if may_pass(status):
            _raise_busy(url, status, headers)
        if status == 416:
            raise ChangedError("source-changed", f"{shown(url)} has fewer bytes than were listed")
        if _origin(url) != _origin(self.endpoint):
            hint = "check that this pod may reach it (proxy, NetworkPolicy); the next attempt gets another signature"
            raise CdnRefusedError("cdn-refused", f"{shown(url)} answers {status} to the Hub's own redirect", hint=hint)
        if code == "GatedRepo":
            raise self._gated(headers)
        if code == "RevisionNotFound":
            hint = "name a branch, a tag or a commit of it after @ in STORAGE_URI"
            hint += "; write a slash in its name as %2F" * bool(self.uri.path)
            raise MissingError("hub-revision-not-found", f"{self.page} has no revision {self._revision!r}", hint=hint)
        if code == "EntryNotFound":
            hint = "check the path in STORAGE_URI"
            raise MissingError("hub-file-not-found", f"{shown(url)} does not exist", hint=hint)
        if code == "RepoNotFound" or (status == 401 and not self._token):
            raise self._not_found()
        if status == 401:
            hint = f"put a token that is still valid into {self.token_name}"
            raise FatalError("hub-token-refused", f"{self.endpoint} does not accept {self.token_name}", hint=hint)
        if status in {403, 451}:
            raise self._forbidden(status, headers)
        raise self._no_hub(url, f"answers {status}")

    @property
    def _revision(self) -> str:
        return self.uri.revision or "main"

    def _api(self, what: str) -> str:
        return f"{self.endpoint}/api/{self.uri.kind}/{self.name}/{what}"

    def _rename(self, name: object) -> None:
        """Take the name that a moved repository has now, which saves a redirect for each file."""
        if isinstance(name, str) and name != self.name and all(NAME.fullmatch(n) for n in name.split("/")):
            get_logger().info("the repository has another name now", asked=self.name, name=name)
            self.name = name

    def _info(self, commit: str, path: str) -> dict[str, Any] | None:
        """Return what a path is; None where the server cannot be asked."""
        form = urlencode({"paths": path, "expand": "false"}).encode()
        url = self._api(f"paths-info/{commit}")
        try:
            answer = persist(lambda: self._ask("POST", url, body=form), patience_s=self.patience_s)
        except FatalError as error:
            if error.code != "hub-endpoint-invalid":
                raise
            return None
        found = [e for e in self._entries(url, answer.data) if e["path"] == path]
        return found[0] if found else self._refuse_path(path)

    def _refuse_path(self, path: str) -> NoReturn:
        hint = "check the path in STORAGE_URI; it is a directory or a file, and capital letters matter"
        raise FatalError("hub-file-not-found", f"{self.page} has no {path!r} at {self._revision!r}", hint=hint)

    def _tree(self, commit: str, path: str) -> Iterator[dict[str, Any]]:
        """List the files below a directory, page by page."""
        base = self._api(f"tree/{commit}" + (f"/{quote(path)}" if path else ""))
        query = "recursive=true&expand=false"
        while query:
            url = f"{base}?{query}"
            answer = persist(lambda: self._ask("GET", url), patience_s=self.patience_s)  # noqa: B023
            yield from (e for e in self._entries(url, answer.data) if e["type"] == "file")
            # Only the query: a mirror's Link may still name the Hub that it mirrors.
            link = NEXT.search(answer.headers.get("Link", ""))
            before, query = query, link[1].partition("#")[0].partition("?")[2] if link else ""
            if link and query in {"", before}:  # which would be the first page, or this one
                raise TransientError("source-garbled", f"{shown(url)}: the list goes round in circles")

    def _entries(self, url: str, data: bytes) -> list[dict[str, Any]]:
        """Return the entries of a page, of which each has a type, a path and a size."""
        try:
            entries = json.loads(data)
        except ValueError:
            entries = None
        if not isinstance(entries, list) or not all(map(_is_entry, entries)):
            raise self._no_hub(url, "sends no list of files")
        return entries

    def _json(self, url: str) -> Any:
        answer = persist(lambda: self._ask("GET", url), patience_s=self.patience_s)
        try:
            return json.loads(answer.data)
        except ValueError:
            raise self._no_hub(url, "sends no JSON") from None

    def _ask(self, method: str, url: str, *, body: bytes | None = None) -> Response:
        """Return a good answer of the Hub itself."""
        try:
            return self._follow(method, url, body=body)[1]
        except MovedError as moved:
            parts = urlsplit(moved.url)
            hint = f"set HF_ENDPOINT={parts.scheme}://{parts.netloc.rpartition('@')[2]} if that is the Hub you mean"
            message = f"HF_ENDPOINT={self.endpoint} sends us on to {shown(moved.url)}, which may not see the token"
            raise FatalError("hub-endpoint-invalid", message, hint=hint) from None

    def _follow(self, method: str, url: str, *, body: bytes | None = None) -> tuple[str, Response]:
        """Return a good answer and its address, following redirects on the Hub's own origin."""
        form = {"Content-Type": "application/x-www-form-urlencoded"} if body is not None else {}
        for _ in range(MOST_REDIRECTS + 1):
            answer = self.http.request(method, url, headers=self.headers_for(url) | form, body=body)
            if answer.status == 200:
                return url, answer
            if answer.status not in REDIRECTS:
                self.refuse(url, answer.status, answer.headers)
            url = _sent_on(url, answer.headers)
            if _origin(url) != _origin(self.endpoint):
                raise MovedError(url)
        raise TransientError("source-garbled", f"{shown(url)}: more than {MOST_REDIRECTS} redirects")

    def _gated(self, headers: Mapping[str, str]) -> FatalError:
        who = f"the account of {self.token_name}" if self._token else "somebody without a token"
        message = f"{self.page} is gated, and {who} may not read it{self._reason(headers)}"
        hint = f"accept its terms at {self.page}, and put a token of the account that did into ACCESS_TOKEN"
        return FatalError("hub-gated", message, hint=hint)

    def _not_found(self) -> FatalError:
        if self._token:
            who, hint = (
                f"the account of {self.token_name} may not see it",
                "check STORAGE_URI and that account's rights",
            )
        else:
            who, hint = "is private", "check STORAGE_URI; for a private one put a token into ACCESS_TOKEN"
        return FatalError("hub-repository-not-found", f"{self.page} does not exist, or {who}", hint=hint)

    def _forbidden(self, status: int, headers: Mapping[str, str]) -> FatalError:
        hint = f"give {self.token_name or 'ACCESS_TOKEN'} the right to read its contents"
        return FatalError("hub-forbidden", f"{self.page}: the Hub answers {status}{self._reason(headers)}", hint=hint)

    def _reason(self, headers: Mapping[str, str]) -> str:
        """Return the Hub's own words in brackets, without the token."""
        said = headers.get("X-Error-Message", "")
        said = (said.replace(self._token, "***") if self._token else said)[:REASON_CHARS]
        return f" ({said})" if said else ""

    def _no_hub(self, url: str, what: str) -> FatalError:
        hint = "HF_ENDPOINT must be the address of a Hugging Face Hub, or of a mirror with its API"
        return FatalError("hub-endpoint-invalid", f"{shown(url)} {what}", hint=hint)


def _raise_busy(url: str, status: int, headers: Mapping[str, str]) -> NoReturn:
    """Raise a status that may pass; the Hub often says only by its quota when."""
    quota = QUOTA.search(headers.get("RateLimit", ""))
    if status == 429 and quota and retry_after(headers) is None:
        headers = {"Retry-After": str(int(quota[1]) + 1)}  # whole seconds, of which the last is told as 0
    raise_transient(url, status, headers)


def _sent_on(url: str, headers: Mapping[str, str]) -> str:
    """Return where a redirect leads."""
    # Some servers name files as they are; `quote` makes of the header's bytes what can be sent.
    location = quote(headers.get("Location", ""), safe=string.punctuation, encoding="latin-1")
    try:
        target = urljoin(url, location)
        _origin(target)
    except ValueError:
        raise TransientError("source-garbled", f"{shown(url)} sends us on to what is no address") from None
    return target


def _is_entry(entry: object) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("type"), str):
        return False
    path, size = entry.get("path"), entry.get("size", -1 if entry["type"] == "file" else 0)
    # JSON can write halves of characters, which no URL can.
    return isinstance(path, str) and not HALF.search(path) and isinstance(size, int) and size >= 0


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _endpoint(environ: Mapping[str, str]) -> str:
    endpoint = environ.get("HF_ENDPOINT", "").strip().rstrip("/") or ENDPOINT
    try:
        parts = urlsplit(endpoint)
        good = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if good and "@" in parts.netloc:
        hint = "write it without them; a mirror that asks who is there gets ACCESS_TOKEN as a bearer token"
        raise FatalError("hub-endpoint-invalid", "HF_ENDPOINT holds a user or a password", hint=hint)
    if not good or parts.query or parts.fragment:
        # Not shown: what is wrong with it may be a password.
        hint = "write it as https://host or http://host:port"
        raise FatalError("hub-endpoint-invalid", "HF_ENDPOINT is not the address of a server", hint=hint)
    return endpoint
