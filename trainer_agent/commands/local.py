"""`local`: rehearse a job of several nodes on this machine, with the environment that the controller would inject."""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL
from typing import IO, TYPE_CHECKING, Any

import click

from trainer_agent.accelerators import find_accelerators
from trainer_agent.env import wants_colour
from trainer_agent.errors import ExitCode, FatalError, Terminated
from trainer_agent.host import Host
from trainer_agent.process import adopt_orphans, exit_code, kill_descendants, spawn

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Mapping

    from trainer_agent.accelerators import Accelerators

JOB = "local"
COLOURS = (36, 33, 35, 32, 34, 31)
# What a node may need to end after SIGTERM: the default grace of a pod.
GRACE_S = 30.0
READ_BYTES = 1 << 16
# What SIGKILL does not end may hold a pipe open; after this long without a word we leave it.
SILENCE_S = 2.0
TIMELINE = "timeline.jsonl"
VISIBLE = "CUDA_VISIBLE_DEVICES"
# The controller would inject none of these; they would reach every node from the user's shell.
FOREIGN = (
    "PET_",
    "JAX_",
    "DMLC_",
    "JOB_COMPLETION_INDEX",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
)


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--nnodes", type=click.IntRange(min=1), default=2, show_default=True, show_envvar=True, help="How many.")
@click.option("--nproc-per-node", default="1", show_default=True, show_envvar=True, help="A number, auto, cpu or gpu.")
@click.option(
    "--workdir",
    type=click.Path(file_okay=False),
    show_envvar=True,
    help="Reports, logs and data go to DIR/node-<rank>. Default: a new directory under the temporary one.",
)
@click.option(
    "--steps", default="preflight,initialize,launch", show_default=True, show_envvar=True, help="As for `run`."
)
@click.argument("script", nargs=-1, required=True, type=click.UNPROCESSED)
def local(nnodes: int, nproc_per_node: str, workdir: str | None, steps: str, script: tuple[str, ...]) -> int:
    """
    Rehearse a job on this machine: NNODES agents go preflight, initialize, launch, as they would in their pods.

    \b
    trainer-agent local --nnodes 2 --nproc-per-node 2 -- train.py
    """
    directory = Path(workdir or tempfile.mkdtemp(prefix="trainer-agent-local-"))
    rehearsal = Rehearsal(nnodes, nproc_per_node, steps, script, directory)
    code = rehearsal.run(os.environ)
    click.echo(rehearsal.summary(code), err=True)
    return code


@dataclass
class Node:
    """One agent: its rank, its process and the pipes of its two streams."""

    rank: int
    directory: Path
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    code: int | None = None


