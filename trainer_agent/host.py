"""The door to this machine: files of /proc and /sys, clocks, names, sockets. `trainer_agent.testing` has a fake."""

from __future__ import annotations

import errno
import os
import resource
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainer_agent.errors import AgentError
from trainer_agent.isolation import CrashedError, IsolatedError, TimedOutError, isolated

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence
    from pathlib import PurePath

LOOKUPS = 64  # at the same time, each in a thread


class NameLookupError(AgentError):
    """A name did not resolve; `published` is False when the name server says that it does not exist."""

    def __init__(self, name: str, reason: str, *, published: bool | None = False) -> None:
        super().__init__("name-not-resolved", f"{name} does not resolve ({reason})")
        self.published = published


class HttpsError(AgentError):
    """No HTTP answer; `untrusted` when TLS verification refused the server."""

    def __init__(self, url: str, reason: str, *, untrusted: bool = False) -> None:
        super().__init__("https-failed", f"{url} does not answer ({reason})")
        self.untrusted = untrusted


@dataclass(frozen=True)
class Reply:
    """An HTTP answer: its status, and its Date header in seconds since 1970, None without one."""

    status: int
    date: float | None


@dataclass(frozen=True)
class Space:
    """A file system: bytes in all and free for us, and whether we may write."""

    size: int
    free: int
    writable: bool


class Host:
    """
    This machine as the agent sees it.

    Args:
        root: directory that stands for `/`, so that tests can lay out /proc and /sys in a folder.
    """

    def __init__(self, root: str | PurePath = "/") -> None:
        self.root = Path(root)

    def path(self, path: str | PurePath) -> Path:
        """Return where `path` really lies."""
        return self.root / str(path).lstrip("/")

    def read(self, path: str | PurePath) -> str | None:
        """Return the text of a file, None when it cannot be read."""
        try:
            return self.path(path).read_text(errors="replace")
        except OSError:
            return None

    def exists(self, path: str | PurePath) -> bool:
        """Return whether `path` exists."""
        try:
            return self.path(path).exists()
        except OSError:
            return False

    def names(self, path: str | PurePath) -> list[str]:
        """Return the sorted names in a directory, none when it cannot be read."""
        try:
            return sorted(p.name for p in self.path(path).iterdir())
        except OSError:
            return []

    def space(self, path: str | PurePath) -> Space | None:
        """Return the file system that `path` lies on, None when there is none."""
        real = self.path(path)
        try:
            stat = os.statvfs(real)
        except OSError:
            return None
        return Space(stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize, os.access(real, os.W_OK))

    def hostname(self) -> str:
        """Return the host name, in a pod the pod's name."""
        return socket.gethostname()

    def affinity(self) -> set[int]:
        """Return the CPUs that this process may run on."""
        return os.sched_getaffinity(0)

    def rlimit(self, name: str) -> int | None:
        """Return the soft limit such as `NOFILE`, None when unlimited."""
        soft, _ = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
        return None if soft == resource.RLIM_INFINITY else soft

    def now(self) -> float:
        """Return seconds since 1970."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds of a clock that nobody sets."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def resolve(self, name: str, *, timeout_s: float) -> list[str]:
        """
        Return the addresses of `name`, at least one.

        Raises:
            NameLookupError: it does not exist, or the name server failed or was silent for `timeout_s` seconds.
        """
        try:
            found, reason, published = isolated(lambda: _look_up(name), timeout_s=timeout_s)
        except TimedOutError as error:
            raise NameLookupError(name, f"the name server gave {error}", published=None) from error
        except CrashedError as error:
            raise NameLookupError(name, f"the lookup {error}", published=None) from error
        if reason:
            raise NameLookupError(name, reason, published=published)
        return list(found)

    def resolve_all(self, names: Sequence[str], *, timeout_s: float) -> dict[str, list[str] | NameLookupError]:
        """Return what `resolve` would say of each name, asking for all at the same time: addresses, or the error."""
        try:
            found = isolated(lambda: _look_up_all(names, timeout_s), timeout_s=timeout_s + 1)
        except IsolatedError as error:
            return {name: NameLookupError(name, f"the lookup {error}", published=None) for name in names}
        return {name: _told(name, answer) for name, answer in found.items()}

    def claim(self, address: str, port: int) -> str:
        """Return `free`, `taken`, `elsewhere` when the address is not this machine's, or the name of another error."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_STREAM) as sock:  # refused where the kernel has no IPv6
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as TCPStore does: TIME_WAIT is no obstacle
                sock.bind((address, port))
                sock.listen(1)
        except OSError as error:
            known = {errno.EADDRINUSE: "taken", errno.EADDRNOTAVAIL: "elsewhere"}
            return known.get(error.errno or 0, errno.errorcode.get(error.errno or 0, "unknown"))
        return "free"

    def https_get(self, url: str, *, ca: str | None, timeout_s: float) -> Reply:
        """
        Return the answer to a GET without headers of ours and without a proxy.

        Args:
            ca: file with the certificates to trust; None accepts any certificate, so that nothing secret may be sent.

        Raises:
            HttpsError: no answer within `timeout_s` seconds, or a server that is not trusted.
        """
        authorities = None if ca is None else str(self.path(ca))
        try:
            reply, reason, untrusted = isolated(lambda: _get(url, authorities, timeout_s), timeout_s=timeout_s)
        except TimedOutError as error:
            raise HttpsError(url, str(error)) from error
        if reason:
            raise HttpsError(url, reason, untrusted=untrusted)
        found: Reply = reply
        return found


