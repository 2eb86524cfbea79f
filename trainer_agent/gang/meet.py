"""From the settings of a preflight to a gang, and from its verdict to the rows of the report."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer_agent import policy
from trainer_agent.accelerators import WORKS_ON_CUDA
from trainer_agent.check import CheckResult, Status
from trainer_agent.errors import Severity
from trainer_agent.gang import alone, peers, rules, speeds
from trainer_agent.gang.course import Plan, Work
from trainer_agent.gang.door import Door
from trainer_agent.gang.node import Node
from trainer_agent.gang.setting import Setting
from trainer_agent.gang.store import StoreLostError
from trainer_agent.gang.torch_side import TorchSide, TorchSideError
from trainer_agent.gang.verdict import results as rows_of
from trainer_agent.gang.verdict import seen_by
from trainer_agent.isolation import IsolatedError, isolated
from trainer_agent.log import get_logger
from trainer_agent.topology import MAX_PORT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trainer_agent.check import Context
    from trainer_agent.topology import Topology

MIB = 1 << 20
# By backend and profile: sizes for all ranks together, sizes for two nodes, seconds for each of these. A network card
# of 400 Gb/s needs some hundred MiB to show its rate; gloo on sockets needs some.
SIZES: dict[str, dict[str, tuple[tuple[int, ...], tuple[int, ...], float]]] = {
    "gloo": {
        "quick": ((), (), 0.0),
        "standard": ((MIB, 8 * MIB), (4 * MIB,), 0.1),
        "deep": ((MIB, 8 * MIB, 64 * MIB), (16 * MIB,), 0.3),
    },
    "nccl": {
        "quick": ((), (), 0.0),
        "standard": ((64 * MIB, 512 * MIB), (256 * MIB,), 0.5),
        "deep": ((64 * MIB, 512 * MIB, 16384 * MIB), (1024 * MIB,), 1.0),
    },
}
# Heuristic: gloo connects in milliseconds, NCCL takes seconds for its first communicator, and more for many ranks.
TIMEOUT_S = {"gloo": (10.0, 10.0), "nccl": (60.0, 30.0)}
EACH_RANK_S = 0.05
SCREEN = {"quick": 0, "standard": 1, "deep": 10}
READY_S = 120.0  # to import torch from a cold network file system
MOST_FINDINGS = 5  # of a node that failed
HISTORY_S = 5.0  # for a file that may lie on a file server


@dataclass(frozen=True)
class Asked:
    """
    What the command line says of the gang.

    Args:
        timeout_s: how long nodes wait for each other.
        port: of the meeting place; 0 for the one after the master port.
        attempt: nodes meet only those with the same.
        node_name: of the machine, as Kubernetes has it.
        history: a file with what earlier runs measured.
    """

    timeout_s: float
    port: int
    attempt: str
    node_name: str
    history: str | None


class Gathering:
    """This node's part in a gang: started before its own checks, so that torch is there when they are done."""

    def __init__(
        self, context: Context, asked: Asked, *, side: TorchSide, door: Door, tell: Callable[..., None]
    ) -> None:
        self.context = context
        self.tell = tell
        self.asked = asked
        self.side = side
        self.door = door
        self.port = port_of(context.topology, asked)
        self.born = context.host.now()

    def meet(self, results: Sequence[CheckResult]) -> tuple[list[CheckResult], dict[str, Any] | None]:
        """Meet the other nodes; return the rows of the report, and its section `gang`."""
        rank = self.context.topology.node_rank
        try:
            self.side.wait_until_ready(READY_S)
            plan = plan_of(self.context, self.asked)
            verdict = Node(self._setting(plan, hello_of(self.context, results, self.asked, self.born))).run()
        except (TorchSideError, StoreLostError) as error:
            row = _not_met(error)
            return [row if result.name == "roll-call" else result for result in results], None
        if rank == 0 and self.asked.history and verdict["verdict"] in ("pass", "warn"):
            _remember(self.asked.history, plan, verdict)
        return merged(results, rows_of(verdict, rank)), seen_by(verdict, rank)

    def _setting(self, plan: Plan, hello: dict[str, Any]) -> Setting:
        context = self.context
        side, door, port = self.side, self.door, self.port
        return Setting(context.topology, context.host, side, door, plan, port, hello, self.born, self.tell)


@contextmanager
def gathering(
    context: Context, asked: Asked, *, program: str, tell: Callable[..., None] = lambda **_: None
) -> Iterator[Gathering]:
    """
    Start what this node needs to meet others; nothing of it is left afterwards.

    Args:
        tell: on rank 0, takes how many nodes are here.
    """
    context = replace(context, topology=peers.at_rank_zero(context.topology))
    # Before the torch side, whose end waits until nobody else has its pipes.
    door = Door(port_of(context.topology, asked) + 1)
    try:
        own = {"rank": context.topology.node_rank, "attempt": asked.attempt, "job": peers.job_of(context.topology)}
        door.tell({**own, "state": alone.WAITING})
        with nccl_log(context) as log, TorchSide(context.python, program, {**context.environ, **log}) as side:
            yield Gathering(context, asked, side=side, door=door, tell=tell)
    finally:
        door.close()


