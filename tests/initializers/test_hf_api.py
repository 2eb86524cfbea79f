"""What the Hub's refusals mean, and that no secret gets out with them."""

import pytest
from hub import Hub

from trainer_agent.errors import ExitCode, FatalError
from trainer_agent.initializers import TransientError
from trainer_agent.initializers.hf import HubSource

pytestmark = pytest.mark.lab

TOKEN = "hf_aVerySecretToken"
DATASET = "datasets/org/name"


@pytest.fixture
def hub():
    with Hub() as server:
        server.repository(DATASET).commit({"a.txt": b"alpha", "big.bin": bytes(2 << 20)})
        server.tokens[TOKEN] = set()
        yield server


@pytest.fixture
def source(hub):
    def opened(rest="org/name", *, patience_s=20.0, **environ):
        return HubSource(rest, {"HF_ENDPOINT": hub.endpoint, **environ}, patience_s=patience_s)

    return opened


def refused(source, *, read=False):
    """Return the error that listing, or reading everything, ends with."""

    def everything():
        return [list(source.read(e, 0, e.size)) if read else e for e in source.entries()]

    with pytest.raises(FatalError) as caught:
        everything()
    error = caught.value
    assert ExitCode.FATAL == error.exit_code
    assert TOKEN not in f"{error!r} {error.message} {error.hint} {error.__cause__!r}"
    return error.code, error.message, error.hint


def test_unknown_repository(hub, source):
    page = f"{hub.endpoint}/datasets/org/other"
    wanted = (
        "hub-repository-not-found",
        f"{page} does not exist, or is private",
        "check STORAGE_URI; for a private one put a token into ACCESS_TOKEN",
    )

    assert wanted == refused(source("org/other"))


@pytest.mark.parametrize("rest", ["org/name", "org/other"])
def test_private_or_unknown_repository_with_a_token(hub, source, rest):
    """The Hub does not tell the one from the other."""
    hub.repos[DATASET].private = True
    wanted = (
        "hub-repository-not-found",
        f"{hub.endpoint}/datasets/{rest} does not exist, or the account of HF_TOKEN may not see it",
        "check STORAGE_URI and that account's rights",
    )

    assert wanted == refused(source(rest, HF_TOKEN=TOKEN))


def test_pinned_commit_of_an_unknown_repository(hub, source):
    assert "hub-repository-not-found" == refused(source(f"org/other@{'a' * 40}"))[0]


def test_unknown_revision(hub, source):
    wanted = (
        "hub-revision-not-found",
        f"{hub.endpoint}/datasets/org/name has no revision 'v9'",
        "name a branch, a tag or a commit of it after @ in STORAGE_URI",
    )

    assert wanted == refused(source("org/name@v9"))
    assert "hub-revision-not-found" == refused(source(f"org/name@{'a' * 40}"))[0]


def test_branch_with_a_slash_is_told_how_to_be_written(hub, source):
    hub.repos[DATASET].commit({"a.txt": b"alpha"}, branch="feature/x")
    code, message, hint = refused(source("org/name@feature/x"))

    assert ("hub-revision-not-found", True) == (code, message.endswith("has no revision 'feature'"))
    assert hint.endswith("in STORAGE_URI; write a slash in its name as %2F")
    assert list(source("org/name@feature%2Fx").entries())


def test_wrong_token(hub, source):
    wanted = (
        "hub-token-refused",
        f"{hub.endpoint} does not accept ACCESS_TOKEN",
        "put a token that is still valid into ACCESS_TOKEN",
    )

    assert wanted == refused(source(ACCESS_TOKEN="hf_old", HF_TOKEN=TOKEN))


@pytest.mark.parametrize(
    "environ,who", [({}, "somebody without a token"), ({"ACCESS_TOKEN": TOKEN}, "the account of ACCESS_TOKEN")]
)
def test_gated_repository(hub, source, environ, who):
    """It can be listed and not read."""
    hub.repos[DATASET].gated = True
    page = f"{hub.endpoint}/datasets/org/name"
    wanted = (
        "hub-gated",
        f"{page} is gated, and {who} may not read it (Access to {DATASET} is restricted.)",
        f"accept its terms at {page}, and put a token of the account that did into ACCESS_TOKEN",
    )

    assert wanted == refused(source(**environ), read=True)


