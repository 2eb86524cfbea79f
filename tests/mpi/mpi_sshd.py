"""Real sshd on loopback, each with a host key of its own choice."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path

from podlab import PATH, eventually, without

from trainer_agent.mpi.ready import greeting_missing

SSHD = "/usr/sbin/sshd"


def make_key(path, kind="ecdsa", *options):
    """Make a key pair, as Trainer does by default; return the private key."""
    bits = ("-b", "521", "-m", "PEM") if kind == "ecdsa" else ()
    subprocess.run(["ssh-keygen", "-q", "-t", kind, *bits, "-N", "", "-f", str(path), *options], check=True, timeout=60)
    return path


def public_of(key):
    """Return the public key without its comment."""
    return " ".join(key.with_name(f"{key.name}.pub").read_text().split()[:2])


class Servers:
    """All on one port, at 127.0.0.1, 127.0.0.2, …, as workers are."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("ssh") is None or not os.access(SSHD, os.X_OK):
            without("this needs openssh-client and openssh-server")
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        self.folder = folder
        self.stack = ExitStack()
        self.count = 0
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]

    def start(self, host_key: Path, *, authorized: Path | None = None) -> str:
        """Start one more that lets the authorized key in; return its address."""
        self.count += 1
        address, config = f"127.0.0.{self.count}", self.folder / f"sshd-{self.count}"
        lines = [f"Port {self.port}", f"ListenAddress {address}", f"HostKey {host_key}", "StrictModes no", "UsePAM no"]
        lines += ["PidFile none", f"AuthorizedKeysFile {authorized or '/dev/null'}"]
        config.write_text("\n".join((*lines, "")))
        log = self.stack.enter_context(config.with_suffix(".log").open("wb"))
        process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(config)], stderr=log, env={"PATH": PATH})
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        answers = lambda: not greeting_missing(address, port=self.port, timeout_s=1)  # noqa: E731
        eventually(answers, what=f"sshd answers: {config.with_suffix('.log').read_text()}")
        return address
