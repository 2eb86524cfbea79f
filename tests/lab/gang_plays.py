"""What is done to a gang: one function for each fault, which says who has to be named."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal

import faults
from ganglab import Member, results, start_gang
from podlab import PATIENCE_S, PORT, Lab, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from podlab import Container, Pod

GANG_CHECKS = ("--checks", "roll-call,consistency,collective", "--profile", "standard")
GANG_TIMEOUT_S, EACH_S = 15, 5  # two cores import torch for one node after the other
PATIENT_S = 90  # where something else happens while they wait
WITHIN_S = 200
RANKS_STARTED = 3  # processes of the torch side: the one that forks, that of the store, and one rank


class OverError(AssertionError):
    """A node had ended before anything was done to it: on a busy machine, its ranks may work while nobody looks."""


@dataclass
class Play:
    """
    One gang and what is done to it.

    Args:
        patience: how many times longer the nodes wait for each other than an idle machine makes them.
        wanted: the names that are right, each a set of ranks: one for a node, two for a link.
        but: ranks from which nothing is expected: they are gone, or cut off.
        harmed: whether processes are killed or stopped from outside, as PID 1 of a container of their own; if not, the
            agents are any processes of their pods, and whatever they leave behind lives on and is found.
    """

    lab: Lab
    nodes: int
    directory: Path
    patience: int = 1
    wanted: list[set[int]] = field(default_factory=list)
    but: set[int] = field(default_factory=set)
    members: list[Member] = field(default_factory=list)
    fault_at: float = 0.0
    code: int = 20
    harmed: bool = False

    @property
    def victim(self) -> int:
        return self.nodes - 1

    def start(self, *, ranks: Sequence[int] | None = None, env_of=None, timeout_s: int = 0) -> None:
        """Start the nodes, all of them or some; `timeout_s` is how long they wait for each other, unless as usual."""
        waits_s = timeout_s or self.patience * max(GANG_TIMEOUT_S, EACH_S * self.nodes)
        chosen = ("--gang-timeout", str(waits_s), *GANG_CHECKS)
        shared = not self.harmed
        self.members += start_gang(self.lab, self.nodes, ranks=ranks, options=chosen, env_of=env_of, shared=shared)

    def member(self, rank: int) -> Member:
        return next(member for member in self.members if member.rank == rank)

    def happens(self) -> None:
        self.fault_at = time.time()

    def joined(self, *ranks: int) -> None:
        """Wait until nodes have said hello to rank 0."""
        for rank in ranks:
            said = self.member(rank).container
            eventually(lambda said=said: '"joined the gang"' in said.stderr, what=f"{rank} has joined")

    def computing(self, rank: int) -> None:
        """Wait until the rank of a node is at work."""
        member = self.member(rank)

        def at_work() -> bool:
            if member.container.ended:
                raise OverError(member.container.story())
            return torch_processes(member) >= RANKS_STARTED

        eventually(at_work, within=2 * PATIENCE_S, what="its rank is at work")


def torch_processes(member: Member) -> int:
    """Return how many processes of the torch side a node has."""
    return sum(member.container.of_each(lambda p: any("gang_probe.py" in word for word in p.cmdline())))


def absent(play: Play, rank: int) -> None:
    """One is never started."""
    play.wanted, play.but = [{rank}], {rank}
    alone = rank == 0 or play.nodes == 2  # nobody meets anybody, so that nobody can be late
    play.start(ranks=[other for other in range(play.nodes) if other != rank], timeout_s=GANG_TIMEOUT_S if alone else 0)
    play.happens()


def killed_at_roll_call(play: Play, rank: int) -> None:
    """One is killed while all wait for another that is late."""
    play.harmed = True
    play.wanted, play.but = [{rank}], {rank, play.victim}
    play.start(ranks=range(play.nodes - 1), timeout_s=PATIENT_S)
    play.joined(*range(1, play.nodes - 1))
    play.happens()
    faults.kill(play.member(rank).container)


def harmed_at_work(play: Play, rank: int, harm: Callable[[Container], object]) -> None:
    """Something is done to the processes of one while its rank computes."""
    play.harmed = True
    play.wanted, play.but = [{rank}], {rank}
    play.start()
    play.computing(rank)
    play.happens()
    harm(play.member(rank).container)


def link_at_work(play: Play, fault: Callable[[Pod], object]) -> None:
    """Something is done to the link of one while its rank computes."""
    play.wanted = [{play.victim}]
    play.start()
    play.computing(play.victim)
    play.happens()
    fault(play.lab[play.victim])


def link(play: Play, fault: Callable[[Pod], object]) -> None:
    """Something is wrong with the link of one from the beginning."""
    play.wanted = [{play.victim}]
    fault(play.lab[play.victim])
    play.start()
    play.happens()


def slow_link(play: Play) -> None:
    """The link of one carries a tenth of what those of the others do."""
    for pod in play.lab.pods.values():
        faults.slow(pod, faults.USUAL)
    link(play, faults.slow)


def pair(play: Play, a: int, b: int, how: Literal["silent", "refused"] = "silent") -> None:
    """Two do not reach each other."""
    play.wanted = [{a, b}]
    faults.cut_pair(play.lab[a], play.lab[b], how=how)
    play.start()
    play.happens()


def well(play: Play, fault: Callable[[Play], object] = lambda _: None) -> None:
    """What is done does no harm."""
    play.code = 0
    fault(play)
    play.start()
    play.happens()


def strangers(play: Play) -> None:
    """Somebody talks nonsense to rank 0, at the meeting place and at the door."""
    for port in (PORT + 1, PORT + 2):
        faults.stranger(play.lab[0], port)


def second_attempt(play: Play) -> None:
    """All but the first are started again while the old ones still wait for the last one."""
    play.code = 0
    play.start(ranks=range(play.nodes - 1), timeout_s=PATIENT_S)
    play.joined(*range(1, play.nodes - 1))
    old = [member for member in play.members if member.rank]
    play.members = [member for member in play.members if member.rank == 0]
    play.start(ranks=range(1, play.nodes - 1), timeout_s=PATIENT_S)
    for ended in results(old, within=WITHIN_S):  # or one of these might meet the last one
        assert ended.code == 20, ended
        assert "rank-taken" in str(ended.termination), ended
    play.start(ranks=[play.victim], timeout_s=PATIENT_S)
    play.happens()


def other_nnodes(play: Play) -> None:
    play.code = 30
    play.start(env_of={play.victim: {"PET_NNODES": str(play.nodes + 1)}})
    play.happens()


def wrong_numbers(play: Play) -> None:
    play.wanted = [{play.victim}]
    play.start(env_of={play.victim: faults.wrong_numbers(play.directory)})
    play.happens()


MOST, THREE = (2, 3, 4, 8), (3, 4, 8)
FAULTS: dict[str, tuple[Callable[[Play], None], tuple[int, ...]]] = {
    "healthy": (well, MOST),
    "never started": (lambda play: absent(play, play.victim), MOST),
    "rank 0 never started": (lambda play: absent(play, 0), MOST),
    "killed at roll-call": (lambda play: killed_at_roll_call(play, play.nodes - 2), THREE),
    "rank 0 killed at roll-call": (lambda play: killed_at_roll_call(play, 0), THREE),
    "killed in the collective": (lambda play: harmed_at_work(play, play.victim, faults.kill), MOST),
    "rank 0 killed in the collective": (lambda play: harmed_at_work(play, 0, faults.kill), MOST),
    "stopped in the collective": (lambda play: harmed_at_work(play, play.victim, faults.freeze), MOST),
    "rank 0 stopped in the collective": (lambda play: harmed_at_work(play, 0, faults.freeze), MOST),
    # Its meeting place is there, and nobody decides anything.
    "rank 0's agent stopped": (lambda play: harmed_at_work(play, 0, faults.freeze_agent), MOST),
    "link cut before the start": (lambda play: link(play, faults.cut), MOST),
    "link cut in the collective": (lambda play: link_at_work(play, faults.cut), MOST),
    "link half-cut before the start": (lambda play: link(play, partial(faults.half_cut, direction="from")), MOST),
    "link half-cut in the collective": (
        lambda play: link_at_work(play, partial(faults.half_cut, direction="to")),
        MOST,
    ),
    "link slow": (slow_link, THREE),
    "pair cut": (lambda play: pair(play, 1, 2), THREE),
    "pair with rank 0 cut": (lambda play: pair(play, 0, play.victim), THREE),
    "pair refused": (lambda play: pair(play, 1, 2, how="refused"), THREE),
    "30 % loss": (lambda play: link(play, faults.loss), MOST),
    "names flapping": (lambda play: well(play, lambda p: faults.dns_flapping(p.lab[0])), MOST),
    "a stranger": (lambda play: well(play, strangers), MOST),
    "second attempt": (second_attempt, THREE),
    "another nnodes": (other_nnodes, MOST),
    "wrong numbers": (wrong_numbers, MOST),
}
