"""The section `gang` of a report, taken apart strictly: what is damaged is refused before anything is shown."""

from __future__ import annotations

from collections import Counter
from dataclasses import MISSING, dataclass, fields
from enum import Enum, StrEnum
from functools import cached_property
from typing import Any

from trainer_agent.errors import Action, Severity
from trainer_agent.policy import Suspect, Verdict

MOST = 1e15  # what is larger is no rank, no size and no time, and cannot be drawn


class State(StrEnum):
    """What became of a node."""

    MISSING = "missing"
    LOST = "lost"
    FAILED = "failed"
    SUPERSEDED = "superseded"
    READY = "ready"


class Blamed(StrEnum):
    """Who it was, seen from the node that wrote the report."""

    NONE = "none"
    SELF = "self"
    PEER = "peer"
    UNDETERMINED = "undetermined"


@dataclass(frozen=True)
class Node:
    """A node of the gang; `arrived_s` counts from the first arrival."""

    rank: int
    hostname: str
    node: str
    address: str
    arrived_s: float | None
    state: State
    note: str
    clock_offset_s: float | None


@dataclass(frozen=True)
class Value:
    """What some nodes have."""

    value: str | int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Difference:
    """Something that nodes do not have in common."""

    key: str
    severity: Severity
    values: tuple[Value, ...]
    minority: tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """One measurement of the collective."""

    of: str
    bytes: int
    seconds: float
    busbw_gbps: float
    expected_busbw_gbps: float | None = None


@dataclass(frozen=True)
class Collective:
    """What all ranks did together."""

    backend: str
    ranks: int
    transport: str
    passed: bool
    rows: tuple[Row, ...]
    message: str


@dataclass(frozen=True)
class Pair:
    """What two nodes did together in one round."""

    a: int
    b: int
    round: int
    passed: bool
    gbps: float | None
    why: str


@dataclass(frozen=True)
class Undetermined:
    """Nodes of which one did it, or what lies between them."""

    ranks: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class Avoid:
    """What the next attempt should do without."""

    hostnames: tuple[str, ...]
    gpus: tuple[str, ...]


@dataclass(frozen=True)
class Phase:
    """How long a part of it took."""

    name: str
    seconds: float


@dataclass(frozen=True)
class Gang:
    """The whole section; its fields are those of the report."""

    attempt: str
    epoch: int
    written_by: int
    nnodes: int
    verdict: Verdict
    action: Action
    blame: Blamed
    summary: str
    nodes: tuple[Node, ...]
    differences: tuple[Difference, ...]
    collective: Collective | None
    pairs: tuple[Pair, ...]
    suspects: tuple[Suspect, ...]
    undetermined: tuple[Undetermined, ...]
    avoid: Avoid
    phases: tuple[Phase, ...]

    @cached_property
    def not_ready(self) -> list[Node]:
        """Return all nodes that are not ready, by what became of them."""
        order = list(State)
        return sorted((n for n in self.nodes if n.state != State.READY), key=lambda n: (order.index(n.state), n.rank))

    @property
    def states(self) -> Counter[State]:
        """Return how many nodes there are in each state."""
        return Counter(n.state for n in self.nodes)

    @cached_property
    def hostnames(self) -> dict[int, str]:
        """Return the name of each rank; of a pod that another one replaced only where there is no other."""
        return {n.rank: n.hostname for n in sorted(self.nodes, key=lambda n: n.state != State.SUPERSEDED)}

    def name(self, rank: int) -> str:
        """Return a node by its rank and its host name."""
        return f"node {rank} ({self.hostnames[rank]})" if self.hostnames.get(rank) else f"node {rank}"


SHAPES: dict[str, Any] = {
    s.__name__: s for s in (Gang, Node, Difference, Value, Collective, Row, Pair, Suspect, Undetermined, Avoid, Phase)
}
WORDS: dict[str, type[Enum]] = {w.__name__: w for w in (State, Blamed, Verdict, Action, Severity)}
PLAIN: dict[str, Any] = {"str": str, "bool": bool, "int": int, "float": (int, float), "str | int": (str, int)}


def gang_of(data: dict[str, Any]) -> Gang | None:
    """
    Return the section of a report, or None where it has none.

    Raises:
        LookupError, TypeError, ValueError: it is damaged.
    """
    return _read("Gang", data["gang"]) if "gang" in data else None


def _read(kind: str, value: Any) -> Any:
    """Return what is to be of a kind, which is the annotation of its field."""
    if kind.endswith(" | None"):
        return None if value is None else _read(kind.removesuffix(" | None"), value)
    if kind.startswith("tuple["):
        below = kind.removeprefix("tuple[").removesuffix(", ...]")
        return tuple(_read(below, one) for one in _of(value, list))
    if kind in SHAPES:
        return _shape(SHAPES[kind], _of(value, dict))
    return WORDS[kind](value) if kind in WORDS else _plain(kind, value)


def _shape(shape: Any, value: dict[str, Any]) -> Any:
    wanted = [f for f in fields(shape) if f.name in value or f.default is MISSING]
    return shape(**{f.name: _read(str(f.type), value[f.name]) for f in wanted})


def _plain(kind: str, value: Any) -> Any:
    _of(value, PLAIN[kind])
    if kind in ("int", "float") and isinstance(value, bool):
        raise TypeError(f"{value} is not of type {kind}")
    if isinstance(value, (int, float)) and not abs(value) < MOST:
        raise ValueError(f"{value} is too large")
    return value


def _of(value: Any, kind: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r:.80} is not of type {kind}")
    return value
