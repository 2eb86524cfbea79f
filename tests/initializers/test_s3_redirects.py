"""s3:// against gateways that send us on to the server that has the object, as AIStore's do."""

import pytest
from authority import server_context
from hostile_s3 import BODY, Fault, HostileS3, Thing, opened

from trainer_agent.errors import FatalError
from trainer_agent.initializers import TransientError
from trainer_agent.initializers.s3_bucket import MOST_REDIRECTS

SECRETS = {"authorization", "x-amz-security-token", "x-amz-content-sha256"}


@pytest.fixture
def target():
    """Return the server that has the objects."""
    with HostileS3({"d/f": Thing(BODY, parts=512)}) as server:
        yield server


@pytest.fixture
def gateway(target):
    """Return the server that knows where they are."""
    with HostileS3({"d/f": Thing(BODY)}) as server:
        server.sends_on = (307, target.endpoint)
        server.environ["SESSION_TOKEN"] = "a-token"
        yield server


def elsewhere(server):
    """Return its address under another name."""
    return server.endpoint.replace("127.0.0.1", "localhost")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("span", [(0, 1024), (10, 20)])
def test_the_bytes_come_from_where_we_are_sent(gateway, target, status, span):
    """With the same questions."""
    gateway.sends_on = (status, target.endpoint)
    source, (entry,) = opened(gateway)

    assert BODY[slice(*span)] == b"".join(map(bytes, source.read(entry, *span)))
    for header in "range", "if-match", "x-amz-checksum-mode":
        assert gateway.seen[-1].headers.get(header) == target.seen[-1].headers.get(header)


def test_a_single_object_and_the_sizes_of_its_parts_are_found_there(gateway, target):
    """By HEAD, with its query."""
    target.objects["d/f"].etag = gateway.objects["d/f"].etag = "c" * 32 + "-2"
    source, (entry,) = opened(gateway, "bucket/d/f")

    assert (entry.path, entry.size) == ("f", 1024)
    assert source.checksum(entry).startswith("md5-parts")
    assert [{}, {}, {"partNumber": "1"}, {"partNumber": "2"}] == [seen.query for seen in target.seen]


def test_the_same_host_is_asked_as_the_gateway_is(gateway, target):
    """Signed, whatever its port."""
    source, (entry,) = opened(gateway)

    assert BODY == b"".join(map(bytes, source.read(entry, 0, 1024)))
    assert [name for name in SECRETS if name in target.seen[-1].headers] == [*SECRETS]


def test_a_server_that_checks_signatures_takes_ours(s3):
    """They are made for it, not for the gateway."""
    with HostileS3({"single.bin": Thing(b"one object")}) as gateway:
        gateway.sends_on = (307, s3["ENDPOINT"])
        source, (entry,) = opened(gateway, "bucket/single.bin", **s3 | {"ENDPOINT": gateway.endpoint})

        assert b"one object" == b"".join(map(bytes, source.read(entry, 0, entry.size)))


def test_another_host_gets_no_signature(gateway, target):
    """It could ask somebody else with it."""
    gateway.sends_on = (307, elsewhere(target))
    source, (entry,) = opened(gateway)

    assert BODY == b"".join(map(bytes, source.read(entry, 0, 1024)))
    assert not SECRETS & target.seen[-1].headers.keys()


def test_a_refusal_there_tells_who_refuses(gateway, target):
    """The gateway's credentials are not what is wrong; any in the address are not shown."""
    gateway.sends_on = (307, elsewhere(target).replace("//", "//user:hunter22@"))
    target.faults["d/f"] = [Fault(403, "AccessDenied")]
    source, (entry,) = opened(gateway)

    with pytest.raises(FatalError) as caught:
        list(source.read(entry, 0, 1024))

    who = f"{elsewhere(target)}, to which {gateway.endpoint} sends us,"
    assert caught.value.message == f"{who} refuses s3://bucket/d/f: AccessDenied"
    assert "nothing is signed there" in caught.value.hint


def test_a_server_that_is_busy_there_is_named(gateway, target):
    """And asked again by the frame."""
    target.faults["d/f"] = [Fault(503, "SlowDown")]
    source, (entry,) = opened(gateway)

    with pytest.raises(TransientError) as caught:
        list(source.read(entry, 0, 1024))

    assert caught.value.message == f"{target.endpoint}/bucket/d/f answers 503 (SlowDown)"


@pytest.mark.parametrize(
    "name,raw",
    [("\u65e5\u672c", False), ("a b", False), ("a%2Fb", False), ("100%", False), ("\u65e5\u672c", True), ("a b", True)],
)
def test_keys_of_any_kind_are_found_there(gateway, target, name, raw):
    """Some gateways name them as they are, without percent-encoding."""
    for server in gateway, target:
        server.objects = {f"d/{name}": Thing(BODY)}
    gateway.names_keys_raw = raw
    source, (entry,) = opened(gateway)

    assert BODY == b"".join(map(bytes, source.read(entry, 0, 1024)))


@pytest.mark.parametrize("where", ["http://127.0.0.1:1]", "http://[", "ftp://127.0.0.1", ""], ids=repr)
def test_where_nobody_can_be_sent(gateway, where):
    """The gateway's answer is the last word."""
    source, (entry,) = opened(gateway)
    gateway.faults["d/f"] = [Fault(307, "TemporaryRedirect", headers={"Location": where})]

    with pytest.raises(FatalError, match=f"^{gateway.endpoint} refuses s3://bucket/d/f: TemporaryRedirect"):
        list(source.read(entry, 0, 1024))


def test_nobody_is_sent_round_in_circles(gateway):
    """At most three times."""
    gateway.sends_on = (307, gateway.endpoint)
    source, (entry,) = opened(gateway)

    with pytest.raises(FatalError, match="TemporaryRedirect"):
        list(source.read(entry, 0, 1024))
    assert len(gateway.requests()) == 1 + 1 + MOST_REDIRECTS


def test_what_is_asked_over_tls_is_not_sent_in_the_open(target, tmp_path):
    """Whoever listens could change it."""
    authority = tmp_path / "authority.pem"
    with HostileS3({"d/f": Thing(BODY)}, tls=server_context(authority)) as gateway:
        gateway.sends_on = (307, target.endpoint)
        source, (entry,) = opened(gateway, AWS_CA_BUNDLE=str(authority))

        with pytest.raises(FatalError, match="TemporaryRedirect"):
            list(source.read(entry, 0, 1024))
    assert not target.seen


def test_amazon_s_mean_another_region(target):
    """Which is asked by its own name."""
    with HostileS3({"d/f": Thing(BODY)}) as server:
        source, (entry,) = opened(server, ENDPOINT="http://s3.amazonaws.com", HTTP_PROXY=server.endpoint)
        server.sends_on = (307, target.endpoint)

        with pytest.raises(FatalError, match="TemporaryRedirect"):
            list(source.read(entry, 0, 1024))
    assert not target.seen
