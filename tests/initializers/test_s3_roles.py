"""Roles, by moto's STS."""

import time
from datetime import UTC, datetime
from urllib.parse import parse_qsl

import pytest
from demo import s3_server
from hostile_s3 import Fault, HostileS3
from node_agent import NodeAgent

from trainer_agent.errors import FatalError
from trainer_agent.initializers import TransientError, s3_roles
from trainer_agent.initializers.http import HttpClient
from trainer_agent.initializers.s3_credentials import choose

ROLE = "arn:aws:iam::123456789012:role/reader"
PAIR = {"ACCESS_KEY_ID": "AKIDFIXED", "SECRET_ACCESS_KEY": "fixed-secret"}


def taken(environ, *, foreign=True):
    """Return the credentials that an environment gives."""
    return choose(environ, HttpClient(environ), region="us-east-1", foreign=foreign)()


@pytest.fixture
def agent():
    """Return a running agent."""
    with NodeAgent() as running:
        yield running


@pytest.fixture(scope="module")
def sts(tmp_path_factory):
    """Return the address of an STS that gives any role to anybody."""
    with s3_server(tmp_path_factory.mktemp("sts") / "log") as endpoint:
        yield endpoint


def roles(sts, **environ):
    return {"AWS_ENDPOINT_URL_STS": sts, **environ}


def test_a_role_is_taken_with_fixed_keys(sts):
    """Its credentials end within the hour."""
    found = taken(roles(sts, **PAIR, ROLE_ARN=ROLE, EXTERNAL_ID="me", ROLE_SESSION_NAME="mine"))

    assert found.access_key.startswith("ASIA")
    assert found.origin == f"the role {ROLE}"
    assert found.token
    assert found.expires_at == pytest.approx(time.time() + 3600, abs=30)


def test_a_service_account_s_role(sts, tmp_path):
    """Web identity needs no keys; ROLE_ARN alone is enough, and is not taken twice."""
    (tmp_path / "token").write_text("not.a.jwt\n")
    for name in ("AWS_ROLE_ARN", "ROLE_ARN"):
        found = taken(roles(sts, AWS_WEB_IDENTITY_TOKEN_FILE=str(tmp_path / "token"), **{name: ROLE}))
        assert (found.origin, bool(found.token)) == (f"the role {ROLE}", True)


def test_a_role_is_taken_with_another(sts, agent, tmp_path):
    """ROLE_ARN on top of the service account's own role, or of an agent's."""
    (tmp_path / "token").write_text("not.a.jwt")
    first = {"AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"), "AWS_ROLE_ARN": f"{ROLE}-first"}

    assert taken(roles(sts, **first, ROLE_ARN=ROLE)).origin == f"the role {ROLE}"
    assert taken(roles(sts, AWS_CONTAINER_CREDENTIALS_FULL_URI=agent.url, ROLE_ARN=ROLE)).origin == f"the role {ROLE}"
    assert agent.given == 1


GIVEN = b"""<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>
<AccessKeyId>ASIAGIVEN</AccessKeyId><SecretAccessKey>given-secret</SecretAccessKey><SessionToken>given-token
</SessionToken><Expiration>2026-01-02T03:04:05Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"""


def test_what_sts_is_asked(tmp_path):
    """Once for a role that is both the service account's and ROLE_ARN, and in the body, not in an address."""
    (tmp_path / "token").write_text("a.web.token\n")
    web = {"AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"), "AWS_ROLE_ARN": ROLE, "ROLE_ARN": ROLE}
    version = {"Version": "2011-06-15", "RoleArn": ROLE}
    with HostileS3() as server:
        server.faults["list"] = [Fault(200, body=GIVEN)] * 3
        found = taken(roles(server.endpoint, **web))
        taken(roles(server.endpoint, **PAIR, ROLE_ARN=ROLE, EXTERNAL_ID="me", ROLE_SESSION_NAME="mine"))
        taken(roles(server.endpoint, **PAIR, **web))

    assert (found.access_key, found.secret_key, found.token) == ("ASIAGIVEN", "given-secret", "given-token")
    assert found.expires_at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()
    assert [(s.method, s.path, s.query, s.access_key, dict(parse_qsl(s.body))) for s in server.seen] == [
        (
            *("POST", "/", {}, ""),
            {
                **version,
                "Action": "AssumeRoleWithWebIdentity",
                "RoleSessionName": "trainer-agent",
                "WebIdentityToken": "a.web.token",
            },
        ),
        (
            *("POST", "/", {}, "AKIDFIXED"),
            {**version, "Action": "AssumeRole", "RoleSessionName": "mine", "ExternalId": "me"},
        ),
        (*("POST", "/", {}, "AKIDFIXED"), {**version, "Action": "AssumeRole", "RoleSessionName": "trainer-agent"}),
    ]


