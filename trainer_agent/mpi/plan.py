"""An MPI job as it is to be started, before anybody is waited for."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from trainer_agent import shells
from trainer_agent.wrappers import MARK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainer_agent.hostfile import Hostfile
    from trainer_agent.mpi.implementation import Implementation
    from trainer_agent.mpi.words import Asked

SHIM = Path(__file__).with_name("rank_shim.py")
# What rank_shim.py imports of ours, and what of that file's text comes before its own lines.
IMPORT = re.compile(rf"^from {shells.__name__} import .*\n", re.MULTILINE)
HEADER = re.compile(r"\A[\s\S]*?^if TYPE_CHECKING:\n(?: .*\n)+\n", re.MULTILINE)
RANKS = "TRAINER_AGENT_RANKS"  # where the ranks find the launcher; rank_shim.py reads it
# What every rank gets from the launcher: settings of libraries, and where to find them.
EXPORTED = ("NCCL_", "UCX_", "HF_", "TORCH_", "PYTHON", "OMP_", "CUDA_", "MASTER_", "TRAINER_AGENT_RANKS")
EXPORTED_NAMES = ("LD_LIBRARY_PATH", "PATH", "LIBRARY_PATH", "VIRTUAL_ENV", MARK)
# What belongs to a pod: with the launcher's, ranks elsewhere would see its devices, its name, its home.
OWN_OF_A_POD = (
    *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "ROCR_VISIBLE_DEVICES"),
    *("HIP_VISIBLE_DEVICES", "HABANA_VISIBLE_MODULES", "HOSTNAME", "HOME", "PWD", "OLDPWD", "SHLVL", "_", "TERM"),
    *("USER", "LOGNAME", "SHELL", "JOB_COMPLETION_INDEX", "K_MPI_JOB_ROLE"),
)


@dataclass(frozen=True)
class Plan:
    """
    What to start.

    Args:
        hosts: by their names.
        ssh_args: the user's own words for ssh.
        python: the interpreter of the training environment, for the ranks.
        exports: variables that the user wants on all ranks.
        verified: whether ranks report before the user's program starts.
        root: whether this is root, which Open MPI has to be told.
        shim_text: that of `rank_program` in a command that is to be run, empty in one that is to be shown.
    """

    implementation: Implementation
    hosts: Hostfile
    asked: Asked
    ssh_args: tuple[str, ...]
    python: str
    environ: Mapping[str, str] = field(repr=False)
    exports: tuple[str, ...] = ()
    verified: bool = True
    root: bool = False
    shim_text: str = field(default="", repr=False)

    @property
    def shim(self) -> tuple[str, ...]:
        """The words that start a rank before the user's program; the program's text, as workers may lack its file."""
        if not self.verified:
            return ()
        return (self.python, "-IS", "-c", self.shim_text) if self.shim_text else (self.python, "-IS", str(SHIM))


@dataclass(frozen=True)
class Place:
    """
    What is known once the workers are there.

    Args:
        hostfile: the path of ours, with addresses.
        ssh_args: all words for ssh.
        interface: the network interface that the workers are reached by, empty where it is not known.
    """

    hostfile: str
    ssh_args: tuple[str, ...]
    interface: str = ""


def rank_program() -> str:
    """Return the text that starts a rank: `SHIM`, with the functions that it imports of ours in their place."""
    functions = HEADER.sub("", Path(shells.__file__).read_text(), count=1)
    return IMPORT.sub(lambda _: functions, SHIM.read_text(), count=1)


def exported(plan: Plan) -> list[str]:
    """Return the names of the variables that Open MPI is to hand to the ranks."""
    asked = {values[0].partition("=")[0] for values in plan.asked.values("x")}
    return [
        name
        for name in sorted(plan.environ)
        if name not in asked and (name in plan.exports or (name not in OWN_OF_A_POD and _is_exported(name)))
    ]


def kept(plan: Plan) -> list[str]:
    """Return the names of the variables that hydra, which hands on all by itself, is to hand to the ranks."""
    return [
        name
        for name in sorted(plan.environ)
        if name in plan.exports
        or not (name in OWN_OF_A_POD or name.startswith("KUBERNETES_") or _is_service(name, plan.environ[name]))
    ]


def _is_service(name: str, value: str) -> bool:
    """Whether this is how Kubernetes tells of a Service: MASTER_PORT holds a number, NAME_PORT of a Service a URL."""
    of_service = name.endswith("_SERVICE_HOST") or "_SERVICE_PORT" in name
    return of_service or value.startswith(("tcp://", "udp://", "sctp://"))


def _is_exported(name: str) -> bool:
    return name in EXPORTED_NAMES or name.startswith(EXPORTED)
