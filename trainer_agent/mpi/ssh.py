"""How ssh is called: by which port, with which key."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer_agent.errors import FatalError
from trainer_agent.mpi.keys import without_libraries

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

ALIAS = "trainjob"  # all workers share one host key, so one line of known_hosts serves them all
CONFIG_S = 10.0
# Refused connections are tried again this often, one second apart: a worker may restart.
ATTEMPTS = 10


@dataclass(frozen=True)
class Ssh:
    """
    How to reach the workers.

    Args:
        args: words for ssh, the user's own first: ssh takes the first of two values.
    """

    port: int
    args: tuple[str, ...]


def port_of(args: Sequence[str], host: str, environ: Mapping[str, str]) -> int:
    """
    Return the port that ssh would take, from these words and its configuration.

    Raises:
        FatalError: there is no ssh, or it refuses the words.
    """
    done = run(("ssh", "-G", *args, host), environ, timeout_s=CONFIG_S)
    found = [line.split() for line in done.stdout.splitlines() if line.startswith("port ")]
    if done.returncode or not found:
        words = " ".join(args)
        said = done.stderr.strip().splitlines()[-1:] or ["nothing"]
        raise FatalError(
            "ssh-args-invalid",
            f"ssh refuses the words {words!r}: {said[0]}",
            hint="correct OMPI_MCA_plm_rsh_args (or PRTE_MCA_plm_ssh_args, HYDRA_LAUNCHER_EXTRA_ARGS) of the job",
        )
    return int(found[0][1])


def arguments(own: Sequence[str], *, port: int, key: Path | None, known_hosts: Path | None) -> tuple[str, ...]:
    """
    Return the words for ssh.

    Args:
        own: the user's, which win.
        known_hosts: holds the workers' key under `ALIAS`; None accepts any.
    """
    options = ["BatchMode=yes", "LogLevel=ERROR", "ConnectTimeout=10", f"ConnectionAttempts={ATTEMPTS}"]
    options += ["GlobalKnownHostsFile=/dev/null", "ServerAliveInterval=15", "ServerAliveCountMax=4"]
    if known_hosts:
        options += ["StrictHostKeyChecking=yes", f"UserKnownHostsFile={known_hosts}", f"HostKeyAlias={ALIAS}"]
    else:
        options += ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null"]
    identity = ("-o", "IdentitiesOnly=yes", "-i", str(key)) if key else ()
    return (*own, *(word for option in options for word in ("-o", option)), "-p", str(port), *identity)


def run(words: Sequence[str], environ: Mapping[str, str], *, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """
    Return what a program of OpenSSH said.

    Raises:
        FatalError: it is not there, or gave no answer within `timeout_s` seconds.
    """
    try:
        return subprocess.run(
            list(words),
            env={**without_libraries(environ), "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except OSError as error:
        message = f"cannot start {words[0]}: {os.strerror(error.errno or 0)}"
        raise FatalError("ssh-missing", message, hint="install openssh-client in the image") from error
    except subprocess.TimeoutExpired as error:
        message = f"{words[0]} gave no answer within {timeout_s:g} s"
        raise FatalError("ssh-stuck", message, hint="look at the load of this node, and at ssh_config") from error
