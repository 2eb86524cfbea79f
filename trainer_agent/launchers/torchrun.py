"""torchrun: command-line flags instead of PET_* variables, which ranks would inherit and a nested torchrun obey."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trainer_agent.errors import FatalError
from trainer_agent.launchers import Command, Job, base_env, is_python_file
from trainer_agent.launchers.torchrun_flags import own_torchrun
from trainer_agent.topology import PET_FLAGS, PET_NAMES, PET_VALUES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

WHOLE, DECIMAL = "[0-9]{1,9}", r"[0-9]{1,9}(\.[0-9]+)?"
NUMBERS = {"PET_MAX_RESTARTS": WHOLE, "PET_MONITOR_INTERVAL": DECIMAL, "PET_SHUTDOWN_TIMEOUT": WHOLE}
# What torchrun has learned since 2.4: an older one ignores the variable, and would refuse the flag.
NEWER = (
    "PET_EVENT_LOG_HANDLER",
    "PET_SHUTDOWN_TIMEOUT",
    "PET_SIGNALS_TO_HANDLE",
    "PET_DUPLICATE_STDOUT_FILTERS",
    "PET_DUPLICATE_STDERR_FILTERS",
    "PET_VIRTUAL_LOCAL_RANK",
)
YES, NO = {"1", "true", "yes", "on"}, {"", "0", "false", "no", "off"}


def suits(job: Job) -> bool:
    """Whether the command is torchrun itself, or a script of a job with PET_* variables."""
    first = job.script[0]
    return own_torchrun(job.script) is not None or (
        job.topology.runtime == "torch" and (is_python_file(first) or first == "-m")
    )


def command(job: Job) -> Command:
    """Return torchrun with flags for everything that environment and command say of the topology, then the rest."""
    agent, meeting, own = job.torchrun, rendezvous(job), job.script
    if found := own_torchrun(job.script):
        words, given = found
        agent, own = (job.torchrun if words == ("torchrun",) else words), given.rest
        if given.meeting and job.topology.single_node:
            meeting = [*given.meeting]  # as they are: no other node has to agree, and ranks may look at id and port
    return Command((*agent, *meeting, *nproc(job), *options(job.environ), *own), elastic_env(job), elastic_agent=True)


def elastic_env(job: Job, replaced: Collection[str] = PET_NAMES - {*NEWER}) -> dict[str, str]:
    """Return the environment without the PET_* variables that the flags replace, others as torchrun can read them."""
    env = base_env(job)
    for name in PET_NAMES & env.keys():
        value = env[name].strip()
        if name in replaced and not job.keep_pet_env:
            del env[name]
        elif name in PET_FLAGS and value.lower() in YES:
            env[name] = "1"
        elif name in PET_FLAGS or (name in PET_VALUES and not value):
            del env[name]
    return env


def nproc(job: Job) -> list[str]:
    """Return the flags for the processes of this node."""
    flags = ["--nproc-per-node", str(job.nproc.value)]
    return [*flags, "--virtual-local-rank"] if job.nproc.virtual_local_rank else flags


def rendezvous(job: Job) -> list[str]:
    """Return the flags for finding the other nodes."""
    shape = job.topology
    if shape.single_node:
        # No name and no port: a static rendezvous of one node waits 900 s for a name that DNS may never have.
        return ["--standalone"]
    if shape.rdzv_backend == "static":
        nodes = ["--nnodes", str(shape.max_nodes), "--node-rank", str(shape.node_rank)]
        place = ["--master-addr", shape.master_addr, "--master-port", str(shape.master_port)]
        name = job.environ.get("PET_RDZV_ID", "").strip()  # ranks see it as TORCHELASTIC_RUN_ID
        return [*nodes, *place, *(("--rdzv-id", name) if name else ()), "--rdzv-conf", rendezvous_conf(job)]
    return ["--nnodes", f"{shape.min_nodes}:{shape.max_nodes}", *meeting_place(job)]


def meeting_place(job: Job) -> list[str]:
    """Return the flags that name backend, endpoint, id and timeouts of a rendezvous."""
    place = ["--rdzv-backend", job.topology.rdzv_backend, "--rdzv-endpoint", endpoint(job)]
    return [*place, "--rdzv-id", rendezvous_id(job), "--rdzv-conf", rendezvous_conf(job)]


def endpoint(job: Job) -> str:
    """Return host:port of the rendezvous."""
    host = job.topology.master_addr
    return f"[{host}]:{job.topology.master_port}" if ":" in host else f"{host}:{job.topology.master_port}"


def rendezvous_id(job: Job) -> str:
    """Return an id that all nodes of the job agree on."""
    return job.environ.get("PET_RDZV_ID", "").strip() or job.topology.master_addr.partition(".")[0]


def rendezvous_conf(job: Job) -> str:
    """Return key=value pairs with our timeouts, where the user's own PET_RDZV_CONF wins."""
    timeout = f"{job.rendezvous_timeout_s:.0f}"
    names = ("timeout",) if job.topology.rdzv_backend == "static" else ("join_timeout", "read_timeout")
    conf = dict.fromkeys(names, timeout)
    for pair in job.environ.get("PET_RDZV_CONF", "").split(","):
        key, equals, value = pair.partition("=")
        if pair.strip() and not (equals and key.strip() and value.strip()):
            raise FatalError(
                "pet-invalid",
                f"PET_RDZV_CONF={job.environ['PET_RDZV_CONF']!r} is not a list of key=value",
                hint="write it as timeout=900",
            )
        if pair.strip():
            conf[key.strip()] = value.strip()
    return ",".join(f"{k}={v}" for k, v in conf.items())


def options(environ: Mapping[str, str], names: Iterable[str] = (*PET_VALUES, *PET_FLAGS)) -> list[str]:
    """
    Return the flags for the PET_* variables that have nothing to do with the topology, or for some of them.

    What every torchrun does not know gets none; its values are looked at all the same.

    Raises:
        FatalError: a value that torchrun would answer with a traceback.
    """
    words = {name: [*_option(name, environ.get(name, "").strip())] for name in names}
    return [word for name in names if name not in NEWER for word in words[name]]


def _option(name: str, value: str) -> Iterator[str]:
    flag = "--" + name.removeprefix("PET_").lower().replace("_", "-")
    if name in PET_FLAGS:
        if value.lower() not in YES | NO:
            raise FatalError("pet-invalid", f"{name}={value!r} is neither 1 nor 0", hint=f"set {name}=1, or remove it")
        if value.lower() in YES:
            yield flag
    elif value:
        if name in NUMBERS and not re.fullmatch(NUMBERS[name], value):
            raise FatalError(
                "pet-invalid",
                f"{name}={value!r} is not a number",
                hint=f"set {name} to a number such as 3, or remove it",
            )
        yield from (flag, value)
