"""Credentials: which ones are taken, and how they stay valid."""

import itertools
import math
import os
import threading

import pytest
from claiming import as_nobody
from hostile_s3 import Fault, HostileS3
from node_agent import NodeAgent

from trainer_agent.errors import FatalError
from trainer_agent.initializers import TransientError
from trainer_agent.initializers.http import HttpClient
from trainer_agent.initializers.s3 import S3Source
from trainer_agent.initializers.s3_credentials import Credentials, Keeper, choose, read_token
from trainer_agent.isolation import isolated

ROLE = "arn:aws:iam::123456789012:role/reader"
PAIR = {"ACCESS_KEY_ID": "AKIDFIXED", "SECRET_ACCESS_KEY": "fixed-secret"}
NEVER = 2.0**40


def temporary(name, expires_at):
    return Credentials("a test", name, "secret-of-" + name, "token-of-" + name, expires_at)


def taken(environ, *, foreign=True):
    """Return the credentials that an environment gives."""
    return choose(environ, HttpClient(environ), region="us-east-1", foreign=foreign)()


@pytest.fixture
def agent():
    """Return a running agent."""
    with NodeAgent() as running:
        yield running


@pytest.mark.parametrize(
    "environ,expected",
    [
        (PAIR, ("AKIDFIXED", "fixed-secret", "")),
        ({**PAIR, "SESSION_TOKEN": "t"}, ("AKIDFIXED", "fixed-secret", "t")),
        ({**PAIR, "AWS_SESSION_TOKEN": "of-another-pair"}, ("AKIDFIXED", "fixed-secret", "")),
        (
            {"AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t", "REGION": "x"},
            ("A", "s", "t"),
        ),
        ({**PAIR, "AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "s"}, ("AKIDFIXED", "fixed-secret", "")),
    ],
)
def test_fixed_keys(environ, expected):
    """Kubeflow's names win over Amazon's, and pairs are never mixed."""
    found = taken(environ)

    assert (found.access_key, found.secret_key, found.token) == expected
    assert found.expires_at == math.inf


@pytest.mark.parametrize("environ", [{}, {**PAIR, "AWS_NO_SIGN_REQUEST": "True"}, {**PAIR, "AWS_SKIP_SIGNATURE": "1"}])
def test_nobody(environ):
    """Asked for, or because a foreign endpoint has nothing to do with an instance's role."""
    assert taken(environ) is None


@pytest.mark.parametrize(
    "environ,message",
    [
        ({"ACCESS_KEY_ID": "A"}, "ACCESS_KEY_ID is set and SECRET_ACCESS_KEY is not"),
        ({"AWS_SECRET_ACCESS_KEY": "s3cret"}, "AWS_SECRET_ACCESS_KEY is set and AWS_ACCESS_KEY_ID is not"),
        ({"AWS_WEB_IDENTITY_TOKEN_FILE": "/x"}, "AWS_WEB_IDENTITY_TOKEN_FILE is set and AWS_ROLE_ARN is not"),
        (
            {"AWS_WEB_IDENTITY_TOKEN_FILE": "/no", "ROLE_ARN": ROLE},
            "AWS_WEB_IDENTITY_TOKEN_FILE=/no cannot be read: No such file or directory",
        ),
        (
            {"ROLE_ARN": ROLE, "AWS_EC2_METADATA_DISABLED": "true"},
            f"ROLE_ARN={ROLE} is set, and there is nobody to take it",
        ),
    ],
)
def test_half_of_what_is_needed(environ, message):
    """The message names what is missing and shows no value of it."""
    with pytest.raises(FatalError) as caught:
        taken(environ)

    assert caught.value.message == message


def test_a_token_that_this_user_may_not_read(tmp_path):
    """As the service account's is in a pod without fsGroup whose containers run as different users."""
    tmp_path.chmod(0o755)
    (tmp_path / "token").write_text("secret")
    (tmp_path / "token").chmod(0o000)

    def refused():
        file = as_nobody(tmp_path) / "token"
        with pytest.raises(FatalError) as caught:
            read_token({"AWS_WEB_IDENTITY_TOKEN_FILE": str(file)}, "AWS_WEB_IDENTITY_TOKEN_FILE")
        return caught.value.code, caught.value.message, caught.value.hint, os.geteuid()

    *told, user = isolated(refused, timeout_s=20)

    message = "AWS_WEB_IDENTITY_TOKEN_FILE=token cannot be read: Permission denied"
    hint = f"let uid {user} read it: give the pod an fsGroup, or its containers the same runAsUser"
    assert ["token-unreadable", message, hint] == told


def test_a_token_that_is_no_text(tmp_path):
    """What is in it is not shown."""
    (tmp_path / "token").write_bytes(b"s3cret\xff")
    with pytest.raises(FatalError) as caught:
        read_token({"NAME": str(tmp_path / "token")}, "NAME")

    assert f"NAME={tmp_path}/token cannot be read: it holds what is no text" == caught.value.message


@pytest.mark.parametrize("secret", ["with\nbreak", "smart\u201cquotes"])
def test_what_no_header_can_carry_is_refused(secret):
    """Without showing it."""
    with pytest.raises(FatalError) as caught:
        taken({**PAIR, "SECRET_ACCESS_KEY": secret})

    assert caught.value.code == "credentials-invalid"
    assert secret not in f"{caught.value.message} {caught.value.hint}"


def test_a_repr_shows_no_secret():
    """Credentials end up in tracebacks and logs."""
    assert repr(temporary("AKID", 1.0)) == "Credentials(origin='a test', expires_at=1.0)"


class Clock:
    """A clock that stands still until it is moved, and a keeper of what `given` yields."""

    def __init__(self, *given):
        self.now = 1000.0
        self.given = list(given)
        self.keeper = Keeper(self.ask, clock=lambda: self.now)

    def ask(self):
        given = self.given.pop(0)
        if isinstance(given, Exception):
            raise given
        return given

    def at(self, now):
        """Return whose credentials are used then."""
        self.now = now
        return self.keeper.get().access_key


def test_credentials_are_renewed_before_they_end():
    """Five minutes before; not at every request."""
    clock = Clock(temporary("first", 5000.0), temporary("second", 9000.0))

    assert [clock.at(now) for now in (1000, 4699, 4701)] == ["first", "first", "second"]


def test_an_agent_that_gives_the_same_until_the_end_is_not_asked_every_time(agent):
    """Agents renew late."""
    agent.minutes = 2
    keeper = Keeper(choose({"AWS_CONTAINER_CREDENTIALS_FULL_URI": agent.url}, HttpClient({}), region="", foreign=True))

    assert {keeper.get().access_key for _ in range(10)} == {"ASIA1"}


def test_many_threads_ask_once():
    """The others wait for the one that asks."""
    asked, gate = [], threading.Barrier(8)

    def ask():
        asked.append(1)
        return temporary("new", NEVER)

    keeper, found = Keeper(ask), []

    def work():
        gate.wait(60)
        found.append(keeper.get())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert len(asked) == 1
    assert len(found) == 8


def test_a_renewal_that_fails_leaves_what_is_still_valid():
    """For as long as it is."""
    silent = TransientError("credentials-unavailable", "no answer")
    clock = Clock(temporary("valid", 2000.0), silent, silent, temporary("new", 9000.0))

    assert [clock.at(1000), clock.at(1800)] == ["valid", "valid"]
    with pytest.raises(TransientError, match="no answer"):
        clock.at(2001)
    assert clock.at(2002) == "new"


def test_somebody_never_becomes_nobody():
    """An instance whose service falls silent must not turn into an anonymous reader."""
    clock = Clock(temporary("valid", 2000.0), None)
    clock.at(1000)

    with pytest.raises(TransientError, match="a test gives no credentials any more"):
        clock.at(1900)


def test_what_the_server_calls_expired_is_renewed_once():
    """However many threads are told so."""
    given = iter([temporary("first", NEVER), temporary("second", NEVER)])
    keeper = Keeper(given.__next__)
    first = keeper.get()

    for _ in range(3):
        keeper.expired(first)

    assert keeper.get().access_key == "second"


def test_a_renewal_that_fails_after_an_expiry_is_tried_again():
    """Neither the old ones nor nobody are used meanwhile."""
    given = [temporary("first", NEVER), None, temporary("second", NEVER)]
    keeper = Keeper(iter(given).__next__)
    with pytest.raises(TransientError):
        keeper.expired(keeper.get())

    assert keeper.get().access_key == "second"


def test_an_expired_token_of_fixed_keys_is_fatal():
    """Asking again would give the same."""
    fixed = Credentials("SESSION_TOKEN", "A", "s", "t")
    keeper = Keeper(lambda: fixed)

    with pytest.raises(FatalError) as caught:
        keeper.expired(keeper.get())

    assert caught.value.message == "the session token of SESSION_TOKEN has expired"


def test_a_token_that_expires_on_the_way_is_replaced(agent):
    """An attempt fails and renews, and the next one uses the new one."""
    environ = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": agent.url}
    with HostileS3({"a": b"body"}) as server:
        source = S3Source("bucket", {"ENDPOINT": server.endpoint, **environ}, patience_s=5.0)
        server.valid = {"ASIA1"}
        (entry,) = source.entries()
        assert b"".join(map(bytes, source.read(entry, 0, 4))) == b"body"

        server.valid = {"ASIA2"}
        with pytest.raises(TransientError, match="had expired"):
            list(source.read(entry, 0, 4))
        assert b"".join(map(bytes, source.read(entry, 0, 4))) == b"body"
        server.valid = {"ASIA3"}
        assert [e.path for e in source.entries()] == ["a"], "a list renews by itself"

    assert agent.given == 3


def test_a_token_that_expires_before_a_question_is_replaced(agent):
    """The answer to a HEAD does not say why it is refused; that to a GET does."""
    with HostileS3({"a": b"body"}) as server:
        environ = {"ENDPOINT": server.endpoint, "AWS_CONTAINER_CREDENTIALS_FULL_URI": agent.url}
        source = S3Source("bucket", environ)
        (entry,) = source.entries()
        server.valid = {"ASIA2"}
        with pytest.raises(TransientError, match="had expired"):
            source.checksum(entry)

        assert source.checksum(entry) == f"md5:{entry.version}"


def test_whoever_is_refused_while_another_renews_asks_again():
    """A GET with the new ones is not refused, and tells no reason."""
    new = (temporary(f"ASIA{number}", 0.0) for number in itertools.count())
    with HostileS3({"a": b"body"}) as server:
        source = S3Source("bucket", server.environ)
        (entry,) = source.entries()
        source.bucket.keeper = Keeper(lambda: next(new), clock=itertools.count(0, 1000).__next__)
        server.faults = {"a": [Fault(400)]}
        with pytest.raises(TransientError, match="had expired"):
            source.checksum(entry)
