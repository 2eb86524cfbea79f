"""s3:// against a server that checks signatures and permissions."""

from pathlib import Path

import pytest

from trainer_agent.errors import FatalError, RetryError
from trainer_agent.initializers import open_source
from trainer_agent.initializers.fetch import fetch

BUCKET_DATA = {
    "a.txt": b"alpha",
    "deep/b.bin": bytes(range(256)) * 4096,
    "with space and ü.txt": b"umlaut",
    "empty": b"",
}


def code_of(uri: str, environ: dict[str, str], destination: Path) -> str:
    """Return the error code that fetching ends with."""
    with pytest.raises((FatalError, RetryError)) as caught:
        fetch(open_source(uri, environ), destination)
    assert not any(p.is_file() for p in destination.rglob("*")), "nothing may look fetched"
    return caught.value.code


@pytest.mark.parametrize("uri", ["s3://bucket/data", "s3://bucket/data/"])
def test_a_prefix_is_a_path(s3, tree, tmp_path, uri):
    """`data` means `data/…`, not `data-old/…` nor `data2.txt`; directory markers are no files."""
    done = fetch(open_source(uri, s3), tmp_path)

    assert tree(tmp_path) == BUCKET_DATA
    assert (done.files, done.size) == (4, sum(map(len, BUCKET_DATA.values())))


def test_a_single_object(s3, tree, tmp_path):
    """A URI may name one object."""
    fetch(open_source("s3://bucket/single.bin", s3), tmp_path)

    assert tree(tmp_path) == {"single.bin": b"one object"}


def test_ignored_objects_stay_away(s3, tree, tmp_path):
    """Patterns match the path below the prefix."""
    fetch(open_source("s3://bucket/data", s3), tmp_path, ignore=("*.txt", "deep/*"))

    assert tree(tmp_path) == {"empty": b""}


@pytest.mark.parametrize(
    "uri,code",
    [
        ("s3://bucket/nothing", "source-empty"),
        ("s3://no-such-bucket/x", "source-not-found"),
        ("s3://bucket/clash", "name-collision"),
    ],
)
def test_what_cannot_be_fetched_is_fatal(s3, tmp_path, uri, code):
    """Nothing there, or names that no directory can hold: another node would not help."""
    assert code_of(uri, s3, tmp_path) == code


def test_a_wrong_secret_is_refused(s3, tmp_path):
    """The server checks the signature, and the message says which variables to look at."""
    wrong = {**s3, "SECRET_ACCESS_KEY": "x" * 40}

    assert code_of("s3://bucket/data", wrong, tmp_path) == "source-refused"


def test_a_server_that_is_not_there_is_worth_a_retry(s3, tmp_path):
    """Connection refused may pass."""
    assert code_of("s3://bucket/data", {**s3, "ENDPOINT": "http://127.0.0.1:9"}, tmp_path) == "source-unavailable"


def test_a_role_is_refused_rather_than_ignored():
    """Reading with other credentials than the user asked for would be a surprise."""
    with pytest.raises(FatalError, match="ROLE_ARN is set"):
        open_source("s3://bucket/data", {"ROLE_ARN": "arn:aws:iam::1:role/x"})
