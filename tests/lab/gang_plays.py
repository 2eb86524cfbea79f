"""What is done to a gang: one function for each fault, which says who has to be named."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import faults
import psutil
from ganglab import Member, results, start_gang
from podlab import PORT, Lab, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

GANG_CHECKS = ("--checks", "roll-call,consistency,collective", "--profile", "standard")
GANG_TIMEOUT_S, EACH_S = 15, 5  # two cores import torch for one node after the other
PATIENT_S = 90  # where something else happens while they wait
WITHIN_S = 110
RANKS_STARTED = 3  # processes of the torch side: the one that forks, that of the store, and one rank


@dataclass
class Play:
    """
    One gang and what is done to it.

    Args:
        wanted: the names that are right, each a set of ranks: one for a node, two for a link.
        but: ranks from which nothing is expected: they are gone, or cut off.
        harmed: whether processes are killed or stopped from outside, as PID 1 of a container of their own; if not, the
            agents are any processes of their pods, and whatever they leave behind lives on and is found.
    """

    lab: Lab
    nodes: int
    directory: Path
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
        waits_s = timeout_s or max(GANG_TIMEOUT_S, EACH_S * self.nodes)
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
            eventually(lambda said=said: '"joined the gang"' in said.stderr, within=60, what=f"{rank} has joined")

    def computing(self, rank: int) -> None:
        """Wait until the rank of a node is at work."""
        eventually(lambda: torch_processes(self.member(rank)) >= RANKS_STARTED, within=60, what="its rank is at work")


def torch_processes(member: Member) -> int:
    """Return how many processes of the torch side a node has."""
    count = 0
    for process in member.container.processes():
        with suppress(psutil.Error):  # it ended just now
            count += any("gang_probe.py" in word for word in process.cmdline())
    return count


def healthy(play: Play) -> None:
    play.code = 0
    play.start()
    play.happens()


def never_started(play: Play) -> None:
    play.wanted, play.but = [{play.victim}], {play.victim}
    play.start(ranks=range(play.nodes - 1))
    play.happens()


def first_never_started(play: Play) -> None:
    play.wanted, play.but = [{0}], {0}
    play.start(ranks=range(1, play.nodes))
    play.happens()


def killed_at_roll_call(play: Play) -> None:
    """One is killed while all wait for another that is late."""
    victim = play.nodes - 2
    play.harmed = True
    play.wanted, play.but = [{victim}], {victim, play.victim}
    play.start(ranks=range(play.nodes - 1), timeout_s=PATIENT_S)
    play.joined(victim)
    play.happens()
    faults.kill(play.member(victim).container)


def first_killed_at_roll_call(play: Play) -> None:
    play.harmed = True
    play.wanted, play.but = [{0}], {0, play.victim}
    play.start(ranks=range(play.nodes - 1), timeout_s=PATIENT_S)
    play.joined(*range(1, play.nodes - 1))
    play.happens()
    faults.kill(play.member(0).container)


def killed_at_work(play: Play) -> None:
    play.harmed = True
    play.wanted, play.but = [{play.victim}], {play.victim}
    play.start()
    play.computing(play.victim)
    play.happens()
    faults.kill(play.member(play.victim).container)


def first_killed_at_work(play: Play) -> None:
    play.harmed = True
    play.wanted, play.but = [{0}], {0}
    play.start()
    play.computing(0)
    play.happens()
    faults.kill(play.member(0).container)


def stopped_at_work(play: Play) -> None:
    play.harmed = True
    play.wanted, play.but = [{play.victim}], {play.victim}
    play.start()
    play.computing(play.victim)
    play.happens()
    faults.freeze(play.member(play.victim).container)


def first_stopped_at_work(play: Play) -> None:
    play.harmed = True
    play.wanted, play.but = [{0}], {0}
    play.start()
    play.computing(0)
    play.happens()
    faults.freeze(play.member(0).container)


def first_agent_stopped(play: Play) -> None:
    """Its other processes go on: the meeting place is there, and nobody decides anything."""
    play.harmed = True
    play.wanted, play.but = [{0}], {0}
    play.start()
    play.computing(0)
    play.happens()
    faults.freeze_agent(play.member(0).container)


def cut_at_start(play: Play) -> None:
    play.wanted = [{play.victim}]
    faults.cut(play.lab[play.victim])
    play.start()
    play.happens()


def cut_at_work(play: Play) -> None:
    play.wanted = [{play.victim}]
    play.start()
    play.computing(play.victim)
    play.happens()
    faults.cut(play.lab[play.victim])


def half_cut_at_start(play: Play) -> None:
    play.wanted = [{play.victim}]
    faults.half_cut(play.lab[play.victim], "from")
    play.start()
    play.happens()


def half_cut_at_work(play: Play) -> None:
    play.wanted = [{play.victim}]
    play.start()
    play.computing(play.victim)
    play.happens()
    faults.half_cut(play.lab[play.victim], "to")


def slow(play: Play) -> None:
    play.wanted = [{play.victim}]
    faults.slow(play.lab[play.victim])
    play.start()
    play.happens()


def pair_cut(play: Play) -> None:
    pair = {1, 2}
    play.wanted = [pair]
    faults.cut_pair(play.lab[1], play.lab[2])
    play.start()
    play.happens()


def pair_with_first_cut(play: Play) -> None:
    pair = {0, play.victim}
    play.wanted = [pair]
    faults.cut_pair(play.lab[0], play.lab[play.victim])
    play.start()
    play.happens()


def pair_refused(play: Play) -> None:
    pair = {1, 2}
    play.wanted = [pair]
    faults.cut_pair(play.lab[1], play.lab[2], how="refused")
    play.start()
    play.happens()


def lossy(play: Play) -> None:
    play.wanted = [{play.victim}]
    faults.loss(play.lab[play.victim], 0.3)
    play.start()
    play.happens()


def flapping_names(play: Play) -> None:
    play.code = 0
    faults.dns_flapping(play.lab[0])
    play.start()
    play.happens()


def stranger(play: Play) -> None:
    play.code = 0
    for port in (PORT + 1, PORT + 2):
        faults.stranger(play.lab[0], port)
    play.start()
    play.happens()


def second_attempt(play: Play) -> None:
    """All but the first are started again while the old ones still wait for the last one."""
    play.code = 0
    play.start(ranks=range(play.nodes - 1), timeout_s=PATIENT_S)
    play.joined(*range(1, play.nodes - 1))
    old = [member for member in play.members if member.rank]
    play.members = [member for member in play.members if member.rank == 0]
    play.start(ranks=range(1, play.nodes), timeout_s=PATIENT_S)
    play.happens()
    for ended in results(old, within=WITHIN_S):
        assert ended.code == 20, ended
        assert "rank-taken" in str(ended.termination), ended


def other_nnodes(play: Play) -> None:
    play.code = 30
    play.start(env_of={play.victim: {"PET_NNODES": str(play.nodes + 1)}})
    play.happens()


def wrong_numbers(play: Play) -> None:
    play.wanted = [{play.victim}]
    play.start(env_of={play.victim: faults.wrong_numbers(play.directory)})
    play.happens()


MOST = (2, 3, 4, 8)
FAULTS: dict[str, tuple[Callable[[Play], None], tuple[int, ...]]] = {
    "healthy": (healthy, MOST),
    "never started": (never_started, MOST),
    "rank 0 never started": (first_never_started, MOST),
    "killed at roll-call": (killed_at_roll_call, (3, 4, 8)),
    "rank 0 killed at roll-call": (first_killed_at_roll_call, (3, 4, 8)),
    "killed in the collective": (killed_at_work, MOST),
    "rank 0 killed in the collective": (first_killed_at_work, MOST),
    "stopped in the collective": (stopped_at_work, MOST),
    "rank 0 stopped in the collective": (first_stopped_at_work, MOST),
    "rank 0's agent stopped": (first_agent_stopped, MOST),
    "link cut before the start": (cut_at_start, MOST),
    "link cut in the collective": (cut_at_work, MOST),
    "link half-cut before the start": (half_cut_at_start, MOST),
    "link half-cut in the collective": (half_cut_at_work, MOST),
    "link slow": (slow, (3, 4, 8)),
    "pair cut": (pair_cut, (3, 4, 8)),
    "pair with rank 0 cut": (pair_with_first_cut, (3, 4, 8)),
    "pair refused": (pair_refused, (3, 4, 8)),
    "30 % loss": (lossy, MOST),
    "names flapping": (flapping_names, MOST),
    "a stranger": (stranger, MOST),
    "second attempt": (second_attempt, (3, 4, 8)),
    "another nnodes": (other_nnodes, MOST),
    "wrong numbers": (wrong_numbers, MOST),
}