@dataclass
class Rehearsal:
    """N agents on this machine; the first that fails decides the exit code and ends the others."""

    nnodes: int
    nproc: str
    steps: str
    script: tuple[str, ...]
    directory: Path
    nodes: list[Node] = field(default_factory=list)
    first_failure: int | None = None
    deadline: float = float("inf")

    def run(self, environ: Mapping[str, str]) -> int:
        """
        Run all nodes to their end and return one exit code; nothing of them is left when this returns.

        Raises:
            FatalError: the work directory cannot be written.
        """
        adopt_orphans()
        port = _free_port()
        shares = gpu_shares(find_accelerators(Host(), environ), environ, self.nnodes)
        selector = selectors.DefaultSelector()
        try:
            for rank in range(self.nnodes):
                self._start(rank, node_environment(self, rank, port, {**environ, **shares[rank]}), selector)
            while any(node.code is None for node in self.nodes):
                self._forward(selector)
                self._collect()
            self._show_rest(selector)
        except Terminated as stop:
            self._stop(stop.signum)
            self.first_failure = 128 + stop.signum
            self._drain(selector)
        finally:
            kill_descendants()
            selector.close()
            for node in self.nodes:
                node.log.close()
        return max(node.code or 0 for node in self.nodes) if self.first_failure is None else self.first_failure

    def summary(self, code: int) -> str:
        """Return what each step of each node took and where reports and logs lie."""
        lines = ["", f"{'node':<6}{'step':<12}{'exit':>4}{'seconds':>9}"]
        lines += [_row(node.rank, step) for node in self.nodes for step in _timeline(node.directory)]
        return "\n".join([*lines, f"exit code {code}; reports and logs are in {self.directory}/node-*"])

    def _start(self, rank: int, env: dict[str, str], selector: selectors.BaseSelector) -> None:
        directory = node_directory(self.directory, rank)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for old in ("preflight.json", "termination-log", TIMELINE):
                (directory / old).unlink(missing_ok=True)
            log = (directory / "log.txt").open("wb")
        except OSError as error:
            raise FatalError(
                "not-writable", f"cannot write to {directory}: {error.strerror}", hint="give another --workdir"
            ) from error
        pipes = {name: os.pipe() for name in ("stdout", "stderr")}
        # -P: the user's directory, where we are started, may hold a click.py.
        argv = [sys.executable, "-P", "-m", "trainer_agent", "run", "--steps", self.steps, "--", *self.script]
        process = spawn(argv, env=env, stdin=DEVNULL, stdout=pipes["stdout"][1], stderr=pipes["stderr"][1])
        node = Node(rank, directory, process, log)
        self.nodes.append(node)
        for name, (read, write) in pipes.items():
            os.close(write)
            target = sys.stdout if name == "stdout" else sys.stderr
            selector.register(read, selectors.EVENT_READ, Stream(node, target))

    def _forward(self, selector: selectors.BaseSelector, seconds: float | None = None) -> bool:
        """Pass on what the nodes say within some seconds, by default until the deadline; return whether they did."""
        left = max(0.0, min(0.2, self.deadline - time.monotonic())) if seconds is None else seconds
        if not selector.get_map():
            time.sleep(min(left, 0.02))
        ready = selector.select(left) if selector.get_map() else []
        for key, _ in ready:
            data = os.read(key.fd, READ_BYTES)
            key.data.write(data)
            if not data:
                selector.unregister(key.fd)
                os.close(key.fd)
        return bool(ready)

    def _collect(self) -> None:
        for node in (n for n in self.nodes if n.code is None):
            pid, status = os.waitpid(node.process.pid, os.WNOHANG)
            if not pid:
                continue
            node.process.returncode = node.code = exit_code(status)
            if node.code not in self._good and self.first_failure is None:
                self.first_failure = node.code
                self._stop(signal.SIGTERM)
        if time.monotonic() >= self.deadline:
            kill_descendants()

    @property
    def _good(self) -> tuple[int, ...]:
        """Exit codes that end no rehearsal: warnings are the preflight's, and 10 of a training is its own."""
        return (ExitCode.PASS,) if "launch" in self.steps else (ExitCode.PASS, ExitCode.WARN)

    def _stop(self, signum: int) -> None:
        """Stop what still runs, as a failed job's pods would be; SIGINT reaches pods as SIGTERM."""
        self.deadline = min(self.deadline, time.monotonic() + GRACE_S)
        for node in (n for n in self.nodes if n.code is None):
            with suppress(ProcessLookupError):
                os.kill(node.process.pid, signal.SIGTERM if signum == signal.SIGINT else signum)

    def _drain(self, selector: selectors.BaseSelector) -> None:
        """After an interrupt: let the nodes end within the grace; a second interrupt ends the patience."""
        with suppress(Terminated):
            while any(node.code is None for node in self.nodes):
                self._forward(selector)
                self._collect()
            self._show_rest(selector)

    def _show_rest(self, selector: selectors.BaseSelector) -> None:
        """Show what is still in the pipes; with nobody left to write they have an end."""
        kill_descendants()
        while self._forward(selector, SILENCE_S):
            pass


