"""What our images hold, how big they are, and whom they run as."""

import json

import pytest
from building import builder, run
from engine import ROOT, image, podman

from trainer_agent import __version__

pytestmark = pytest.mark.containers

OURS = ("agent", "agent:torch", "agent:cache", "agent-torch", "agent-mpi", "agent-dataset-initializer",
        "agent-model-initializer")  # fmt: skip
FROM_YOURS = ("agent:torch", "agent-torch", "agent-mpi")
# The user that each starts as: where volumes may be root's, Kubeflow's own images are, too.
USERS = {"agent": "1000:1000", "agent:torch": "1000:1000", "agent-mpi": "1000:1000", "agent-torch": "0",
         "agent-dataset-initializer": "0:0", "agent-model-initializer": "0:0"}  # fmt: skip
MOST_MB = 250


def inspected(name):
    (found,) = json.loads(podman("image", "inspect", image(name)).out)
    return found


def shell(name, script, *, check=True):
    """Return what a shell in an image prints."""
    return podman("run", "--rm", "--user", "0", "--entrypoint", "/bin/sh", image(name), "-c", script, check=check).out


def test_the_init_image_is_small():
    size = inspected("agent")["Size"] / 1e6

    print(f"{size:.0f} MB, of which {inspected('python')['Size'] / 1e6:.0f} MB are the base")
    assert size < MOST_MB


@pytest.mark.parametrize("name", OURS)
def test_every_image_starts_the_agent(name):
    """With nothing but a read-only root file system and the user of restricted namespaces."""
    words = ("run", "--rm", "--read-only", "--user", "1000", "--cap-drop", "all", "--entrypoint", "trainer-agent")

    assert f"trainer-agent, version {__version__}\n" == podman(*words, image(name), "--version").out


@pytest.mark.parametrize("name, user", USERS.items())
def test_every_image_runs_as_the_user_that_its_documentation_says(name, user):
    assert user == inspected(name)["Config"]["User"]


@pytest.mark.parametrize("name", ["agent", "agent:torch", "agent:cache"])
def test_the_agents_images_look_for_the_driver_where_gke_mounts_it(name):
    assert "/usr/local/nvidia/lib64\n" == shell(name, 'echo "$LD_LIBRARY_PATH"')


@pytest.mark.parametrize("name", [name for name in OURS if name not in FROM_YOURS])
def test_an_image_of_ours_says_what_it_is(name):
    labels = inspected(name)["Config"]["Labels"]

    assert "Apache-2.0" == labels["org.opencontainers.image.licenses"]
    assert labels["org.opencontainers.image.title"].startswith("trainer-agent")
    assert labels["org.opencontainers.image.description"]


@pytest.mark.parametrize("name", FROM_YOURS)
def test_an_image_made_of_yours_says_nothing_of_its_own(name):
    """Title and licence of a training image are its owner's to say; the one here has none."""
    labels = inspected(name)["Config"]["Labels"] or {}

    assert [] == [key for key in labels if key.startswith("org.opencontainers.image.")]


def test_the_init_image_says_its_version_and_revision():
    labels = inspected("agent")["Config"]["Labels"]

    assert __version__ == labels["org.opencontainers.image.version"]
    assert 40 == len(labels["org.opencontainers.image.revision"])


@pytest.mark.parametrize("name", ["agent", "agent-mpi", "agent-dataset-initializer"])
def test_nothing_of_the_build_is_left(name):
    """No sources, no pip cache, no lists of packages, no host keys of sshd that all containers would share."""
    places = "/src /venv /root/.cache /var/lib/apt/lists/* /etc/ssh/ssh_host_*"

    assert "" == shell(name, f"ls -d {places} 2>/dev/null", check=False)


def test_torch_is_a_build_argument():
    """It is what the first `python` on PATH has, which computes for the checks; six stands in, being small."""
    name = f"{image('agent')}:six"
    arguments = [f"--build-arg={word}" for word in (f"PYTHON_IMAGE={image('python')}", "TORCH=six")]
    run([*builder(), "-f", str(ROOT / "Dockerfile.agent"), "-t", name, *arguments, str(ROOT)], log="six.log")
    done = podman("run", "--rm", "--entrypoint", "python", name, "-c", "import six, sys; print(sys.executable)")

    assert "/opt/torch/bin/python\n" == done.out


def test_the_image_holds_what_was_tested():
    """Every distribution is one that images/constraints.txt pins, and none of those is there for nothing."""
    lines = shell("agent:cache", "ls -d /opt/trainer-agent/lib-*/lib/python3.*/*.dist-info").split()
    found = {line.rpartition("/")[2].removesuffix(".dist-info").lower().replace("_", "-") for line in lines}

    pinned = {line.replace("==", "-").replace("_", "-").lower() for line in constraints()}
    assert {f"trainer-agent-{__version__}"} == found - pinned
    assert set() == pinned - found


def constraints():
    """Return the pins, one a line."""
    text = (ROOT / "images/constraints.txt").read_text()
    return [line for line in text.splitlines() if line and not line.startswith("#")]
