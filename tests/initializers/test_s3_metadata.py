"""Credentials of the pod's agent and of the instance."""

import http.client
import re
import time

import pytest
from node_agent import NodeAgent, SixthServer

from trainer_agent.errors import FatalError
from trainer_agent.initializers import TransientError
from trainer_agent.initializers.http import HttpClient
from trainer_agent.initializers.s3_credentials import choose


def taken(environ, *, foreign=True):
    """Return the credentials that an environment gives."""
    return choose(environ, HttpClient(environ), region="us-east-1", foreign=foreign)()


@pytest.fixture
def agent():
    """Return a running agent."""
    with NodeAgent() as running:
        yield running


def test_a_container_s_agent(agent, tmp_path):
    """EKS Pod Identity: the token is read from its file each time, since the kubelet replaces it."""
    token = tmp_path / "token"
    environ = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{agent.url}/v1/credentials?x=1"}
    environ["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"] = str(token)
    for text in ("first", "second"):
        token.write_text(f"{text}\n")
        found = taken({**environ, "HTTP_PROXY": "http://127.0.0.1:9"})

        assert agent.seen[-1][1] == "/v1/credentials?x=1"
        assert agent.seen[-1][2]["Authorization"] == text
        assert (found.secret_key, found.token) == ("agent-secret", "agent-token")
        assert found.expires_at == pytest.approx(time.time() + 3600, abs=10)


@pytest.mark.parametrize("variable", ["AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_EC2_METADATA_SERVICE_ENDPOINT"])
def test_an_address_of_ipv6_needs_no_port(variable, monkeypatch):
    """EKS names http://[fd00:ec2::23]/v1/credentials, of which the HTTP library would take 23 for the port."""
    with NodeAgent(SixthServer) as agent:
        monkeypatch.setattr(http.client.HTTPConnection, "default_port", agent.port)
        found = taken({variable: "http://[::1]"})

    assert found.secret_key == "agent-secret"
    assert "[::1]" == agent.seen[-1][2]["Host"]


@pytest.mark.parametrize(
    "status,body,kind,code",
    [
        (403, b"", FatalError, "credentials-refused"),
        (429, b"", TransientError, "credentials-unavailable"),
        (500, b"", TransientError, "credentials-unavailable"),
        (200, b"{}", TransientError, "credentials-unavailable"),
        (200, b'"AKID', TransientError, "credentials-unavailable"),
        (200, b"[1]", TransientError, "credentials-unavailable"),
    ],
)
def test_an_agent_that_gives_nothing(agent, status, body, kind, code):
    """Only what may pass is tried again."""
    agent.answers["/c"] = (status, body)
    with pytest.raises(kind) as caught:
        taken({"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{agent.url}/c"})

    assert caught.value.code == code


def test_an_agent_that_is_not_there():
    """It may be starting."""
    with pytest.raises(TransientError, match=re.escape("http://127.0.0.1:9/c does not answer")):
        taken({"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1:9/c"})


@pytest.mark.parametrize("token", ["the-very\nsecret", "the-very\u2028secret"])
def test_a_token_that_is_no_header_is_not_shown(agent, token):
    """The HTTP library would print it."""
    environ = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{agent.url}/c", "AWS_CONTAINER_AUTHORIZATION_TOKEN": token}
    with pytest.raises(TransientError) as caught:
        taken(environ)

    shown = [repr(e) for e in (caught.value, caught.value.__cause__, caught.value.__cause__.__cause__)]
    assert "secret" not in "".join(shown)


@pytest.mark.parametrize("url", ["http://203.0.113.1/c", "ftp://127.0.0.1/c", "nonsense"])
def test_the_token_does_not_leave_the_node_openly(url):
    """As in Amazon's own clients."""
    with pytest.raises(FatalError, match="is not on this node"):
        taken({"AWS_CONTAINER_CREDENTIALS_FULL_URI": url})


def test_https_may_carry_the_token_anywhere():
    """So this is not refused, it only does not answer."""
    with pytest.raises(TransientError, match="does not answer"):
        taken({"AWS_CONTAINER_CREDENTIALS_FULL_URI": "https://no-such-host.invalid/c"})


def test_an_instance_s_role(agent):
    """IMDSv2: a token, the role's name, its credentials."""
    found = taken({"AWS_EC2_METADATA_SERVICE_ENDPOINT": f"{agent.url}/"})

    assert (found.access_key, found.origin) == ("ASIA1", "the instance's role")
    assert [(method, path) for method, path, _ in agent.seen] == [
        ("PUT", "/latest/api/token"),
        ("GET", "/latest/meta-data/iam/security-credentials/"),
        ("GET", "/latest/meta-data/iam/security-credentials/node-role"),
    ]
    assert agent.seen[-1][2]["X-aws-ec2-metadata-token"] == "imds-token"


@pytest.mark.parametrize(
    "path,answer",
    [
        ("/latest/api/token", (403, b"no")),
        ("/latest/meta-data/iam/security-credentials/", (404, b"no")),
        ("/latest/meta-data/iam/security-credentials/", (200, b"")),
    ],
)
def test_an_instance_without_a_role(agent, path, answer):
    """Another cloud answers there too; then nobody asks."""
    agent.answers[path] = answer
    assert taken({"AWS_EC2_METADATA_SERVICE_ENDPOINT": agent.url}) is None


def test_no_instance_at_all():
    """Nothing answers: public data can still be read."""
    assert taken({"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:9"}) is None
    assert taken({"AWS_EC2_METADATA_DISABLED": "true"}, foreign=False) is None


@pytest.mark.parametrize("times, found", [(2, True), (3, False)])
def test_a_service_that_is_busy_is_asked_again(agent, times, found):
    """Without a signature the bucket would refuse, and the job would end."""
    agent.busy = times

    assert found == (taken({"AWS_EC2_METADATA_SERVICE_ENDPOINT": agent.url}) is not None)
