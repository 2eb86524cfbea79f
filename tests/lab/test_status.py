"""What a TrainJob's status says after the real commands, and what they do when its server is ill."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from podlab import eventually
from status_server import StatusServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.lab

AGENT = (sys.executable, "-m", "trainer_agent")
QUICK = {
    "TRAINER_AGENT_PREFLIGHT_PROFILE": "quick",
    "TRAINER_AGENT_PREFLIGHT_CHECKS": "environment,cgroup",
    "TRAINER_AGENT_PREFLIGHT_GATE": "1",
}
SHOW = (
    "import os, pathlib; p = os.getpid()\n"
    "print([pathlib.Path(f'/proc/self/task/{p}/children').read_text(), 'KUBEFLOW_TRAINER_SERVER_URL' in os.environ])"
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StatusServer]:
    """What takes a TrainJob's status."""
    with StatusServer(tmp_path) as found:
        yield found


@pytest.fixture
def data(tmp_path: Path) -> dict[str, str]:
    """Three files of a dataset, and the variables that fetch them."""
    (tmp_path / "data").mkdir()
    for number in range(3):
        (tmp_path / "data" / str(number)).write_bytes(b"x" * 1000)
    return {
        "TRAINER_AGENT_INIT_DATASET_STORAGE_URI": f"file://{tmp_path}/data",
        "TRAINER_AGENT_INIT_DATASET_OUTPUT_PATH": f"{tmp_path}/workspace",
    }


