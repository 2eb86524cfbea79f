"""
The key pair that all pods of an MPI job share: the launcher's identity, and the host key of every worker.

Trainer mounts it as `id_rsa` with mode 0640, which ssh and sshd refuse from the file's owner.
"""

from __future__ import annotations

import base64
import hashlib
import os
import pwd
import stat
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from trainer_agent.errors import FatalError, RetryError
from trainer_agent.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Of the user's home, then where Trainer and mpi-operator mount them.
PLACES = ("~/.ssh", "/root/.ssh", "/home/mpiuser/.ssh")
NAME = "id_rsa"  # whatever its type: Trainer's is an ECDSA key
MEMORY = "/dev/shm"
KEYGEN_S = 10.0
LARGEST_KEY = 64 << 10  # one of RSA with 16,384 bits has 13 kB


def find_key(given: str | None, home: str) -> Path | None:
    """
    Return the private key: the given one, else the first of the places, None when there is none.

    Raises:
        FatalError: the given one is not there, or is no file.
    """
    if given is None:
        return next((key for key in _candidates(home) if os.path.isfile(key)), None)  # noqa: PTH113  # Path's raises where it may not look
    key = Path(_expanded(given, home))
    if not os.path.isfile(key):  # noqa: PTH113
        hint = "mount the job's key pair there, or name the private key with --ssh-key"
        raise FatalError("mpi-key-missing", f"{key} is no file that can be seen, wanted a private key", hint=hint)
    return key


def no_key(home: str) -> FatalError:
    """Return the error for a pod without a key, which names the places and those that were not to be seen."""
    candidates = _candidates(home)
    hidden = [f"{key.parent} is closed to uid {os.getuid()}" for key in candidates if _is_closed(key.parent)]
    looked = f"no private key: looked for {' and '.join(map(str, candidates))}"
    hint = "mount the job's key pair there (Trainer: sshAuthMountPath of the runtime), or name it with --ssh-key"
    return FatalError("mpi-key-absent", "; ".join([looked, *hidden]), hint=hint)


@contextmanager
def private_folder() -> Iterator[Path]:
    """
    Yield a directory on memory that only this user can enter, removed afterwards; on disk where there is no memory.

    Raises:
        FatalError: nowhere can a directory be made.
    """
    directory = _on_memory() or _on_disk()
    with directory as name:
        yield Path(name)


def copy_key(key: Path, folder: Path) -> tuple[Path, str]:
    """
    Return a copy in `folder` that ssh and sshd accept, with mode 0600, and its public key as `public_key` has it.

    Raises:
        FatalError: it cannot be read, or is no private key without a passphrase, or OpenSSH refuses this user.
        RetryError: ssh-keygen gives no answer.
    """
    text = _read(key)
    copy = folder / NAME
    # Somebody's editor may have put CRs, or left out the last newline, without which OpenSSH reads no key.
    write_private(copy, text.replace(b"\r\n", b"\n").rstrip(b"\n") + b"\n")
    return copy, public_key(copy, named=key)


def public_key(copy: Path, *, named: Path | None = None) -> str:
    """
    Return `type base64` of a private key, without a comment.

    Args:
        named: what errors call it.

    Raises:
        FatalError: it is no private key, or wants a passphrase; OpenSSH refuses this user, or is not installed.
        RetryError: ssh-keygen gives no answer.
    """
    check_user()
    done = _keygen("-y", "-P", "", "-f", str(copy))
    words = done.stdout.split()
    if done.returncode or len(words) < 2:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1].replace(str(copy), str(named or copy))
        raise _invalid(f"{named or copy} is no private key without a passphrase; ssh-keygen says: {said}")
    return " ".join(words[:2])


