"""`accelerate launch` ignores PET_*: with two nodes it runs one process and exits 0, so it is told by flags."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trainer_agent.env import whole_number
from trainer_agent.launchers import Command, Job, interpreted, interpreter_words, is_python_file
from trainer_agent.launchers.torchrun import elastic_env, options, rendezvous_conf
from trainer_agent.topology import PET_TOPOLOGY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# accelerate 1.15 refuses more than one of the first five; beside --multi_gpu it skips the file's distributed_type.
CHOICES = {"multi_gpu", "cpu", "tpu", "use_deepspeed", "use_fsdp", "use_megatron_lm", "config_file"}
MAY_BE_DEEPSPEED, DEEPSPEED_LAUNCHER = {"use_deepspeed", "config_file"}, "deepspeed_multinode_launcher"
# accelerate has these options of torchrun's, and its own defaults win over the variables; all others reach torchrun.
OPTIONS = (
    "PET_MAX_RESTARTS",
    "PET_MONITOR_INTERVAL",
    "PET_ROLE",
    "PET_LOG_DIR",
    "PET_TEE",
    "PET_MODULE",
    "PET_NO_PYTHON",
)
# The package installs the second program, too, which starts the same; the interpreter may have options of its own.
PROGRAMS = (("accelerate", "launch"), ("accelerate-launch",))
MODULE = ("-m", "accelerate.commands.launch")


def suits(job: Job) -> bool:
    """Whether the command is `accelerate launch …`, however it is written, in a job with PET_* variables."""
    return job.topology.runtime == "torch" and _words(job.script) > 0


def command(job: Job) -> Command:
    """Return the command with machines, processes (of the whole job) and the meeting place; the user's flags win."""
    more, env = _options(job), elastic_env(job, (*PET_TOPOLOGY, *OPTIONS))
    number = _words(job.script)
    launch = interpreted(job.script[:number], job.python) if number else PROGRAMS[0]
    own = job.script[number:]
    if not isinstance(job.nproc.value, int):
        argv = (*launch, *more, *own)
        return Command(argv, env, elastic_agent=True, note="the number of processes is left to accelerate")
    shape = job.topology
    processes = shape.max_nodes * job.nproc.value
    flags = [
        "--num_machines",
        str(shape.max_nodes),
        "--num_processes",
        str(processes),
        "--machine_rank",
        str(shape.node_rank),
    ]
    given = _given(own)
    if Path(file := config_file(job.environ)).exists():
        given.setdefault("config_file", file)
    if _multi_gpu(given, processes):
        flags.append("--multi_gpu")
    if not shape.single_node:
        flags += ["--main_process_ip", shape.master_addr, "--main_process_port", str(shape.master_port)]
        # DeepSpeed's own default, pdsh, wants a hostfile: without one each node trains alone. This one is torchrun.
        if MAY_BE_DEEPSPEED & given.keys() and DEEPSPEED_LAUNCHER not in given:
            flags += [f"--{DEEPSPEED_LAUNCHER}", "standard"]
    return Command((*launch, *flags, *more, *own), env, elastic_agent=True)


def config_file(environ: Mapping[str, str]) -> str:
    """Return where accelerate 1.15 looks for the file of `accelerate config`, by the rules of its config_args.py."""
    cache = environ.get("XDG_CACHE_HOME", "~/.cache")
    path = environ.get("HF_HOME", f"{cache}/huggingface") + "/accelerate/default_config.yaml"
    return environ.get("HOME", "/root") + path[1:] if path.startswith("~/") else path


def _words(script: Sequence[str]) -> int:
    """Return how many words say `accelerate launch`, 0 where none do."""
    name = script[0].rpartition("/")[2]
    for program in PROGRAMS:
        if (name, *script[1 : len(program)]) == program:
            return len(program)
    python = interpreter_words(script)
    return python + len(MODULE) if tuple(script[python : python + len(MODULE)]) == MODULE else 0


def _multi_gpu(given: Mapping[str, str], processes: int) -> bool:
    """Whether to say that these are many GPUs: unless user or file have chosen, and never of one process."""
    if CHOICES & given.keys():
        return False
    return (whole_number(given["num_processes"]) or 0 if "num_processes" in given else processes) > 1


def _given(words: Sequence[str]) -> dict[str, str]:
    """Return accelerate's own options with what follows each; behind the script they are the script's."""
    given, last = {}, ""
    for word, following in zip(words, (*words[1:], ""), strict=True):
        if is_python_file(word) or (last in ("-m", "--module") and not word.startswith("-")):
            break
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            given[name[2:].replace("-", "_")] = value if equals else following
        last = word
    return given


def _options(job: Job) -> list[str]:
    """Return flags for the variables that accelerate's defaults would hide."""
    options(job.environ)  # those that reach torchrun as variables have to be right, too
    flags = options(job.environ, OPTIONS)
    if job.environ.get("PET_RDZV_CONF", "").strip():
        flags += ["--rdzv-conf", rendezvous_conf(job)]
    # The spelling with underscores is the one that every accelerate knows.
    return ["--" + word[2:].replace("-", "_") if word.startswith("--") else word for word in flags]
