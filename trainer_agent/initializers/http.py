"""
HTTP: by our own wire where it will do, else by urllib3, and what their errors mean.

Connections are kept; nothing is retried or redirected here, that is the caller's to decide.
"""

from __future__ import annotations

import email.utils
import os
import re
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from trainer_agent.bundle import own_authorities
from trainer_agent.errors import AgentError, FatalError, RetryError
from trainer_agent.initializers import STALL_S, NoRangesError, TransientError
from trainer_agent.initializers.proxies import proxy_of
from trainer_agent.initializers.wire import (
    BUFFER_BYTES,
    CONNECT_TIMEOUT_S,
    ERROR_BYTES,
    UnframedError,
    Wire,
    origin_of,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Mapping, Sequence

    import urllib3

    from trainer_agent.initializers.wire import Answer

BUNDLES = ("AWS_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
BUSY = frozenset({429, 503})
PASSING = frozenset({408, 425, 429})
# What OpenSSL finds (x509_vfy.h), and what to do.
NOT_YET_VALID, EXPIRED, OTHER_NAME, OTHER_ADDRESS = 9, 10, 62, 64
TRUST_HINT = "give the authority in SSL_CERT_FILE, that of an S3 server in AWS_CA_BUNDLE, or correct the address"
NAME_HINT = "correct the address, or give the server a certificate with this name"
TRUST_HINTS = {
    EXPIRED: "renew the server's certificate; where other nodes take it, set the clock of this one (chrony, NTP)",
    OTHER_NAME: NAME_HINT,
    OTHER_ADDRESS: NAME_HINT,
}
# What the system's exceptions mean here: the first is the kernel's time-out of a socket, the second Python's.
REASONS = {"BlockingIO": "ReadTimeout", "Timeout": "ReadTimeout", "gaierror": "NameResolution"}


@dataclass(frozen=True)
class Response:
    """An answer that was read whole: of which address, its status, headers (any case) and body."""

    url: str
    status: int
    headers: Mapping[str, str]
    data: bytes


class HttpClient:
    """
    A pool of connections that knows proxies and certificate authorities.

    Args:
        environ: `HTTPS_PROXY`, `HTTP_PROXY`, `NO_PROXY`, and `bundles`.
        stall_s: a connection that brings no byte for so long is given up.
        bundles: the variables that may name a file of authorities, the first that is set wins.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        connections: int = 16,
        stall_s: float = STALL_S,
        bundles: tuple[str, ...] = BUNDLES,
    ) -> None:
        self.environ = environ
        self.bundles = bundles
        self.stall_s = stall_s
        self.connections = connections
        # By process, too: a forked child must not use its parent's connections.
        self._pools: dict[tuple[int, str], urllib3.PoolManager] = {}
        self._wires: dict[str, Wire | None] = {}  # by origin; None where only urllib3 will do

    def request(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Response:
        """
        Return the whole answer, whatever its status; redirects are answers.

        Raises:
            TransientError: no answer.
            FatalError: the server's certificate is refused.
        """
        if body is None and method in {"GET", "HEAD"} and (quick := self._quickly(method, url, headers or {})):
            with closing(quick), _told(url):
                return Response(url, quick.status, quick.headers, b"".join(map(bytes, quick.pieces())))
        with self._open(method, url, headers=headers, body=body) as answer, _translated(url):
            return Response(url, answer.status, answer.headers, answer.data)

    @contextmanager
    def stream(self, url: str, *, headers: Mapping[str, str] | None = None) -> Iterator[Stream]:
        """Open a GET whose body is read piece by piece; a body left unread closes the connection."""
        answer = self._quickly("GET", url, headers or {})
        if answer is None:
            with self._open("GET", url, headers=headers, body=None) as body:
                yield _Whole(url, body)
            return
        with closing(answer):
            yield _Quick(answer)

    def _quickly(self, method: str, url: str, headers: Mapping[str, str]) -> Answer | None:
        """Return the answer by our own wire; None where only a whole client will do."""
        origin = origin_of(url)
        if origin not in self._wires:
            self._wires[origin] = self._wire(origin)
        wire = self._wires[origin]
        if wire is None:
            return None
        try:
            with _told(url):
                return wire.ask(method, url, headers)
        except UnframedError:
            self._wires[origin] = None
            return None

    def _wire(self, origin: str) -> Wire | None:
        if not origin or proxy_of(origin, self.environ):
            return None
        return Wire(origin, tls=self._trust if origin.startswith("https:") else None, stall_s=self.stall_s)

    @cached_property
    def _trust(self) -> ssl.SSLContext:
        import ssl

        return ssl.create_default_context(cafile=authorities(self.environ, self.bundles))

    @contextmanager
    def _open(
        self, method: str, url: str, *, headers: Mapping[str, str] | None, body: bytes | None
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        pool = self._pool(url)
        with _translated(url):
            answer = pool.request(
                method,
                url,
                headers=dict(headers or {}),
                body=body,
                redirect=False,
                retries=False,
                preload_content=False,
                decode_content=False,
            )
        try:
            yield answer
        finally:
            if answer.length_remaining == 0:
                answer.drain_conn()  # an empty body counts as unread until it is read
            answer.close()  # has no effect on a connection whose body was read: it went back to the pool

    def _pool(self, url: str) -> urllib3.PoolManager:
        import urllib3

        with _translated(url):
            if urllib3.util.parse_url(url).scheme is None:
                raise urllib3.exceptions.LocationValueError
        proxy = proxy_of(url, self.environ)
        key = (os.getpid(), proxy)
        if key not in self._pools:
            settings: dict[str, Any] = {
                "maxsize": self.connections,
                "timeout": urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=self.stall_s),
                "ca_certs": str(authorities(self.environ, self.bundles) or "") or None,
            }
            self._pools[key] = _through(proxy, settings) if proxy else urllib3.PoolManager(**settings)
        return self._pools[key]


class Stream(Protocol):
    """The answer to a GET whose body is still coming."""

    url: str
    status: int
    headers: Mapping[str, str]

    def error_body(self) -> bytes:
        """Return the beginning of the body, where servers say what is wrong."""

    def pieces(self) -> Iterator[bytes | memoryview]:
        """
        Yield the body, each piece valid until the next one.

        Raises:
            TransientError: it was cut, or nothing came for so long that it is given up.
        """


class _Quick:
    def __init__(self, answer: Answer) -> None:
        self.url, self.status, self.headers = answer.url, answer.status, answer.headers
        self._answer = answer

    def error_body(self) -> bytes:
        with _told(self.url):
            return self._answer.error_body()

    def pieces(self) -> Iterator[bytes | memoryview]:
        with _told(self.url):
            yield from self._answer.pieces()


class _Whole:
    def __init__(self, url: str, answer: urllib3.BaseHTTPResponse) -> None:
        self.url = url
        self.status = answer.status
        self.headers: Mapping[str, str] = answer.headers
        self._answer = answer

    def error_body(self) -> bytes:
        with _translated(self.url):
            return self._answer.read(ERROR_BYTES)

    def pieces(self) -> Iterator[bytes]:
        with _translated(self.url):
            yield from self._answer.stream(BUFFER_BYTES, decode_content=False)


def demand_range(answer: Stream, key: str, start: int, stop: int) -> str:
    """
    Return the size of the whole file that the answer to a range names, `*` when it does not say.

    Raises:
        NoRangesError: it is the whole file.
        TransientError: it is another range.
    """
    if answer.status != 206:
        raise NoRangesError("no-ranges", f"{key}: the server answers a range with {answer.status}")
    sent = answer.headers.get("Content-Range", "")
    found = re.fullmatch(r"bytes ([0-9]+)-([0-9]+)/([0-9]+|\*)", sent.strip())
    if not found or (int(found[1]), int(found[2]) + 1) != (start, stop):
        asked = f"bytes {start}-{stop - 1}"
        raise TransientError("source-garbled", f"{key}: asked for {asked}, the server sends {sent!r}")
    return found[3]


def may_pass(status: int) -> bool:
    """Return whether the same question may be answered later: not where the server does not know how to (501)."""
    return status in PASSING or (status >= 500 and status != 501)


def raise_transient(url: str, status: int, headers: Mapping[str, str], *, detail: str = "") -> NoReturn:
    """Raise the `TransientError` of a status that may pass, or of one that nobody expects."""
    raise TransientError(
        "source-unavailable",
        f"{shown(url)} answers {status}" + (f" ({detail})" if detail else ""),
        hint="the server is busy or broken; try again later",
        busy=status in BUSY,
        retry_after_s=retry_after(headers),
    )


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that Retry-After asks for, as a number or as a date; None without a sensible one."""
    text = headers.get("Retry-After", "").strip()
    if not text:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None


def shown(url: str) -> str:
    """Return a URL without user, password and query, which may hold a signature."""
    return re.sub(r"//[^/]*@", "//", re.split(r"[?#]", url, maxsplit=1)[0], count=1)


def authorities(environ: Mapping[str, str], bundles: Sequence[str] = BUNDLES) -> Path | None:
    """
    Return the file of certificates to trust, None for those that OpenSSL finds.

    Raises:
        FatalError: it cannot be read, or holds none.
    """
    import ssl

    name = next((n for n in bundles if environ.get(n)), "")
    if not name:
        return None if environ.get("SSL_CERT_DIR") else own_authorities()
    path = Path(environ[name])
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except OSError as error:  # ssl.SSLError is one
        reason = "it holds no certificate" if isinstance(error, ssl.SSLError) else error.strerror
        hint = "check that the certificate is mounted in this container"
        raise FatalError("bundle-unreadable", f"{name}={path} cannot be read: {reason}", hint=hint) from error
    return path


def _through(proxy: str, settings: Mapping[str, Any]) -> urllib3.ProxyManager:
    """Return a pool of connections through a proxy, whose URL may hold a user and a password."""
    from urllib.parse import unquote

    import urllib3

    try:
        user = urllib3.util.parse_url(proxy).auth
        headers = urllib3.make_headers(proxy_basic_auth=unquote(user)) if user else None
        return urllib3.ProxyManager(proxy, proxy_headers=headers, **settings)
    except urllib3.exceptions.LocationValueError as error:
        hint = "write it as http://host:port in HTTPS_PROXY or HTTP_PROXY"
        raise FatalError("proxy-invalid", f"the proxy {shown(proxy)!r} is none that can be used", hint=hint) from error


@contextmanager
def _told(url: str) -> Iterator[None]:
    """Turn the system's exceptions into ours."""
    try:
        yield
    except OSError as error:
        raise _of_system(url, error) from error
    except UnicodeError:  # a ValueError: a label of the name is empty or too long
        raise _no_address(url) from None
    except ValueError:
        raise _control_character(url) from None


@contextmanager
def _translated(url: str) -> Iterator[None]:
    """Turn urllib3's exceptions into ours, by type."""
    import urllib3.exceptions as ue

    try:
        yield
    except ue.SSLError as error:
        cause = error.args[0] if error.args else error
        raise _of_system(url, cause if isinstance(cause, OSError) else error) from error
    except ue.LocationValueError as error:
        raise _no_address(url) from error
    except (ue.HTTPError, OSError) as error:
        raise _of_system(url, error) from error
    except UnicodeError:  # a ValueError: a label of the name is empty or too long
        raise _no_address(url) from None
    except ValueError:
        raise _control_character(url) from None


def _of_system(url: str, error: Exception) -> AgentError:
    import ssl

    if not isinstance(error, ssl.SSLCertVerificationError):
        return _unreachable(url, error)
    message = f"{shown(url)} has no trusted certificate: {error.verify_message.rstrip('.')}"
    if error.verify_code == NOT_YET_VALID:  # which no authority hands out, so it is the clock
        return RetryError("clock-skewed", message, hint="set the clock of this node (chrony, NTP), which is behind")
    return FatalError("certificate-refused", message, hint=TRUST_HINTS.get(error.verify_code, TRUST_HINT))


def _no_address(url: str) -> FatalError:
    return FatalError("endpoint-invalid", f"{shown(url)!r} is no address", hint="write it as https://host:port")


def _control_character(url: str) -> FatalError:
    """Return what was refused; the text of the exception may repeat the value, which may be a token."""
    hint = "look for a line break in tokens and keys, as an editor or `echo` leaves one at the end"
    return FatalError("header-invalid", f"a header for {shown(url)} would hold a control character", hint=hint)


def _unreachable(url: str, error: Exception) -> TransientError:
    reason = type(error).__name__.removesuffix("Error")
    reason = REASONS.get(reason, reason)
    return TransientError(
        "source-unavailable",
        f"{shown(url)} does not answer ({reason})",
        hint="check the address, and that this pod may reach it (NetworkPolicy, proxy)",
    )
