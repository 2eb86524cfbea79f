"""
MPI jobs in the lab's pods: a launcher, workers with sshd, the key, the hostfile and the image that both run.

Every pod gets an image of its own on memory, over the machine's: /etc with ssh's settings and /etc/mpi, homes with the
job's key in .ssh, /run, /tmp and /dev/shm. So programs find everything where it is in a cluster, and nothing is
written anywhere else. It works as root, who may also run a job as an ordinary user.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpi_programs import HOSTFILE
from podlab import AGENT, JOB, LAUNCHER, NAMESPACE, PATH, SCRIPTS, LabError, eventually

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mpi_programs import Implementation
    from podlab import Container, Lab, Pod

TOOLS = ("ssh", "ssh-keygen", "sshd")
SSHD = "/usr/sbin/sshd"
SSH_PORT = 2222
SLOTS = 2
# The pod's user that is not root, with the home that mpi-operator mounts the key in.
USER, USER_ID, USER_HOME = "mpiuser", 1000, "/home/mpiuser"
HOMES = {0: "/root", USER_ID: USER_HOME}
# As in mpioperator/base.
SSH_CONFIG = f"Host *\n    Port {SSH_PORT}\n    StrictHostKeyChecking no\n    UserKnownHostsFile /dev/null\n"
# Of two lines with `search` the last one counts.
SEARCHES = f"search {JOB}.{NAMESPACE} {NAMESPACE} svc.cluster.local cluster.local\n"
# Its images are made for Open MPI as root.
OF_THE_IMAGE = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
PYTHON = str(Path(sys.executable))

# $1 is the folder with what differs between pods, $2 the home; the rest are paths that are to stay as they are.
FURNISH = """set -e
files=$1 home=$2; shift 2
mount -t tmpfs -o mode=755 tmpfs /mnt
for path in /etc /root /home /tmp "$@"; do mkdir -p "/mnt$path"; mount --rbind "$path" "/mnt$path"; done
mount -t tmpfs -o mode=755 tmpfs /etc
ln -s /mnt/etc/* /etc/
rm /etc/hosts /etc/resolv.conf /etc/nsswitch.conf /etc/passwd /etc/ssh
for name in hosts resolv.conf nsswitch.conf; do cp -L "/mnt/etc/$name" /etc/; done
cat "$files/passwd" /mnt/etc/passwd >/etc/passwd
cat "$files/resolv.conf" >>/etc/resolv.conf
mkdir /etc/ssh /etc/mpi
cp "$files/ssh_config" /etc/ssh/
: >/etc/mpi/hostfile
mount --bind "$files/hostfile" /etc/mpi/hostfile
for place in /root /home /run; do mount -t tmpfs -o mode=755 tmpfs "$place"; done
for place in /tmp /dev/shm; do mount -t tmpfs -o mode=1777 tmpfs "$place"; done
for path in "$@"; do mkdir -p "$path"; mount --rbind "/mnt$path" "$path"; done
mkdir -p /run/sshd /home/mpiuser "$home/.ssh"
chown 1000:1000 /home/mpiuser
mount --bind "$files/ssh" "$home/.ssh"
mount -o remount,bind,ro "$home/.ssh"
"""


def missing_tools() -> list[str]:
    """Return the programs that MPI needs beside the lab's and this machine lacks."""
    return [tool for tool in TOOLS if shutil.which(tool, path=PATH) is None]


def make_key(directory: Path) -> Path:
    """Make a key pair as Trainer does, ECDSA P-521 in PEM; return the private key."""
    key = directory / "id_rsa"
    options = ("-q", "-t", "ecdsa", "-b", "521", "-m", "PEM", "-N", "", "-C", "", "-f", str(key))
    subprocess.run(["ssh-keygen", *options], check=True, timeout=60)
    return key


@dataclass
class MpiJob:
    """
    An MPI job in a lab.

    Args:
        key_mode: the mode of id_rsa; Trainer's is 0640, which OpenSSH refuses to read for the file's owner.
        uid: who runs everything, 0 or `USER_ID`.
        searches: whether the pods' bare names can be looked up, as mpi-operator sees to it and Trainer does not.
        slots: processes on each host.
        host_key: what plain workers show of themselves, where that is not the job's own key.
    """

    lab: Lab
    implementation: Implementation
    key_mode: int = 0o640
    uid: int = 0
    searches: bool = False
    slots: int = SLOTS
    nodes: int = 3
    host_key: Path | None = None
    furnished: set[str] = field(default_factory=set)

    @property
    def launcher(self) -> Pod:
        """The pod in which mpirun runs."""
        return self.lab.pods[LAUNCHER]

    @property
    def workers(self) -> list[Pod]:
        """The pods with sshd."""
        return [self.lab[rank] for rank in range(self.nodes)]

    @cached_property
    def key(self) -> Path:
        """The job's private key."""
        return make_key(self.files("key"))

    @property
    def hosts(self) -> list[str]:
        """The names in the hostfile."""
        return [f"{pod.name}.{JOB}" for pod in self.workers]

    def files(self, name: str) -> Path:
        """Return a folder for what is bound into pods."""
        path = self.lab.directory / f"mpi-{name}"
        path.mkdir(exist_ok=True)
        return path

    def hostfile(self, *, launcher: bool = False) -> str:
        """Return what the controller writes; with `launcher` it takes part, in the last line as Trainer has it."""
        names = [*self.hosts, *([f"{LAUNCHER}.{JOB}"] if launcher else [])]
        return self.implementation.hostfile(dict.fromkeys(names, self.slots))

    def furnish(self, *pods: Pod, hostfile: str | None = None, key: Path | None = None) -> None:
        """Give pods, all that have none without arguments, the image and what the controller mounts."""
        self.lab.directory.chmod(0o755)  # the user may look
        for pod in pods or [pod for pod in (*self.workers, self.launcher) if pod.name not in self.furnished]:
            self.furnished.add(pod.name)
            files = self.files(pod.name)
            (files / "hostfile").write_text(self.hostfile() if hostfile is None else hostfile, newline="")
            (files / "ssh_config").write_text(SSH_CONFIG)
            (files / "resolv.conf").write_text(SEARCHES if self.searches else "")
            (files / "passwd").write_text(f"{USER}:x:{USER_ID}:{USER_ID}::{USER_HOME}:/bin/bash\n")
            self._mount_key(files / "ssh", key or self.key)
            stay = dict.fromkeys((sys.base_prefix, sys.prefix, str(SCRIPTS.parents[2]), str(self.lab.directory)))
            self._in(pod, "sh", "-c", FURNISH, "sh", str(files), HOMES[self.uid], *stay)

    def _mount_key(self, folder: Path, key: Path) -> None:
        """As the kubelet mounts a secret: links into a folder; for an ordinary user its files have the fsGroup."""
        held = folder / "..data"
        held.mkdir(parents=True)
        folder.chmod(0o1777)
        public = key.with_suffix(".pub").read_text()
        contents = {"id_rsa": key.read_text(), "id_rsa.pub": public, "authorized_keys": public}
        for name, text in contents.items():
            (held / name).write_text(text)
            (held / name).chmod(self.key_mode if name == "id_rsa" else 0o644)
            shutil.chown(held / name, 0, self.uid)
            (folder / name).symlink_to(f"..data/{name}")

    def _in(self, pod: Pod, *argv: str) -> None:
        command = [*self.lab.enter(pod.holder), *argv]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env={"PATH": PATH})
        if done.returncode:
            raise LabError(f"cannot furnish {pod.name}: {done.stderr.strip()}")

    @property
    def env(self) -> dict[str, str]:
        """What a container of the image has: the implementation on PATH, and /tmp."""
        return {"PATH": f"{self.implementation.bin}:{PATH}", "TMPDIR": "/tmp", "HOME": HOMES[self.uid]}

    def run(self, pod: Pod, *argv: str, env: Mapping[str, str] | None = None) -> Container:
        """Start a command as PID 1 of a container of the image, as the job's user."""
        if pod.name not in self.furnished:
            self.furnish(pod)
        user = (str(self.uid),) * 2
        become = ("setpriv", "--reuid", user[0], "--regid", user[1], "--clear-groups") if self.uid else ()
        container = pod.run(*become, *argv, env={**self.env, **(env or {})})
        (container.directory / "kubelet-file").chmod(0o666)
        return container

    def sshd(self, pod: Pod, how: str = "plain", *, env: Mapping[str, str] | None = None) -> Container:
        """Start a worker and wait for its port: `plain` is what images do today, `agent` is `trainer-agent worker`."""
        container = self.worker(pod, how, env=env)
        what = f"sshd of {pod.name} listens"
        eventually(lambda: container.listens(SSH_PORT) or container.ended, what=what)
        if container.ended:
            raise AssertionError(container.story())
        return container

    def worker(self, pod: Pod, how: str = "plain", *, env: Mapping[str, str] | None = None) -> Container:
        """Start a worker."""
        if how == "agent":
            return self.run(pod, AGENT, "worker", env=env)
        if pod.name not in self.furnished:
            self.furnish(pod)
        return self.run(pod, SSHD, "-De", "-f", str(self._sshd_config(pod)), env=env)

    def _sshd_config(self, pod: Pod) -> Path:
        """As in mpioperator/base, and a host key that sshd accepts."""
        files = self.files(pod.name)
        host_key = files / "host_key"
        shutil.copyfile(self.host_key or self.key, host_key)
        host_key.chmod(0o600)
        shutil.chown(host_key, self.uid, self.uid)
        lines = (f"Port {SSH_PORT}", f"HostKey {host_key}", "StrictModes no", "UsePAM no", "PidFile none")
        config = files / "sshd_config"
        config.write_text("\n".join((*lines, "")))
        return config

    def workers_ready(self, how: str = "plain") -> list[Container]:
        """Start all workers and wait for their ports."""
        return [self.sshd(pod, how) for pod in self.workers]

    def launch(self, *command: str, env: Mapping[str, str] | None = None) -> Container:
        """Start `trainer-agent launch` where the controller's variables are; `command` may be options, `--` and it."""
        words = command if "--" in command else ("--", *command)
        return self._launcher(AGENT, "launch", "--termination-log", "termination-log", *words, env=env or {})

    def plain(self, *command: str, env: Mapping[str, str] | None = None) -> Container:
        """Start a bare `mpirun COMMAND` there, as users do who trust in the injected variables."""
        return self._launcher("mpirun", *command, env={**OF_THE_IMAGE, **(env or {})})

    def sdk(self, *command: str, env: Mapping[str, str] | None = None) -> Container:
        """Start what Kubeflow's SDK sends, which names the hostfile."""
        line = ("mpirun", "--hostfile", HOSTFILE, *command)
        return self._launcher(*line, env={**OF_THE_IMAGE, **(env or {})})

    def _launcher(self, *argv: str, env: Mapping[str, str]) -> Container:
        return self.run(self.launcher, *argv, env={**self.implementation.injected(self.slots), **env})


def script(name: str, *words: str) -> tuple[str, ...]:
    """Return the command of a rank's program: `script("who")`."""
    return (PYTHON, str(SCRIPTS / f"mpi_{name}.py"), *words)


def ranks(container: Container) -> list[dict[str, Any]]:
    """Return what the ranks of a `mpi_who.py` have printed, in their order."""
    found = []
    for line in container.stdout.splitlines():
        with_prefix = line.find('{"mpi_rank"')
        if with_prefix >= 0:
            found.append(json.loads(line[with_prefix:]))
    return sorted(found, key=lambda rank: rank["mpi_rank"])


def hosts_of(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the hosts, in the order of the ranks, each once."""
    return list(dict.fromkeys(rank["host"] for rank in found))
