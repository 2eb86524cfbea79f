"""How ssh is called: by which port, with which key, and whether the host keys of the workers can be checked."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer_agent.errors import FatalError
from trainer_agent.log import get_logger
from trainer_agent.mpi.census import listed
from trainer_agent.mpi.keys import without_libraries

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

ALIAS = "trainjob"  # all workers share one host key, so one line of known_hosts serves them all
CONFIG_S = 10.0
SCAN_S = 5
# Refused connections are tried again this often, one second apart: a worker may restart.
ATTEMPTS = 10
CHECKS = ("auto", "strict", "off")


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


def strangers(
    public: str, addresses: Mapping[str, str], *, port: int, environ: Mapping[str, str]
) -> dict[str, str] | None:
    """
    Return the hosts whose host key is not `public`, with what they show instead; None where that cannot be asked.

    Args:
        addresses: of each host by its name.
    """
    kind = public.partition(" ")[0]
    asked = {"ssh-ed25519": "ed25519", "ssh-rsa": "rsa"}.get(kind, "ecdsa")
    words = ("ssh-keyscan", "-T", str(SCAN_S), "-p", str(port), "-t", asked, *addresses.values())
    try:
        done = run(words, environ, timeout_s=SCAN_S * 4)
    except FatalError:
        return None
    shown = dict(_shown(line) for line in done.stdout.splitlines() if len(line.split()) > 2 and line[0] != "#")
    return {
        name: shown.get(address, f"no {asked} key")
        for name, address in addresses.items()
        if shown.get(address) != " ".join(public.split()[:2])
    }


def _shown(line: str) -> tuple[str, str]:
    """Return address and key of a line of ssh-keyscan, which writes `[address]:port` where the port is not 22."""
    where, kind, key = line.split()[:3]
    return where.partition("]")[0].lstrip("["), f"{kind} {key}"


def known_hosts(
    check: str,
    public: str,
    addresses: Mapping[str, str],
    *,
    port: int,
    folder: Path,
    environ: Mapping[str, str],
) -> Path | None:
    """
    Return a file that holds the workers' host key, None where it is not to be checked.

    Args:
        check: `strict`: every worker must show the shared key; `auto`: that, unless no worker does, as sshd of most
            images has a key of the image; `off`.
        public: the shared key, empty where there is none.

    Raises:
        FatalError: some workers show the shared key and some do not; or, with `strict`, not all do.
    """
    if check == "off" or not public:
        if check == "strict":
            raise FatalError("mpi-key-absent", "there is no shared key to check host keys against", hint=STRICT_HINT)
        return None
    if check == "auto":
        others = strangers(public, addresses, port=port, environ=environ)
        if others is None or len(others) == len(addresses):
            get_logger().info("host keys are not checked: the workers' sshd does not use the job's key")
            return None
        if others:
            raise _foreign(others)
    path = folder / "known_hosts"
    path.write_text(f"{ALIAS} {public}\n")
    return path


STRICT_HINT = "run `trainer-agent worker` as the workers' command, or choose --host-keys auto"


def _foreign(others: Mapping[str, str]) -> FatalError:
    names = listed(list(others))
    message = f"the sshd of {names} does not show the key that the other workers share"
    hint = "make sure that no pod of another job has this name or address, or choose --host-keys off"
    return FatalError("mpi-host-key-differs", message, hint=hint)


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
