"""
Who meets whom, and who is to blame: pure functions from the meetings so far to the next round, and to a verdict.

A meeting is a test between two nodes. It passes when both are well and so is what lies between them; a fault may show
only sometimes. A node is accused by two or more partners that failed with it and do clearly better without it.

However many nodes are at fault, as long as their faults always show, no other is accused: they fail with everybody, so
they never do better without somebody and accuse nobody, and the others have failed with nobody else. Nor does a link
that fails change this: what two do that always fail with each other, and well with others, accuses neither of them.
A node with several such links may be accused itself, as may one that met several nodes whose faults show sometimes.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

# The numbers come from the simulation of benchmarks/localise.py, 300 trials each; "0.7, 8, 2" below is how often the
# answer is exact where two of eight nodes are at fault, each of which shows in 0.7 of its tests.

# Rounds of new partners: so many at first; so many when a node always fails, which is left out after the first, as its
# tests may each take until a deadline; so many while none does. Without the second, 0.7, 64, 2 falls from 1 to 0.99.
AT_FIRST, AT_LEAST, AT_MOST = 3, 5, 10
# Meetings that a node has had in all, once one has failed and nothing explains it. With 14, 0.4, 4, 2 falls from
# 0.75 to 0.44.
TESTS = 20
# So often a pair meets that never passes. A node that fails half the time fails so often by chance in 1 of 16 cases.
REPEATS = 4
# So many partners accuse a node, and so many end its tests though it passed with some. With three accusers two of four
# nodes are never found; with four to end its tests the answers are as exact, up to four rounds later. One that never
# passed is tested until it has failed REPEATS times: of three nodes with a cut link, where 5 of 100 meetings fail for
# no reason, a well one is accused in 3 of 1000 jobs instead of 12 of 100.
ACCUSERS, SURE = 2, 3
# Who fails at most so much of what another does, does clearly better: an accuser without the accused. With 0.65,
# 0.4, 4, 2 falls from 0.75 to 0.68, with 0.5, 0.7, 4, 2 from 0.98 to 0.72, as each of the two that are well fails half
# its tests without the accused.
CLEARLY_BETTER = 0.8
# Everybody fails now and then where the network is busy or a machine has no time. Nodes that do clearly better than one
# under suspicion show how much that is; as far as they tell, a job in which nothing else happens accuses somebody with
# this probability. Where 5 of 100 meetings fail for no reason, a well node is accused in 1 of 10 jobs of 64 nodes, and
# without this in all. With 0.02 it is 1 of 20, but 0.4, 3, 1 falls from 0.87 to 0.79.
CHANCE = 0.05
# Two that always fail with each other are no fault of theirs when each fails in no greater part of its other meetings,
# of which there are so many.
WELL, ENOUGH = 0.25, 8


@dataclass(frozen=True)
class Meeting:
    """What came of a test between two nodes in a round."""

    a: int
    b: int
    round: int
    passed: bool


@dataclass(frozen=True)
class Blame:
    """
    The verdict.

    Args:
        nodes: those at fault, in order.
        links: pairs that always fail although both do well with more others.
        undetermined: pairs that failed, and nothing tells which of the two it was.
    """

    nodes: tuple[int, ...] = ()
    links: tuple[tuple[int, int], ...] = ()
    undetermined: tuple[tuple[int, int], ...] = ()


class _Past:
    """How often each node passed and failed with whom, without those that are left out."""

    def __init__(self, meetings: Iterable[Meeting]) -> None:
        self.passed: dict[int, Counter[int]] = defaultdict(Counter)
        self.failed: dict[int, Counter[int]] = defaultdict(Counter)
        for meeting in meetings:
            side = self.passed if meeting.passed else self.failed
            side[meeting.a][meeting.b] += 1
            side[meeting.b][meeting.a] += 1

    def leave_out(self, node: int) -> None:
        """Forget all meetings of a node."""
        for side in (self.passed, self.failed):
            for other in side.pop(node, ()):
                del side[other][node]

    def tests(self, node: int) -> int:
        """Return how many meetings a node had."""
        return self.passed[node].total() + self.failed[node].total()

    def times(self, a: int, b: int) -> int:
        """Return how often two have met."""
        return self.passed[a][b] + self.failed[a][b]

    def failing(self, node: int) -> float:
        """Return the part of a node's meetings that failed; 1 when it had none."""
        return _part(self.failed[node].total(), self.tests(node))

    def failing_without(self, node: int, other: int) -> float:
        """Return the part of a node's meetings with all but one other that failed; 1 when it had none."""
        return _part(self.failed[node].total() - self.failed[node][other], self.tests(node) - self.times(node, other))

    def failing_among(self, nodes: Collection[int]) -> float:
        """Return the part of some nodes' meetings with each other that failed; half of one is added for prudence."""
        failed, passed = (
            sum(times for node in nodes for other, times in side[node].items() if other in nodes) / 2
            for side in (self.failed, self.passed)
        )
        return (failed + 0.5) / (failed + passed + 1)

    def accusers(self, node: int) -> int:
        """Return how many partners failed with a node and do clearly better without it."""
        most = self.failing(node) * CLEARLY_BETTER
        return sum(self.failing_without(other, node) <= most for other in self.failed[node])

    def settled(self, a: int, b: int) -> bool:
        """Whether two have always failed with each other, often enough."""
        return self.failed[a][b] >= REPEATS and not self.passed[a][b]

    def take_links(self) -> list[tuple[int, int]]:
        """Forget the meetings of pairs that always fail although both do well with others; return the pairs."""
        found: list[tuple[int, int]] = []
        while links := [pair for pair in self._pairs_that_fail() if self._is_link(*pair)]:
            for a, b in links:
                del self.failed[a][b], self.failed[b][a]
            found += links
        return sorted(found)

    def _pairs_that_fail(self) -> list[tuple[int, int]]:
        return [(a, b) for a, others in self.failed.items() for b in others if a < b]

    def _is_link(self, a: int, b: int) -> bool:
        return self.settled(a, b) and self._does_well_without(a, b) and self._does_well_without(b, a)

    def _does_well_without(self, node: int, other: int) -> bool:
        return self.tests(node) - self.times(node, other) >= ENOUGH and self.failing_without(node, other) <= WELL


