"""A data cache's variables: Kubeflow's names and defaults, and all that is wrong with them at once."""

import pytest

from trainer_agent.errors import ConfigurationError, ExitCode
from trainer_agent.initializers.cache_settings import Readiness, Settings, read_settings

REQUIRED = {"TRAIN_JOB_NAME": "job", "CACHE_IMAGE": "cache:1", "METADATA_LOC": "s3a://bucket/metadata.json"}


def wrong(rest="schema/table", **variables):
    """Return (variable, value) of what is found to be wrong."""
    with pytest.raises(ConfigurationError) as caught:
        read_settings(rest, REQUIRED | variables)
    return [(f.evidence["variable"], f.evidence["value"]) for f in caught.value.findings]


def test_the_defaults_are_kubeflows():
    expected = Settings(
        schema="schema",
        table="table",
        job="job",
        image="cache:1",
        metadata_location="s3a://bucket/metadata.json",
        iam_role="",
        size=3,
        head_cpu="1",
        head_memory="1Gi",
        worker_cpu="2",
        worker_memory="2Gi",
        readiness=Readiness(initial_delay=5, period=10, timeout=5, failure_threshold=3),
        endpoint=("job-cache-service", 50051),
    )

    assert read_settings("schema/table", REQUIRED) == expected


def test_an_empty_variable_is_as_good_as_none():
    """A runtime may pass on what nobody has set."""
    assert read_settings("schema/table", REQUIRED | {"CLUSTER_SIZE": "", "IAM_ROLE": " "}) == read_settings(
        "schema/table", REQUIRED
    )


def test_everything_wrong_is_said_at_once():
    found = {"CLUSTER_SIZE": "1", "HEAD_CPU": "lots", "READINESS_PERIOD_SECONDS": "0", "CACHE_IMAGE": ""}

    with pytest.raises(ConfigurationError) as caught:
        read_settings("schema", REQUIRED | found)

    assert caught.value.exit_code == ExitCode.FATAL
    assert caught.value.message.split("; ") == [
        "STORAGE_URI='cache://schema', wanted cache://schema/table",
        "CACHE_IMAGE is not set, wanted the image of the cache's head and workers",
        "CLUSTER_SIZE='1', wanted a whole number of at least 2: a head and its workers",
        "HEAD_CPU='lots', wanted a Kubernetes quantity above 0, such as 500m or 2Gi",
        "READINESS_PERIOD_SECONDS='0', wanted a whole number of at least 1",
    ]


@pytest.mark.parametrize(
    "rest", ["schema", "schema/", "/table", "schema/a/b", "schema/table/", "a b/c", "a/b?c", "a/b#c"]
)
def test_a_table_is_a_schema_and_a_name(rest):
    assert wrong(rest) == [("STORAGE_URI", f"cache://{rest}")]


@pytest.mark.parametrize("name", ["", "Job", "1job", "job-", "job_1", "a" * 50])
def test_a_job_name_must_fit_into_that_of_a_service(name):
    assert wrong(TRAIN_JOB_NAME=name) == [("TRAIN_JOB_NAME", name)]


@pytest.mark.parametrize("value", ["500m", "0.5", ".5", "2", "1e3", "1E3", "4Gi", "4G", "1.5Gi"])
def test_quantities(value):
    assert read_settings("schema/table", REQUIRED | {"HEAD_MEM": value}).head_memory == value


@pytest.mark.parametrize("value", ["0", "0.0", "-1", "2 Gi", "2GB", "Gi", "1e", "."])
def test_what_is_no_quantity(value):
    assert wrong(HEAD_MEM=value) == [("HEAD_MEM", value)]


@pytest.mark.parametrize("value", ["2.0", "-3", "three", "\u0663", "4294967296"])
def test_what_is_no_number(value):
    assert wrong(CLUSTER_SIZE=value) == [("CLUSTER_SIZE", value)]


@pytest.mark.parametrize(
    "value,endpoint",
    [
        ("grpc://head:1234", ("head", 1234)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("[::1]:50051", ("[::1]", 50051)),
    ],
)
def test_another_endpoint(value, endpoint):
    settings = read_settings("schema/table", REQUIRED | {"TRAINER_AGENT_INIT_CACHE_ENDPOINT": value})

    assert settings.endpoint == endpoint


@pytest.mark.parametrize("value", ["head", "http://head:1", "head:port", "me:secret@head:1"])
def test_what_is_no_endpoint(value):
    assert wrong(TRAINER_AGENT_INIT_CACHE_ENDPOINT=value) == [("TRAINER_AGENT_INIT_CACHE_ENDPOINT", value)]
