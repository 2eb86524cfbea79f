"""A real S3-protocol server that checks signatures and permissions."""

import json
import urllib.request

import pytest
from data_cache import IMAGE, METADATA, QUICK, TRAIN_JOB
from demo import READ_ONLY, s3_server
from flight import flight_head
from hostile_s3 import BODY, HostileS3
from kube_api import KubeApi, kubeconfig

from trainer_agent.initializers import HIDDEN
from trainer_agent.initializers.cache import CacheSource

BUCKET = "bucket"
OBJECTS = {
    "data/a.txt": b"alpha",
    "data/deep/b.bin": bytes(range(256)) * 4096,
    "data/with space and ü.txt": b"umlaut",
    "data/empty": b"",
    "data/marker/": b"",
    "data-old/stale.txt": b"not mine",
    "data2.txt": b"not mine either",
    "hostile/../../outside.txt": b"never",
    "clash/a": b"a file",
    "clash/a/b": b"and its directory",
    "single.bin": b"one object",
    "both": b"an object and a directory",
    "both/inside": b"inside",
}
# What keys may be made of; each holds its own name.
NASTY = [
    "a+b %20 100%.txt",
    "a//b",
    "a/./b",
    "a/../b",
    "..",
    ".hidden",
    "a..b",
    "back\\slash",
    "quotes\"'`",
    "<&amp;>;{}[]|^~",
    "*?#:=@$,!()",
    "a\ttab",
    "\u65e5\u672c/\U0001f600",
    "o\u0308 and \u00f6",
    "-rf",
    " space ",
]
OBJECTS |= {f"nasty/{key}": key.encode() for key in NASTY}


@pytest.fixture
def directory(tmp_path):
    """The directory of our own in a destination."""
    hidden = tmp_path / "destination" / ".trainer-agent"
    hidden.mkdir(parents=True)
    return hidden


@pytest.fixture
def ours(directory):
    """Return the same with the place of unfinished files."""
    (directory / "parts").mkdir()
    return directory


@pytest.fixture
def server():
    """Return a server with one object of 1 KiB at `d/f`."""
    with HostileS3({"d/f": BODY}) as running:
        yield running


@pytest.fixture(scope="session")
def s3(tmp_path_factory):
    """Return the variables of a user who may only read the bucket."""
    import boto3

    with s3_server(tmp_path_factory.mktemp("s3") / "log") as endpoint:
        setup = {"region_name": "us-east-1", "aws_access_key_id": "setup", "aws_secret_access_key": "setup-secret"}
        client = boto3.client("s3", endpoint_url=endpoint, **setup)
        iam = boto3.client("iam", endpoint_url=endpoint, **setup)
        client.create_bucket(Bucket=BUCKET)
        for key, body in OBJECTS.items():
            client.put_object(Bucket=BUCKET, Key=key, Body=body)
        iam.create_user(UserName="reader")
        iam.put_user_policy(UserName="reader", PolicyName="read", PolicyDocument=json.dumps(READ_ONLY))
        key = iam.create_access_key(UserName="reader")["AccessKey"]
        plain = {"Content-Type": "text/plain"}
        request = urllib.request.Request(f"{endpoint}/moto-api/reset-auth", data=b"0", headers=plain, method="POST")
        urllib.request.urlopen(request, timeout=10).close()
        yield {
            "ENDPOINT": endpoint,
            "REGION": "us-east-1",
            "ACCESS_KEY_ID": key["AccessKeyId"],
            "SECRET_ACCESS_KEY": key["SecretAccessKey"],
        }


@pytest.fixture
def tree():
    """Return a function that reads a directory as {path: bytes}, without what is the agent's own."""

    def read(directory):
        files = (p for p in directory.rglob("*") if p.is_file() and HIDDEN not in p.parts)
        return {p.relative_to(directory).as_posix(): p.read_bytes() for p in files}

    return read


@pytest.fixture
def contents():
    """Return a function that reads all that a source has as {path: bytes}."""

    def read(source):
        return {e.path: b"".join(map(bytes, source.read(e, 0, e.size))) for e in source.entries()}

    return read


@pytest.fixture
def cluster():
    """Return a cluster in which there is nothing but the TrainJob."""
    with KubeApi() as api:
        api.put(*TRAIN_JOB, apiVersion="trainer.kubeflow.org/v1alpha1", kind="TrainJob")
        yield api


@pytest.fixture(scope="session")
def head():
    """Return the address of a data cache's head with rows."""
    with flight_head() as port:
        yield f"127.0.0.1:{port}"


@pytest.fixture
def cache(cluster, tmp_path, head):
    """Return a function that makes the source of a data cache, with variables over the usual ones."""
    usual = {
        "TRAIN_JOB_NAME": TRAIN_JOB[1],
        "CACHE_IMAGE": IMAGE,
        "METADATA_LOC": METADATA,
        "TRAINER_AGENT_INIT_CACHE_ENDPOINT": head,
        **kubeconfig(tmp_path, cluster),
    }
    return lambda pace=QUICK, **variables: CacheSource("schema/table", usual | variables, stall_s=5.0, pace=pace)
