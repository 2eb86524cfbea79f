"""The contrast: what plain mpirun does with what Kubeflow's controllers inject."""

from __future__ import annotations

import pytest
from mpi_matrix import perform
from mpi_programs import IMPLEMENTATIONS

pytestmark = pytest.mark.lab


def test_open_mpi_5_runs_on_the_launcher_alone_and_succeeds(lab_of_mpi, implementation):
    """It reads none of the injected variables: no worker takes part, and the job is green."""
    outcome = perform("three workers", implementation("openmpi-5"), "plain", lab=lab_of_mpi(3))
    assert outcome.cell.startswith("launcher only, exit 0"), outcome


def test_open_mpi_4_cannot_read_the_key_that_trainer_mounts_for_root(lab_of_mpi, implementation):
    """OpenSSH refuses a private key of mode 0640."""
    outcome = perform("key 0640 as root", implementation("openmpi-4"), "plain", lab=lab_of_mpi(3))
    assert outcome.cell.startswith("no rank, exit 255"), outcome


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_ranks_add_up_on_three_workers(lab_of_mpi, implementation, name):
    """With the hostfile named and names that resolve each of them works: the lab is fair."""
    outcome = perform("all-reduce", implementation(name), "plain", lab=lab_of_mpi(3))
    assert outcome.cell.startswith("6 ranks on 3 hosts, exit 0"), outcome
    assert outcome.problems == ()
