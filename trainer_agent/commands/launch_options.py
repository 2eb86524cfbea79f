"""The options of `launch`, which `run` and `explain` have too."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import click

from trainer_agent.commands.names import Names
from trainer_agent.commands.seconds import Seconds
from trainer_agent.launchers import AUTO, LAUNCHERS
from trainer_agent.nproc import Policy
from trainer_agent.termination import GRACE_S, TERMINATION_LOG

if TYPE_CHECKING:
    from collections.abc import Callable

RENDEZVOUS_TIMEOUT_S = 900.0  # torchrun's own
HOST_KEYS = ("auto", "strict", "off")


@dataclass(frozen=True)
class LaunchOptions:
    """Their values."""

    launcher: str
    nproc: str | None
    nproc_policy: str
    allow_cpu_fallback: bool
    rendezvous_timeout: float
    supervise: bool | None
    grace: float
    keep_pet_env: bool
    python: str | None
    termination_log: str | None
    dry_run: bool
    hostfile: str | None = None
    ssh_key: str | None = None
    host_keys: str = "auto"
    export: tuple[str, ...] = ()
    verify: bool = True
    stop_signal: str = "TERM"


def _option(*names: str, **settings: Any) -> Callable[..., Any]:
    """Return an option whose variable is TRAINER_AGENT_LAUNCH_… in every command that has it."""
    variable = "TRAINER_AGENT_LAUNCH_" + names[0].split("/")[0].removeprefix("--").replace("-", "_").upper()
    return click.option(*names, envvar=variable, show_envvar=True, **settings)


OPTIONS = (
    _option(
        "--launcher",
        type=click.Choice([AUTO, *LAUNCHERS]),
        default=AUTO,
        show_default=True,
        help="auto: by the command and the environment.",
    ),
    _option("--nproc", metavar="N|auto|cpu|gpu", help="Processes on this node, instead of PET_NPROC_PER_NODE."),
    _option(
        "--nproc-policy",
        type=click.Choice([str(p) for p in Policy]),
        default=Policy.FIX.value,
        show_default=True,
        help="When the number does not fit the devices: fix it, trust it, or stop (strict).",
    ),
    _option("--allow-cpu-fallback", is_flag=True, help="Let auto mean CPUs where no accelerator is visible."),
    _option(
        "--rendezvous-timeout",
        type=Seconds(min=1),
        default=RENDEZVOUS_TIMEOUT_S,
        show_default=True,
        help="Seconds to wait for rank 0's name, and then for all nodes.",
    ),
    _option(
        "--supervise/--exec",
        default=None,
        help="Stay as the parent, or be replaced by the command. Default: supervise as PID 1, exec elsewhere.",
    ),
    _option(
        "--grace",
        type=Seconds(min=0),
        default=GRACE_S,
        show_default=True,
        help="Seconds from SIGTERM to SIGKILL when supervising; the pod's grace minus 5 s.",
    ),
    _option("--keep-pet-env", is_flag=True, help="Leave torch's PET_* variables in the environment of the ranks."),
    _option(
        "--python",
        help="Interpreter of the training environment. Default: the one this program runs on; of a copy that `install`"
        " made, the image's python or python3.",
    ),
    _option(
        "--termination-log",
        type=click.Path(dir_okay=False),
        help=f"Where to say why a supervised run failed. Default: {TERMINATION_LOG} if it exists.",
    ),
    _option("--dry-run", is_flag=True, help="Print the command and exit."),
    _option(
        "--hostfile",
        type=click.Path(dir_okay=False),
        help="MPI: the hosts. Default: what the command or the environment says, then /etc/mpi/hostfile.",
    ),
    _option(
        "--ssh-key",
        type=click.Path(dir_okay=False),
        help="MPI: the private key. Default: id_rsa in ~/.ssh, /root/.ssh or /home/mpiuser/.ssh.",
    ),
    _option(
        "--host-keys",
        type=click.Choice(HOST_KEYS),
        default="auto",
        show_default=True,
        help="MPI: check that workers show the job's own key; auto: unless none of them does.",
    ),
    _option("--export", type=Names(), default="", help="MPI: variables for all ranks, beside those of libraries."),
    _option(
        "--verify/--no-verify",
        default=True,
        show_default=True,
        help="MPI: start the program only when every host has its ranks.",
    ),
    _option(
        "--stop-signal",
        type=click.Choice(("TERM", "USR1", "USR2")),
        default="TERM",
        show_default=True,
        help="MPI: what ranks get first when we are told to end; after another one, TERM 7 s before the grace is over.",
    ),
)


def launch_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `launch` to a command."""
    return reduce(lambda wrapped, option: option(wrapped), reversed(OPTIONS), function)
