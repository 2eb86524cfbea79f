"""The probes of the gang: what a rank says of the network that NCCL uses."""

import subprocess
import sys

import pytest

from preflight_checks._probes import FOLDER

ASK = "import os, sys; sys.path.insert(0, sys.argv[1]); import probe_gang_rank as p; print(p._transport(sys.argv[2]))"
LOG = """node1:7:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.7<0>
node1:7:9 [0] NCCL INFO Using network Socket
node1:7:9 [0] NCCL INFO Using network IB
"""


def transport(backend, **environ):
    """Return what a rank says of its backend."""
    argv = [sys.executable, "-c", ASK, str(FOLDER), backend]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("text, network", [(LOG, "IB"), ("node1:7:9 [0] NCCL INFO cudaDriverVersion 12080\n", "")])
def test_the_network_is_the_last_that_nccl_names(tmp_path, text, network):
    """There is one communicator for each task."""
    (tmp_path / "log").write_text(text)

    assert network == transport("nccl", NCCL_DEBUG_FILE=str(tmp_path / "log"))


def test_without_a_log_it_is_not_known(tmp_path):
    assert ["", "", "tcp"] == [
        transport("nccl"),
        transport("nccl", NCCL_DEBUG_FILE=str(tmp_path / "none-%h-%p")),
        transport("gloo"),
    ]