def test_gated_repository_says_what_is_missing(hub, source):
    """Terms that are accepted do not help a fine-grained token that may not read gated ones."""
    said = f"Please enable access to public gated repositories in your fine-grained token settings. {TOKEN * 8}"
    refusal = {"X-Error-Code": "GatedRepo", "X-Error-Message": said}
    hub.fault("/resolve/", status=403, headers=refusal)

    message = refused(source(HF_TOKEN=TOKEN), read=True)[1]
    assert message.endswith(
        "may not read it (Please enable access to public gated repositories in your fine-grained "
        f"token settings. {'***' * 8})"
    )


def test_gated_repository_stops_the_first_attempt_at_a_range(hub, source):
    hub.repos[DATASET].gated = True
    opened = source()
    big = next(e for e in opened.entries() if e.path == "big.bin")

    with pytest.raises(FatalError, match="gated"):
        list(opened.read(big, 0, 10))


def test_forbidden_says_the_hubs_reason_without_the_token(hub, source):
    said = f"Access to this resource is disabled for {TOKEN}."
    hub.fault("/revision/", status=403, headers={"X-Error-Message": said})
    wanted = (
        "hub-forbidden",
        f"{hub.endpoint}/datasets/org/name: the Hub answers 403 (Access to this resource is disabled for ***.)",
        "give ACCESS_TOKEN the right to read its contents",
    )

    assert wanted == refused(source(ACCESS_TOKEN=TOKEN))


@pytest.mark.parametrize("where", ["/revision/", "/tree/", "/paths-info/"])
@pytest.mark.parametrize(
    "status,headers", [(429, {"Retry-After": "0"}), (429, {"RateLimit": '"api";r=0;t=0'}), (503, {}), (500, {})]
)
def test_busy_hub_is_asked_again(hub, source, where, status, headers):
    hub.fault(where, status=status, headers=headers, times=2)
    rest = "org/name/a.txt" if "paths" in where else "org/name"

    assert "a.txt" in {e.path for e in source(rest).entries()}
    assert 3 >= len(hub.requests(where)) >= 2


@pytest.mark.parametrize("told,wanted", [(55, 56.0), (0, 1.0)])
def test_quota_says_when_it_is_full_again(hub, source, told, wanted):
    """The Hub sends no Retry-After with it, and whole seconds only: none is left in the last."""
    quota = {"RateLimit": f'"api";r=0;t={told}', "RateLimit-Policy": '"fixed window";"api";q=500;w=300'}
    hub.fault("/revision/", status=429, headers=quota)

    with pytest.raises(TransientError, match="429") as caught:
        list(source(patience_s=0.1).entries())
    assert (True, wanted) == (caught.value.busy, caught.value.retry_after_s)


def test_patience_ends(hub, source):
    hub.fault("/tree/", status=503, times=1000)

    with pytest.raises(TransientError, match="503") as caught:
        list(source(patience_s=0.3).entries())
    assert ExitCode.RETRY == caught.value.exit_code


def test_a_hub_that_knows_less(hub, source):
    """Artifactory's has no `expand`, and answers 404."""
    hub.fault(r"/revision/\S*expand=", status=404, body=b"")

    assert list(source().entries())
    assert len(hub.requests("/revision/")) == 2


def test_nobody_there_is_worth_a_retry():
    with Hub() as hub:
        address = hub.endpoint

    with pytest.raises(TransientError, match="does not answer"):
        list(HubSource("org/name", {"HF_ENDPOINT": address}, patience_s=0.0).entries())


@pytest.mark.parametrize("endpoint", ["huggingface.co", "ftp://x", "https://", "u:secret@x", "http://[::1"])
def test_endpoint_that_is_no_address(endpoint):
    with pytest.raises(FatalError, match=r"^HF_ENDPOINT is not the address of a server$") as caught:
        HubSource("org/name", {"HF_ENDPOINT": endpoint})
    assert "hub-endpoint-invalid" == caught.value.code


def test_endpoint_with_a_password_is_told_what_is_wrong():
    """Mirrors such as Nexus are written so for other clients."""
    with pytest.raises(FatalError, match=r"^HF_ENDPOINT holds a user or a password$") as caught:
        HubSource("org/name", {"HF_ENDPOINT": "https://user:secret@host/repository/hub"})
    assert "hub-endpoint-invalid" == caught.value.code
    assert "secret" not in caught.value.hint