def agent(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the agent to its end."""
    env = {**os.environ, **QUICK, **environ}
    return subprocess.run([*AGENT, *args], env=env, capture_output=True, text=True, timeout=60, check=False)


def numbers(update: dict[str, list[dict[str, str]]]) -> dict[str, int]:
    """Return what an update says, by our own names."""
    return {m["name"].removeprefix("trainer_agent_"): int(m["value"]) for m in update["metrics"]}


def warnings(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return why the status was not updated, as the log says it."""
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    return [line["event"] for line in lines if line.get("code") == "status-not-sent"]


def test_init_tells_what_it_fetches(server: StatusServer, data: dict[str, str]) -> None:
    """Bytes and files, of how many."""
    done = agent("init", "dataset", **data, **server.environ)

    expected = {
        "init_bytes": 3000,
        "init_bytes_done": 3000,
        "init_files": 3,
        "init_files_done": 3,
        "init_seconds_left": 0,
        "init_exit_code": 0,
    }
    assert (0, []) == (done.returncode, warnings(done)), done.stderr
    assert expected == numbers(server.updates[-1])
    assert "token-1" not in done.stderr + done.stdout


def test_init_that_has_nothing_to_fetch_says_nothing(server: StatusServer, data: dict[str, str]) -> None:
    """A pod that starts again, with its data there, leaves what training said."""
    assert 0 == agent("init", "dataset", **data).returncode
    assert 0 == agent("init", "dataset", **data, **server.environ).returncode
    assert [] == server.asked


def test_init_that_fails_says_so(server: StatusServer, tmp_path: Path) -> None:
    """With its exit code."""
    done = agent("init", "dataset", "--storage-uri", f"file://{tmp_path}/nowhere", **server.environ)

    assert (30, {"init_exit_code": 30}) == (done.returncode, numbers(server.updates[-1]))


def test_preflight_tells_how_many_checks_are_done(server: StatusServer) -> None:
    """And its verdict; the gate changes what the program exits with alone."""
    done = agent("preflight", **server.environ, NCCL_P2P_DISABLE="1")

    assert 0 == done.returncode, done.stderr
    expected = {"preflight_checks": 2, "preflight_checks_done": 2, "preflight_exit_code": 10}
    assert expected == numbers(server.updates[-1])


def test_run_tells_both_and_is_silent_before_training_begins(server: StatusServer, data: dict[str, str]) -> None:
    """Nothing of ours runs beside the training, which has the variables for itself."""
    done = agent("run", "--launcher", "python", "--", "-c", SHOW, **data, **server.environ)

    assert (0, "['', True]\n") == (done.returncode, done.stdout), done.stderr
    told = numbers(server.updates[-1])
    assert (2, 3, 0) == (told["preflight_checks_done"], told["init_files_done"], told["init_exit_code"])


def test_nodes_are_counted_by_rank_0(server: StatusServer, tmp_path: Path) -> None:
    """Two nodes meet; only one of them speaks: who does ends with its exit code."""
    options = ("--nnodes", "2", "--nproc-per-node", "1", "--workdir", str(tmp_path / "nodes"))
    gang = {**server.environ, "TRAINER_AGENT_PREFLIGHT_CHECKS": "environment,roll-call"}
    done = agent("local", *options, "--steps", "preflight", "--", "train.py", **gang)

    assert 0 == done.returncode, done.stdout + done.stderr
    (told,) = [said for said in map(numbers, server.updates) if "preflight_exit_code" in said]
    assert (2, 2, 2) == (told["preflight_nodes"], told["preflight_nodes_here"], told["preflight_checks_done"])


@pytest.mark.parametrize("attempt", ["0", "1"])
def test_a_restart_leaves_what_training_said(server: StatusServer, attempt: str) -> None:
    """An update replaces everything; the attempt says whether training may have spoken before."""
    assert 0 == agent("preflight", **server.environ, TRAINER_AGENT_PREFLIGHT_ATTEMPT=attempt).returncode
    assert (attempt == "0") == bool(server.asked)


def hang(handler: object) -> None:
    """Take the request and say nothing."""
    handler.server.world.over.wait(30)  # type: ignore[attr-defined]


def hang_up(_handler: object) -> None:
    """Take the request and close the connection."""


def pour(handler: object) -> None:
    """Answer ten megabytes."""
    handler.wfile.write(b"HTTP/1.1 500 so\r\n\r\n" + b"x" * 10_000_000)  # type: ignore[attr-defined]


def refuse(handler: object) -> None:
    """Answer that the token is not good."""
    handler.answer(401, "Unauthorized")  # type: ignore[attr-defined]


@pytest.mark.parametrize("play", [hang, hang_up, pour, refuse])
def test_an_ill_server_fails_nothing(server: StatusServer, data: dict[str, str], play: Callable[..., None]) -> None:
    """All steps go on, little later, with a warning at most."""
    server.play = play
    began = time.monotonic()
    done = agent("run", "--launcher", "python", "--", "-c", "print('trained')", **data, **server.environ)
    seconds = time.monotonic() - began

    assert (0, "trained\n", True) == (done.returncode, done.stdout, seconds < 15), done.stderr
    assert (0 if play is hang else 1) == len(warnings(done))  # who hangs is left before its time is over


def test_an_address_that_swallows_everything_fails_nothing(server: StatusServer) -> None:
    """A listener whose queue is full never answers the first packet."""
    with socket.socket() as full, socket.socket() as first:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        first.connect(full.getsockname())
        url = f"https://127.0.0.1:{full.getsockname()[1]}/"
        done = agent("preflight", **{**server.environ, "KUBEFLOW_TRAINER_SERVER_URL": url})

    assert 0 == done.returncode, done.stderr


def test_a_signal_ends_it_at_once(server: StatusServer, tmp_path: Path) -> None:
    """SIGTERM while the server hangs: 143 without waiting for it, and nothing is left."""
    server.play = hang
    script = tmp_path / "checks"
    script.mkdir()
    (script / "slow").write_text("#!/bin/sh\nsleep 60\n")
    (script / "slow").chmod(0o755)
    env = {**os.environ, "TRAINER_AGENT_PREFLIGHT_CHECKS": "environment,slow", **server.environ}
    process = subprocess.Popen([*AGENT, "preflight", "--checks-dir", str(script)], env=env, stderr=subprocess.DEVNULL)
    server.until(1)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)

    assert 143 == process.wait(60) % 256
    assert time.monotonic() - began < 4  # the server hangs for 30 s, an update has 5
    eventually(lambda: not left_of(server.url), what="nothing is left")


def left_of(url: str) -> list[str]:
    """Return the processes that have the server's address in their environment."""
    from pathlib import Path

    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if url.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found
