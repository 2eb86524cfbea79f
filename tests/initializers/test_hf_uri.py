"""Which repository, revision and path an hf:// URI names."""

import pytest

from trainer_agent.errors import FatalError
from trainer_agent.initializers.hf_uri import HubUri, parse

NAMED = {
    "org/name": HubUri("datasets", "org/name"),
    "org/name/": HubUri("datasets", "org/name"),
    "squad": HubUri("datasets", "squad"),
    "squad@main/plain_text": HubUri("datasets", "squad", "main", "plain_text"),
    "squad/plain_text": HubUri("datasets", "squad/plain_text"),
    "org/name@v1.0": HubUri("datasets", "org/name", "v1.0"),
    "org/name/data": HubUri("datasets", "org/name", "", "data"),
    "org/name/data/a@b.txt": HubUri("datasets", "org/name", "", "data/a@b.txt"),
    "org/name/100%25 #?.txt": HubUri("datasets", "org/name", "", "100%25 #?.txt"),
    "org/name@feature%2Fx/data/a.txt": HubUri("datasets", "org/name", "feature/x", "data/a.txt"),
    "org/name@refs%2Fpr%2F1": HubUri("datasets", "org/name", "refs/pr/1"),
    "org/name@refs/pr/1": HubUri("datasets", "org/name", "refs/pr/1"),
    "org/name@refs/convert/parquet/train/0.parquet": HubUri(
        "datasets", "org/name", "refs/convert/parquet", "train/0.parquet"
    ),
    "org/name@refs/other": HubUri("datasets", "org/name", "refs", "other"),
    "datasets/org/name/data": HubUri("datasets", "org/name", "", "data"),
    "datasets/squad": HubUri("datasets", "squad"),
    "models/org/name@main": HubUri("models", "org/name", "main"),
    "models/gpt2": HubUri("models", "gpt2"),
}


@pytest.mark.parametrize("rest,named", NAMED.items())
def test_form(rest, named):
    assert named == parse(rest, kind="dataset")


def test_kind_is_what_is_initialised_unless_it_is_written():
    assert HubUri("models", "org/name") == parse("org/name", kind="model")
    assert HubUri("datasets", "org/name") == parse("datasets/org/name", kind="model")


@pytest.mark.parametrize("rest", NAMED)
def test_shown_uri_names_the_same_for_datasets_and_models(rest):
    named = parse(rest, kind="dataset")

    assert named == parse(str(named).removeprefix("hf://"), kind="model")


@pytest.mark.parametrize(
    "rest",
    [
        "spaces/org/name",
        "buckets/org/name",
        "org/name@",
        "org/name@/data",
        "org//data",
        "../name",
        "org/na me",
        "org/name:v1",
        "datasets",
        "org/..",
    ],
)
def test_what_names_no_repository_is_refused(rest):
    with pytest.raises(FatalError, match="STORAGE_URI='hf://") as caught:
        parse(rest, kind="dataset")

    assert "storage-uri-invalid" == caught.value.code
    assert "hf://organisation/name" in caught.value.hint
