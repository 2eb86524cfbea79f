"""
How the meeting of a gang grows with its nodes: from the first hello to the last node that has read the verdict.

Rank 0 is the real one, with the store in the process that serves it in a job. The others are real members, each with
a connection of its own to that store, and a thread instead of a machine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from gang_hello import hello, marks

import preflight_checks
from trainer_agent.gang.course import Plan
from trainer_agent.gang.door import Door
from trainer_agent.gang.member import Member, NotOpenError, packed, unpacked
from trainer_agent.gang.node import Node, poll_s
from trainer_agent.gang.setting import Setting
from trainer_agent.gang.torch_side import NO_NAMES, TorchSide
from trainer_agent.host import Host
from trainer_agent.log import configure
from trainer_agent.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from multiprocessing.connection import Connection

NODES, RUNS, AIM_S = (64, 256, 1024), 5, 3.0
UNPACKINGS = 11
WORKERS = 2  # processes that the nodes are threads of
LIMIT_S = 120.0
PROGRAM = Path(preflight_checks.__file__).parent / "probes" / "gang_probe.py"
COLUMNS = (
    "nodes",
    "connect s",
    "roll-call to verdict s",
    "min-max",
    "store MB",
    "total MB",
    "asks a node",
    "kB a node",
    "unpack ms",
)
# NVIDIA/NVSentinel, issue 1522, as its "Configuration Guidance" has it; see the results for what it measured.
PUBLISHED = ("1,000 pods, NVSentinel, published", "", "206", "", "", "11,200", "", "", "")


class Wire:
    """A connection to the store, as `trainer_agent.gang.store.Store` wants it; counts what goes through it."""

    def __init__(self, port: int) -> None:
        from torch.distributed import TCPStore

        limit = timedelta(seconds=LIMIT_S)
        self.store = TCPStore("127.0.0.1", port, None, is_master=False, timeout=limit, wait_for_workers=False)
        self.asks = self.bytes = 0

    def _count(self, *texts: str) -> None:
        self.asks += 1
        self.bytes += sum(map(len, texts))

    def set(self, key: str, value: str) -> None:
        """Set a value."""
        self._count(key, value)
        self.store.set(key, value)

    def get(self, keys: Sequence[str]) -> list[str]:
        """Return values."""
        values = [value.decode() for value in self.store.multi_get(list(keys))]
        self._count(*keys, *values)
        return values

    def add(self, key: str, amount: int) -> int:
        """Add to a number."""
        self._count(key)
        return int(self.store.add(key, amount))

    def compare_set(self, key: str, expected: str, value: str) -> str:
        """Set a value where it is what is expected."""
        self._count(key, expected, value)
        return str(self.store.compare_set(key, expected, value).decode())

    def has(self, keys: Sequence[str]) -> bool:
        """Return whether all keys are there."""
        self._count(*keys)
        return bool(self.store.check(list(keys)))


@dataclass
class Life:
    """What one simulated node went through, in seconds on the clock that all processes share."""

    connected: float = 0.0
    began: float = 0.0
    over: float = 0.0
    asks: int = 0
    bytes: int = 0
    verdict: str = ""
    problem: str = ""


class Gate:
    """
    What the nodes of one process share.

    Each of them fetches the verdict, and the first unpacks it for all: machines do that at the same time, and here
    they would wait for one another.
    """

    def __init__(self) -> None:
        self.connected = threading.Semaphore(0)
        self.go = threading.Event()
        self.unpacking = threading.Lock()
        self.text, self.verdict = "", dict[str, Any]()

    def unpack(self, text: str) -> dict[str, Any]:
        """Return the verdict that a node has read."""
        with self.unpacking:
            if text != self.text:
                self.text, self.verdict = text, unpacked(text)
            return self.verdict


def live(rank: int, nnodes: int, *, port: int, gate: Gate) -> Life:
    """Be a node: connect, say hello when told to, look until there is a verdict, and read it."""
    life = Life()
    try:
        wire = Wire(port)
        life.connected = time.monotonic()
        gate.connected.release()
        gate.go.wait()
        life.began = time.monotonic()
        verdict = gate.unpack(_take_part(wire, rank=rank, nnodes=nnodes))
        life.over = time.monotonic()
        life.verdict, life.asks, life.bytes = verdict["verdict"], wire.asks, wire.bytes
    except Exception as error:  # noqa: BLE001 - whatever it is, the run is void, and this says why
        life.problem = f"{type(error).__name__}: {error}"
        gate.connected.release()
    return life


def _take_part(wire: Wire, *, rank: int, nnodes: int) -> str:
    """Do what `trainer_agent.gang.node.Node` does between its connection and the verdict."""
    member = Member(wire, rank=rank, born=1.0)
    said = hello(rank, nnodes)
    while True:
        try:
            member.join(said, attempt="", now=time.monotonic(), wall=time.time)
            break
        except NotOpenError:
            time.sleep(0.05)
    board: dict[str, Any] = {}
    while not board.get("verdict"):
        time.sleep(poll_s(1, nnodes))
        now = time.monotonic()
        member.beat(now)
        board = member.look(now=now) or board
    return member.read_verdict()


def work(ranks: Sequence[int], nnodes: int, *, port: int, pipe: Connection) -> None:
    """Be some nodes, in a process of their own: say when all are connected, and how each fared."""
    os.environ.update(NO_NAMES)
    sys.setswitchinterval(1.0)  # a thread that waits for Python's lock wakes so often; no machine waits for another's
    threading.stack_size(256 << 10)
    gate, lives = Gate(), dict[int, Life]()

    def one(rank: int) -> None:
        lives[rank] = live(rank, nnodes, port=port, gate=gate)

    threads = [threading.Thread(target=one, args=[rank]) for rank in ranks]
    for thread in threads:
        thread.start()
    for _ in ranks:
        gate.connected.acquire()
    pipe.send("connected")
    pipe.recv()
    gate.go.set()
    for thread in threads:
        thread.join()
    pipe.send((list(lives.values()), peak_mb("self")))


def unpack_ms(verdict: Mapping[str, Any]) -> float:
    """Return how long a machine of its own takes to unpack a verdict."""
    text, took = packed(verdict), []
    for _ in range(UNPACKINGS):
        began = time.perf_counter()
        unpacked(text)
        took.append(time.perf_counter() - began)
    return statistics.median(took) * 1000


def peak_mb(pid: int | str) -> float:
    """Return the most memory that a process has held."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6


