"""
Who asks S3: the credentials, where they come from, and how they stay valid.

The first of these that the environment speaks of; ROLE_ARN is then taken with whatever that gave:

AWS_NO_SIGN_REQUEST                     nobody: requests are not signed
ACCESS_KEY_ID, SECRET_ACCESS_KEY        fixed keys, or the same with AWS_ before
AWS_WEB_IDENTITY_TOKEN_FILE             the pod's service account (IRSA)
AWS_PROFILE, ~/.aws/credentials         fixed keys of a profile
AWS_CONTAINER_CREDENTIALS_…_URI         an agent on the node (EKS Pod Identity, ECS)
none of them                            the instance's role, else nobody
"""

from __future__ import annotations

import math
import os
import threading
import time
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from trainer_agent.env import SHORTEST_SECRET
from trainer_agent.errors import FatalError
from trainer_agent.initializers import TransientError
from trainer_agent.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trainer_agent.initializers.http import HttpClient

# Renewed this long before they end, as AWS's own clients do, so that no request in flight outlives them.
MARGIN_S = 300.0
# Agents hand out the same credentials until shortly before their end; do not ask at every request.
ASK_AGAIN_S = 5.0
# Of the services of a region, by how its name begins (botocore's partitions.json).
DOMAINS = {
    "cn-": "amazonaws.com.cn",
    "eusc-": "amazonaws.eu",
    "us-iso-": "c2s.ic.gov",
    "us-isob-": "sc2s.sgov.gov",
    "eu-isoe-": "cloud.adc-e.uk",
    "us-isof-": "csp.hci.ic.gov",
    "": "amazonaws.com",
}
YES = frozenset({"1", "true", "yes", "on"})


@dataclass(frozen=True)
class Credentials:
    """
    A key pair, with a session token where it is temporary.

    Args:
        origin: the settings that it came from, for messages.
        expires_at: seconds since the epoch.
    """

    origin: str
    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    token: str = field(default="", repr=False)
    expires_at: float = math.inf

    def __post_init__(self) -> None:
        """Refuse what no header can carry: the HTTP libraries would print it."""
        if not all(text.isascii() and text.isprintable() for text in (self.access_key, self.secret_key, self.token)):
            hint = "look for a line break or quotes from a file that was read whole"
            raise FatalError("credentials-invalid", f"{self.origin}: not made of ASCII characters only", hint=hint)

    @property
    def secrets(self) -> list[str]:
        """What must never be shown."""
        return [text for text in (self.secret_key, self.token, self.access_key) if len(text) >= SHORTEST_SECRET]


class Keeper:
    """
    Credentials that stay valid, for many threads: renewed by one of them, five minutes before they end.

    Args:
        ask: returns credentials, None for nobody; raises `TransientError` or `FatalError`.
    """

    def __init__(self, ask: Callable[[], Credentials | None], *, clock: Callable[[], float] = time.time) -> None:
        self._ask = ask
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: Credentials | None = None
        self._ask_at = 0.0

    def get(self) -> Credentials | None:
        """Return credentials that are valid now, None to ask without."""
        with self._lock:
            if self._clock() >= self._ask_at:
                self._renew()
            return self._kept

    def expired(self, refused: Credentials | None) -> None:
        """
        Renew what the server calls expired, unless another thread has done so.

        Raises:
            FatalError: they are fixed, so that asking again changes nothing.
        """
        with self._lock:
            if self._kept is not refused or refused is None:
                return
            self._kept, self._ask_at = replace(refused, expires_at=0.0), 0.0
            self._renew()
            if self._kept == refused and refused.expires_at == math.inf:
                hint = f"give new ones in {refused.origin}"
                raise FatalError("credentials-expired", f"the session token of {refused.origin} has expired", hint=hint)

    def _renew(self) -> None:
        now = self._clock()
        try:
            fresh = self._ask()
        except TransientError as error:
            if self._kept is None or self._kept.expires_at <= now:
                raise
            get_logger().warning(error.message, code=error.code, then="using the present credentials until they end")
            self._ask_at = now + ASK_AGAIN_S
            return
        if fresh is None and self._kept is not None:
            raise TransientError("credentials-unavailable", f"{self._kept.origin} gives no credentials any more")
        self._kept = fresh
        self._ask_at = max(now + ASK_AGAIN_S, fresh.expires_at - MARGIN_S) if fresh else math.inf


