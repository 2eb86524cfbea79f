"""Roles: temporary credentials from STS."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from trainer_agent.env import SHORTEST_SECRET, redact
from trainer_agent.errors import FatalError
from trainer_agent.initializers import TransientError, s3_xml
from trainer_agent.initializers.http import may_pass, raise_transient
from trainer_agent.initializers.s3_credentials import Credentials, domain_of, first, moment, read_token
from trainer_agent.initializers.sigv4 import sign

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainer_agent.initializers.http import HttpClient, Response

# The third is a web identity token that the kubelet is just about to replace; the last passes, too, by AWS's clients.
PASSING = frozenset(
    {"Throttling", "ThrottlingException", "ExpiredTokenException", "IDPCommunicationError", "InvalidIdentityToken"}
)
REASON_CHARS = 300


def assume(
    base: Credentials | None, role: str, *, environ: Mapping[str, str], http: HttpClient, region: str
) -> Credentials:
    """Return credentials of `role`, taken with `base`."""
    if base is None:
        hint = "give ACCESS_KEY_ID and SECRET_ACCESS_KEY, or bind the pod's service account to a role"
        raise FatalError("credentials-missing", f"ROLE_ARN={role} is set, and there is nobody to take it", hint=hint)
    fields = {"Action": "AssumeRole", "RoleArn": role}
    if external := first(environ, "EXTERNAL_ID"):
        fields["ExternalId"] = external
    return _call(fields, environ=environ, http=http, region=region, base=base)


def with_web_identity(environ: Mapping[str, str], http: HttpClient, *, region: str) -> Credentials:
    """Return credentials of AWS_ROLE_ARN, for the token of the pod's service account."""
    role = first(environ, "AWS_ROLE_ARN", "ROLE_ARN")
    if not role:
        hint = "annotate the service account with its role, or unset AWS_WEB_IDENTITY_TOKEN_FILE"
        raise FatalError(
            "credentials-incomplete", "AWS_WEB_IDENTITY_TOKEN_FILE is set and AWS_ROLE_ARN is not", hint=hint
        )
    token = read_token(environ, "AWS_WEB_IDENTITY_TOKEN_FILE")
    fields = {"Action": "AssumeRoleWithWebIdentity", "RoleArn": role, "WebIdentityToken": token}
    return _call(fields, environ=environ, http=http, region=region, base=None)


def endpoint(environ: Mapping[str, str], region: str) -> str:
    """Return the address of STS: the one that is set, else the region's own."""
    own = first(environ, "AWS_ENDPOINT_URL_STS", "AWS_ENDPOINT_URL").rstrip("/")
    return own or f"https://sts.{region}.{domain_of(region)}"


def _call(
    fields: Mapping[str, str], *, environ: Mapping[str, str], http: HttpClient, region: str, base: Credentials | None
) -> Credentials:
    from urllib.parse import urlencode

    url = endpoint(environ, region) + "/"
    session = first(environ, "ROLE_SESSION_NAME", "AWS_ROLE_SESSION_NAME") or "trainer-agent"
    body = urlencode({**fields, "Version": "2011-06-15", "RoleSessionName": session}).encode()
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    headers = sign(base, "POST", url, headers=headers, region=region, service="sts", body=body)
    answer = http.request("POST", url, headers=headers, body=body)
    if answer.status != 200:
        _refuse(url, answer, fields=fields, base=base)
    found = s3_xml.texts(answer.data, ("AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration"))
    try:
        return Credentials(
            f"the role {fields['RoleArn']}",
            found["AccessKeyId"],
            found["SecretAccessKey"],
            found["SessionToken"],
            moment(found["Expiration"]),
        )
    except (KeyError, ValueError):
        # Without `from`: the text that could not be read may hold a secret.
        raise TransientError("role-unavailable", f"{url} answers without credentials") from None


def _refuse(url: str, answer: Response, *, fields: Mapping[str, str], base: Credentials | None) -> NoReturn:
    said = s3_xml.texts(answer.data, ("Code", "Message"))
    code = said.get("Code", "")
    if may_pass(answer.status) or code in PASSING:
        raise_transient(url, answer.status, answer.headers, detail=code)
    who, secrets = "AWS_WEB_IDENTITY_TOKEN_FILE", [fields.get("WebIdentityToken", "")]
    if base:
        who, secrets = base.origin, base.secrets
    reason = redact(said.get("Message", ""), [text for text in secrets if len(text) >= SHORTEST_SECRET])
    message = f"{url} refuses the role {fields['RoleArn']}: {code or answer.status}"
    hint = f"check that the role exists, that its trust policy names whoever {who} is, and REGION"
    raise FatalError("role-refused", message + f" ({reason[:REASON_CHARS]})" * bool(reason), hint=hint)
