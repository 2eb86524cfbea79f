"""A meeting place for tests, with nobody there."""

from simulated import BEGAN, MemoryStore, hello, plan

from trainer_agent.gang.leader import Leader
from trainer_agent.gang.member import Chair, Member


class Place:
    """A meeting place with rank 0's chair, and a clock."""

    def __init__(self, nodes=3, *, attempt="a1"):
        self.store = MemoryStore()
        self.leader = Leader(plan(nodes, attempt=attempt), lambda _: "")
        self.chair = Chair(self.store, self.leader, "epoch-1", self.wall)
        self.now = 0.0

    def member(self, rank, *, born=1.0):
        return Member(self.store, rank=rank, born=born)

    def join(self, rank, *, born=1.0, attempt="a1", **says):
        member = self.member(rank, born=born)
        words = hello(rank, self.leader.plan.nnodes, **says)
        member.epoch = member.join(words, attempt=attempt, now=self.now, wall=self.wall)
        return member

    def wall(self):
        return BEGAN + self.now

    def open(self):
        self.chair.open()

    def turn(self, seconds=0.0):
        self.now += seconds
        self.chair.turn(self.now)


def look(place, member):
    """Return what a node reads at the board, None where nothing is new."""
    return member.look(now=place.now)


def here(place):
    """Return the ranks that have come."""
    return [node.rank for node in place.leader.roll.here]
