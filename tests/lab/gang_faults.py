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
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
from gang_plays import FAULTS, WITHIN_S, OverError, Play
from ganglab import Ended, Member, leftovers, results
from podlab import Lab

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


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


def perform(name: str, lab: Lab, directory: Path, *, patience: int = 1) -> Outcome:
    """Do a fault to a gang once, and judge what everybody said."""
    play = staged(name, lab, directory, patience)
    survivors = [member for member in play.members if member.rank not in play.but]
    ended = results(survivors, within=WITHIN_S)
    left = [] if play.harmed else [member.rank for member in survivors if leftovers(member.container)]
    return judge(play, ended, max(map(verdict_at, survivors)) - play.fault_at, left=left)


def staged(name: str, lab: Lab, directory: Path, patience: int) -> Play:
    """Start a gang and do a fault to it; with another gang where one was over before."""
    for last in (False, False, True):
        lab.publish()
        play = Play(lab, len(lab.pods) - 1, directory, patience)
        try:
            FAULTS[name][0](play)
        except OverError:
            results(play.members, within=WITHIN_S)
            if last:
                raise
        else:
            break
    return play


def verdict_at(member: Member) -> float:
    """Return when a node had the verdict, in seconds since 1970; never, where it does not say so."""
    told = [line["timestamp"] for line in member.container.logs if line["event"] == "verdict"]
    return datetime.fromisoformat(told[-1]).timestamp() if told else float("nan")


def judge(play: Play, ended: Sequence[Ended], seconds: float, *, left: Sequence[int]) -> Outcome:
    """Compare what every survivor said with what is right."""
    said = tuple(sorted({f"{e.rank}: {words(e)}" for e in ended}))
    verdicts = [verdict_of(play, each) for each in ended]
    worst = max(verdicts, key=("right", "honest", "nobody", "wrong").index)
    codes = {each.code for each in ended}
    problem = "" if codes <= {play.code, 10 if play.code == 0 else play.code} else f"exit codes {sorted(codes)}"
    if left:
        problem = f"{problem} nodes {left} left processes behind".strip()
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
    return "honest" if any(wanted <= each for wanted in play.wanted for each in unknown) else "nobody"


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
