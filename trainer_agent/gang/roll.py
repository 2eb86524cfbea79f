"""Who is here, since when, and who has gone: what rank 0 knows of every node. No clock and no socket of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# A sign of life comes every second. Over a network that loses a third of its packets TCP needs some seconds for one.
BEAT_S = 1.0
LOST_S = 6.0
HEALTHY = ("pass", "warn")


@dataclass
class Node:
    """
    One node as rank 0 knows it.

    Args:
        hello: what it said when it came; see `Hello`.
        arrived: when, on rank 0's monotonic clock.
        beat, beat_at: its last sign of life, and when it was new.
        offset_s, doubt_s: how far its clock is before that of rank 0, and by how much that may be wrong.
    """

    rank: int
    hello: dict[str, Any] = field(default_factory=dict)
    arrived: float | None = None
    beat: str = ""
    beat_at: float = 0.0
    offset_s: float | None = None
    doubt_s: float = 0.0
    lost: bool = False
    note: str = ""

    @property
    def hostname(self) -> str:
        """What it calls itself."""
        return str(self.hello.get("hostname", ""))

    @property
    def failed(self) -> bool:
        """Whether its own checks failed."""
        return bool(self.hello) and self.hello["local"]["verdict"] not in HEALTHY

    @property
    def state(self) -> str:
        """Return the word for it in the report."""
        if self.arrived is None:
            return "missing"
        if self.lost:
            return "lost"
        return "failed" if self.failed else "ready"


class Roll:
    """The nodes of a job by rank, and those that came with a rank that the job does not have."""

    def __init__(self, nnodes: int) -> None:
        self.nodes = {rank: Node(rank) for rank in range(nnodes)}
        self.others: dict[int, Node] = {}

    def hello(self, said: dict[str, Any], *, now: float, wall: float) -> bool:
        """
        Take down a node that comes; of two with one rank the younger counts. Return whether it takes another's place.

        Args:
            now, wall: of rank 0, monotonic and seconds since 1970. What the node says of clocks is a comparison as NTP
                makes it; see `Member.join`.
        """
        rank = said["rank"]
        book = self.nodes if rank in self.nodes else self.others
        before = book.get(rank)
        if before and before.hello and before.hello["born"] > said["born"]:
            return False
        there, back = wall - said["now"], said["sent"] - said["heard"]
        # One way may have taken all of the time that both took.
        offset_s, doubt_s = round(-(there + back) / 2, 3), max(0.0, (there - back) / 2)
        book[rank] = Node(rank, said, arrived=now, beat_at=now, offset_s=offset_s, doubt_s=doubt_s)
        return bool(before and before.hello and before.hello["born"] < said["born"])

    def beats(self, signs: Mapping[int, str], now: float) -> None:
        """Take down signs of life, by rank."""
        for rank, sign in signs.items():
            node = self.nodes[rank]
            if sign != node.beat:
                node.beat, node.beat_at = sign, now

    @property
    def here(self) -> list[Node]:
        """Those that have come and are not lost."""
        return [node for node in self.nodes.values() if node.arrived is not None and not node.lost]

    @property
    def come(self) -> list[Node]:
        """Those that are here, and those that came with a rank that the job does not have."""
        return [*self.here, *self.others.values()]

    @property
    def met(self) -> bool:
        """Whether anybody but rank 0 has ever come."""
        return any(node.rank and node.arrived is not None for node in self.all)

    @property
    def all(self) -> list[Node]:
        """Those of the job, and those that came with a rank that it does not have."""
        return [*self.nodes.values(), *self.others.values()]

    @property
    def missing(self) -> list[Node]:
        """Those that have not come."""
        return [node for node in self.nodes.values() if node.arrived is None]

    def lose(self, now: float) -> list[Node]:
        """Mark those whose last sign of life is too old; return them."""
        lost = [node for node in self.here if now - node.beat_at > LOST_S and not node.failed]
        for node in lost:
            node.lost = True
            node.note = f"no sign of life for {now - node.beat_at:.0f} s"
        return lost

    def hostname(self, rank: int) -> str:
        """Return what a node calls itself; nothing when it has never come."""
        node = self.nodes.get(rank) or self.others.get(rank)
        return node.hostname if node else ""

    def name(self, rank: int) -> str:
        """Return what a message calls a node."""
        hostname = self.hostname(rank)
        return f"node {rank} ({hostname})" if hostname else f"node {rank}"

    def names(self, ranks: Iterable[int], *, most: int = 8) -> str:
        """Return what a message calls some nodes."""
        listed = list(ranks)
        shown = ", ".join(self.name(rank) for rank in listed[:most])
        return f"{shown} and {len(listed) - most} more" if len(listed) > most else shown