def fingerprint(public: str) -> str:
    """Return `SHA256:…` of a public key, as OpenSSH shows it."""
    digest = hashlib.sha256(base64.b64decode(public.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def write_private(path: Path, text: bytes) -> None:
    """Write a new file that only this user can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(text)


def without_libraries(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for programs of the system, which the libraries of conda or CUDA would break."""
    return {name: value for name, value in environ.items() if not name.startswith("LD_")}


def check_user() -> None:
    """
    Make sure that this user has an entry in /etc/passwd, without which no program of OpenSSH runs.

    Raises:
        FatalError: it has none.
    """
    uid = os.geteuid()
    try:
        pwd.getpwuid(uid)
    except KeyError as error:
        raise FatalError(
            "mpi-user-unknown",
            f"uid {uid} has no entry in /etc/passwd, and ssh and sshd serve only users that have one",
            hint="set runAsUser to a user of the image, or add one to its /etc/passwd; "
            "on OpenShift grant the pod's service account the SCC nonroot-v2 for that",
        ) from error


def _candidates(home: str) -> list[Path]:
    """Return the files to look for, each once."""
    return [Path(place) / NAME for place in dict.fromkeys(_expanded(place, home) for place in PLACES)]


def _expanded(path: str, home: str) -> str:
    return home + path[1:] if path == "~" or path.startswith("~/") else path


def _is_closed(folder: Path) -> bool:
    try:
        folder.stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return not os.access(folder, os.X_OK)


def _on_memory() -> tempfile.TemporaryDirectory[str] | None:
    if not _is_tmpfs(MEMORY):
        return None
    try:
        return _directory(MEMORY)
    except OSError:
        return None


def _on_disk() -> tempfile.TemporaryDirectory[str]:
    try:
        directory = _directory(None)
    except OSError as error:
        hint = "mount an emptyDir at /tmp, or set TMPDIR to a writable directory"
        raise FatalError(
            "no-temporary-directory", f"no temporary file can be made: {error.strerror}", hint=hint
        ) from error
    get_logger().info("the copy of the key is on disk: no writable tmpfs", wanted=MEMORY, folder=directory.name)
    return directory


def _directory(parent: str | None) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="trainer-agent-mpi-", dir=parent, ignore_cleanup_errors=True)


def _is_tmpfs(folder: str) -> bool:
    """Return whether what is mounted there last is a tmpfs (proc(5): device, place, type, …)."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text(errors="replace").splitlines()]
    except OSError:
        return False
    return [words[2] for words in mounts if words[1] == folder][-1:] == ["tmpfs"]


def _read(key: Path) -> bytes:
    try:
        with key.open("rb") as file:
            text = file.read(LARGEST_KEY + 1)
    except OSError as error:
        raise _unreadable(key, error) from error
    if len(text) > LARGEST_KEY:
        raise _invalid(f"{key} has more than {LARGEST_KEY} bytes, wanted a private key")
    return text


def _keygen(*options: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["ssh-keygen", *options],  # noqa: S607  # on PATH, as ssh is
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=KEYGEN_S,
            check=False,
            env=without_libraries(os.environ),
        )
    except OSError as error:
        hint = "install openssh-client in the image"
        raise FatalError("ssh-keygen-missing", f"cannot start ssh-keygen: {error.strerror}", hint=hint) from error
    except subprocess.TimeoutExpired as error:
        hint = "look at the load and the memory limit of the pod"
        raise RetryError("ssh-keygen-stuck", f"ssh-keygen gives no answer within {KEYGEN_S:g} s", hint=hint) from error


def _unreadable(key: Path, error: OSError) -> FatalError:
    return FatalError(
        "mpi-key-unreadable",
        f"cannot read {key} ({_whose(key)}) as uid {os.geteuid()}, gid {os.getegid()}: {error.strerror}",
        hint=f"set securityContext.fsGroup of the pod to a group of uid {os.geteuid()}, "
        "or defaultMode of the secret's volume to 0444",
    )


def _whose(key: Path) -> str:
    try:
        found = key.stat()
    except OSError as error:
        return f"of an unknown owner: {error.strerror}"
    return f"of uid {found.st_uid}, gid {found.st_gid}, mode {stat.S_IMODE(found.st_mode):04o}"


def _invalid(message: str) -> FatalError:
    hint = "mount the job's private key in PEM or OpenSSH format, as `ssh-keygen -N ''` makes one"
    return FatalError("mpi-key-invalid", message, hint=hint)
