"""
How an MPI worker's sshd is set up, and whether one answers.

An sshd gives sessions an empty environment. Through SetEnv it gives them what it is told, but seen with OpenSSH 8.4,
9.2 and 10.0: it drops every connection when its configuration has more than 256 KiB, and no session begins that has
1,000 variables or more.
"""

from __future__ import annotations

import os
import re
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

BANNER = b"SSH-2.0"
# With its CR and LF; other lines may come before it (RFC 4253, 4.2), but OpenSSH sends none.
LONGEST_BANNER = 255
# What belongs to a session, or is said to this program only.
OF_A_SESSION = re.compile(r"HOME|USER|LOGNAME|SHELL|MAIL|PWD|OLDPWD|SHLVL|_|TERM|TRAINER_AGENT_.*|SSH_.*", re.DOTALL)
# What Kubernetes tells of every Service in the namespace: seven variables each.
SERVICE_LINK = re.compile(
    r"[A-Z0-9_]+_(SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
FIRST = ("PATH", "LD_LIBRARY_PATH")
MOST_VARIABLES = 900
MOST_BYTES = 240 << 10
# The first that takes quotes behind backslashes, and for which `#` inside of quotes begins no comment.
ESCAPES = (8, 7)
# The first that shuts out an address which connects often without logging in, as a waiting launcher does.
PENALTIES = (9, 8)


@dataclass(frozen=True)
class Sshd:
    """
    What an sshd is to do.

    Args:
        environ: what sessions see; `session_environment` makes it.
        version: of OpenSSH, None when it does not tell.
    """

    port: int
    host_key: Path
    authorized_keys: Path
    environ: Mapping[str, str]
    version: tuple[int, int] | None = None


def configuration(sshd: Sshd) -> bytes:
    """Return its sshd_config, in which only the job's key opens a session."""
    return b"\n".join(os.fsencode(line) for line in (*_lines(sshd), ""))


def _lines(sshd: Sshd) -> Iterator[str]:
    yield f"Port {sshd.port}"
    yield f"HostKey {_quoted(str(sshd.host_key))}"
    yield f"AuthorizedKeysFile {_quoted(str(sshd.authorized_keys).replace('%', '%%'))}"
    yield from ("AuthenticationMethods publickey", "PubkeyAuthentication yes", "PasswordAuthentication no")
    yield from ("KbdInteractiveAuthentication no", "PermitRootLogin prohibit-password", "UsePAM no")
    yield "StrictModes no"  # mounted files belong to root and to the pod's group
    yield from ("PidFile none", "UseDNS no", "PrintMotd no", "PermitUserRC no", "LogLevel INFO")
    yield from ("DisableForwarding yes", "X11Forwarding no", "AllowTcpForwarding no", "AllowAgentForwarding no")
    # By default sshd refuses at random once ten connections have not logged in yet. Launchers open one per host at
    # the same moment, probe the port before that, and several jobs or a tree of daemons may ask the same host.
    yield from ("MaxStartups 1000", "MaxSessions 1000")
    yield from ("ClientAliveInterval 30", "ClientAliveCountMax 4")  # sessions of a dead launcher end after two minutes
    if sshd.version and sshd.version >= PENALTIES:
        yield "PerSourcePenalties no"
    if sshd.environ:  # one line: of several only the first counts
        escapes = sshd.version is None or sshd.version >= ESCAPES
        yield "SetEnv " + " ".join(_quoted(f"{k}={v}", escapes=escapes) for k, v in sshd.environ.items())


def session_environment(
    environ: Mapping[str, str], version: tuple[int, int] | None = None
) -> tuple[dict[str, str], list[str]]:
    """Return the variables of the container that sessions get too, and the names of those that cannot be passed on."""
    wanted = {name: value for name, value in environ.items() if not OF_A_SESSION.fullmatch(name)}
    kept: dict[str, str] = {}
    size = 0
    for name in sorted(wanted, key=_importance):
        length = len(os.fsencode(_quoted(f"{name}={wanted[name]}"))) + 1
        fits = len(kept) < MOST_VARIABLES and size + length <= MOST_BYTES
        if fits and _can_be_written(f"{name}={wanted[name]}", version):
            kept[name] = wanted[name]
            size += length
    return kept, sorted(wanted.keys() - kept.keys())


def _importance(name: str) -> tuple[bool, bool, str]:
    """Return what sorts the variables that must not be left out before those that training hardly needs."""
    return SERVICE_LINK.fullmatch(name) is not None, name not in FIRST, name


def _can_be_written(setting: str, version: tuple[int, int] | None) -> bool:
    forbidden = set("\n") if version is None or version >= ESCAPES else set('\n"#')
    return not forbidden & set(setting)


def _quoted(text: str, *, escapes: bool = True) -> str:
    return '"' + (text.replace("\\", "\\\\").replace('"', '\\"') if escapes else text) + '"'


def version_in(text: str) -> tuple[int, int] | None:
    """Return the version of OpenSSH in what `sshd -V` says."""
    match = re.search(r"OpenSSH_(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def banner(address: str, port: int, *, timeout_s: float) -> str | None:
    """Return what an sshd says first, such as `SSH-2.0-OpenSSH_9.2`; None when nobody says that in time."""
    try:
        line = first_line(address, port, timeout_s=timeout_s)
    except OSError:
        return None
    return line.decode(errors="replace") if line.startswith(BANNER) else None


def first_line(address: str, port: int, *, timeout_s: float) -> bytes:
    """
    Return what a server says first, of its own accord; nothing where it hangs up.

    Raises:
        OSError: nobody is there; a TimeoutError where somebody is and says nothing.
    """
    deadline = time.monotonic() + timeout_s
    said = b""
    with socket.create_connection((address, port), timeout=timeout_s) as connection:
        while b"\n" not in said and len(said) < LONGEST_BANNER:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            chunk = connection.recv(LONGEST_BANNER)
            if not chunk:
                break
            said += chunk
    return said.partition(b"\n")[0].strip()