@pytest.mark.parametrize(
    "region,address",
    [("eu-west-1", "https://sts.eu-west-1.amazonaws.com"), ("cn-north-1", "https://sts.cn-north-1.amazonaws.com.cn")],
)
def test_sts_is_the_region_s_own(region, address):
    """Unless its address, or that of all of Amazon's services, is set."""
    assert s3_roles.endpoint({}, region) == address
    assert s3_roles.endpoint({"AWS_ENDPOINT_URL": "http://all/", "ENDPOINT": "http://s3"}, region) == "http://all"
    assert (
        s3_roles.endpoint({"AWS_ENDPOINT_URL": "http://all", "AWS_ENDPOINT_URL_STS": "http://s"}, region) == "http://s"
    )


@pytest.mark.parametrize("right", [True, False])
def test_sts_checks_our_signature(s3, right):
    """moto's permissions refuse every role once they are on, but only after the signature."""
    environ = {**s3, "ROLE_ARN": ROLE, "AWS_ENDPOINT_URL_STS": s3["ENDPOINT"]}
    with pytest.raises(FatalError) as caught:
        taken(environ if right else {**environ, "SECRET_ACCESS_KEY": "wrong-secret"})

    assert caught.value.code == "role-refused"
    wanted = "AccessDenied" if right else "SignatureDoesNotMatch"
    assert caught.value.message.startswith(f"{s3['ENDPOINT']}/ refuses the role {ROLE}: {wanted} (")


@pytest.mark.parametrize(
    "fault,kind,code",
    [
        (Fault(400, "Throttling"), TransientError, "source-unavailable"),
        (Fault(400, "ExpiredTokenException"), TransientError, "source-unavailable"),
        (Fault(400, "InvalidIdentityToken"), TransientError, "source-unavailable"),
        (Fault(503), TransientError, "source-unavailable"),
        (Fault(520), TransientError, "source-unavailable"),
        (Fault(501), FatalError, "role-refused"),
        (Fault(200, body=b"<x>secret</x>"), TransientError, "role-unavailable"),
        (Fault(400, "ValidationError"), FatalError, "role-refused"),
        (Fault(403, body=b"not XML"), FatalError, "role-refused"),
    ],
)
def test_an_sts_that_refuses(fault, kind, code):
    """What may pass is tried again."""
    with HostileS3() as server:
        server.faults["list"] = [fault]
        with pytest.raises(kind) as caught:
            taken(roles(server.endpoint, **PAIR, ROLE_ARN=ROLE))

    assert caught.value.code == code


def test_the_reason_is_told_without_secrets(tmp_path):
    """Such as who asks, or how far the clock is off."""
    (tmp_path / "token").write_text("not.a.jwt\n")
    identities = {"fixed-secret": {**PAIR, "ROLE_ARN": ROLE}}
    identities["not.a.jwt"] = {"AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"), "AWS_ROLE_ARN": ROLE}
    with HostileS3() as server:
        for secret, environ in identities.items():
            server.faults["list"] = [Fault(403, "AccessDenied", f"User u with {secret} may not sts:AssumeRole")]
            with pytest.raises(FatalError) as caught:
                taken(roles(server.endpoint, **environ))

            assert caught.value.message == (
                f"{server.endpoint}/ refuses the role {ROLE}: AccessDenied (User u with *** may not sts:AssumeRole)"
            )
