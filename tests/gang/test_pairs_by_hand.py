"""What a few meetings, written down by hand, tell of the nodes."""

import pytest

from trainer_agent.gang.pairs import AT_FIRST, TESTS, Blame, Meeting, blame, next_round


def meetings(results):
    """Return what came of the meetings of each pair: passed, or failed where there is an `x`."""
    return [
        Meeting(int(pair[0]), int(pair[1]), number, result != "x")
        for pair, each in results.items()
        for number, result in enumerate(each)
    ]


@pytest.mark.parametrize(
    "results,verdict",
    [
        pytest.param({"01": "xxxx", "02": "." * 8, "12": "." * 8}, Blame(links=((0, 1),)), id="link"),
        pytest.param(
            {"01": "xxxx", "02": "." * 8, "12": "." * 7},
            Blame(undetermined=((0, 1),)),
            id="too little is known of what one of a link's nodes does without it",
        ),
        pytest.param(
            {"01": "xxxx", "02": "." * 6 + "xx", "03": ".", "12": "." * 8},
            Blame(links=((0, 1),), undetermined=((0, 2),)),
            id="a link between nodes that do well, not always",
        ),
        pytest.param(
            {"01": "xxx", "02": "." * 8, "12": "." * 8},
            Blame(undetermined=((0, 1),)),
            id="not often enough for a link",
        ),
        pytest.param(
            {"01": "xxxx.", "02": "." * 8, "12": "." * 8},
            Blame(undetermined=((0, 1),)),
            id="a link does not pass",
        ),
        pytest.param(
            {"01": "xxxx", "02": "." * 8, "13": "....xxxx"},
            Blame(undetermined=((0, 1), (1, 3))),
            id="a link is one for both of its nodes",
        ),
        pytest.param(
            {"01": "xxxx", "02": ".", "06": ".", "12": ".", "13": "."}
            | {"34": "....", "45": "....", "64": "xx", "65": "xx"},
            Blame(nodes=(6,), undetermined=((0, 1),)),
            id="having passed with an accused node is no witness",
        ),
        pytest.param(
            {"01": "xxx", "02": "xxx", "03": "." * 10, "13": "." * 8, "23": "." * 8}
            | {"14": "x", "15": "x", "24": "x", "25": "x", "43": "." * 8, "53": "." * 8},
            Blame(nodes=(1, 2)),
            id="whoever fails most explains what others did",
        ),
        pytest.param({"01": "x", "02": "x", "03": "x"}, Blame(undetermined=((0, 1), (0, 2), (0, 3))), id="no witness"),
        pytest.param({"01": "xx", "02": "xx", "12": "...."}, Blame(nodes=(0,)), id="two witnesses"),
        pytest.param(
            {"01": "x", "02": "x", "12": "."}, Blame(undetermined=((0, 1), (0, 2))), id="so few may fail by chance"
        ),
    ],
)
def test_the_verdict(results, verdict):
    assert verdict == blame(meetings(results))


def follow(results, nodes, *, after):
    """Return all meetings when those of `results` come first, and everything passes from then on."""
    known, number = list(results), after
    while pairs := next_round(nodes, known):
        known += [Meeting(a, b, number, passed=True) for a, b in pairs]
        number += 1
    return known


def failed_once(nodes):
    """Return meetings of the first rounds, of which one fails, and that pair."""
    known = []
    for number in range(AT_FIRST):
        known += [Meeting(a, b, number, passed=True) for a, b in next_round(nodes, known)]
    last = known.pop()
    return [*known, Meeting(last.a, last.b, last.round, passed=False)], {last.a, last.b}


@pytest.mark.parametrize("leaves", [False, True])
def test_two_that_failed_once_meet_everybody(leaves):
    """Until they have had enough meetings, with each other only once more, unless one of them is gone."""
    first, pair = failed_once(range(16))
    gone = {max(pair)} if leaves else set()
    known = follow(first, set(range(16)) - gone, after=AT_FIRST)

    assert Blame(undetermined=(tuple(sorted(pair)),)) == blame(known)
    assert max(each.round for each in known) + 1 == TESTS
    assert sum({each.a, each.b} == pair for each in known) == 2 - leaves
    for node in pair - gone:
        met = {other for each in known if node in (each.a, each.b) for other in (each.a, each.b)}
        assert set(range(16)) - gone <= met | {node}


def test_of_few_they_meet_all_equally():
    """Whatever is between two must not weigh more than the others."""
    first, pair = failed_once(range(5))
    known = follow(first, range(5), after=AT_FIRST)
    for node in pair:
        times = [sum({each.a, each.b} == {node, other} for each in known) for other in range(5) if other != node]
        assert max(times) - min(times) <= 2


def test_chance_chooses_among_equal_witnesses():
    first, _ = failed_once(range(64))

    assert next_round(range(64), first, seed=1) != next_round(range(64), first, seed=2)
