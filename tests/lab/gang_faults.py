"""
Every fault that a gang must name, done to real nodes from outside, and what all of them said.

    python tests/lab/gang_faults.py [--repeats 20] [--nodes 2,3,4,8] [--only NAME]

prints one row for each fault and number of nodes: who was wanted, whether every surviving node named it, how long it
took from the fault to the last verdict, and how often a wrong name was said.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
import faults
import psutil
from ganglab import Ended, Member, results, start_gang
from podlab import PORT, Lab, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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
        honest: ranks of which it is one, when nothing else can be said.
    """

    lab: Lab
    nodes: int
    directory: Path
    wanted: list[set[int]] = field(default_factory=list)
    honest: set[int] = field(default_factory=set)
    but: set[int] = field(default_factory=set)
    members: list[Member] = field(default_factory=list)
    fault_at: float = 0.0
    code: int = 20

    @property
    def victim(self) -> int:
        return self.nodes - 1

    def start(self, *, ranks: Sequence[int] | None = None, env_of=None, timeout_s: int = 0) -> None:
        """Start the nodes, all of them or some; `timeout_s` is how long they wait for each other, unless as usual."""
        waits_s = timeout_s or max(GANG_TIMEOUT_S, EACH_S * self.nodes)
        chosen = ("--gang-timeout", str(waits_s), *GANG_CHECKS)
        self.members += start_gang(self.lab, self.nodes, ranks=ranks, options=chosen, env_of=env_of)

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
    play.wanted, play.but = [{victim}], {victim, play.victim}
    play.start(ranks=range(play.nodes - 1), timeout_s=PATIENT_S)
    play.joined(victim)
    play.happens()
    faults.kill(play.member(victim).container)


def first_killed_at_roll_call(play: Play) -> None:
    play.wanted, play.but = [{0}], {0, play.victim}
    play.start(ranks=range(play.nodes - 1), timeout_s=PATIENT_S)
    play.joined(*range(1, play.nodes - 1))
    play.happens()
    faults.kill(play.member(0).container)


def killed_at_work(play: Play) -> None:
    play.wanted, play.but = [{play.victim}], {play.victim}
    play.start()
    play.computing(play.victim)
    play.happens()
    faults.kill(play.member(play.victim).container)


def first_killed_at_work(play: Play) -> None:
    play.wanted, play.but = [{0}], {0}
    play.start()
    play.computing(0)
    play.happens()
    faults.kill(play.member(0).container)


def stopped_at_work(play: Play) -> None:
    play.wanted, play.but = [{play.victim}], {play.victim}
    play.start()
    play.computing(play.victim)
    play.happens()
    faults.freeze(play.member(play.victim).container)


def first_stopped_at_work(play: Play) -> None:
    play.wanted, play.but = [{0}], {0}
    play.start()
    play.computing(0)
    play.happens()
    faults.freeze(play.member(0).container)


def first_agent_stopped(play: Play) -> None:
    """Its other processes go on: the meeting place is there, and nobody decides anything."""
    play.wanted, play.but = [{0}], {0}
    play.start()
    play.computing(0)
    play.happens()
    faults.freeze_agent(play.member(0).container)


def cut_at_start(play: Play) -> None:
    play.wanted, play.honest = [{play.victim}], {0, play.victim}
    faults.cut(play.lab[play.victim])
    play.start()
    play.happens()


def cut_at_work(play: Play) -> None:
    play.wanted, play.honest = [{play.victim}], {0, play.victim}
    play.start()
    play.computing(play.victim)
    play.happens()
    faults.cut(play.lab[play.victim])


def half_cut_at_start(play: Play) -> None:
    play.wanted, play.honest = [{play.victim}], {0, play.victim}
    faults.half_cut(play.lab[play.victim], "from")
    play.start()
    play.happens()


def half_cut_at_work(play: Play) -> None:
    play.wanted, play.honest = [{play.victim}], {0, play.victim}
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
    play.wanted, play.honest = [pair], pair
    faults.cut_pair(play.lab[1], play.lab[2])
    play.start()
    play.happens()


def pair_with_first_cut(play: Play) -> None:
    pair = {0, play.victim}
    play.wanted, play.honest = [pair], pair
    faults.cut_pair(play.lab[0], play.lab[play.victim])
    play.start()
    play.happens()


def pair_refused(play: Play) -> None:
    pair = {1, 2}
    play.wanted, play.honest = [pair], pair
    faults.cut_pair(play.lab[1], play.lab[2], how="refused")
    play.start()
    play.happens()


def lossy(play: Play) -> None:
    play.wanted, play.honest = [{play.victim}], {0, play.victim}
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
    play.wanted, play.honest = [{play.victim}], {0, 1} if play.nodes == 2 else set()
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


