"""A gang of nodes: `trainer-agent preflight` in each pod of a lab, as the init containers of a TrainJob run it."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from podlab import AGENT, MASTER, PATIENCE_S, PORT, eventually

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from podlab import Container, Lab


def pet(rank: int, nodes: int) -> dict[str, str]:
    """Return what the torch plugin of Kubeflow Trainer injects for one process per node."""
    shape = {"PET_NNODES": str(nodes), "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": str(rank)}
    return {**shape, "PET_MASTER_ADDR": MASTER, "PET_MASTER_PORT": str(PORT)}


@dataclass(frozen=True)
class Ended:
    """What one node left; None for what it did not write."""

    rank: int
    code: int
    report: dict[str, Any] | None
    termination: dict[str, Any] | None
    seconds: float


@dataclass(frozen=True)
class Member:
    """A node's preflight while it runs."""

    rank: int
    container: Container
    started: float

    def ended(self) -> Ended | None:
        """Return what it left, with the time until now; None while it runs."""
        code = self.container.process.poll()
        if code is None:
            return None
        seconds = time.monotonic() - self.started
        report = _json(self.container.directory / "report.json")
        return Ended(self.rank, code, report, _json(self.container.directory / "kubelet-file"), seconds)


def start_gang(
    lab: Lab,
    nodes: int,
    *,
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    env_of: Mapping[int, Mapping[str, str]] | None = None,
    ranks: Iterable[int] | None = None,
    shared: bool = False,
) -> list[Member]:
    """
    Start the preflight of a job with so many nodes; of these ranks only, where the others are to be missing.

    `env_of` has variables for single ranks. With `shared` the command is no PID 1, so that `leftovers` means something.
    """
    files = ["--report-file", "report.json", "--termination-log", "termination-log"]
    argv = [AGENT, "preflight", "--output", "json", *files, *options]
    members = []
    for rank in range(nodes) if ranks is None else ranks:
        own = {**pet(rank, nodes), **(env or {}), **(env_of or {}).get(rank, {})}
        container = lab[rank].run(*argv, env=own, shared=shared)
        members.append(Member(rank, container, time.monotonic()))
    return members


def results(members: Sequence[Member], *, within: float = PATIENCE_S) -> list[Ended]:
    """Wait for all of them; return what each left, in the same order."""
    left: dict[int, Ended] = {}

    def all_ended() -> bool:
        for member in members:
            if member.rank not in left and (ended := member.ended()):
                left[member.rank] = ended
        return len(left) == len(members)

    try:
        eventually(all_ended, within=within, what="every node has ended")
    except AssertionError as error:
        stories = [m.container.story() for m in members if m.rank not in left]
        raise AssertionError("\n".join([str(error), *stories])) from None
    return [left[m.rank] for m in members]


def leftovers(container: Container) -> list[psutil.Process]:
    """
    Return the processes that are still alive in the pod of a container that has ended.

    Of one with pids of its own there are none, ever: the kernel kills them with PID 1. In a pod that shares its pids
    (shareProcessNamespace) whatever the command does not end lives on.
    """
    assert container.ended, "it still runs"
    holder = psutil.Process(container.pod.holder)
    own = {holder.pid, holder.ppid()}
    return [p for p in psutil.process_iter() if p.pid not in own and _network(p) == _network(holder)]


def _network(process: psutil.Process) -> Path | None:
    with suppress(OSError, psutil.NoSuchProcess):
        if process.status() != psutil.STATUS_ZOMBIE:
            return Path(f"/proc/{process.pid}/ns/net").readlink()
    return None


def _json(path: Path) -> dict[str, Any] | None:
    with suppress(OSError, ValueError):
        return json.loads(path.read_text())
    return None
