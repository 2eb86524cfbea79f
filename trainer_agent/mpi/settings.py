"""What Trainer's MPI plugin and mpi-operator inject: where the hostfile is, and what ssh is to be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer_agent.env import Reader, Setting, whole_number

if TYPE_CHECKING:
    from collections.abc import Mapping

INJECTED = "/etc/mpi/hostfile"  # where both mount it
HOSTFILES = {
    "OMPI_MCA_orte_default_hostfile": "the hosts, as Open MPI 4 is told",
    "PRTE_MCA_prte_default_hostfile": "the hosts, as Open MPI 5 is told",
    "I_MPI_HYDRA_HOST_FILE": "the hosts, as Intel MPI is told",
    "HYDRA_HOST_FILE": "the hosts, as MPICH is told",
}
SSH_ARGS = {
    "OMPI_MCA_plm_rsh_args": "more words for ssh, as Open MPI 4 is told",
    "PRTE_MCA_plm_ssh_args": "more words for ssh, as Open MPI 5 is told",
    "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": "more words for ssh, as Intel MPI is told",
    "HYDRA_LAUNCHER_EXTRA_ARGS": "more words for ssh, as MPICH is told",
    # mpi-operator writes it so, and no MPICH reads it.
    "HYDRA_LAUNCH_EXTRA_ARGS": "more words for ssh, in mpi-operator's spelling, which no MPICH reads",
}
AGENTS = {
    "OMPI_MCA_plm_rsh_agent": "the program that reaches the hosts, as Open MPI 4 is told",
    "PRTE_MCA_plm_ssh_agent": "the program that reaches the hosts, as Open MPI 5 is told",
}
SLOTS = {
    "OMPI_MCA_orte_set_default_slots": "slots of hosts without a number, as Open MPI 4 is told",
    "PRTE_MCA_prte_set_default_slots": "slots of hosts without a number, as Open MPI 5 is told",
    "I_MPI_PERHOST": "slots of hosts without a number, as Intel MPI is told",
}
ROLE = "K_MPI_JOB_ROLE"  # mpi-operator: launcher or worker
# What we say by our own words instead, or what would make an implementation look elsewhere.
REPLACED = (*HOSTFILES, *SSH_ARGS, *SLOTS, "OMPI_MCA_orte_keep_fqdn_hostnames", "PRTE_MCA_prte_keep_fqdn_hostnames")


@dataclass(frozen=True)
class Injected:
    """
    What the environment says of an MPI job.

    Args:
        hostfile: the path, empty when no variable names one.
        ssh_args: words for ssh.
        slots: ranks on a host whose line has no number, None when nobody says.
        role: `launcher` or `worker` under mpi-operator, else empty.
    """

    hostfile: str
    ssh_args: tuple[str, ...]
    slots: int | None
    role: str


def read_injected(environ: Mapping[str, str]) -> Injected:
    """Return what the environment says."""
    slots = whole_number(_first(environ, SLOTS))
    return Injected(_first(environ, HOSTFILES), tuple(_first(environ, SSH_ARGS).split()), slots, _role(environ))


def settings(environ: Mapping[str, str]) -> list[Setting]:
    """Return the variables of MPI that are set, for `explain`."""
    known = {**HOSTFILES, **SSH_ARGS, **AGENTS, **SLOTS, ROLE: "what this pod is, as mpi-operator says"}
    reader = Reader({name: environ[name] for name in known if name in environ})
    for name in reader.environ:
        reader.get(name, effect=known[name])
    return reader.settings


def _first(environ: Mapping[str, str], names: Mapping[str, str]) -> str:
    return next((environ[name].strip() for name in names if environ.get(name, "").strip()), "")


def _role(environ: Mapping[str, str]) -> str:
    return environ.get(ROLE, "").strip()
