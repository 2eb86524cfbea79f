"""
How often pair tests name exactly the nodes at fault: our schedule beside three others, simulated, as Markdown tables.

A test of some nodes fails when the fault of one of them shows, which it does each time with the same probability. In
the second table nothing is at fault, tests fail for no reason now and then, and nobody is the right answer.

- DLRover: two rounds, the second pairs those that failed with those that passed; fails all of three nodes or fewer.
- CHS, Google's cluster-health-scanner: two rounds, the second tests each that failed with one that passed.
- 3+3: three rounds of distinct partners; in three more whoever failed meets those that never did.
"""

from __future__ import annotations

import argparse
import random
import statistics
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, NamedTuple

from trainer_agent.gang.pairs import Meeting, blame, next_round

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

TRIALS = 300
SHOWS, NODES = (1.0, 0.7, 0.4), (3, 4, 8, 64, 256)
BY_CHANCE, WELL = (0.02, 0.05), (4, 8, 64)


class Answer(NamedTuple):
    """Whom a schedule accuses, and after how many rounds."""

    accused: set[int]
    rounds: int


@dataclass(frozen=True)
class Job:
    """Nodes from 0 on, of which some are at fault; tests fail `by_chance`, too."""

    count: int
    faulty: frozenset[int]
    shows: float
    chance: random.Random
    by_chance: float = 0.0

    def passes(self, *nodes: int) -> bool:
        """Return whether no fault shows in a test of these nodes, and it does not fail for no reason."""
        if self.by_chance and self.chance.random() < self.by_chance:
            return False
        return not any(node in self.faulty and self.chance.random() < self.shows for node in nodes)

    def failing(self, groups: Iterable[Iterable[int]]) -> list[bool]:
        """Return for each node whether it failed with all groups that it was in."""
        well = {node for group in groups if self.passes(*group) for node in group}
        return [node not in well for node in range(self.count)]


def ours(job: Job) -> Answer:
    """Play rounds until there are no more."""
    meetings: list[Meeting] = []
    rounds, seed = 0, job.chance.randrange(1 << 32)
    while pairs := next_round(range(job.count), meetings, seed=seed):
        meetings += [Meeting(a, b, rounds, job.passes(a, b)) for a, b in pairs]
        rounds += 1
    return Answer(set(blame(meetings).nodes), rounds)


