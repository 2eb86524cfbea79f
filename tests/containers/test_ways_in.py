"""The agent copied into a volume, and run from there in images that know nothing of it."""

import json

import pytest
from engine import image, podman

from trainer_agent import __version__

pytestmark = pytest.mark.containers

LOCKED = ("--read-only", "--user", "1000", "--cap-drop", "all", "--tmpfs", "/tmp")
TRAIN = "import sys, torch\nprint(sys.executable, torch.ones(2).sum().item())\n"


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    """Install the agent into a directory that stands for an emptyDir; return what mounts it."""
    folder = tmp_path_factory.mktemp("agent")
    for each in (folder, *folder.parents[:2]):
        each.chmod(0o755)
    folder.chmod(0o777)
    done = podman("run", "--rm", *LOCKED, "--volume", f"{folder}:/agent", image("agent"), "install", "--to", "/agent")
    assert "installed" == done.logs[-1]["event"], done.said
    return ("--volume", f"{folder}:/agent:ro")


@pytest.mark.parametrize("name", ["old", "bare", "python", "training"])
def test_it_runs_in_any_image(agent, name):
    """With an older glibc and no Python; without any libc; with a Python of its own; with torch."""
    words = ("preflight", "--output", "json", "--checks", "environment,cgroup,limits,clock,shm")
    done = podman("run", "--rm", *LOCKED, *agent, image(name), "/agent/bin/trainer-agent", *words, check=False)

    assert done.code in (0, 10), done.said
    report = json.loads(done.out)
    assert __version__ == report["versions"]["trainer-agent"]
    assert {"pass", "warn"} >= {check["status"] for check in report["checks"]}


def test_it_trains_with_the_images_own_python(agent, tmp_path):
    """Nothing in the training image had to change, and its torch is what the script gets."""
    (tmp_path / "train.py").write_text(TRAIN)
    tmp_path.chmod(0o755)
    words = ("/agent/bin/trainer-agent", "run", "--steps", "launch", "--", "/code/train.py")
    done = podman("run", "--rm", *LOCKED, *agent, "--volume", f"{tmp_path}:/code:ro", image("training"), *words)

    assert "/opt/training/bin/python 2.0\n" == done.out


def test_it_finds_no_torch_where_there_is_none(agent):
    """What computes is skipped with a reason, and is no failure."""
    words = ("/agent/bin/trainer-agent", "preflight", "--output", "json", "--checks", "torchrun-smoke")
    done = podman("run", "--rm", *LOCKED, *agent, image("old"), *words)

    (check,) = json.loads(done.out)["checks"]
    assert "skip" == check["status"]
    assert "no torch" in check["message"]