def _part(some: int, everything: int) -> float:
    return some / everything if everything else 1.0


def blame(meetings: Iterable[Meeting]) -> Blame:
    """Return who is at fault, as far as the meetings tell."""
    past = _Past(meetings)
    links, nodes = past.take_links(), []
    while worst := _worst(past):
        for node in worst:
            past.leave_out(node)
        nodes += worst
    left = sorted((node, other) for node, others in past.failed.items() for other in others if node < other)
    links = [pair for pair in links if not set(pair) & set(nodes)]  # a node at fault explains it
    return Blame(tuple(sorted(nodes)), tuple(links), tuple(left))


def _worst(past: _Past) -> list[int]:
    """Return the accused that fail most, of those that fail too often for chance."""
    accused = [node for node in list(past.failed) if past.accusers(node) >= ACCUSERS]
    nodes = past.passed.keys() | past.failed.keys() if accused else set()
    failing = {node: past.failing(node) for node in nodes}
    for most in sorted({failing[node] for node in accused}, reverse=True):
        usual = past.failing_among({node for node in nodes if failing[node] <= most * CLEARLY_BETTER})
        worst = [node for node in accused if failing[node] == most]
        sure = [n for n in worst if _at_least(past.failed[n].total(), past.tests(n), usual) <= CHANCE / len(nodes)]
        if sure:
            return sure
    return []


def _at_least(count: int, tests: int, part: float) -> float:
    """Return how probably so many of the tests fail, or more, where such a part of them does by chance."""
    return sum(math.comb(tests, n) * part**n * (1 - part) ** (tests - n) for n in range(count, tests + 1))


def limit(count: int) -> int:
    """Return the most rounds for so many nodes: a few, and some for those that find no partner at once."""
    return AT_FIRST + TESTS + math.ceil(math.log2(count))


