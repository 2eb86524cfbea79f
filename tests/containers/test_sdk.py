"""The real Kubeflow SDK with its podman backend: initializers, and a function on two nodes, in our images."""

import json
import os
import subprocess
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from cluster import pod_spec
from engine import SDK, environment, image, podman
from manifests import runtime
from s3_server import s3_server

pytestmark = pytest.mark.containers

JOB = Path(__file__).with_name("sdk_job.py")


@pytest.fixture
def service(tmp_path):
    """Run podman's API on a socket of its own."""
    socket = tmp_path / "podman.sock"
    with subprocess.Popen(["podman", "system", "service", "--time", "0", f"unix://{socket}"], env=environment()) as api:
        deadline = time.monotonic() + 20
        while not socket.exists():
            assert api.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield socket
        api.terminate()


def followed(name):
    """Return what a container says, which the SDK removes as soon as it has ended."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        said = podman("logs", "--follow", name, check=False)
        if said.code == 0 and said.logs:  # it may not have begun yet
            return said
    raise AssertionError(f"{name} has never been there: {said.said}")


def test_the_sdk_trains_with_our_images(service, tmp_path):
    """Complete; both initializers are ours; the function finds its data, and the agent has started it."""
    name, buckets, runtimes = f"sdk{uuid.uuid4().hex[:8]}", tmp_path / "buckets", tmp_path / "runtimes"
    for path, text in (("data/digits/part-0", "digits"), ("data/weights/weights", "numbers")):
        (buckets / path).parent.mkdir(parents=True)
        (buckets / path).write_text(text)
    definition = runtime("torch-distributed-preflight")
    pod_spec(definition)["containers"][0]["image"] = image("agent-torch")
    runtimes.mkdir()
    (runtimes / "runtime.yaml").write_text(yaml.safe_dump(definition))

    with s3_server(buckets) as s3, ThreadPoolExecutor() as pool:
        initializers = [pool.submit(followed, f"{name}-{kind}-initializer") for kind in ("dataset", "model")]
        images = (image("agent-dataset-initializer"), image("agent-model-initializer"))
        done = subprocess.run(
            [SDK / "bin/python", JOB, name, service, runtimes, s3["ENDPOINT"], *images],
            env={**os.environ, "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )
        said = [each.result().log("fetched") for each in initializers]

    assert 0 == done.returncode, done.stderr
    job = json.loads(done.stdout.splitlines()[-1])
    logs = job["logs"]
    assert "Complete" == job["status"]
    assert ["dataset", "model"] == [each["kind"] for each in said]
    assert "rank 0 of 2: dataset ['part-0'], model ['weights']" in logs["node-0"], logs["node-0"]
    assert "rank 1 of 2" in logs["node-1"]
    lines = [json.loads(line) for line in f"{logs['node-0']}\n{logs['node-1']}".splitlines() if line.startswith("{")]
    commands = " ".join(line["command"] for line in lines if line["event"] == "launching")
    assert "--nnodes 2 --node-rank 0 " in commands
    assert "--nnodes 2 --node-rank 1 " in commands