def dlrover(job: Job) -> Answer:
    """
    Sort by time, and pair the fastest with the slowest, where whoever failed counts as slowest of all.

    After NetworkCheckRendezvousManager and NodeCheckElasticAgent of dlrover 7c3e964.
    """
    first = job.failing(_in_twos(list(range(job.count))))
    if not any(first):
        return Answer(set(), 1)
    if job.count <= 3:  # "we cannot determine which node"
        return Answer(set(range(job.count)), 1)
    order = sorted(range(job.count), key=lambda node: (first[node], 0 if first[node] else job.chance.random()))
    second = job.failing(_in_twos([order[side] for i in range((job.count + 1) // 2) for side in (i, ~i)][: job.count]))
    return Answer({node for node in order if first[node] and second[node]}, 2)


def _in_twos(order: list[int]) -> list[list[int]]:
    """Return neighbours in pairs; the last of an odd number joins the pair before it."""
    pairs = [order[i : i + 2] for i in range(0, len(order) - 1, 2)]
    pairs[-1] += order[2 * len(pairs) :]
    return pairs


def chs(job: Job) -> Answer:
    """
    Pair at random, then whoever failed with whoever passed, who may have to serve several.

    After run_nccl_random_pair_healthcheck of cluster-health-scanner 81c525d.
    """
    order = job.chance.sample(range(job.count), job.count)
    pairs = [order[i : i + 2] for i in range(0, job.count, 2)]
    if job.count % 2:  # the last one meets somebody for the second time
        pairs[-1].append(job.chance.choice(order[:-1]))
    failing = job.failing(pairs)
    suspects, passed = ([node for node in order if failing[node] is wanted] for wanted in (True, False))
    if not suspects or not passed:
        return Answer(set(suspects), 1)
    return Answer({a for a, b in zip(suspects, cycle(passed), strict=False) if not job.passes(a, b)}, 2)


def three_and_three(job: Job) -> Answer:
    """With up to four nodes everybody meets everybody at first; with no witness left, accuse whoever failed most."""
    odd = job.count % 2
    circle = [*job.chance.sample(range(job.count), job.count), *[-1] * odd]
    met: list[tuple[int, int, bool]] = []
    for _ in range(3):
        half = len(circle) // 2
        met += [
            (a, b, job.passes(a, b))
            for a, b in zip(circle[:half], circle[: half - 1 : -1], strict=True)
            if min(a, b) >= 0
        ]
        circle[1:] = circle[-1:] + circle[1:-1]
    suspects = sorted({node for a, b, passed in met if not passed for node in (a, b)})
    well = [node for node in job.chance.sample(range(job.count), job.count) if node not in suspects]
    if not suspects or not well:
        return Answer(set(_most_failing(met)), 3)
    pairs = [(node, well[(i + turn) % len(well)]) for turn in range(3) for i, node in enumerate(suspects)]
    return Answer({a for a, b in pairs if not job.passes(a, b)}, 6)


def _most_failing(met: list[tuple[int, int, bool]]) -> Iterator[int]:
    """Yield again and again who fails most, and leave it out."""
    while any(not passed for _, _, passed in met):
        results: dict[int, list[bool]] = {}
        for a, b, passed in met:
            results.setdefault(a, []).append(not passed)
            results.setdefault(b, []).append(not passed)
        worst = max(results, key=lambda node: statistics.mean(results[node]))
        yield worst
        met = [(a, b, passed) for a, b, passed in met if worst not in (a, b)]


SCHEDULES: dict[str, Callable[[Job], Answer]] = {
    "ours": ours,
    "DLRover": dlrover,
    "CHS": chs,
    "3+3": three_and_three,
}
WRONG = [f"{name} wrong" for name in SCHEDULES]
COLUMNS = ["shows", "nodes", "faults", *SCHEDULES, "rounds", *WRONG]
COLUMNS_BY_CHANCE = ["by chance", "nodes", *SCHEDULES, "rounds", *WRONG]


@dataclass(frozen=True)
class Cell:
    """What came of one schedule: share of exact answers, well nodes accused and rounds in the mean."""

    exact: float
    wrong: float
    rounds: float


def measure(
    schedule: Callable[[Job], Answer], count: int, faults: int, *, shows: float, trials: int, by_chance: float = 0.0
) -> Cell:
    """Return what came of so many trials, the same ones each time."""
    exact, wrong, rounds = [], [], []
    for trial in range(trials):
        chance = random.Random(f"{count} {faults} {shows} {trial}")  # noqa: S311 - no secret
        job = Job(count, frozenset(chance.sample(range(count), faults)), shows, chance, by_chance)
        answer = schedule(job)
        exact.append(answer.accused == job.faulty)
        wrong.append(len(answer.accused - job.faulty))
        rounds.append(answer.rounds)
    return Cell(statistics.mean(exact), statistics.mean(wrong), statistics.mean(rounds))


def rows(trials: int, largest: int) -> Iterator[list[str]]:
    """Yield the lines of the table."""
    for shows in SHOWS:
        for count in (count for count in NODES if count <= largest):
            for faults in sorted({1, 2, max(1, count // 8)}):
                cells = [measure(each, count, faults, shows=shows, trials=trials) for each in SCHEDULES.values()]
                yield [f"{shows:.1f}", str(count), str(faults), *_figures(cells)]


def rows_by_chance(trials: int, largest: int) -> Iterator[list[str]]:
    """Yield the lines of the table of jobs in which nothing is at fault."""
    for part in BY_CHANCE:
        for count in (count for count in WELL if count <= largest):
            cells = [measure(each, count, 0, shows=0.0, trials=trials, by_chance=part) for each in SCHEDULES.values()]
            yield [f"{part:.2f}", str(count), *_figures(cells)]


def _figures(cells: Sequence[Cell]) -> list[str]:
    exact, wrong = [f"{cell.exact:.3f}" for cell in cells], [f"{cell.wrong:.3f}" for cell in cells]
    return [*exact, f"{cells[0].rounds:.1f}", *wrong]


def line(cells: Iterable[str]) -> str:
    """Return a line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=TRIALS, help="trials behind each share (%(default)s)")
    parser.add_argument("--largest", type=int, default=max(NODES), help="most nodes (%(default)s)")
    given = parser.parse_args()
    for columns, found in ((COLUMNS, rows), (COLUMNS_BY_CHANCE, rows_by_chance)):
        print(line(columns))
        print(line("-" * len(name) for name in columns))
        for row in found(given.trials, given.largest):
            print(line(row), flush=True)
        print()


if __name__ == "__main__":
    main()