def first(environ: Mapping[str, str], *names: str) -> str:
    """Return the first of these variables that says something, stripped."""
    return next((value for name in names if (value := environ.get(name, "").strip())), "")


def domain_of(region: str) -> str:
    """Return the domain of Amazon's services in a region."""
    return next(domain for prefix, domain in DOMAINS.items() if region.startswith(prefix))


def choose(
    environ: Mapping[str, str], http: HttpClient, *, region: str, foreign: bool
) -> Callable[[], Credentials | None]:
    """
    Return what asks for credentials; nothing is asked yet.

    Args:
        foreign: the endpoint is not Amazon's, so an instance's role means nothing there.

    Raises:
        FatalError: half of a key pair.
    """
    if first(environ, "AWS_NO_SIGN_REQUEST", "AWS_SKIP_SIGNATURE").lower() in YES:
        return lambda: None
    role = first(environ, "ROLE_ARN")
    base = _base(environ, http, region=region, foreign=foreign)
    web_role = first(environ, "AWS_ROLE_ARN", "ROLE_ARN") if first(environ, "AWS_WEB_IDENTITY_TOKEN_FILE") else ""
    if not role or (role == web_role and not _fixed(environ)):
        return base
    from trainer_agent.initializers import s3_roles

    return lambda: s3_roles.assume(base(), role, environ=environ, http=http, region=region)


def _base(
    environ: Mapping[str, str], http: HttpClient, *, region: str, foreign: bool
) -> Callable[[], Credentials | None]:
    fixed = _fixed(environ)
    if fixed is not None:
        return lambda: fixed
    if first(environ, "AWS_WEB_IDENTITY_TOKEN_FILE"):
        from trainer_agent.initializers import s3_roles

        return lambda: s3_roles.with_web_identity(environ, http, region=region)
    from trainer_agent.initializers import s3_metadata, s3_profile

    if profile := s3_profile.from_profile(environ):
        return lambda: profile
    if first(environ, "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):
        return lambda: s3_metadata.from_container(environ)
    if foreign and not first(environ, "AWS_EC2_METADATA_SERVICE_ENDPOINT"):
        return lambda: None
    return lambda: s3_metadata.from_instance(environ)


def _fixed(environ: Mapping[str, str]) -> Credentials | None:
    """Return the key pair of the environment; Kubeflow's names win, and a pair is never mixed."""
    for prefix in ("", "AWS_"):
        names = [prefix + name for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")]
        key, secret = (first(environ, name) for name in names)
        if key and secret:
            token = first(environ, f"{prefix}SESSION_TOKEN")
            origin = " and ".join([*names, *([f"{prefix}SESSION_TOKEN"] if token else [])])
            return Credentials(origin, key, secret, token)
        if key or secret:
            given, missing = names if key else reversed(names)
            hint = "give both, or neither to use a role"
            raise FatalError("credentials-incomplete", f"{given} is set and {missing} is not", hint=hint)
    return None


def moment(text: str) -> float:
    """Return an ISO 8601 time as seconds since the epoch; a missing one never comes."""
    return datetime.fromisoformat(text).timestamp() if text else math.inf


def _unread(error: Exception) -> str:
    """Say why a file cannot be read, without what is in it."""
    return (error.strerror or "") if isinstance(error, OSError) else "it holds what is no text"


def read_token(environ: Mapping[str, str], name: str) -> str:
    """
    Return what the file that variable `name` points to holds; it is read each time, since it is replaced under way.

    Raises:
        FatalError: it cannot be read.
    """
    path = first(environ, name)
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeError) as error:
        hint = "check the pod's service account and its projected volume"
        if isinstance(error, PermissionError):
            hint = f"let uid {os.geteuid()} read it: give the pod an fsGroup, or its containers the same runAsUser"
        raise FatalError("token-unreadable", f"{name}={path} cannot be read: {_unread(error)}", hint=hint) from error
