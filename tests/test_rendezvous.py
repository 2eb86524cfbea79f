"""rendezvous: a bounded wait for rank 0's name, which on rank 0 must lead here."""

import os
import socket
import sys

import pytest
import structlog

from trainer_agent.errors import FatalError, RetryError
from trainer_agent.rendezvous import _holder, tracker_takes_probes, wait_for_master
from trainer_agent.testing import FakeHost
from trainer_agent.topology import read_topology

MINE, OTHER = "10.0.0.1", "10.0.0.2"


def job(rank, **more):
    environ = {"PET_NNODES": "2", "PET_NODE_RANK": str(rank), "PET_MASTER_ADDR": "m", **more}
    return read_topology(environ, hostname="box")


def wait(tmp_path, topology, answers, *, timeout_s=900.0, probe=False, **settings):
    """Wait on a fake machine; return the seconds slept and what was logged."""
    host = FakeHost(tmp_path, names_at={"m": answers}, **settings)
    with structlog.testing.capture_logs() as logs:
        wait_for_master(topology, host, timeout_s=timeout_s, probe=probe)
    return host.slept, logs


@pytest.mark.parametrize("rank, answers", [(0, [MINE]), (0, [OTHER, MINE]), (1, [OTHER])])
def test_a_name_that_is_there(tmp_path, rank, answers):
    """Nothing is waited for when the name is there, and leads here on rank 0."""
    assert (0.0, []) == wait(tmp_path, job(rank), answers)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_late_name(tmp_path, rank):
    """A name is asked for again until it is published."""
    assert (1.5, []) == wait(tmp_path, job(rank), [[], [], [], [MINE]])


def test_a_name_that_never_comes(tmp_path):
    """The wait ends at its deadline with the variable, the name and what to look at."""
    with pytest.raises(RetryError) as gave_up:
        wait(tmp_path, job(1), [], timeout_s=20)
    message = "PET_MASTER_ADDR=m did not resolve within 20 s: m does not resolve (Name or service not known)"
    hint = "check that the pod of rank 0 exists and that its headless Service has publishNotReadyAddresses: true"
    error = gave_up.value
    assert ("master-name-missing", message, hint, 20) == (error.code, error.message, error.hint, error.exit_code)