@pytest.mark.parametrize(
    "where,answer",
    [
        ("/revision/", {"status": 200, "body": b"<html>Welcome</html>"}),
        ("/revision/", {"status": 200, "body": b'{"sha": "../main"}'}),
        ("/revision/", {"status": 200, "body": b"[]"}),
        ("/revision/", {"status": 404, "body": b"no such page"}),
        ("/tree/", {"status": 200, "body": b"<html>Welcome</html>"}),
        ("/tree/", {"status": 200, "body": b'{"error": 1}'}),
        ("/tree/", {"status": 200, "body": b"[1]"}),
        ("/tree/", {"status": 200, "body": b'[{"type": "file", "path": "a"}]'}),
        ("/tree/", {"status": 200, "body": b'[{"type": "file", "path": 1, "size": 1}]'}),
        ("/tree/", {"status": 200, "body": b'[{"type": "file", "path": "a", "size": -1}]'}),
        ("/tree/", {"status": 200, "body": b'[{"type": "file", "path": "a\\ud800", "size": 1}]'}),
    ],
)
def test_what_answers_is_no_hub(hub, source, where, answer):
    hub.fault(where, **answer, times=2)

    code, message, hint = refused(source())
    assert "hub-endpoint-invalid" == code
    assert message.startswith(hub.endpoint)
    assert "HF_ENDPOINT must be" in hint


def test_hub_elsewhere_is_named_and_does_not_see_the_token(hub, source):
    """As when http:// is written instead of https://."""
    with Hub() as other:
        hub.fault("/revision/", status=301, headers={"Location": f"{other.endpoint}/x?y=1"}, times=2)

        code, message, hint = refused(source(ACCESS_TOKEN=TOKEN))
        assert "hub-endpoint-invalid" == code
        assert f"HF_ENDPOINT={hub.endpoint} sends us on to {other.endpoint}/x, which may not see the token" == message
        assert hint.startswith(f"set HF_ENDPOINT={other.endpoint} ")
        assert [] == other.log


def test_redirects_in_a_circle_end(hub, source):
    hub.fault("/revision/", status=307, headers={"Location": "/api/datasets/org/name/revision/main"}, times=99)

    with pytest.raises(TransientError, match="redirects"):
        list(source(patience_s=0.0).entries())


@pytest.mark.parametrize("where", ["/revision/", "/resolve/"])
@pytest.mark.parametrize("location", ["http://[::1/x", "https://cdn:70000/x", "//cdn:x"])
def test_redirect_to_no_address_is_worth_a_retry(hub, source, where, location):
    hub.fault(where, status=302, headers={"Location": location})

    opened = source(patience_s=0.0)

    with pytest.raises(TransientError, match="sends us on to what is no address"):
        list(opened.read(next(iter(opened.entries())), 0, 5))


@pytest.mark.parametrize("address", ["http://x/api?cursor=1", "http://x/page/2", "http://x/page/2#a?b", "?"])
def test_list_in_a_circle_ends(hub, source, address):
    """Or one whose next page could only be the first: nobody knows what is missing then."""
    hub.fault("/tree/", status=200, body=b"[]", headers={"Link": f'<{address}>; rel="next"'}, times=99)

    with pytest.raises(TransientError, match="circles"):
        list(source(patience_s=0.0).entries())


@pytest.mark.parametrize(
    "link",
    [
        '<http://[::1/x?cursor=1#y>; rel="next"',
        '<?cursor=1>; title="a, b"; rel="next"',
        '<http://x/?cursor=9>; rel="prev", <http://x/?cursor=1>;rel=next',
    ],
)
def test_next_page_is_found(hub, source, link):
    hub.fault("/tree/", status=200, body=b"[]", headers={"Link": link})

    assert ["big.bin"] == [entry.path for entry in source().entries()]


def test_token_that_cannot_be_one_is_not_shown(hub):
    with pytest.raises(FatalError, match=r"^ACCESS_TOKEN holds what no token has$") as caught:
        HubSource("org/name", {"HF_ENDPOINT": hub.endpoint, "ACCESS_TOKEN": "hf_line\nbreak"})
    assert "hub-token-invalid" == caught.value.code


def test_log_holds_no_secret(hub, source, capfd):
    hub.fault("/revision/", status=503, times=1)
    hub.fault("/tree/", status=429, headers={"Retry-After": "0"})
    list(source(ACCESS_TOKEN=TOKEN).entries())

    shown = "".join(capfd.readouterr())
    assert "answers 503" in shown
    assert TOKEN not in shown
