"""
'Pods' on one machine, made of namespaces, with a name server of their own: a launcher and as many nodes as wanted.

All of it is one tree of processes below one `unshare`, which the kernel kills when its parent dies: nothing is left
behind, not even after `kill -9`. It works for root, and for a user who may make user namespaces.

    unshare (net, mount, ipc, pid)       bridge br0 with 10.77.0.1, dnsmasq; v0, v1… are the bridge's ends of links
    ├── pod job1-node-0-0                net, uts, ipc, mount and pid namespaces; eth0 with 10.77.0.10
    │   └── container                    a command as PID 1 of one more pid namespace
    └── …
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

JOB = "job1"
NAMESPACE = "default.svc.cluster.local"
GATEWAY = "10.77.0.1"
LAUNCHER = f"{JOB}-launcher-0-0"


def addresses(nodes: int) -> dict[str, str]:
    """Return the address of every pod of a lab with so many nodes, ten at most."""
    return {f"{JOB}-node-0-{i}": f"10.77.0.1{i}" for i in range(nodes)} | {LAUNCHER: "10.77.0.9"}


ADDRESSES = addresses(3)
MASTER = f"{JOB}-node-0-0.{JOB}"
PORT = 29500

BIN = Path(sys.executable).parent
AGENT, TORCHRUN = str(BIN / "trainer-agent"), str(BIN / "torchrun")
SCRIPTS = Path(__file__).parent / "scripts"
PATH = f"{BIN}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TOOLS = ("unshare", "nsenter", "setpriv", "mount", "hostname", "ip", "dnsmasq")

FRESH_PIDS = ("--pid", "--mount", "--fork", "--kill-child", "--mount-proc")
RESOLV = f"search {NAMESPACE} svc.cluster.local cluster.local\nnameserver {GATEWAY}\noptions ndots:5\n"
# What a container runtime does: enter the cgroup, mount the termination log, become the command.
RUNTIME = 'set -e; [ -z "$1" ] || echo 0 >"$1/cgroup.procs"; mount --bind "$2" "$3"; cd "$4"; shift 4; exec "$@"'
PATIENCE_S = 60.0  # what will happen happens later on a busy machine

T = TypeVar("T")


class LabError(Exception):
    """The lab cannot be built here."""


def eventually(condition: Callable[[], T], *, within: float = PATIENCE_S, what: str) -> T:
    """Return the first true answer of `condition`, asked every 20 ms for `within` seconds."""
    deadline = time.monotonic() + within
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within} s: {what}")
        time.sleep(0.02)
    return answer


def without(reason: str) -> NoReturn:
    """Skip, or fail where CI promises that everything is there."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason}, and CI=true")
    pytest.skip(reason)


def missing_tools() -> list[str]:
    """Return the programs that the lab needs and this machine lacks."""
    return [tool for tool in TOOLS if shutil.which(tool, path=PATH) is None]


def children(pid: int) -> list[int]:
    """Return the pids of a process's children, none when it is gone."""
    with suppress(psutil.NoSuchProcess):
        return [p.pid for p in psutil.Process(pid).children()]
    return []


