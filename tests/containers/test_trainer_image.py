"""The training image in a real container: limits, signals, and what a pod's security context takes away."""

import json
import time

import pytest
from engine import image, podman

pytestmark = pytest.mark.containers

TRAIN = """
import os, sys
import torch.distributed as dist
dist.init_process_group("gloo")
threads = os.environ["OMP_NUM_THREADS"]
sys.stdout.write(f"rank {dist.get_rank()} of {dist.get_world_size()} threads {threads}\\n")
dist.barrier()
dist.destroy_process_group()
"""
LAUNCH = ("--env", "TRAINER_AGENT_RUN_STEPS=launch", "--env", "PET_NNODES=1")
LOCKED = (
    "--read-only",
    "--user",
    "1000",
    "--cap-drop",
    "all",
    "--security-opt",
    "no-new-privileges",
    "--tmpfs",
    "/tmp",
)


@pytest.fixture
def script(tmp_path):
    """Return a function that mounts a training script: the options for podman, and the script's path inside."""

    def write(text):
        (tmp_path / "train.py").write_text(text)
        tmp_path.chmod(0o755)
        return ("--volume", f"{tmp_path}:/code:ro")

    return write


def test_the_cpu_limit_is_what_counts(script):
    """1.5 CPUs are two processes at most, and their threads share them."""
    done = podman("run", "--rm", "--cpus", "1.5", *LAUNCH, "--env", "PET_NPROC_PER_NODE=cpu",
                  *script(TRAIN), image("agent-torch"), "/code/train.py")  # fmt: skip

    assert {"rank 0 of 2 threads 1", "rank 1 of 2 threads 1"} == set(done.out.splitlines())


def test_a_locked_container_trains(script):
    """Read-only, any user, no capability: what a restricted namespace leaves."""
    words = ("run", "--rm", *LOCKED, *LAUNCH, "--env", "PET_NPROC_PER_NODE=1", *script(TRAIN))
    done = podman(*words, image("agent-torch"), "/code/train.py")

    assert done.out.startswith("rank 0 of 1 ")


def test_a_locked_container_checks_itself():
    """Nothing of the preflight needs root or a place to write, and a small /dev/shm is told."""
    words = ("run", "--rm", *LOCKED, "--shm-size", "64m", image("agent"), "preflight", "--output", "json")
    done = podman(*words, check=False)

    report = json.loads(done.out)
    found = {each["name"]: each for each in report["checks"]}
    assert "warn" == found["shm"]["status"]
    assert [] == [name for name, each in found.items() if each["status"] in ("fail", "error")]
    assert 10 == done.code


def test_a_container_out_of_memory_says_so(script):
    """The kernel kills the rank, and the log and the exit code tell why."""
    text = "import os\nkeep = []\nwhile True:\n    keep.append(os.urandom(1 << 24))\n"
    words = ("run", "--rm", "--memory", "640m", "--memory-swap", "640m", *LAUNCH, *script(text))
    done = podman(*words, image("agent-torch"), "/code/train.py", check=False)

    assert 137 == done.code, done.said
    assert "out of memory" in done.log("training ended")["reason"], done.said


@pytest.mark.parametrize(
    "command",
    [["/code/train.py"], ["bash", "-lc", "if command -v torchrun; then torchrun /code/train.py; fi"]],
    ids=["script", "as the SDK"],
)
def test_a_container_that_is_told_to_end_ends_in_its_grace(script, container, command):
    """SIGTERM reaches the rank, which saves, and the container's exit code is 143; a shell between hands it on."""
    text = (
        "import signal, sys, time\n"
        "def end(*_):\n    print('saved', flush=True)\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\nprint('ready', flush=True)\n"
        "while True:\n    time.sleep(0.1)\n"
    )
    name = container(*LAUNCH, *script(text), image("agent-torch"), *command)
    until_it_says(name, "ready")
    began = time.monotonic()
    podman("stop", "--time", "30", name)

    assert "saved" in podman("logs", name).out
    assert "143" == podman("inspect", "--format", "{{.State.ExitCode}}", name).out.strip()
    assert time.monotonic() - began < 25


def until_it_says(name, word, *, seconds=60):
    """Wait until a container has printed a word."""
    deadline = time.monotonic() + seconds
    while word not in podman("logs", name).out:
        assert time.monotonic() < deadline, podman("logs", name).said
        assert "true" == podman("inspect", "--format", "{{.State.Running}}", name).out.strip(), podman(
            "logs", name
        ).said
        time.sleep(0.2)
