"""Whether sshd can do its work in this container: otherwise it would listen, and end every session that begins."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trainer_agent.errors import FatalError, RetryError
from trainer_agent.log import get_logger
from trainer_agent.mpi import keys
from trainer_agent.mpi.sshd import version_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainer_agent.host import Host

SSHD = "/usr/sbin/sshd"
CHECK_S = 10.0
# Without one of these sshd as root accepts connections and drops them.
CAPABILITIES = {"SETGID": 6, "SETUID": 7, "SYS_CHROOT": 18}
NO_SHELLS = ("nologin", "false")


def check_place(host: Host) -> None:
    """
    Make sure that an sshd of this user can open sessions.

    Raises:
        FatalError: it would listen, and end every session that begins.
    """
    keys.check_user()
    if os.geteuid() == 0:
        check_capabilities(host)
        check_account(host)
        with suppress(OSError):  # where it is elsewhere, sshd does not need it
            Path("/run/sshd").mkdir(mode=0o755)
    else:
        check_shell()


def check_capabilities(host: Host) -> None:
    """
    Make sure that sshd as root can put a session into its place.

    Raises:
        FatalError: a capability is missing.
    """
    status = host.read("/proc/self/status") or ""
    effective = next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:")), -1)
    missing = [name for name, bit in CAPABILITIES.items() if not effective >> bit & 1]
    if missing:
        raise FatalError(
            "mpi-capability-missing",
            f"sshd as root needs the capabilities {', '.join(CAPABILITIES)}, and this container lacks "
            f"{', '.join(missing)}",
            hint="add them to securityContext.capabilities.add, or set runAsUser to an ordinary user of the image",
        )


def check_account(host: Host) -> None:
    """
    Warn where nobody can log in as root, as in images of Red Hat's family.

    With PAM sshd would not mind, but PAM wants more of a container than most may do.
    """
    name = pwd.getpwuid(0).pw_name
    lines = (host.read("/etc/shadow") or "").splitlines()
    if any(line.startswith(f"{name}:!") for line in lines):
        hint = f"unlock it in the image: usermod --password '*' {name}; or set runAsUser to an ordinary user"
        _warn("mpi-account-locked", f"{name} is locked in /etc/shadow, so sshd will not let {name} in", hint)


def _warn(code: str, message: str, hint: str) -> None:
    get_logger().warning(message, code=code, hint=hint)


def check_shell() -> None:
    """
    Make sure that an ordinary user, the only one whom that user's sshd can let in, has a shell.

    Raises:
        FatalError: it has none.
    """
    user = pwd.getpwuid(os.geteuid())
    shell = user.pw_shell or "/bin/sh"
    if Path(shell).name in NO_SHELLS or not os.access(shell, os.X_OK):
        raise FatalError(
            "mpi-user-without-shell",
            f"the shell of {user.pw_name} (uid {user.pw_uid}) is {shell}, with which it can open no session",
            hint=f"give it one in the image: usermod --shell /bin/sh {user.pw_name}; or set runAsUser to another user",
        )


def check_port(port: int, host: Host) -> None:
    """
    Make sure that sshd can listen there.

    Raises:
        RetryError: somebody else does.
        FatalError: the kernel refuses.
    """
    answers = [host.claim(address, port) for address in ("0.0.0.0", "::")]  # noqa: S104  # sshd is there for others
    if "taken" in answers:
        hint = "end what listens there or give --port; with hostNetwork another pod of this node may have it"
        raise RetryError("mpi-port-taken", f"port {port} is taken, wanted it free for sshd", hint=hint)
    if "EACCES" in answers:
        hint = "give --port 2222 or another one of 1024 or more"
        raise FatalError("mpi-port-refused", f"uid {os.geteuid()} may not listen on port {port}", hint=hint)


def find_sshd(given: str | None, environ: Mapping[str, str]) -> str:
    """
    Return the program's absolute path, by which alone it runs.

    Raises:
        FatalError: there is none.
    """
    places = (given,) if given else (SSHD, "sshd")
    for place in places:
        if found := shutil.which(place, path=environ.get("PATH", os.defpath)):
            return str(Path(found).absolute())
    raise FatalError(
        "mpi-sshd-missing",
        f"no program {' and none on PATH called '.join(places)}",
        hint="install openssh-server in the image, or name the program with --sshd",
    )


def version_of(program: str) -> tuple[int, int] | None:
    """Return the version of OpenSSH; older ones know no -V, but say it together with their usage."""
    return version_in(_said(program, "-V")[1])


def try_out(program: str, config: Path) -> None:
    """
    Let sshd itself look at its configuration and its key.

    Raises:
        FatalError: it refuses them.
    """
    code, said = _said(program, "-t", "-f", str(config))
    if code:
        words = " / ".join(said.split("\n")[-3:])
        hint = "look at what it says; as root it needs the user sshd and, on Debian, a writable or existing /run/sshd"
        raise FatalError("mpi-sshd-refuses", f"{program} -t ends with {code}: {words}", hint=hint)


def _said(program: str, *options: str) -> tuple[int, str]:
    try:
        done = subprocess.run(
            [program, *options],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=CHECK_S,
            check=False,
            env=keys.without_libraries(os.environ),
        )
    except OSError as error:
        hint = "name the program with --sshd"
        raise FatalError("mpi-sshd-missing", f"cannot start {program}: {error.strerror}", hint=hint) from error
    except subprocess.TimeoutExpired as error:
        hint = "look at the load and the memory limit of the pod"
        raise RetryError(
            "mpi-sshd-silent", f"{program} {options[0]} gives no answer within {CHECK_S:g} s", hint=hint
        ) from error
    return done.returncode, (done.stderr + done.stdout).decode(errors="replace").replace("\r", "").strip()