def test_the_variable_that_is_named(tmp_path):
    """A message blames the variable that held the name."""
    jax = read_topology(
        {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1", "JAX_COORDINATOR_ADDRESS": "m:1"}, hostname=""
    )
    for topology, variable in (
        (jax, "JAX_COORDINATOR_ADDRESS"),
        (job(1, PET_RDZV_ENDPOINT="m:1"), "PET_RDZV_ENDPOINT"),
    ):
        with pytest.raises(RetryError, match=f"^{variable}=m did not resolve within 1 s"):
            wait(tmp_path, topology, [], timeout_s=1)


def test_progress(tmp_path):
    """Every ten seconds a line says what is waited for, and why."""
    _, logs = wait(tmp_path, job(1), [[]] * 45 + [[MINE]], timeout_s=60)
    last = "m does not resolve (Name or service not known)"
    line = {"event": "waiting for the master's name to resolve", "log_level": "info", "name": "m", "timeout_s": 60}
    assert [{**line, "waited_s": 10, "last": last}, {**line, "waited_s": 20, "last": last}] == logs


def test_a_stale_name(tmp_path):
    """The name may lead to the pod before this one for a while."""
    assert (1.0, []) == wait(tmp_path, job(0), [[OTHER], [OTHER], [MINE]])


ELSEWHERE = "this node has rank 0, but PET_MASTER_ADDR=m is 10.0.0.2, no address of this node"


@pytest.mark.parametrize("late, timeout_s, slept", [(0, 900, 60), (0, 20, 20), (200, 900, 160), (200, 120, 120)])
def test_a_name_that_stays_elsewhere(tmp_path, late, timeout_s, slept):
    """A name has a minute to become ours, counted from when it was first seen, within the whole deadline."""
    host = FakeHost(tmp_path, names_at={"m": [[]] * late + [[OTHER]]})
    with structlog.testing.capture_logs() as logs, pytest.raises(RetryError) as gave_up:
        wait_for_master(job(0), host, timeout_s=timeout_s)
    hint = "two nodes have rank 0, or ranks are swapped: rank 0 must be the pod that PET_MASTER_ADDR names"
    error = gave_up.value
    assert ("master-elsewhere", ELSEWHERE, hint, 20) == (error.code, error.message, error.hint, error.exit_code)
    assert slept == host.slept
    assert logs[-1]["last"] == ELSEWHERE


def test_a_taken_port(tmp_path):
    """Somebody else on rank 0's port is said at once."""
    with pytest.raises(RetryError) as refused:
        wait(tmp_path, job(0, PET_MASTER_PORT="1"), [MINE], busy=(1,))
    hint = "end the process that holds it, or set another port in PET_MASTER_PORT on all nodes"
    error = refused.value
    expected = ("master-port-taken", "port 1 of PET_MASTER_PORT is taken on this node", hint, 20)
    assert expected == (error.code, error.message, error.hint, error.exit_code)


class Forbidding(FakeHost):
    """A machine that keeps low ports for root."""

    def claim(self, address, port):
        return "EACCES"


def test_a_forbidden_port(tmp_path):
    """A port that this user may not open is the configuration's fault, not another node's."""
    host = Forbidding(tmp_path, names_at={"m": [MINE]})
    with pytest.raises(FatalError) as refused:
        wait_for_master(job(0, PET_MASTER_PORT="80"), host, timeout_s=9)
    hint = "set a port of 1024 or more in PET_MASTER_PORT on all nodes, such as 29500"
    expected = ("master-port-forbidden", "port 80 of PET_MASTER_PORT may not be opened by this user (EACCES)", hint, 30)
    error = refused.value
    assert expected == (error.code, error.message, error.hint, error.exit_code)


@pytest.mark.parametrize("topology", [job(1), job(0, PET_RDZV_BACKEND="c10d"), job(0, PET_NNODES="1:2")])
def test_who_does_not_claim_the_port(tmp_path, topology):
    """Other ranks do not listen, and c10d itself finds out who does."""
    assert (0.0, []) == wait(tmp_path, topology, [OTHER], busy=(29500,))


def test_jax_claims_its_port(tmp_path):
    """Process 0 of a JAX job listens as rank 0 of a static rendezvous does."""
    jax = read_topology({"JAX_NUM_PROCESSES": "2", "JAX_COORDINATOR_ADDRESS": "m:6666"}, hostname="box")
    with pytest.raises(RetryError, match=r"^port 6666 of JAX_COORDINATOR_ADDRESS is taken on this node$"):
        wait(tmp_path, jax, [MINE], busy=(6666,))


def test_who_holds_a_port():
    """The process that listens is named, where this container may see it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        holder = _holder(server.getsockname()[1])
    assert holder.endswith(f"(pid {os.getpid()})")


@pytest.fixture
def tracker():
    """Return a listening socket, as XGBoost's tracker is one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def dmlc(rank, port):
    environ = {
        "DMLC_NUM_WORKER": "2",
        "DMLC_TASK_ID": str(rank),
        "DMLC_TRACKER_URI": "m",
        "DMLC_TRACKER_PORT": str(port),
    }
    return read_topology(environ, hostname="box")


def test_a_tracker_that_answers(tmp_path, tracker):
    """XGBoost's other workers start when the tracker listens, wherever the name has led before."""
    topology = dmlc(1, tracker.getsockname()[1])
    assert (0.0, []) == wait(tmp_path, topology, ["127.0.0.1"], probe=True)
    assert (1.0, []) == wait(tmp_path, topology, [["127.0.0.2"], ["127.0.0.2"], ["127.0.0.1"]], probe=True)


def test_a_tracker_that_must_not_be_asked(tmp_path, tracker):
    """Up to XGBoost 2.0 it would read from our connection for ever; its name is all that is waited for."""
    tracker.settimeout(0)
    assert (1.0, []) == wait(tmp_path, dmlc(1, tracker.getsockname()[1]), [[], [], ["127.0.0.1"]])
    with pytest.raises(BlockingIOError):
        tracker.accept()


@pytest.mark.parametrize(
    "package, takes",
    [
        ("xgboost-2.0.3", False),
        ("xgboost-1.7.6", False),
        ("xgboost-2.1.0", True),
        ("xgboost_cpu-3.2.0", True),
        ("xgboost-unknown", False),
        ("other-9.9", False),
    ],
)
@pytest.mark.parametrize("script", [("train.py",), ("python3", "train.py"), ("sh", "-c", "x")])
def test_which_trackers_take_probes(tmp_path, package, takes, script):
    """The packages of the training's Python say it, which need not be ours."""
    name, _, version = package.partition("-")
    (tmp_path / f"{package}.dist-info").mkdir()
    facts = f"Name: {name.replace('_', '-')}\nVersion: {version}\n"
    (tmp_path / f"{package}.dist-info" / "METADATA").write_text(facts)
    python = tmp_path / "python3"  # without the packages of our own
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    environ = {"PYTHONPATH": str(tmp_path), "PATH": f"{tmp_path}:/bin"}
    assert takes == tracker_takes_probes(script, str(python), environ)


@pytest.mark.parametrize("python", ["/no/python", "/bin/false", "/bin/cat"])
def test_a_python_that_says_nothing_of_xgboost(python):
    """It may have an old one."""
    assert not tracker_takes_probes(("train.py",), python, {})


def test_a_tracker_that_never_answers(tmp_path, tracker):
    """XGBoost itself would give up after 6 s; the agent says what it waits for, and where to look."""
    port = tracker.getsockname()[1]
    tracker.close()
    host = FakeHost(tmp_path, names_at={"m": ["127.0.0.1"]})
    with structlog.testing.capture_logs() as logs, pytest.raises(RetryError) as gave_up:
        wait_for_master(dmlc(1, port), host, timeout_s=15, probe=True)
    message = f"no tracker answers at DMLC_TRACKER_URI=m DMLC_TRACKER_PORT={port} after 15 s"
    hint = "look at the pod of task 0: it has to run, and its script to start XGBoost's tracker at this port"
    error = gave_up.value
    assert ("tracker-silent", message, hint) == (error.code, error.message, error.hint)
    assert ["waiting for the tracker to answer"] == [line["event"] for line in logs]


def test_the_worker_that_runs_the_tracker_does_not_wait_for_it(tmp_path):
    """Its port must be free."""
    assert (0.0, []) == wait(tmp_path, dmlc(0, 29500), [MINE])
