"""Containers for tests: on a developer's machine they may be missing, in CI they may not."""

from __future__ import annotations

import uuid

import pytest
from cluster import Cluster
from engine import exists, image, missing_tools, podman
from podlab import without


@pytest.fixture(scope="session", autouse=True)
def _engine():
    """Skip where containers cannot run, and where nobody has built the images."""
    why = ", ".join(missing_tools())
    if not why and not exists(image("agent-mpi")):
        why = "the images: python tests/containers/building.py"
    if why:
        without(f"containers need {why}")


@pytest.fixture
def container():
    """Return a function that starts a container in the background; it is gone afterwards."""
    started = []

    def start(*words, name=""):
        name = name or f"ta-{uuid.uuid4().hex[:8]}"
        podman("run", "--detach", "--name", name, *words)
        started.append(name)
        return name

    yield start
    if started:
        podman("rm", "--force", "--time", "0", *started, check=False)


@pytest.fixture
def cluster(tmp_path):
    """A place for one TrainJob; directories of volumes lie where every user may reach them."""
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.end()