class Stream:
    """One stream of one node: whole lines go to `target` with the node's rank before them."""

    def __init__(self, node: Node, target: Any) -> None:
        self.node = node
        self.target = target
        self.rest = b""
        colour = COLOURS[node.rank % len(COLOURS)]
        prefix = f"[node {node.rank}]"
        coloured = wants_colour(target, os.environ)
        self.prefix = f"\033[{colour}m{prefix}\033[0m " if coloured else f"{prefix} "

    def write(self, data: bytes) -> None:
        """Take some bytes; none means the end."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        if not data and self.rest:
            lines, self.rest = [self.rest], b""
        for line in lines:
            self.node.log.write(line + b"\n")
            self.target.write(self.prefix + line.decode(errors="replace") + "\n")
        self.node.log.flush()
        self.target.flush()


def node_directory(workdir: Path, rank: int) -> Path:
    """Return where one node's files lie."""
    return workdir.absolute() / f"node-{rank}"


def node_environment(rehearsal: Rehearsal, rank: int, port: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what the controller would inject into pod `rank`, on top of the user's own environment."""
    directory = node_directory(rehearsal.directory, rank)
    kept = {k: v for k, v in environ.items() if not k.startswith(FOREIGN)}
    defaults = {
        # NCCL refuses one GPU for two processes of one host; between hosts data goes as it would in a cluster.
        "NCCL_HOSTID": f"{JOB}-node-0-{rank}",
        "TRAINER_AGENT_LOG_FORMAT": "console",
        "TRAINER_AGENT_LAUNCH_SUPERVISE": "1",  # in a pod the agent is PID 1
        "TRAINER_AGENT_PREFLIGHT_PROFILE": "quick",  # they share the devices: work on these would measure the crowd
        "TRAINER_AGENT_PREFLIGHT_REPORT_FILE": str(directory / "preflight.json"),
        "TRAINER_AGENT_PREFLIGHT_TERMINATION_LOG": str(directory / "termination-log"),
        "TRAINER_AGENT_INIT_ALL_TERMINATION_LOG": str(directory / "termination-log"),
        "TRAINER_AGENT_LAUNCH_TERMINATION_LOG": str(directory / "termination-log"),
        "TRAINER_AGENT_RUN_TIMELINE": str(directory / TIMELINE),
        "TRAINER_AGENT_INIT_DATASET_OUTPUT_PATH": str(directory / "workspace" / "dataset"),
        "TRAINER_AGENT_INIT_MODEL_OUTPUT_PATH": str(directory / "workspace" / "model"),
    }
    injected = {
        "HOSTNAME": f"{JOB}-node-0-{rank}",
        "JOB_COMPLETION_INDEX": str(rank),
        "PET_NNODES": str(rehearsal.nnodes),
        "PET_NPROC_PER_NODE": rehearsal.nproc,
        "PET_NODE_RANK": str(rank),
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": str(port),
        "PYTHONUNBUFFERED": "1",  # lines appear when they are written
    }
    return {**defaults, **kept, **injected}


def gpu_shares(found: Accelerators, environ: Mapping[str, str], nnodes: int) -> list[dict[str, str]]:
    """Return what has each node see as many of NVIDIA's GPUs, and none of another's; nothing where there are fewer."""
    listed = environ.get(VISIBLE)
    gpus = [str(index) for index in range(found.count)] if listed is None else listed.split(",")[: found.count]
    each = len(gpus) // nnodes
    if not each or not (found.kind == "nvidia" or (found.kind == "mig" and listed)):
        return [{}] * nnodes
    return [{VISIBLE: ",".join(gpus[rank * each :][:each])} for rank in range(nnodes)]


def _row(rank: int, step: dict[str, Any]) -> str:
    code = "-" if step["exit_code"] is None else step["exit_code"]
    return f"{rank:<6}{step['step']:<12}{code:>4}{step['seconds']:>9.1f}"


def _timeline(directory: Path) -> Iterator[dict[str, Any]]:
    with suppress(OSError):
        for line in (directory / TIMELINE).read_text().splitlines():
            yield json.loads(line)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
