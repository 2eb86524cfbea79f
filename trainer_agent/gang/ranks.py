"""The ranks of this node: what each task makes them do, and what came of it."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trainer_agent.gang.torch_side import TorchSide

# When one rank of a node has failed, the others may still say what they saw.
GRACE_S = 1.0
WORDS = 300  # characters of what a rank said last
SOURCE = re.compile(r"\[/[^\]]*:\d+\] ?")  # where in gloo's sources an error was raised


@dataclass(frozen=True)
class Place:
    """Where a rank stands in a task: its number in the process group, how many there are, and what they share."""

    rank: int
    world: int
    prefix: str


@dataclass
class _Running:
    """A task in the middle of it; everything that each rank said so far, merged."""

    id: str
    deadline: float
    numbers: tuple[int, ...]
    said: dict[int, dict[str, Any]] = field(default_factory=dict)
    failed_at: float | None = None


def places(task: Mapping[str, Any], node: int) -> dict[int, Place]:
    """
    Return the places of a node's ranks in a task, by their number on the node; none when it takes no part.

    A task of kind `all` is one group of all ranks of its `members`. One of kind `pairs` is a group for each pair of
    nodes, with all of their ranks; one of kind `rails` one for each pair and number, of two ranks each.
    """
    per_node = task["per_node"]
    numbers = range(per_node)
    if task["kind"] == "all":
        if node not in task["members"]:
            return {}
        first = task["members"].index(node) * per_node
        return {n: Place(first + n, len(task["members"]) * per_node, task["id"]) for n in numbers}
    pair = next((pair for pair in task["pairs"] if node in pair), None)
    if pair is None:
        return {}
    side, name = pair.index(node), f"{task['id']}/{pair[0]}-{pair[1]}"
    if task["kind"] == "rails":
        return {n: Place(side, 2, f"{name}/{n}") for n in numbers}
    return {n: Place(side * per_node + n, 2 * per_node, name) for n in numbers}


class Ranks:
    """
    Does one task after the other; a new one ends the one before.

    Args:
        node: this node's rank.
        host, port: where the ranks find the meeting place.
        environ: variables that they get where they have none.
    """

    def __init__(self, side: TorchSide, *, node: int, host: str, port: int, environ: Mapping[str, str]) -> None:
        self.side = side
        self.node = node
        self.host = host
        self.port = port
        self.environ = dict(environ)
        self.running: _Running | None = None

    def start(self, task: Mapping[str, Any]) -> bool:
        """Start this node's part of a task; return whether it has one."""
        self.stop()
        where = places(task, self.node)
        if not where:
            return False
        shared = {name: task[name] for name in ("id", "backend", "timeout_s", "numbers", "sizes", "seconds")}
        shared |= {"host": self.host, "port": self.port, "environ": self.environ}
        self.running = _Running(task["id"], time.monotonic() + task["timeout_s"], tuple(where))
        self.side.give({n: {**shared, **vars(place)} for n, place in where.items()})
        return True

    def stop(self) -> None:
        """End the task that runs."""
        if self.running:
            self.side.end(list(self.running.numbers))
            self.running = None

    def hear(self, events: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
        """Return what came of the task when it is over."""
        run = self.running
        if run is None:
            return None
        for event in events:
            number = event.get("rank")
            if number in run.numbers and self._is_of(run, event):
                said = run.said.setdefault(number, {"number": number})
                said.update({k: v for k, v in event.items() if k not in ("rank", "task")})
                if run.failed_at is None and ("error" in event or event.get("code")):
                    run.failed_at = time.monotonic()
        return self._result(run)

    @staticmethod
    def _is_of(run: _Running, event: Mapping[str, Any]) -> bool:
        """Whether an event belongs to this task; the end of a process does when the process said something of it."""
        if "task" in event:
            return bool(event["task"] == run.id)
        return bool(run.said.get(event["rank"], {}).get("pid") == event.get("pid"))

    def _result(self, run: _Running) -> dict[str, Any] | None:
        now = time.monotonic()
        over = [n for n in run.numbers if run.said.get(n, {}).get("stage") == "done" or _failed(run.said.get(n, {}))]
        waited = run.failed_at is not None and now > run.failed_at + GRACE_S
        if len(over) < len(run.numbers) and now < run.deadline and not waited:
            return None
        rows = [_row(run.said.get(n, {"number": n}), hung=n not in over) for n in run.numbers]
        if len(over) < len(run.numbers):
            self.side.end([n for n in run.numbers if n not in over])
        self.running = None
        return {"task": run.id, "ok": all(row["ok"] for row in rows), "ranks": rows}


def _failed(said: Mapping[str, Any]) -> bool:
    return "error" in said or bool(said.get("code"))


def _row(said: Mapping[str, Any], *, hung: bool) -> dict[str, Any]:
    """Return what is worth telling of one rank."""
    ok = said.get("stage") == "done" and not _failed(said) and not said.get("wrong") and "unfit" not in said
    kept = ("number", "stage", "error", "code", "wrong", "unfit", "transport", "gpu", "uuid")
    row = {name: said[name] for name in kept if said.get(name)} | {"number": said["number"], "ok": ok}
    row["timings"] = [{**t, "seconds": min(t["seconds"])} for t in said.get("timings", ())]
    if "shm_free" in said:
        row["shm_free"] = said["shm_free"]
    if "text" in said:
        row["text"] = SOURCE.sub("", said["text"])[:WORDS]
    return row | ({"hung": True} if hung else {})
