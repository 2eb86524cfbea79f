"""The grid of what our own checks really find on a machine with two faults."""

import json
import os
import subprocess
import sys

import pytest
from nvml_faults import FAULTS, SOON
from nvml_machines import h100_sxm

from trainer_agent.formats.gpus import grid


@pytest.mark.lab
def test_faults_stand_where_they_are(nvml_standin):
    """Eight rows though only two GPUs are named; the finding of each stands in its own row and column."""
    faulty = FAULTS["link-down"](FAULTS["remap-failed"](h100_sxm(), 5), 2)
    argv = [sys.executable, "-m", "trainer_agent", "preflight", "--checks", "gpu-count,gpu-health,gpu-link"]
    environ = {**os.environ, **nvml_standin.environ(faulty), **SOON}

    done = subprocess.run([*argv, "--output", "json"], env=environ, capture_output=True, timeout=60, check=False)

    found = grid(json.loads(done.stdout)["checks"])
    wanted = {"GPU 2": ["pass", "pass", "fail"], "GPU 5": ["pass", "fail", "pass"]}
    assert [f"GPU {n}" for n in range(8)] == [g.title for g in found.gpus]
    assert [wanted.get(g.title, ["pass"] * 3) for g in found.gpus] == found.cells
    assert ["", "", ""] == found.node
