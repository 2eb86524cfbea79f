"""Pair tests name the nodes at fault, and nobody else."""

import random
from itertools import combinations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trainer_agent.gang.pairs import AT_FIRST, AT_MOST, Blame, Meeting, blame, limit, next_round

often = settings(max_examples=50)
SEEDS = st.integers(0, 1 << 32)


@st.composite
def nodes_and_some(draw, *, least=2, most=40, few=False):
    """Return ranks with gaps between them, and some of these: any number, or fewer than a third."""
    nodes = draw(st.lists(st.integers(0, 5000), min_size=least, max_size=most, unique=True).map(sorted))
    largest = (len(nodes) - 1) // 3 if few else len(nodes)
    return nodes, draw(st.sets(st.sampled_from(nodes), max_size=largest))


def play(nodes, passes, *, seed=0):
    """Return all meetings until there is no next round, where `passes` says what comes of one."""
    meetings = []
    for number in range(limit(len(nodes)) + 1):
        pairs = next_round(nodes, meetings, seed=seed)
        meetings += [Meeting(a, b, number, passes(a, b)) for a, b in pairs]
        if not pairs:
            return meetings
    raise AssertionError("the rounds do not end")


def rounds(meetings):
    """Return the pairs of each round."""
    found = {}
    for meeting in meetings:
        found.setdefault(meeting.round, []).append((meeting.a, meeting.b))
    return list(found.values())


def always(faulty, links=()):
    """Return what comes of meetings when faults show every time."""
    return lambda a, b: not {a, b} & set(faulty) and {a, b} not in [set(link) for link in links]


def by_chance(probability, seed):
    """Return what comes of meetings that fail now and then."""
    chance = random.Random(seed)
    return lambda a, b: chance.random() >= probability


@often
@given(nodes_and_some(), st.floats(0, 1), SEEDS)
def test_nobody_is_in_two_pairs_of_a_round(job, probability, seed):
    """Nor with itself, nor anybody who does not take part; and the rounds end within the limit, whatever happens."""
    nodes, _ = job
    played = rounds(play(nodes, by_chance(probability, seed), seed=seed))

    assert 1 <= len(played) <= limit(len(nodes))
    for pairs in played:
        both = [node for pair in pairs for node in pair]
        assert len(both) == len(set(both))
        assert set(both) <= set(nodes)


