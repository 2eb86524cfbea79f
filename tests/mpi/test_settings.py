"""What the controllers' variables say."""

import pytest

from trainer_agent.env import Setting
from trainer_agent.mpi.settings import REPLACED, Injected, read_injected, settings

TRAINER = {
    "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
    "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
    "OMPI_MCA_orte_set_default_slots": "4",
    "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
}
OPERATOR_INTEL = {
    "I_MPI_HYDRA_HOST_FILE": "/etc/mpi/hostfile",
    "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": "-o ConnectionAttempts=10",
    "I_MPI_PERHOST": "4",
    "K_MPI_JOB_ROLE": "launcher",
}
OPERATOR_MPICH = {
    "HYDRA_HOST_FILE": "/etc/mpi/hostfile",
    "HYDRA_LAUNCH_EXTRA_ARGS": "-o ConnectionAttempts=10",
    "K_MPI_JOB_ROLE": "launcher",
}
ATTEMPTS = ("-o", "ConnectionAttempts=10")


@pytest.mark.parametrize(
    "environ, expected",
    [
        ({}, Injected("", (), None, "")),
        (TRAINER, Injected("/etc/mpi/hostfile", ATTEMPTS, 4, "")),
        (OPERATOR_INTEL, Injected("/etc/mpi/hostfile", ATTEMPTS, 4, "launcher")),
        (OPERATOR_MPICH, Injected("/etc/mpi/hostfile", ATTEMPTS, None, "launcher")),
        ({"PRTE_MCA_prte_default_hostfile": "/h", "PRTE_MCA_plm_ssh_args": "-v"}, Injected("/h", ("-v",), None, "")),
        ({**dict.fromkeys(TRAINER, " "), "K_MPI_JOB_ROLE": " worker "}, Injected("", (), None, "worker")),
        ({"OMPI_MCA_orte_set_default_slots": "many"}, Injected("", (), None, "")),
        ({"HYDRA_LAUNCH_EXTRA_ARGS": "typo", "HYDRA_LAUNCHER_EXTRA_ARGS": "right"}, Injected("", ("right",), None, "")),
    ],
)
def test_what_is_injected(environ, expected):
    """Trainer's and mpi-operator's variables, whichever the implementation; what is empty says nothing."""
    assert expected == read_injected(environ)


def test_settings_for_explain():
    """Each variable that is set, with its effect, and no other."""
    expected = [
        Setting("HYDRA_HOST_FILE", "/h", "environment", "the hosts, as MPICH is told"),
        Setting(
            "OMPI_MCA_plm_rsh_agent",
            "ssh -q",
            "environment",
            "the program that reaches the hosts, as Open MPI 4 is told",
        ),
        Setting("K_MPI_JOB_ROLE", "launcher", "environment", "what this pod is, as mpi-operator says"),
    ]
    assert expected == settings(
        {"OMPI_MCA_plm_rsh_agent": "ssh -q", "HYDRA_HOST_FILE": "/h", "K_MPI_JOB_ROLE": "launcher", "PATH": "/bin"}
    )


@pytest.mark.parametrize("injected", [TRAINER, OPERATOR_INTEL, OPERATOR_MPICH])
def test_all_that_is_injected_is_replaced(injected):
    """mpirun itself must see none of them: versions differ in which they read."""
    assert set(injected) - {"K_MPI_JOB_ROLE"} <= set(REPLACED)