@dataclass(frozen=True)
class Run:
    """One meeting: seconds, memory in MB (what processes share is counted for each), and the means of the nodes."""

    connect_s: float
    meet_s: float
    store_mb: float
    total_mb: float
    asks: float
    bytes: float
    unpack_ms: float


def run(nnodes: int, *, workers: int = WORKERS) -> Run:
    """Let so many nodes meet once."""
    import torch.distributed  # noqa: F401 - before the forks, which then need not

    with rank_zero(nnodes) as (node, store):
        fork = multiprocessing.get_context("fork")
        began, pipes, processes = time.monotonic(), [], []
        for number in range(workers):
            ours, theirs = fork.Pipe()
            ranks = range(1 + number, nnodes, workers)
            how = {"port": node.setting.port, "pipe": theirs}
            processes.append(fork.Process(target=work, args=[ranks, nnodes], kwargs=how, daemon=True))
            processes[-1].start()
            theirs.close()
            pipes.append(ours)
        for pipe in pipes:
            pipe.recv()
        for pipe in pipes:
            pipe.send("go")
        verdict = node.run()
        answers = [pipe.recv() for pipe in pipes]
        for process in processes:
            process.join()
        memory = [peak_mb(store), peak_mb("self"), *(mb for _, mb in answers)]
    lives = [life for lives, _ in answers for life in lives]
    problems = {life.problem for life in lives if life.problem} | {x.verdict for x in lives if x.verdict != "pass"}
    if problems or verdict["verdict"] != "pass":
        sys.exit(f"{nnodes} nodes did not meet: {problems} {verdict['summary']}")
    return Run(
        max(life.connected for life in lives) - began,
        max(life.over for life in lives) - min(life.began for life in lives),
        memory[0],
        sum(memory),
        statistics.mean(life.asks for life in lives),
        statistics.mean(life.bytes for life in lives),
        unpack_ms(verdict),
    )


@contextmanager
def rank_zero(nnodes: int) -> Iterator[tuple[Node, int]]:
    """Make rank 0 with its store open; yield it, and the pid of the process that has the store."""
    port = free_port()
    door = Door(port + 1)
    try:
        with TorchSide(sys.executable, str(PROGRAM), {"PATH": "/usr/bin:/bin"}) as side:
            side.wait_until_ready(60)
            side.ask("serve", port=port, timeout_s=5.0, answer_s=10.0)
            zygote = next(p for p in psutil.Process().children(recursive=True) if str(PROGRAM) in words_of(p))
            store = max(process.pid for process in zygote.children())
            topology = Topology("torch", nnodes, nnodes, 0, 8, "127.0.0.1", port - 1, "static", "job1-node-0-0")
            plan = Plan(nnodes, collective="left out")
            setting = Setting(topology, Host(), side, door, plan, port, hello(0, nnodes), 1.0)
            yield Opened(setting), store
    finally:
        door.close()


def words_of(process: psutil.Process) -> list[str]:
    """Return the words of a process's command, none when it has just ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


class Opened(Node):
    """Rank 0 whose meeting place is open already, so that the others could connect before the clock starts."""

    def _open(self, deadline: float) -> None:
        """Do nothing."""


def free_port() -> int:
    """Return a port that is free, as is the next one."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


def row(nnodes: int, runs: Sequence[Run]) -> list[str]:
    """Return the cells of a line: medians of times, the largest of memory."""
    times = [one.meet_s for one in runs]
    return [
        str(nnodes),
        f"{statistics.median(one.connect_s for one in runs):.2f}",
        f"{statistics.median(times):.2f}",
        f"{min(times):.2f}-{max(times):.2f}",
        f"{max(one.store_mb for one in runs):.0f}",
        f"{max(one.total_mb for one in runs):.0f}",
        f"{statistics.mean(one.asks for one in runs):.0f}",
        f"{statistics.mean(one.bytes for one in runs) / 1000:.0f}",
        f"{statistics.median(one.unpack_ms for one in runs):.1f}",
    ]


def line(cells: Sequence[str]) -> str:
    """Return a line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=NODES, help="sizes of the gang (%(default)s)")
    parser.add_argument("--runs", type=int, default=RUNS, help="runs of each (%(default)s)")
    parser.add_argument("--workers", type=int, default=WORKERS, help="processes for the nodes (%(default)s)")
    given = parser.parse_args()
    configure({})  # to standard error
    print(f"a node tells {len(json.dumps(hello(1, 1024)))} bytes of itself, {len(json.dumps(marks(1)))} as fingerprint")
    print(line(COLUMNS))
    print(line(["-" * len(name) for name in COLUMNS]))
    for nnodes in given.nodes:
        runs = [run(nnodes, workers=given.workers) for _ in range(given.runs)]
        print(line(row(nnodes, runs)), flush=True)
    print(line(PUBLISHED))
    if nnodes == max(NODES):
        print(f"{nnodes} nodes take {statistics.median(one.meet_s for one in runs):.2f} s of their {AIM_S:g}")


if __name__ == "__main__":
    main()
