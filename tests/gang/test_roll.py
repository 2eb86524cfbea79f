"""Who is here, since when, and who has gone."""

import pytest
from simulated import BEGAN, failed_local, hello

from trainer_agent.gang.roll import LOST_S, Node, Roll


def said(rank, *, born=1.0, **changes):
    clocks = {"sent": BEGAN, "heard": BEGAN, "now": BEGAN}
    return {"kind": "hello", "rank": rank, "born": born, **clocks, **hello(rank, 3, **changes)}


def roll_with(*ranks, nnodes=3, **changes):
    roll = Roll(nnodes)
    for rank in ranks:
        roll.hello(said(rank, **changes), now=10.0, wall=BEGAN)
    return roll


def states(roll):
    return [node.state for node in roll.nodes.values()]


def test_nodes_are_missing_until_they_come():
    roll = roll_with(2)

    assert ["missing", "missing", "ready"] == states(roll)
    assert [0, 1] == [node.rank for node in roll.missing]
    assert [Node(2, said(2), arrived=10.0, beat_at=10.0, offset_s=0.0)] == roll.here


def test_a_rank_that_the_job_does_not_have_is_kept_apart():
    roll = roll_with(0, 7)

    assert [0] == [node.rank for node in roll.here]
    assert [7] == list(roll.others)
    assert "node 7 (job-node-0-7)" == roll.name(7)


@pytest.mark.parametrize("births", [(1.0, 2.0), (2.0, 1.0)])
@pytest.mark.parametrize("rank", [1, 9])
def test_of_two_with_one_rank_the_younger_counts(births, rank):
    """Whichever of them is heard first."""
    roll = Roll(3)
    for born in births:
        roll.hello(said(rank, born=born), now=born, wall=BEGAN)

    assert [2.0] == [node.hello["born"] for node in [*roll.here, *roll.others.values()]]


def test_one_that_comes_again_is_there_again():
    """The same agent says hello twice when it had lost its connection."""
    roll = roll_with(1)
    roll.lose(100.0)
    assert "lost" == roll.nodes[1].state

    roll.hello(said(1), now=101.0, wall=BEGAN)
    assert "ready" == roll.nodes[1].state


def test_a_node_is_lost_when_it_gives_no_sign_for_so_long():
    roll = roll_with(0, 1)
    roll.beats({0: "1", 1: "1"}, 11.0)
    roll.beats({0: "2", 1: "1"}, 12.0)

    assert [] == roll.lose(11.0 + LOST_S)
    assert [1] == [node.rank for node in roll.lose(11.1 + LOST_S)]
    assert ["ready", "lost", "missing"] == states(roll)
    assert "no sign of life for 6 s" == roll.nodes[1].note
    assert [] == roll.lose(11.2 + LOST_S)


def test_a_node_that_failed_may_go():
    roll = roll_with(1, local=failed_local())

    assert [] == roll.lose(1000.0)
    assert ["missing", "failed", "missing"] == states(roll)


@pytest.mark.parametrize(
    "verdict,state", [("pass", "ready"), ("warn", "ready"), ("retry", "failed"), ("fatal", "failed")]
)
def test_its_own_verdict_decides_whether_a_node_failed(verdict, state):
    roll = roll_with(0, local=failed_local() | {"verdict": verdict})

    assert state == roll.nodes[0].state


@pytest.mark.parametrize("ahead,there,back", [(0, 0, 0), (2, 0, 0), (-30, 0, 0), (5, 0.25, 0.25), (-1, 0.5, 0.25)])
def test_clocks_are_compared_by_a_round_trip(ahead, there, back):
    """However long both ways take; of what differs between them, half is seen."""
    roll = Roll(3)
    clocks = {"sent": BEGAN, "heard": BEGAN + back + ahead, "now": BEGAN + back + ahead}
    roll.hello(said(1) | clocks, now=0.0, wall=BEGAN + back + there)

    assert (ahead + (back - there) / 2, (there + back) / 2) == (roll.nodes[1].offset_s, roll.nodes[1].doubt_s)


def test_names():
    roll = roll_with(0, 1, nnodes=20)

    assert "node 0 (job-node-0-0), node 1 (job-node-0-1), node 2" == roll.names([0, 1, 2])
    assert "node 0 (job-node-0-0), node 1 (job-node-0-1) and 18 more" == roll.names(range(20), most=2)
