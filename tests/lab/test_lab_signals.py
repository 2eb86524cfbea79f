"""SIGTERM to `trainer-agent launch` as PID 1 ends it with 143, whatever it is doing."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from podlab import MASTER, PORT, SCRIPTS, TORCHRUN, eventually

pytestmark = pytest.mark.lab

TRAIN = str(SCRIPTS / "train.py")
HOST = "job1-node-0-0"
ONE_NODE = {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "1"}
TWO_NODES = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": "0", "PET_MASTER_ADDR": MASTER}
STOPPED = {"exit_code": 143, "reason": "stopped by SIGTERM", "host": HOST}
QUICK_S = 15.0  # of a grace of 30 s


def importing_torch(container):
    """Whether torchrun is loading torch's libraries."""
    return any(container.of_each(lambda p: "libtorch" in Path(f"/proc/{p.pid}/maps").read_text()))


def stop(container):
    """Send SIGTERM; return exit code and seconds until the end."""
    sent = container.signal(signal.SIGTERM)
    code = container.wait()
    return code, time.monotonic() - sent


def test_sigterm_while_waiting_for_the_masters_name(lab):
    """The name does not exist; the wait ends at once."""
    container = lab[0].launch("--", TRAIN, env=TWO_NODES)
    eventually(lambda: lab.queries(MASTER, lab[0]), what="the name is asked for")
    code, seconds = stop(container)
    assert 143 == code
    assert seconds < QUICK_S


def test_sigterm_while_torch_is_imported(lab):
    """torchrun has no handler yet, but it is not PID 1, so it dies of the signal."""
    container = lab[0].launch("--", TRAIN, env=ONE_NODE)
    eventually(lambda: importing_torch(container), what="torchrun loads libtorch")
    code, seconds = stop(container)
    assert 143 == code
    assert seconds < QUICK_S
    assert STOPPED == container.termination


def test_sigterm_one_second_after_the_start(lab):
    """Wherever it is by then."""
    container = lab[0].launch("--", TRAIN, env=ONE_NODE)
    assert container.outlives(1)
    code, seconds = stop(container)
    assert 143 == code
    assert seconds < QUICK_S


def test_sigterm_during_the_rendezvous(lab):
    """The other node never comes; torchrun is in C++ and would not hear a Python handler."""
    lab.publish(lab[0])
    container = lab[0].launch("--", TRAIN, env=TWO_NODES)
    eventually(lambda: container.listens(PORT), what="the store listens")
    code, seconds = stop(container)
    assert 143 == code
    assert seconds < QUICK_S
    assert STOPPED == container.termination


def test_sigterm_during_training_lets_the_ranks_write_their_checkpoints(lab):
    """Both ranks take 2 s for theirs, and are not killed in the middle of it."""
    container = lab[0].launch("--", TRAIN, "checkpoint", env={**ONE_NODE, "PET_NPROC_PER_NODE": "2"})
    for rank in (0, 1):
        container.printed(f"rank {rank} trains")
    code, seconds = stop(container)
    assert 143 == code
    assert 2 < seconds < 25
    shards = "".join(f"{n}\n" for n in range(40))
    assert [shards, shards] == [(container.directory / f"checkpoint-{rank}").read_text() for rank in (0, 1)]
    assert STOPPED == container.termination


def test_ranks_that_ignore_sigterm_are_killed_within_the_grace(lab):
    """torchrun kills them in time to end itself, by a limit of its own that we set or the user has."""
    variable = "PET_SHUTDOWN_TIMEOUT"
    ours, theirs = (
        lab[0].launch("--grace", "20", "--", TRAIN, "ignore", env={**ONE_NODE, **limit})
        for limit in ({}, {variable: "2"})
    )
    for container, limit_s in ((ours, "18"), (theirs, "2")):
        container.printed("rank 0 trains")
        assert {limit_s} == {environ.get(variable) for environ in container.of_each(lambda p: p.environ())[1:]}
    code, seconds = stop(theirs)
    assert 143 == code
    assert seconds < 20
    assert STOPPED == theirs.termination


def test_a_command_that_ignores_sigterm_is_killed_at_the_end_of_the_grace(lab):
    """Without torchrun between, the supervisor does it."""
    container = lab[0].launch("--grace", "1", "--launcher", "python", "--", TRAIN, "ignore", env=ONE_NODE)
    container.printed("rank 0 trains")
    code, seconds = stop(container)
    assert 143 == code
    assert 1 < seconds < 20
    assert {**STOPPED, "reason": "stopped by SIGTERM and was killed after the grace"} == container.termination


def test_bare_torchrun_as_pid_1_does_not_hear_sigterm(lab):
    """The contrast: the kernel drops a signal for a PID 1 without a handler, and training starts all the same."""
    container = lab[0].run(TORCHRUN, "--standalone", "--nproc-per-node", "1", TRAIN)
    eventually(lambda: importing_torch(container), what="torchrun loads libtorch")
    container.signal(signal.SIGTERM)
    assert container.outlives(3)
    container.printed("rank 0 trains")