@dataclass(frozen=True)
class Outcome:
    """
    What came of one play.

    Args:
        verdict: `right`, `honest` (undetermined, and it is one of those), `nobody`, or `wrong`.
        seconds: from the fault to the verdict of the last node.
        problem: what is not as it should be beside the name: an exit code, a process that is left.
    """

    verdict: str
    seconds: float
    problem: str = ""
    said: tuple[str, ...] = ()


@contextmanager
def stage(nodes: int) -> Iterator[tuple[Lab, Path]]:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        (directory / "lab").mkdir()
        with Lab(directory / "lab", rootless=os.geteuid() != 0, nodes=nodes) as lab:
            yield lab, directory


def perform(name: str, lab: Lab, directory: Path) -> Outcome:
    """Do a fault to a gang once, and judge what everybody said."""
    lab.publish()
    play = Play(lab, len(lab.pods) - 1, directory)
    FAULTS[name][0](play)
    survivors = [member for member in play.members if member.rank not in play.but]
    ended = results(survivors, within=WITHIN_S)
    return judge(play, ended, max(map(verdict_at, survivors)) - play.fault_at)


def verdict_at(member: Member) -> float:
    """Return when a node had the verdict, in seconds since 1970; never, where it does not say so."""
    told = [line["timestamp"] for line in member.container.logs if line["event"] == "verdict"]
    return datetime.fromisoformat(told[-1]).timestamp() if told else float("nan")


def judge(play: Play, ended: Sequence[Ended], seconds: float) -> Outcome:
    """Compare what every survivor said with what is right."""
    said = tuple(sorted({f"{e.rank}: {words(e)}" for e in ended}))
    verdicts = [verdict_of(play, each) for each in ended]
    worst = max(verdicts, key=("right", "honest", "nobody", "wrong").index)
    codes = {each.code for each in ended}
    problem = "" if codes <= {play.code, 10 if play.code == 0 else play.code} else f"exit codes {sorted(codes)}"
    return Outcome(worst, seconds, problem, said)


def words(ended: Ended) -> str:
    gang = (ended.report or {}).get("gang") or {}
    rows = [c["message"] for c in (ended.report or {}).get("checks", ()) if c["name"] == "roll-call"]
    return f"exit {ended.code}: {gang.get('summary') or rows or ended.termination}"


def verdict_of(play: Play, ended: Ended) -> str:
    gang = (ended.report or {}).get("gang")
    if gang is None:
        return "nobody"
    named = [suspect_ranks(gang, suspect) for suspect in gang["suspects"]]
    if any(ranks not in play.wanted for ranks in named):
        return "wrong"
    if sorted(map(sorted, named)) == sorted(map(sorted, play.wanted)):
        return "right"
    unknown = [set(each["ranks"]) for each in gang["undetermined"]]
    return "honest" if any(play.honest == each for each in unknown) else "nobody"


def suspect_ranks(gang: dict, suspect: dict) -> set[int]:
    if suspect["kind"] != "link":
        return {suspect["node_rank"]}
    names = suspect["id"].split(" - ")
    return {node["rank"] for node in gang["nodes"] if node["hostname"] in names}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--nodes", default="2,3,4,8")
    parser.add_argument("--only", default="")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, help="gangs at the same time; their nodes mostly wait")
    options = parser.parse_args()
    chosen = {int(count) for count in options.nodes.split(",")}
    click.echo(f"{'fault':<34}{'nodes':>5} {'right':>6} {'honest':>6} {'nobody':>6} {'wrong':>6} {'median s':>9}  else")
    failed = False
    for name, (_, counts) in FAULTS.items():
        if options.only not in name:
            continue
        for nodes in (count for count in counts if count in chosen):
            with ThreadPoolExecutor(options.jobs) as pool:
                outcomes = list(
                    pool.map(lambda _, name=name, nodes=nodes: attempt(name, nodes), range(options.repeats))
                )
            failed |= report(name, nodes, outcomes, verbose=options.verbose)
    sys.exit(failed)


def attempt(name: str, nodes: int) -> Outcome:
    try:
        with stage(nodes) as (lab, directory):
            return perform(name, lab, directory)
    except AssertionError as error:
        return Outcome("nobody", float("nan"), str(error).replace("\n", " | ")[:1500])


def report(name: str, nodes: int, outcomes: Sequence[Outcome], *, verbose: bool) -> bool:
    counts = [
        sum(outcome.verdict == verdict for outcome in outcomes) for verdict in ("right", "honest", "nobody", "wrong")
    ]
    seconds = statistics.median(outcome.seconds for outcome in outcomes)
    problems = "; ".join(sorted({outcome.problem for outcome in outcomes if outcome.problem}))
    click.echo(f"{name:<34}{nodes:>5} {''.join(f'{count:>6} ' for count in counts)}{seconds:>9.1f}  {problems}")
    bad = [outcome for outcome in outcomes if outcome.verdict in ("nobody", "wrong") or outcome.problem]
    for line in outcomes[0].said if verbose else bad[0].said if bad else ():
        click.echo(f"      {line[:400]}")
    return bool(bad)


if __name__ == "__main__":
    main()