@contextmanager
def nccl_log(context: Context) -> Iterator[dict[str, str]]:
    """Return the variables with which NCCL writes down what it uses, in a folder that is removed afterwards."""
    folder = ""
    if context.accelerators.kind in WORKS_ON_CUDA and "NCCL_DEBUG_FILE" not in context.environ:
        with suppress(OSError):  # nothing can be written here; then the transport is not known
            folder = tempfile.mkdtemp(prefix="trainer-agent-", dir=context.environ.get("TMPDIR"))
    if not folder:
        yield {}
        return
    try:  # the file of each process has its number
        yield {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": f"{folder}/%p"}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def port_of(topology: Topology, asked: Asked) -> int:
    """Return where the nodes meet: the port after the master port, before it where two more do not exist."""
    after = topology.master_port + 1
    return asked.port or (after if after < MAX_PORT else topology.master_port - 2)


def plan_of(context: Context, asked: Asked) -> Plan:
    """Return what is to be done, as rank 0 decides it."""
    options, nnodes = context.options, context.topology.max_nodes
    on_gpus = context.accelerators.kind in WORKS_ON_CUDA and context.accelerators.count
    backend = "nccl" if on_gpus else "gloo"
    per_node = min(context.nproc, context.accelerators.count) if on_gpus else 1
    together, pair, seconds = SIZES[backend][options.profile]
    all_s, pair_s = TIMEOUT_S[backend]
    left_out = {name: "" if name in options.running else "left out" for name in ("consistency", "collective")}
    return Plan(
        nnodes=nnodes,
        attempt=asked.attempt,
        job=peers.job_of(context.topology),
        gang_timeout_s=asked.timeout_s,
        backend=backend,
        per_node=per_node,
        all_ranks=Work(together, seconds, all_s + EACH_RANK_S * nnodes * per_node),
        pair=Work(pair, seconds, pair_s),
        screen=SCREEN[options.profile],
        consistency=left_out["consistency"],
        collective=left_out["collective"],
        history=tuple(_history(asked.history) if context.topology.node_rank == 0 else ()),
    )


def hello_of(context: Context, results: Sequence[CheckResult], asked: Asked, born: float) -> dict[str, Any]:
    """Return what this node tells of itself."""
    marks = next((dict(r.measurements) for r in results if r.name == "consistency"), {})
    verdict, _ = policy.decide(results)
    failed = [(r.name, f) for r in results if r.status is Status.FAIL for f in r.findings]
    errors = [(name, f) for name, f in failed if f.severity is Severity.ERROR]
    return {
        "hostname": context.topology.hostname,
        "node": asked.node_name,
        "nnodes": context.topology.max_nodes,
        "nproc": context.nproc,
        "marks": marks | {"checks": [r.name for r in results if r.status is not Status.SKIP]},
        "born": born,
        "local": {
            "verdict": str(verdict),
            "exit_code": int(verdict.exit_code),
            "message": errors[0][1].message if errors else "",
            "findings": [{"check": n, "code": f.code, "message": f.message} for n, f in errors[:MOST_FINDINGS]],
        },
    }


def _not_met(error: TorchSideError | StoreLostError) -> CheckResult:
    """
    Return the row of a node that could not take part.

    Where it could have, it fails, although nothing is known of the node: the others wait for it, and exit with 20.
    """
    text = f"the nodes did not meet: {error.message}"
    if isinstance(error, TorchSideError) and error.no_torch:
        return CheckResult("roll-call", Status.SKIP, text)
    finding = rules.TORCH_SIDE_ENDED.found(text)
    return CheckResult("roll-call", Status.FAIL, text, finding.action, findings=(finding,))


def merged(results: Sequence[CheckResult], rows: Mapping[str, CheckResult]) -> list[CheckResult]:
    """
    Return the rows of the report with those of the gang; a node's own consistency stays beside that of all.

    What rank 0 has everybody do may be left out here; a failure of it is not.
    """
    ours = {result.name for result in results}
    failed = [row for name, row in rows.items() if name not in ours and row.status is Status.FAIL]
    return [*(_merged(result, rows.get(result.name)) for result in results), *failed]


def _merged(ours: CheckResult, gang: CheckResult | None) -> CheckResult:
    if gang is None:
        return ours
    if ours.status is Status.SKIP:
        return ours if ours.message == "left out by --skip" and gang.status is not Status.FAIL else gang
    if gang.status is Status.SKIP:
        return ours
    order = [Status.PASS, Status.SKIP, Status.WARN, Status.ERROR, Status.FAIL]
    worst = max((ours, gang), key=lambda result: order.index(result.status))
    return replace(
        ours,
        status=worst.status,
        action=worst.action,
        message=f"{ours.message}; {gang.message}",
        duration_s=ours.duration_s + gang.duration_s,
        findings=(*gang.findings, *ours.findings),
    )


def _history(path: str | None) -> list[speeds.Row]:
    if not path:
        return []
    try:
        return list(isolated(lambda: _read(path), timeout_s=HISTORY_S))
    except IsolatedError as error:
        get_logger().warning("the history cannot be read", path=path, error=str(error))
        return []


def _read(path: str) -> list[speeds.Row]:
    with suppress(OSError):
        return speeds.read_history(Path(path).read_text(errors="replace").splitlines())
    return []


def _remember(path: str, plan: Plan, verdict: Mapping[str, Any]) -> None:
    """Add what was measured to the history; a file that cannot be written is no reason to fail."""
    collective = verdict["collective"]
    rows = collective["rows"] if collective and collective["passed"] else ()
    lines = [
        speeds.Row(plan.backend, plan.nnodes, collective["ranks"], row["of"], row["bytes"], row["busbw_gbps"])
        for row in rows
    ]
    text = "".join(f"{json.dumps(line.as_dict())}\n" for line in lines)
    try:
        problem = isolated(lambda: _append(path, text), timeout_s=HISTORY_S)
    except IsolatedError as error:
        problem = str(error)
    if problem:
        get_logger().warning("the history cannot be written", path=path, error=problem)


def _append(path: str, text: str) -> str | None:
    """Add lines to a file, after a line that was torn, too; return why that was not possible."""
    try:
        with Path(path).open("a+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            torn = file.read(1) not in (b"", b"\n")
            file.write((f"\n{text}" if torn else text).encode())
    except OSError as error:
        return error.strerror or str(error)
    return None