class Lab:
    """The pods by name, and their name server, which knows no name until it is published."""

    def __init__(self, directory: Path, *, rootless: bool, nodes: int = 3) -> None:
        self.directory = directory
        self.rootless = rootless
        self.addresses = addresses(nodes)
        self.pods: dict[str, Pod] = {}
        self.holder = self.name_server = 0
        self.count = itertools.count()
        self.stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as on_failure:
            on_failure.callback(self.stack.close)
            self._build()
            on_failure.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stack.close()

    def __getitem__(self, rank: int) -> Pod:
        return self.pods[f"{JOB}-node-0-{rank}"]

    def publish(self, *pods: Pod) -> None:
        """Tell the name server the names of these pods, of all without arguments."""
        for pod in pods or self.pods.values():
            (self.directory / "names" / pod.name).write_text(f"{pod.address} {pod.name}.{JOB}.{NAMESPACE}\n")

    def withdraw(self, pod: Pod) -> None:
        """Let the name server forget this pod's name."""
        (self.directory / "names" / pod.name).unlink(missing_ok=True)
        os.kill(self.name_server, signal.SIGHUP)

    def queries(self, name: str, pod: Pod) -> int:
        """Return how often a pod has asked for the name, such as `MASTER`."""
        asked = f"query[A] {name}.{NAMESPACE} from {pod.address}"
        return (self.directory / "dns.log").read_text().count(asked)

    def silence(self) -> None:
        """Kill the name server, so that every lookup fails."""
        os.kill(self.name_server, signal.SIGKILL)

    def popen(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a process that is collected when the lab ends."""
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, **{"env": {"PATH": PATH}, **options})
        self.stack.callback(_collect, process)
        return process

    def enter(self, pid: int) -> list[str]:
        """Return the command prefix that enters the namespaces of `pid`."""
        user = ["--user", "--preserve-credentials"] if self.rootless else []
        return ["nsenter", "--target", str(pid), *user, "--net", "--uts", "--ipc", "--mount", "--pid"]

    def hold(self, prefix: Sequence[str], setup: str, *words: str) -> int:
        """Run a shell script in fresh namespaces; return the pid of the process that then keeps them open."""
        script = f"set -e; {setup}; echo ready; exec sleep infinity"
        process = self.popen([*prefix, "sh", "-c", script, "sh", *words], stdout=subprocess.PIPE)
        assert process.stdout is not None
        with process.stdout as pipe:
            if pipe.readline() != b"ready\n":
                raise LabError(f"cannot make namespaces: {' '.join(prefix)}")
        pid = process.pid
        while below := children(pid):
            pid = below[0]
        return pid

    def network(self, pid: int, *argv: str, text: str = "") -> str:
        """Run a network tool in the network of a process, the bridge's being `holder`; return what it printed."""
        user = ["--user", "--preserve-credentials"] if self.rootless else []
        argv = ("nsenter", "--target", str(pid), *user, "--net", *argv)
        done = subprocess.run(
            argv, input=text, check=False, env={"PATH": PATH}, timeout=10, capture_output=True, text=True
        )
        if done.returncode:
            raise LabError(f"{' '.join(argv)}: {done.stderr.strip()}")
        return done.stdout

    def _build(self) -> None:
        for folder in ("names", "containers"):
            (self.directory / folder).mkdir()
        user = ["--user", "--map-root-user"] if self.rootless else []
        prefix = ["setpriv", "--pdeathsig", "KILL", "unshare", *user, "--net", "--uts", "--ipc", *FRESH_PIDS]
        self.holder = self.hold(prefix, "true")
        for index, (name, address) in enumerate(self.addresses.items()):
            self.pods[name] = Pod(self, name, address, link=f"v{index}")
        self._cable()
        self._serve_names()

    def _cable(self) -> None:
        links = ["link set lo up", "link add br0 type bridge", f"addr add {GATEWAY}/24 dev br0", "link set br0 up"]
        for pod in self.pods.values():
            links.append(f"link add {pod.link} type veth peer name eth0 netns {pod.holder}")
            links.append(f"link set {pod.link} master br0 up")
        self.network(self.holder, "ip", "-batch", "-", text="\n".join(links))
        for pod in self.pods.values():
            own = f"link set lo up\naddr add {pod.address}/24 dev eth0\nlink set eth0 up"
            self.network(pod.holder, "ip", "-batch", "-", text=own)

    def _serve_names(self) -> None:
        names = f"--hostsdir={self.directory}/names"
        only = ["--no-hosts", "--no-resolv", "--local=/#/", "--local-ttl=0", "--neg-ttl=0", names]
        # --no-daemon: otherwise it drops its privileges, which a user namespace refuses.
        where = ["--no-daemon", "--conf-file=/dev/null", f"--listen-address={GATEWAY}", "--bind-interfaces"]
        log = self.directory / "dns.log"
        with log.open("wb") as file:
            server = self.popen([*self.enter(self.holder), "dnsmasq", "--log-queries", *only, *where], stderr=file)
        eventually(lambda: "started" in log.read_text(), what="dnsmasq has started")
        self.name_server = children(server.pid)[0]


class Pod:
    """Namespaces with a host name, an address, and the files that the kubelet writes."""

    SETUP = (
        'hostname "$1"; mount --bind "$2/hosts" /etc/hosts; mount --bind "$2/resolv.conf" /etc/resolv.conf; '
        'if [ -e /etc/nsswitch.conf ]; then mount --bind "$2/nsswitch.conf" /etc/nsswitch.conf; fi'
    )

    def __init__(self, lab: Lab, name: str, address: str, *, link: str) -> None:
        self.lab = lab
        self.name = name
        self.address = address
        self.link = link
        etc = lab.directory / name
        etc.mkdir()
        # As the kubelet writes it: the pod's own name is there, <pod>.<service> is not.
        (etc / "hosts").write_text(f"127.0.0.1\tlocalhost\n{address}\t{name}.{JOB}.{NAMESPACE}\t{name}\n")
        (etc / "resolv.conf").write_text(RESOLV)
        (etc / "nsswitch.conf").write_text("hosts: files dns\n")
        fresh = ["unshare", "--net", "--uts", "--ipc", *FRESH_PIDS]
        self.holder = lab.hold([*lab.enter(lab.holder), *fresh], self.SETUP, name, str(etc))

    def run(
        self, *argv: str, env: Mapping[str, str] | None = None, cgroup: Path | None = None, shared: bool = False
    ) -> Container:
        """Start a command as PID 1 of a pid namespace, or, as with shareProcessNamespace, as any process of the pod."""
        return Container(self, argv, env or {}, cgroup, ["--mount"] if shared else FRESH_PIDS)

    def launch(self, *argv: str, env: Mapping[str, str], cgroup: Path | None = None) -> Container:
        """Start `trainer-agent launch` with a termination log, as PID 1."""
        return self.run(AGENT, "launch", "--termination-log", "termination-log", *argv, env=env, cgroup=cgroup)


class Container:
    """A command that runs as PID 1, seen from outside."""

    def __init__(
        self, pod: Pod, argv: Sequence[str], env: Mapping[str, str], cgroup: Path | None, fresh: Sequence[str]
    ) -> None:
        self.pod = pod
        self.argv = argv
        self.shared = "--pid" not in fresh
        self.directory = pod.lab.directory / "containers" / str(next(pod.lab.count))
        (self.directory / "tmp").mkdir(parents=True)
        files = [self.directory / name for name in ("kubelet-file", "termination-log")]
        for file in files:
            file.touch()
        words = ["sh", "-c", RUNTIME, "sh", str(cgroup or ""), *map(str, files), str(self.directory), *argv]
        own = {"PATH": PATH, "HOME": "/tmp", "TMPDIR": str(self.directory / "tmp"), "HOSTNAME": pod.name}
        with (self.directory / "stdout").open("wb") as out, (self.directory / "stderr").open("wb") as err:
            prefix = [*pod.lab.enter(pod.holder), "unshare", *fresh]
            self.process = pod.lab.popen([*prefix, *words], env={**own, **env}, stdout=out, stderr=err)

    @cached_property
    def pid(self) -> int:
        """The pid of the command as it is here, outside: nsenter and unshare stand before it."""
        unshare = eventually(lambda: children(self.process.pid), what="nsenter has a child")[0]
        if self.shared:
            return unshare  # which has become the command, as it need not fork
        return eventually(lambda: children(unshare), what="unshare has a child")[0]

    @property
    def stdout(self) -> str:
        """What it has written so far."""
        return (self.directory / "stdout").read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """What it has written so far."""
        return (self.directory / "stderr").read_text(errors="replace")

    @property
    def logs(self) -> list[dict[str, Any]]:
        """The agent's own log lines."""
        return [json.loads(line) for line in self.stderr.splitlines() if line.startswith('{"')]

    def log(self, event: str) -> dict[str, Any]:
        """Return the log line with this text."""
        return next(line for line in self.logs if line["event"] == event)

    @property
    def termination(self) -> Any:
        """The termination message, from the file that is mounted over the termination log."""
        return json.loads((self.directory / "kubelet-file").read_bytes())

    @property
    def termination_bytes(self) -> int:
        """Its length."""
        return (self.directory / "kubelet-file").stat().st_size

    def printed(self, text: str) -> None:
        """Wait for a line of standard output."""
        eventually(lambda: text in self.stdout or self.ended, what=f"{text!r} is printed")
        assert text in self.stdout, self.story()

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.process.poll() is not None

    def signal(self, signum: signal.Signals) -> float:
        """Send a signal to PID 1 from outside; return when."""
        os.kill(self.pid, signum)
        return time.monotonic()

    def wait(self, *, within: float = PATIENCE_S) -> int:
        """Return its exit code."""
        try:
            return self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not ended within {within} s: {self.story()}") from None

    def outlives(self, seconds: float) -> bool:
        """Return whether it still runs after so many seconds."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return not self.ended

    def processes(self) -> list[psutil.Process]:
        """Return PID 1 and all its descendants, zombies too."""
        with suppress(psutil.NoSuchProcess):
            first = psutil.Process(self.pid)
            return [first, *first.children(recursive=True)]
        return []

    def of_each(self, ask: Callable[[psutil.Process], T]) -> list[T]:
        """Return what `ask` says of each process, but for those that end meanwhile."""
        answers = []
        for process in self.processes():
            with suppress(psutil.Error, OSError):
                answers.append(ask(process))
        return answers

    def listens(self, port: int) -> bool:
        """Return whether somebody in its network listens on `port`."""
        with suppress(OSError):
            files = [Path(f"/proc/{self.pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
            lines = [line.split() for text in files for line in text.splitlines()[1:]]
            return any(w[3] == "0A" and w[1].endswith(f":{port:04X}") for w in lines)
        return False

    def story(self) -> str:
        """Return what one wants to read when it did not do what it should."""
        return f"{' '.join(self.argv)}\n--- stdout\n{self.stdout[-2000:]}\n--- stderr\n{self.stderr[-4000:]}"


def _collect(process: subprocess.Popen[bytes]) -> None:
    """The first process takes the whole tree with it; wrappers outside of it only need to be waited for."""
    process.kill()
    process.wait(PATIENCE_S)