def next_round(nodes: Collection[int], meetings: Collection[Meeting], *, seed: int = 0) -> list[tuple[int, int]]:
    """
    Return the pairs of the next round, the lower rank first; none when nothing more can be learned.

    Each node is in at most one.

    Args:
        nodes: the ranks that take part; they may become fewer.
        meetings: all so far, one for each pair of each round.
        seed: makes the choice, the same for everybody.
    """
    order = sorted(nodes)
    rounds = 1 + max((meeting.round for meeting in meetings), default=-1)
    passed, failed = (any(meeting.passed is wanted for meeting in meetings) for wanted in (True, False))
    if len(order) < 2 or rounds >= (limit(len(order)) if failed else AT_MOST):
        return []
    if rounds < AT_FIRST or not failed:
        pairs = _circle(order, rounds, seed)
    else:
        pairs = _follow_up(order, meetings, rounds, seed) if passed else []
    return [(min(pair), max(pair)) for pair in pairs]


def _circle(nodes: list[int], number: int, seed: int) -> list[tuple[int, int]]:
    """Return a round of the circle method: in n - 1 rounds (n when it is odd) everybody meets everybody once."""
    order: list[int | None] = [*random.Random(seed).sample(nodes, len(nodes))]  # noqa: S311 - no secret
    if len(order) % 2:
        order.append(None)
    turning = order[1:]
    turn = number % len(turning)
    row = [order[0], *turning[turn:], *turning[:turn]]
    pairs = zip(row[: len(row) // 2], reversed(row[len(row) // 2 :]), strict=True)
    return [(a, b) for a, b in pairs if a is not None and b is not None]


def _follow_up(nodes: list[int], meetings: Collection[Meeting], rounds: int, seed: int) -> list[tuple[int, int]]:
    """Let those that may be links meet again, those under suspicion the best of the others, and the rest somebody."""
    past = _Past(meetings)
    past.take_links()
    sure = {node for node in blame(meetings).nodes if _is_sure(node, past)}
    rest = [node for node in nodes if node not in sure]
    again = list(_perhaps_links(rest, past))
    open_ = [node for node in rest if past.tests(node) < TESTS and _unexplained(node, past, sure)]
    others_may_show = rounds < (AT_MOST if any(past.passed[node] for node in sure) else AT_LEAST)
    if len(rest) <= ACCUSERS or not (again or open_ or others_may_show):
        return []
    # Whoever does best is the best witness; among equals chance decides.
    shuffled = random.Random(f"{seed} {rounds}").sample(rest, len(rest))  # noqa: S311 - no secret
    free = dict.fromkeys(sorted(shuffled, key=past.failing))
    pairs = [_take(free, a, b) for a, b in again if a in free and b in free]
    turns = [*sorted(open_, key=past.tests), *rest]
    return pairs + [_take(free, a, _partner(a, free, past)) for a in turns if a in free and len(free) > 1]


def _is_sure(node: int, past: _Past) -> bool:
    """Whether enough have accused a node, and often enough: one that never passed failed with some by accident."""
    if past.passed[node]:
        return past.accusers(node) >= SURE
    return past.accusers(node) >= ACCUSERS and past.failed[node].total() >= REPEATS


def _perhaps_links(nodes: list[int], past: _Past) -> Iterator[tuple[int, int]]:
    """Yield the pairs that have always failed, not often enough yet, although both have passed with others."""
    here = set(nodes)
    for a in nodes:
        for b in sorted(past.failed[a].keys() & here):
            if a < b and past.passed[a] and past.passed[b] and not past.passed[a][b] and past.times(a, b) < REPEATS:
                yield a, b


def _unexplained(node: int, past: _Past, sure: set[int]) -> bool:
    """Whether a node has failed with others than those that are surely at fault, or has done nothing but fail."""
    return bool(past.failed[node].keys() - sure or (past.failed[node] and not past.passed[node]))


def _partner(node: int, free: Collection[int], past: _Past) -> int:
    """Return the best of those that a node has not met yet, else of those that it has met least."""
    # With thousands of nodes somebody new is found at once, long before all are compared.
    new = next((other for other in free if other != node and not past.times(node, other)), None)
    if new is not None:
        return new
    others = [other for other in free if other != node]
    # With whom it always fails it has failed often enough; each such test takes until a deadline.
    return min(others, key=lambda other: (past.settled(node, other), past.times(node, other)))


def _take(free: dict[int, None], a: int, b: int) -> tuple[int, int]:
    del free[a], free[b]
    return a, b
