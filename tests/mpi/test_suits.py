"""Which jobs are MPI's."""

from pathlib import Path

import pytest

from trainer_agent.mpi.settings import INJECTED
from trainer_agent.mpi.suits import is_mpi, is_mpirun, starts_mpirun_itself

OPENMPI = {"OMPI_MCA_orte_default_hostfile": INJECTED}
MPICH = {"HYDRA_HOST_FILE": INJECTED}


@pytest.mark.skipif(Path(INJECTED).exists(), reason="this machine has a hostfile")
@pytest.mark.parametrize(
    "environ, line, expected",
    [
        (OPENMPI, "train.py", True),
        (OPENMPI, "mpirun train", True),
        (MPICH, "./app", True),
        ({**MPICH, "K_MPI_JOB_ROLE": "launcher"}, "./app", True),
        ({**MPICH, "K_MPI_JOB_ROLE": "worker"}, "./app", False),
        ({}, "train.py", False),
        ({}, "mpirun train", False),
        ({}, "mpirun -np 2 --hostfile h train", True),
        ({}, "/opt/bin/mpiexec -machinefile h train", True),
        ({}, "mpirun --new --hostfile h train", True),
        ({}, "train --hostfile h", False),
        ({"OMPI_MCA_plm_rsh_args": "-v"}, "train.py", False),
    ],
)
def test_is_mpi(environ, line, expected):
    """A controller's hostfile, or an mpirun with one; a machine with an MPI and no hosts is no MPI job."""
    assert expected == is_mpi(line.split(), environ)


@pytest.mark.parametrize(
    "words, expected",
    [
        (("bash", "-c", "cat >f <<E\nE\nmpirun -np 2 python f"), True),
        (("/bin/sh", "-ec", "exec /opt/bin/mpiexec -n 2 app"), True),
        (("bash", "-c", "python train.py --launcher=mpirun"), False),
        (("bash", "-c", "python train.py"), False),
        (("python", "-c", "mpirun x"), False),
    ],
)
def test_a_shell_that_starts_mpirun_itself(words, expected):
    """One on every rank would be too many."""
    assert expected == starts_mpirun_itself(words)
    assert expected != is_mpi(words, OPENMPI)


@pytest.mark.parametrize(
    "word, expected", [("mpirun", True), ("/usr/bin/mpiexec.hydra", True), ("mpirun.py", False), ("", False)]
)
def test_is_mpirun(word, expected):
    """The program's name counts, wherever it lies."""
    assert expected == is_mpirun((word, "x"))
