"""Credentials from an agent on the node, or from the machine itself; never through a proxy."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from trainer_agent.errors import FatalError
from trainer_agent.initializers import TransientError
from trainer_agent.initializers.s3_credentials import YES, Credentials, first, moment, read_token
from trainer_agent.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping

# Link-local: it answers within milliseconds or not at all (another cloud, a hop limit of 1, a NetworkPolicy).
INSTANCE_TIMEOUT_S = 1.0
CONTAINER_TIMEOUT_S = 5.0
BUSY_S = (0.0, 0.5, 1.0)  # pauses before it is asked, and asked again where it is busy
MOST_BYTES = 64 * 1024
CONTAINER_HOST = "http://169.254.170.2"
# Plain http may carry the token to these only: this machine, ECS, and EKS Pod Identity's agent.
LOCAL_HOSTS = frozenset({"127.0.0.1", "localhost", "::1", "169.254.170.2", "169.254.170.23", "fd00:ec2::23"})
ROLES = "/latest/meta-data/iam/security-credentials/"


def from_container(environ: Mapping[str, str]) -> Credentials:
    """
    Return the credentials that the agent of AWS_CONTAINER_CREDENTIALS_FULL_URI (or …_RELATIVE_URI) gives this pod.

    Raises:
        TransientError: it does not answer.
        FatalError: it refuses.
    """
    relative = first(environ, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
    url = CONTAINER_HOST + relative if relative else first(environ, "AWS_CONTAINER_CREDENTIALS_FULL_URI")
    _refuse_foreign(url)
    token = first(environ, "AWS_CONTAINER_AUTHORIZATION_TOKEN")
    if first(environ, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"):
        token = read_token(environ, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
    try:
        status, body = _ask(
            "GET", url, headers={"Authorization": token} if token else {}, timeout_s=CONTAINER_TIMEOUT_S
        )
    except OSError as error:
        hint = "is the agent running on this node (eks-pod-identity-agent)?"
        raise TransientError("credentials-unavailable", f"{url} does not answer", hint=hint) from error
    if status >= 500 or status == 429:
        raise TransientError("credentials-unavailable", f"{url} answers {status}", busy=status == 429)
    if status != 200:
        hint = "check the association of the pod's service account with a role"
        raise FatalError("credentials-refused", f"{url} answers {status}", hint=hint)
    return _credentials(body, "AWS_CONTAINER_CREDENTIALS_FULL_URI")


def from_instance(environ: Mapping[str, str]) -> Credentials | None:
    """Return the credentials of the instance's role (IMDSv2); None where there is no such service, or no role."""
    if first(environ, "AWS_EC2_METADATA_DISABLED").lower() in YES:
        return None
    base = first(environ, "AWS_EC2_METADATA_SERVICE_ENDPOINT").rstrip("/") or "http://169.254.169.254"
    status, body = 503, b""
    for pause_s in BUSY_S:
        if status == 429 or status >= 500:
            time.sleep(pause_s)
            status, body = _of_instance(base)
    if not body or status != 200:
        get_logger().info("no credentials in the environment nor from the instance: asking without a signature")
        return None
    return _credentials(body, "the instance's role")


def _of_instance(base: str) -> tuple[int, bytes]:
    """Return the last status, and what the service says of its role; 404 and nothing where nobody answers."""
    try:
        status, token = _ask("PUT", f"{base}/latest/api/token", headers={"X-aws-ec2-metadata-token-ttl-seconds": "300"})
        headers = {"X-aws-ec2-metadata-token": token.decode("ascii", "replace").strip()}
        status, roles = _ask("GET", base + ROLES, headers=headers) if status == 200 else (status, b"")
        role = roles.decode("ascii", "replace").partition("\n")[0].strip()
        return _ask("GET", base + ROLES + role, headers=headers) if status == 200 and role else (status, b"")
    except OSError:
        return 404, b""


def _credentials(body: bytes, origin: str) -> Credentials:
    try:
        data = json.loads(body)
        token = data.get("Token") or ""
        return Credentials(
            origin, data["AccessKeyId"], data["SecretAccessKey"], token, moment(data.get("Expiration") or "")
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        # Without `from`: the text that could not be read may hold a secret.
        raise TransientError("credentials-unavailable", f"{origin} answers without credentials") from None


def _refuse_foreign(url: str) -> None:
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOCAL_HOSTS):
        hint = "use https, or the agent's own address on this node"
        raise FatalError(
            "credentials-refused",
            f"AWS_CONTAINER_CREDENTIALS_FULL_URI={url!r} is not on this node, and a token must not go there openly",
            hint=hint,
        )


def _ask(
    method: str, url: str, *, headers: Mapping[str, str], timeout_s: float = INSTANCE_TIMEOUT_S
) -> tuple[int, bytes]:
    """Return status and body; whatever goes wrong is an `OSError`."""
    import http.client
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    # Without a port, it would take the end of an IPv6 address for one: of Pod Identity's [fd00:ec2::23], 23.
    connection = kind(parts.hostname or "", parts.port or kind.default_port, timeout=timeout_s)
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request(method, target, headers=dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read(MOST_BYTES)
    except (http.client.HTTPException, ValueError):
        # Without `from`: a header that was refused holds the token.
        raise OSError(f"{parts.hostname} does not speak HTTP") from None
    finally:
        connection.close()
