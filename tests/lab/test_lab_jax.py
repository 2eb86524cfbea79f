"""JAX jobs whose script says nothing about the other processes."""

from __future__ import annotations

import pytest
from podlab import MASTER, PORT, SCRIPTS, eventually

pytestmark = pytest.mark.lab

SUM = str(SCRIPTS / "jax_sum.py")


def environ(index, *, processes):
    """Return what Trainer injects into a pod."""
    return {
        "JAX_NUM_PROCESSES": str(processes),
        "JAX_PROCESS_ID": str(index),
        "JAX_COORDINATOR_ADDRESS": f"{MASTER}:{PORT}",
        "JAX_PLATFORMS": "cpu",
    }


def launch(lab, *words):
    """Start the script on two pods."""
    environs = [environ(n, processes=2) for n in range(2)]
    return [lab[n].launch(*words, "--", SUM, env=env) for n, env in enumerate(environs)]


def test_the_processes_are_connected_before_the_script_starts(lab):
    """They wait for the coordinator's name, and then are one job."""
    containers = launch(lab, "--launcher", "jax")
    eventually(lambda: all(lab.queries(MASTER, lab[n]) > 1 for n in range(2)), what="both ask for the name")
    lab.publish()
    assert [0, 0] == [c.wait() for c in containers], [c.story() for c in containers]
    assert ["process 0 of 2: sum 1", "process 1 of 2: sum 1"] == [c.stdout.splitlines()[-1] for c in containers]


def test_without_it_each_process_is_alone(lab):
    """The contrast: nothing in the variables makes JAX connect by itself."""
    lab.publish()
    containers = launch(lab)
    assert [0, 0] == [c.wait() for c in containers], [c.story() for c in containers]
    assert ["process 0 of 1: sum 0\n"] * 2 == [c.stdout for c in containers]