def _get(url: str, authorities: str | None, timeout_s: float) -> tuple[Reply | None, str, bool]:
    """Return the answer, and without one the reason and whether the server is not trusted."""
    import http.client
    import ssl
    from urllib.parse import urlsplit

    try:
        context = _tls(authorities)
    except OSError as error:
        return None, f"{authorities} holds no certificates: {error.strerror}", True
    try:
        parts = urlsplit(url)
        # Without a port, it would take the end of an IPv6 address for one.
        port = parts.port or http.client.HTTPS_PORT
        connection = http.client.HTTPSConnection(parts.hostname or "", port, timeout=timeout_s, context=context)
        connection.request("GET", parts.path)
        response = connection.getresponse()
        return Reply(response.status, _date(response.headers["Date"])), "", False
    except ssl.SSLCertVerificationError as error:
        return None, f"its certificate is refused: {error.verify_message}", True
    except (OSError, http.client.HTTPException, ValueError) as error:
        return None, str(error) or type(error).__name__, False


def _tls(authorities: str | None) -> ssl.SSLContext:
    import ssl

    context = ssl.create_default_context(cafile=authorities)
    if authorities is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _date(header: str | None) -> float | None:
    """Return the seconds since 1970 of a Date header, None when it is absent or nonsense."""
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(header).timestamp() if header else None
    except ValueError:
        return None


def _look_up(name: str) -> tuple[list[str], str, bool | None]:
    """Return addresses, and without any the reason and whether the name is known not to exist."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        unknown = getattr(error, "errno", None) in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))
        return [], str(getattr(error, "strerror", error)), False if unknown else None
    return list(dict.fromkeys(str(entry[4][0]) for entry in found)), "", True


def _look_up_all(names: Sequence[str], timeout_s: float) -> dict[str, tuple[list[str], str, bool | None]]:
    """In a child, which takes its threads with it: return what is known when the time is over."""
    from concurrent.futures import ThreadPoolExecutor, wait

    pool = ThreadPoolExecutor(LOOKUPS)
    lookups = {name: pool.submit(_look_up, name) for name in names}
    wait(lookups.values(), timeout=timeout_s)
    silent: tuple[list[str], str, None] = [], f"the name server gave no answer within {round(timeout_s, 2):g} s", None
    return {name: lookup.result() if lookup.done() else silent for name, lookup in lookups.items()}


def _told(name: str, answer: tuple[list[str], str, bool | None]) -> list[str] | NameLookupError:
    found, reason, published = answer
    return NameLookupError(name, reason, published=published) if reason else found