@often
@given(nodes_and_some(least=3), SEEDS)
def test_everybody_meets_somebody_new_at_first(job, seed):
    """In each of the first rounds, but for one node when their number is odd."""
    nodes, faulty = job
    first = rounds(play(nodes, always(faulty), seed=seed))[:AT_FIRST]

    pairs = [frozenset(pair) for each in first for pair in each]
    assert [len(nodes) // 2] * AT_FIRST == [len(each) for each in first]
    assert len(pairs) == len(set(pairs))


@often
@given(nodes_and_some(most=10), SEEDS)
def test_ten_nodes_all_meet_while_nothing_fails(job, seed):
    nodes, _ = job
    met = {frozenset((meeting.a, meeting.b)) for meeting in play(nodes, always(()), seed=seed)}

    assert {frozenset(pair) for pair in combinations(nodes, 2)} == met


@often
@given(nodes_and_some(), st.floats(0, 0.5), SEEDS)
def test_everybody_draws_the_same_round(job, probability, seed):
    """In whatever order they know nodes and meetings."""
    nodes, _ = job
    meetings = play(nodes, by_chance(probability, seed), seed=seed)
    for last in range(len(rounds(meetings))):
        known = [meeting for meeting in meetings if meeting.round < last]
        mixed = [
            Meeting(each.b, each.a, each.round, each.passed) for each in random.Random(seed).sample(known, len(known))
        ]
        assert next_round(nodes, known, seed=seed) == next_round(set(nodes), mixed, seed=seed)
        assert blame(known) == blame(mixed)


@often
@given(nodes_and_some(), st.floats(0, 0.5), SEEDS)
def test_numbers_do_not_matter(job, probability, seed):
    """Nodes with gaps between their ranks are treated as if these were 0 to n - 1."""
    nodes, _ = job
    plain = play(range(len(nodes)), by_chance(probability, seed), seed=seed)
    gaps = play(nodes, by_chance(probability, seed), seed=seed)

    assert [(nodes[each.a], nodes[each.b], each.passed) for each in plain] == [
        (each.a, each.b, each.passed) for each in gaps
    ]
    assert tuple(nodes[node] for node in blame(plain).nodes) == blame(gaps).nodes


def test_another_seed_draws_other_rounds():
    assert next_round(range(64), [], seed=1) != next_round(range(64), [], seed=2)


@often
@given(nodes_and_some(), SEEDS)
def test_no_fault_that_always_shows_makes_another_suspect(job, seed):
    """However many there are, in no round."""
    nodes, faulty = job
    meetings = play(nodes, always(faulty), seed=seed)

    for last in range(len(rounds(meetings)) + 1):
        assert set(blame(meeting for meeting in meetings if meeting.round < last).nodes) <= faulty


@often
@given(nodes_and_some(least=4), st.data(), SEEDS)
def test_nor_does_a_link_in_between(job, data, seed):
    nodes, faulty = job
    order = data.draw(st.permutations(nodes))
    links = list(zip(order[::2], order[1::2], strict=False))[: data.draw(st.integers(0, len(nodes)))]
    meetings = play(nodes, always(faulty, links), seed=seed)

    for last in range(len(rounds(meetings)) + 1):
        assert set(blame(meeting for meeting in meetings if meeting.round < last).nodes) <= faulty


@often
@given(nodes_and_some(few=True), SEEDS)
def test_fewer_than_a_third_that_always_fail_are_named(job, seed):
    nodes, faulty = job

    assert Blame(nodes=tuple(sorted(faulty))) == blame(play(nodes, always(faulty), seed=seed))


@pytest.mark.parametrize("count,faults", [(256, 1), (257, 85), (1000, 2), (1000, 333), (4096, 1365)])
def test_so_are_those_of_many(count, faults):
    """In six rounds."""
    faulty = random.Random(count).sample(range(count), faults)
    meetings = play(range(count), always(faulty))

    assert Blame(nodes=tuple(sorted(faulty))) == blame(meetings)
    assert len(rounds(meetings)) <= 6


@often
@given(nodes_and_some(least=4), st.data(), SEEDS)
def test_two_nodes_that_are_fine_with_all_others_are_a_link(job, data, seed):
    """Of more than three, as soon as these two have met."""
    nodes, _ = job
    order = data.draw(st.permutations(nodes))
    link = tuple(sorted(order[:2]))
    meetings = play(nodes, always((), [link]), seed=seed)

    met = any((meeting.a, meeting.b) == link for meeting in meetings)
    assert Blame(links=(link,) if met else ()) == blame(meetings)
    assert met or len(nodes) > AT_MOST


@often
@given(nodes_and_some(least=4), st.data(), SEEDS)
def test_links_of_one_node_are_blamed_on_them_or_on_it(job, data, seed):
    """Which of the two it is nobody can tell of a few nodes; none of those at the other ends is accused."""
    nodes, _ = job
    hub, *ends = data.draw(st.permutations(nodes))[: data.draw(st.integers(3, (len(nodes) + 2) // 2))]
    links = {tuple(sorted((hub, end))) for end in ends}
    verdict = blame(play(nodes, always((), links), seed=seed))

    assert set(verdict.nodes) <= {hub}
    assert {*verdict.links, *verdict.undetermined} <= (set() if verdict.nodes else links)


@pytest.mark.parametrize("seed", range(20))
def test_two_links_of_one_node_among_many_are_links(seed):
    links = ((0, 1), (0, 2))

    assert Blame(links=links) == blame(play(range(10), always((), links), seed=seed))


@pytest.mark.parametrize("seed", range(20))
def test_an_accused_node_that_always_fails_is_left_alone(seed):
    """Others go on without it: each of its tests may have to wait for a deadline."""
    nodes, sometimes = range(12), by_chance(0.4, seed)
    meetings = play(nodes, lambda a, b: 0 not in (a, b) and (1 not in (a, b) or sometimes(a, b)), seed=seed)

    assert sum(0 in (meeting.a, meeting.b) for meeting in meetings) <= AT_FIRST + 1


@pytest.mark.parametrize("nodes,part,most", [(8, 0.02, 0.1), (8, 0.05, 0.25), (64, 0.02, 0.15), (64, 0.05, 0.2)])
def test_failures_that_hit_everybody_hardly_accuse_anybody(nodes, part, most):
    """Of 20 jobs in which only chance fails, such a part at most names a node, however many tests there are."""
    named = [blame(play(range(nodes), by_chance(part, seed), seed=seed)).nodes for seed in range(20)]

    assert sum(map(bool, named)) <= most * len(named)


@pytest.mark.parametrize("probability", [0.3, 0.7, 1.0])
def test_of_two_nodes_nobody_can_tell(probability):
    meetings = play([3, 7], by_chance(probability, 5))

    assert Blame(undetermined=((3, 7),)) == blame(meetings)
    assert len(meetings) < AT_MOST


@pytest.mark.parametrize(
    "faulty,links,verdict",
    [
        ([2], [], Blame(nodes=(2,))),
        ([2, 5], [], Blame(undetermined=((2, 5), (2, 9), (5, 9)))),
        ([2, 5, 9], [], Blame(undetermined=((2, 5), (2, 9), (5, 9)))),
        ([], [(2, 9)], Blame(links=((2, 9),))),
    ],
)
def test_three_nodes(faulty, links, verdict):
    """One is named, and so is a link; two are not, as there is no second witness."""
    for seed in range(20):
        assert verdict == blame(play([2, 5, 9], always(faulty, links), seed=seed))


@often
@given(nodes_and_some(), SEEDS)
def test_nothing_that_fails_is_a_verdict_of_nobody(job, seed):
    nodes, _ = job
    meetings = play(nodes, always(()), seed=seed)

    assert len(rounds(meetings)) == AT_MOST
    assert Blame() == blame(meetings)


@often
@given(nodes_and_some(), SEEDS)
def test_nothing_that_passes_ends_it(job, seed):
    """Where all fail no test tells anything, and each may have to wait for a deadline."""
    nodes, _ = job
    meetings = play(nodes, always(nodes), seed=seed)

    assert len(rounds(meetings)) == AT_FIRST
    assert blame(meetings).nodes == blame(meetings).links == ()
    assert {(meeting.a, meeting.b) for meeting in meetings} == set(blame(meetings).undetermined)


@pytest.mark.parametrize("nodes", [[], [4]])
def test_without_a_pair_there_is_no_round(nodes):
    assert next_round(nodes, []) == []
    assert Blame() == blame([])


@often
@given(nodes_and_some(least=6, few=True), st.data(), SEEDS)
def test_a_node_that_leaves_is_not_asked_again(job, data, seed):
    """What it has shown until then still counts."""
    nodes, faulty = job
    assume(len(nodes) - 1 > 3 * len(faulty))
    gone, after = data.draw(st.sampled_from(nodes)), data.draw(st.integers(1, AT_FIRST))
    here = always({*faulty, gone})
    first = [meeting for meeting in play(nodes, here, seed=seed) if meeting.round < after]
    rest, number = [node for node in nodes if node != gone], after
    meetings = list(first)
    while pairs := next_round(rest, meetings, seed=seed):
        assert {node for pair in pairs for node in pair} <= set(rest)
        meetings += [Meeting(a, b, number, here(a, b)) for a, b in pairs]
        number += 1

    assert number <= limit(len(nodes))
    assert faulty - {gone} <= set(blame(meetings).nodes) <= {*faulty, gone}
