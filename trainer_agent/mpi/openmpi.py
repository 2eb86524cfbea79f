"""Open MPI 4 and 5, by words that both understand: version 5 ignores variables that controllers set for version 4."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer_agent.mpi.plan import RANKS, exported
from trainer_agent.mpi.settings import REPLACED
from trainer_agent.mpi.words import HOSTFILES, name_of, values_of

if TYPE_CHECKING:
    from trainer_agent.mpi.plan import Place, Plan

SSH_ARGS = ("plm_rsh_args", "plm_ssh_args")
# How many daemons each one calls. By default, 64: those of workers call the others, without the launcher's key.
FAN_OUT, FAN_OUT_5 = ("--mca", "routed_radix"), ("--prtemca", "rml_base_radix")


def ssh_args(plan: Plan) -> tuple[str, ...]:
    """Return the words for ssh that stand in the user's own command."""
    values = plan.asked.values("mca", "prtemca")
    return tuple(word for name, *value in values if name in SSH_ARGS for word in " ".join(value).split())


def argv(plan: Plan, place: Place) -> tuple[str, ...]:
    """Return the command, with the user's own options after ours."""
    asked = plan.asked
    words = [asked.program]
    if plan.root and not asked.has("allow-run-as-root"):
        words.append("--allow-run-as-root")
    words += ["--hostfile", place.hostfile]
    if place.ssh_args:
        fan_out = FAN_OUT if plan.implementation.major < 5 else FAN_OUT_5
        words += ["--mca", "plm_rsh_args", " ".join(place.ssh_args), *fan_out, str(len(plan.hosts.entries))]
    if plan.implementation.major < 5:  # else it cuts names at their first dot
        words += ["--mca", "orte_keep_fqdn_hostnames", "true"]
    if not asked.has("bind-to", "bind-to-core", "bind-to-socket", "rankfile", "rf", "cpu-set", "cpu-list"):
        words += ["--bind-to", "none"]  # else ranks share one core, and version 5 gives up with more slots than cores
    names = [*exported(plan), *([RANKS] if plan.verified else [])]
    words += [word for name in dict.fromkeys(names) for word in ("-x", name)]
    for number, part in enumerate(asked.parts):
        words += [":"] * bool(number)
        words += [word for option in part.options if not _replaced(option) for word in option]
        words += [*plan.shim, *part.command]
    return tuple(words)


def env(plan: Plan, _place: Place) -> dict[str, str]:
    """Return mpirun's environment."""
    return {name: value for name, value in plan.environ.items() if name not in REPLACED}


def _replaced(option: tuple[str, ...]) -> bool:
    name = name_of(option[0])
    return name in HOSTFILES or (name in ("mca", "prtemca") and values_of(option)[0] in SSH_ARGS)
