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
# What ranks get, in one word; version 4 takes either this or options `-x`.
ENV_LIST, BETWEEN = "mca_base_env_list", "mca_base_env_list_delimiter"
PARAMETERS = ("mca", "omca", "prtemca")
# By these the user says on which cores his ranks run; version 5 refuses `PE=` beside another word about it.
BINDING = (
    *("bind-to", "bind-to-core", "bind-to-socket", "rankfile", "rf", "cpu-set", "cpu-list", "cpus-per-proc"),
    "cpus-per-rank",
)
BINDING_PARAMETERS = (
    *("hwloc_base_binding_policy", "hwloc_default_binding_policy", "hwloc_base_cpu_list", "hwloc_base_cpu_set"),
    *("hwloc_default_cpu_list", "rmaps_base_cpus_per_rank"),
)
MAPPING_PARAMETERS = ("rmaps_base_mapping_policy", "rmaps_default_mapping_policy")


def ssh_args(plan: Plan) -> tuple[str, ...]:
    """Return the words for ssh that stand in the user's own command."""
    return tuple(word for name, value in _parameters(plan) if name in SSH_ARGS for word in value.split())


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
    if not _binds(plan):
        words += ["--bind-to", "none"]  # else ranks share one core, and version 5 gives up with more slots than cores
    if not _env_list(plan):
        words += [word for name in _names(plan) for word in ("-x", name)]
    for number, part in enumerate(asked.parts):
        words += [":"] * bool(number)
        words += [word for option in part.options if not _replaced(option, plan) for word in option]
        words += [*plan.shim, *part.command]
    return tuple(words)


def env(plan: Plan, _place: Place) -> dict[str, str]:
    """Return mpirun's environment."""
    own = {name: value for name, value in plan.environ.items() if name not in REPLACED}
    if listed := _env_list(plan):
        between = own.get(f"OMPI_MCA_{BETWEEN}") or ";"
        given = {word.partition("=")[0] for word in listed.split(between)}
        own[f"OMPI_MCA_{ENV_LIST}"] = between.join([listed, *(name for name in _names(plan) if name not in given)])
    return own


def _parameters(plan: Plan) -> list[tuple[str, str]]:
    """Return the parameters that the user's own command sets, in their order."""
    return [(name, " ".join(value)) for name, *value in plan.asked.values(*PARAMETERS)]


def _names(plan: Plan) -> list[str]:
    """Return the names of the variables that the ranks are to get."""
    return list(dict.fromkeys([*exported(plan), *([RANKS] if plan.verified else [])]))


def _env_list(plan: Plan) -> str:
    """Return the user's list of variables where there can be no `-x` beside it."""
    if plan.implementation.major >= 5:
        return ""
    return dict(_parameters(plan)).get(ENV_LIST) or plan.environ.get(f"OMPI_MCA_{ENV_LIST}", "")


def _binds(plan: Plan) -> bool:
    """Whether the user says on which cores his ranks run, by an option, a parameter or a variable."""
    if plan.asked.has(*BINDING):
        return True
    of_environ = {name.partition("_MCA_")[2]: value for name, value in plan.environ.items() if "_MCA_" in name}
    parameters = of_environ | dict(_parameters(plan))
    mapped = [" ".join(words) for words in plan.asked.values("map-by")]
    mapped += [parameters.get(name, "") for name in MAPPING_PARAMETERS]
    return not parameters.keys().isdisjoint(BINDING_PARAMETERS) or any("pe=" in words.lower() for words in mapped)


def _replaced(option: tuple[str, ...], plan: Plan) -> bool:
    name = name_of(option[0])
    ours = SSH_ARGS if plan.implementation.major >= 5 else (*SSH_ARGS, ENV_LIST)
    return name in HOSTFILES or (name in PARAMETERS and values_of(option)[0] in ours)
