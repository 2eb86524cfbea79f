"""MPICH and Intel MPI, whose mpirun is the same program, hydra, with variables of different names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer_agent.mpi.plan import kept
from trainer_agent.mpi.settings import REPLACED
from trainer_agent.mpi.words import HOSTFILES, name_of

if TYPE_CHECKING:
    from trainer_agent.mpi.plan import Place, Plan

HOST_LISTS = ("hosts", "host", "H")
PINNING = (
    *("I_MPI_PIN", "I_MPI_PIN_CELL", "I_MPI_PIN_DOMAIN", "I_MPI_PIN_ORDER", "I_MPI_PIN_PROCS"),
    *("I_MPI_PIN_PROCESSOR_LIST", "I_MPI_PIN_PROCESSOR_EXCLUDE_LIST"),
)
# How else an interface is chosen than by options, which win; ranks alone see what MPICH's `-genv` sets.
INTERFACES = {"mpich": ("HYDRA_IFACE", "HYDRA_LOCALHOST"), "intel": ("I_MPI_HYDRA_IFACE",)}


def ssh_args(_plan: Plan) -> tuple[str, ...]:
    """Return the words for ssh that stand in the user's own command, where hydra has no place for them."""
    return ()


def argv(plan: Plan, place: Place) -> tuple[str, ...]:
    """Return the command, with the user's own options after ours."""
    asked = plan.asked
    words = [asked.program]
    if not asked.values(*HOST_LISTS):  # MPICH refuses both
        words += ["-machinefile", place.hostfile]  # with -f Intel MPI takes the cores for the slots
    if place.interface and not asked.has("iface", "localhost") and not _interface_is_said(plan):
        words += ["-iface", place.interface]  # else workers look for the launcher by a name that DNS may not have
    for number, part in enumerate(asked.parts):
        words += [":"] * bool(number)
        words += [word for option in part.options if name_of(option[0]) not in HOSTFILES for word in option]
        words += [*plan.shim, *part.command]
    return tuple(words)


def env(plan: Plan, place: Place) -> dict[str, str]:
    """Return mpirun's environment, all of which it hands to the ranks (MPICH forgets some when given a -genvlist)."""
    own = {name: plan.environ[name] for name in kept(plan) if name not in REPLACED}
    words = " ".join(place.ssh_args)
    if plan.implementation.kind == "mpich":
        return {**own, "HYDRA_LAUNCHER": "ssh", "HYDRA_LAUNCHER_EXTRA_ARGS": words}
    own |= {"I_MPI_HYDRA_BOOTSTRAP": "ssh", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": words}
    # Else workers call the others where there are many (128), without the launcher's key.
    own["I_MPI_HYDRA_BRANCH_COUNT"] = str(len(plan.hosts.entries))
    if not {*PINNING} & (own.keys() | plan.asked.variables) and not plan.asked.has("binding"):
        own["I_MPI_PIN"] = "0"  # else the visible cores are divided among the ranks, whatever the pod's quota
    return own


def _interface_is_said(plan: Plan) -> bool:
    said = {name for name, value in plan.environ.items() if value.strip()}
    kind = plan.implementation.kind
    return bool({*INTERFACES[kind]} & (said | plan.asked.variables if kind == "intel" else said))
