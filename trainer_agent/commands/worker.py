"""`worker`: sshd for the ranks of an MPI job, with time for them at the end."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainer_agent.commands.seconds import Seconds
from trainer_agent.errors import FatalError
from trainer_agent.host import Host
from trainer_agent.log import get_logger
from trainer_agent.mpi import keys
from trainer_agent.mpi.place import SSHD, check_place, check_port, find_sshd, try_out, version_of
from trainer_agent.mpi.sshd import Sshd, configuration, session_environment
from trainer_agent.mpi.worker import serve
from trainer_agent.termination import GRACE_S, TERMINATION_LOG, failures_told

if TYPE_CHECKING:
    from collections.abc import Mapping

PORT = 2222  # what Trainer and mpi-operator tell mpirun's ssh, and what their probes ask


@dataclass(frozen=True)
class WorkerOptions:
    """The options of `worker`."""

    port: int
    ssh_key: str | None
    authorized_keys: str | None
    sshd: str | None
    grace: float
    termination_log: str | None


@click.command()
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=PORT,
    show_default=True,
    show_envvar=True,
    help="Where sshd listens.",
)
@click.option(
    "--ssh-key",
    type=click.Path(dir_okay=False),
    show_envvar=True,
    help=f"The job's private key. Default: id_rsa in {', '.join(keys.PLACES)}.",
)
@click.option(
    "--authorized-keys",
    type=click.Path(dir_okay=False),
    show_envvar=True,
    help="Who may come in. Default: authorized_keys beside the key, or else its own public key.",
)
@click.option(
    "--sshd", type=click.Path(dir_okay=False), show_envvar=True, help=f"The program. Default: {SSHD}, or on PATH."
)
@click.option(
    "--grace",
    type=Seconds(min=0),
    default=GRACE_S,
    show_default=True,
    show_envvar=True,
    help="Seconds from SIGTERM to SIGKILL for the ranks; the pod's grace minus 5 s.",
)
@click.option(
    "--termination-log",
    type=click.Path(dir_okay=False),
    show_envvar=True,
    help=f"Where to say why it failed. Default: {TERMINATION_LOG} if it exists.",
)
def worker(**settings: Any) -> int:
    """
    Serve the ranks of an MPI job: run sshd with the job's key, and let the ranks end when the pod is deleted.

    \b
    trainer-agent worker
    trainer-agent worker --port 2222 --grace 115
    """
    options = WorkerOptions(**settings)
    with failures_told(options.termination_log, os.environ):
        return start(options, os.environ, Host())


def start(options: WorkerOptions, environ: Mapping[str, str], host: Host) -> int:
    """
    Run sshd until SIGTERM; return the exit code.

    Raises:
        AgentError: sshd cannot work here, or has ended.
    """
    check_place(host)
    program = find_sshd(options.sshd, environ)
    check_port(options.port, host)
    with keys.private_folder() as folder:
        settings, public = prepare(options, environ, folder, version=version_of(program))
        config = folder / "sshd_config"
        keys.write_private(config, configuration(settings))
        try_out(program, config)
        argv, env = (program, "-D", "-e", "-f", str(config)), keys.without_libraries(environ)
        return serve(
            argv, env, port=options.port, grace_s=options.grace, on_ready=lambda said: _ready(options, public, said)
        )


def _ready(options: WorkerOptions, public: str, version: str) -> None:
    get_logger().info(
        "ready", port=options.port, host_key=keys.fingerprint(public), sshd=version, grace_s=options.grace
    )


def prepare(
    options: WorkerOptions, environ: Mapping[str, str], folder: Path, *, version: tuple[int, int] | None
) -> tuple[Sshd, str]:
    """
    Put the key into the private folder; return what sshd is to do, and the public key.

    Raises:
        AgentError: there is no usable key, or a file cannot be read.
    """
    home = os.path.expanduser("~")  # noqa: PTH111  # never fails
    key = keys.find_key(options.ssh_key, home)
    if key is None:
        raise keys.no_key(home)
    copy, public = keys.copy_key(key, folder)
    authorized = find_authorized_keys(options.authorized_keys, key) or _made(folder, public)
    variables, left_out = session_environment(environ, version)
    if left_out:
        get_logger().warning("variables that sshd cannot give to sessions", names=left_out[:20], count=len(left_out))
    return Sshd(options.port, copy, authorized, variables, version), public


def _made(folder: Path, public: str) -> Path:
    """Return a file that lets in the job's own key."""
    path = folder / "authorized_keys"
    keys.write_private(path, f"{public}\n".encode())
    return path


def find_authorized_keys(given: str | None, key: Path) -> Path | None:
    """
    Return the given file, else the one beside the key, None where there is none.

    Raises:
        FatalError: it cannot be read.
    """
    path = Path(given) if given else key.with_name("authorized_keys")
    try:
        with path.open("rb"):
            return path.absolute()
    except FileNotFoundError:
        if not given:
            return None
        reason = "No such file or directory"
    except OSError as error:
        reason = str(error.strerror)
    hint = "mount it with defaultMode 0444, or leave it out: then the job's own key is let in"
    raise FatalError("mpi-authorized-keys-unreadable", f"cannot read {path}: {reason}", hint=hint)
