"""Whether the host keys of the workers can be checked: they can where their sshd shows the key that all pods share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer_agent.errors import FatalError
from trainer_agent.log import get_logger
from trainer_agent.mpi.census import listed
from trainer_agent.mpi.ready import WorkersMissingError, greeting_missing
from trainer_agent.mpi.ssh import ALIAS, run

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SCAN_S = 5
TYPES = {"ssh-ed25519": "ed25519", "ssh-rsa": "rsa"}
STRICT_HINT = "run `trainer-agent worker` as the workers' command, or choose --host-keys auto"


def known_hosts(
    check: str, public: str, addresses: Mapping[str, str], *, port: int, folder: Path, environ: Mapping[str, str]
) -> Path | None:
    """
    Return a file that holds the workers' host key, None where it is not to be checked.

    Args:
        check: `strict`: every worker must show the shared key; `auto`: that, unless no worker does, as sshd of most
            images has a key of the image; `off`.
        public: the shared key, empty where there is none.
        addresses: of each worker by its name.

    Raises:
        RetryError: with `auto`, the sshd of a worker has gone since it was waited for.
        FatalError: with `auto`, some workers show the shared key and some do not; with `strict`, there is none.
    """
    if check == "strict" and not public:
        raise FatalError("mpi-key-absent", "there is no shared key to check host keys against", hint=STRICT_HINT)
    if check == "off" or not public or (check == "auto" and not _is_shared(public, addresses, port, environ)):
        return None
    path = folder / "known_hosts"
    path.write_text(f"{ALIAS} {public}\n")
    return path


def _is_shared(public: str, addresses: Mapping[str, str], port: int, environ: Mapping[str, str]) -> bool:
    """Return whether all workers show the shared key, False where none does."""
    shown = scan(public, addresses, port=port, environ=environ)
    if shown is None:
        get_logger().warning("host keys are not checked: there is no ssh-keyscan")
        return False
    _demand_answers({name: addresses[name] for name in addresses if name not in shown}, port, hosts=len(addresses))
    others = [name for name in addresses if shown.get(name) != public]
    if len(others) == len(addresses):
        get_logger().info("host keys are not checked: the workers' sshd does not use the job's key")
        return False
    if others:
        raise _foreign(others)
    return True


def scan(public: str, addresses: Mapping[str, str], *, port: int, environ: Mapping[str, str]) -> dict[str, str] | None:
    """
    Return the host keys of the same type as `public`, of the hosts that show one; None where there is no ssh-keyscan.

    Raises:
        FatalError: it gives no answer.
    """
    kind = TYPES.get(public.partition(" ")[0], "ecdsa")
    words = ("ssh-keyscan", "-T", str(SCAN_S), "-p", str(port), "-t", kind, *addresses.values())
    try:
        done = run(words, environ, timeout_s=SCAN_S * 4)
    except FatalError as error:
        if error.code == "ssh-missing":
            return None
        raise
    found = dict(_shown(line) for line in done.stdout.splitlines() if len(line.split()) > 2 and line[0] != "#")
    return {name: found[address] for name, address in addresses.items() if address in found}


def _shown(line: str) -> tuple[str, str]:
    """Return address and key of a line of ssh-keyscan, which writes `[address]:port` where the port is not 22."""
    where, kind, key = line.split()[:3]
    return where.partition("]")[0].lstrip("["), f"{kind} {key}"


def _demand_answers(silent: Mapping[str, str], port: int, *, hosts: int) -> None:
    """Tell an sshd without a key of that type from one that has gone, which must not switch the check off."""
    missing = {name: greeting_missing(address, port=port, timeout_s=SCAN_S) for name, address in silent.items()}
    if gone := {name: why for name, why in missing.items() if why}:
        raise WorkersMissingError(gone, hosts=hosts, waited_s=SCAN_S)


def _foreign(others: list[str]) -> FatalError:
    message = f"the sshd of {listed(others)} does not show the key that the other workers share"
    hint = "make sure that no pod of another job has this name or address, or choose --host-keys off"
    return FatalError("mpi-host-key-differs", message, hint=hint)
