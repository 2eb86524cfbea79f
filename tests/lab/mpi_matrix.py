"""
Every play on every implementation of MPI, by plain mpirun and by the agent, and what came of it.

    python tests/lab/mpi_matrix.py [--only PLAY] [--implementation NAME] [--plain | --agent] [--repeats N] [--markdown]

prints one row for each play and implementation. It exits with 1 when the agent did not do what it has to do.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from mpi_endings import ENDINGS
from mpi_plays import BEGINNINGS, Play
from mpi_programs import IMPLEMENTATIONS, MissingError
from podlab import Lab

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpi_programs import Implementation


PLAYS = BEGINNINGS | ENDINGS


@dataclass(frozen=True)
class Outcome:
    """
    What came of one play.

    Args:
        cell: in a few words.
        problems: what is not as it has to be, of plain mpirun too, where it only is to be known.
        story: what the launcher said.
    """

    cell: str
    problems: tuple[str, ...] = ()
    story: str = ""


@contextmanager
def stage() -> Iterator[Lab]:
    """Yield a lab with three nodes."""
    with tempfile.TemporaryDirectory() as folder, Lab(Path(folder), rootless=os.geteuid() != 0) as lab:
        yield lab


def perform(name: str, implementation: Implementation, how: str, *, lab: Lab, worker: str = "") -> Outcome:
    """Do a play once; `worker` says who runs sshd, as `how` unless it is said."""
    implementation.make()
    play = Play(lab, implementation, how, worker or how)
    cell = PLAYS[name](play)
    return Outcome(cell, tuple(play.problems), play.story)


def attempt(name: str, implementation: Implementation, how: str, *, worker: str) -> Outcome:
    try:
        with stage() as lab:
            return perform(name, implementation, how, lab=lab, worker=worker)
    except AssertionError as error:
        said = str(error)
        return Outcome(f"broken: {said.splitlines()[0][:80]}", (said,))


def repeated(name: str, implementation: Implementation, how: str, options: argparse.Namespace) -> Outcome:
    """Do a play several times; return the first outcome that is not as it has to be, else the last."""
    outcomes = [attempt(name, implementation, how, worker=options.worker) for _ in range(options.repeats)]
    wrong = [outcome for outcome in outcomes if outcome.problems]
    if options.repeats == 1:
        return outcomes[0]
    chosen = [*wrong, outcomes[-1]][0]
    return replace(chosen, cell=f"{chosen.cell}, {len(wrong)} of {len(outcomes)} wrong")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="plays with this in their name")
    parser.add_argument("--implementation", choices=IMPLEMENTATIONS)
    parser.add_argument("--worker", choices=("plain", "agent"), default="", help="who runs sshd, always")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="print what the launcher said")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--plain", action="store_true")
    which.add_argument("--agent", action="store_true")
    options = parser.parse_args()
    hows = ["plain"] if options.plain else ["agent"] if options.agent else ["plain", "agent"]
    chosen = [options.implementation] if options.implementation else list(IMPLEMENTATIONS)
    row(["play", "implementation", *hows], markdown=options.markdown)
    if options.markdown:
        row(["---"] * (len(hows) + 2), markdown=True)
    failed = False
    for name in (name for name in PLAYS if options.only in name):
        for implementation in chosen:
            failed |= line(name, IMPLEMENTATIONS[implementation], hows, options)
    sys.exit(failed)


def line(name: str, implementation: Implementation, hows: list[str], options: argparse.Namespace) -> bool:
    """Do a play in each of the ways and print a row; return whether the agent failed."""
    try:
        outcomes = {how: repeated(name, implementation, how, options) for how in hows}
    except MissingError as error:
        outcomes = {"plain": Outcome(str(error))}
    row([name, implementation.name, *(each.cell for each in outcomes.values())], markdown=options.markdown)
    problems = outcomes["agent"].problems if "agent" in outcomes else ()
    for problem in problems:
        click.echo(f"      {problem}", err=True)
    for outcome in outcomes.values() if options.verbose else ():
        click.echo(outcome.story, err=True)
    return bool(problems)


def row(cells: list[str], *, markdown: bool) -> None:
    widths = (40, 12, 48, 48)
    plain = "".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=False))
    click.echo(f"| {' | '.join(cells)} |" if markdown else plain.rstrip())


if __name__ == "__main__":
    main()
