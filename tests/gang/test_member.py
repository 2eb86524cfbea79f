"""What nodes and rank 0 write at the meeting place."""

import json

import pytest
from meeting_place import Place, here, look
from simulated import BEGAN, MemoryStore, hello, plan

from trainer_agent.gang.member import (
    PROTOCOL,
    SHOW_S,
    LeaderSilentError,
    Member,
    NotOpenError,
    OtherAttemptError,
    OtherJobError,
    OtherProtocolError,
    SupersededError,
)
from trainer_agent.gang.roll import BEAT_S, LOST_S
from trainer_agent.gang.store import StoreLostError


def test_nobody_joins_before_the_place_is_open():
    place = Place()
    with pytest.raises(NotOpenError, match="rank 0 is about to open the meeting place"):
        place.join(1)
    assert {} == place.store.values


def test_what_makes_the_place_open_is_written_last():
    """Whoever sees it finds everything else."""

    class Recording(MemoryStore):
        def set(self, key, value):
            if key == "open":
                assert {"pulse", "board", "version"} <= self.values.keys()
            super().set(key, value)

    place = Place()
    place.chair.store = Recording()
    place.open()
    assert PROTOCOL == json.loads(place.chair.store.values["open"])["protocol"]


def test_a_node_joins_and_reads_the_board(place):
    member = place.join(1)
    place.turn(SHOW_S)

    assert ("epoch-1", [1]) == (member.epoch, here(place))
    board = look(place, member)
    assert {
        "phase": "roll-call",
        "here": 1,
        "missing": [0, 2],
        "task": None,
        "doors": {"1": "10.0.0.1"},
        "verdict": False,
    } == board


def test_another_attempt_is_turned_away(place):
    with pytest.raises(OtherAttemptError, match="rank 0 is of attempt 'a1' of the job, and this node of 'a2'"):
        place.join(1, attempt="a2")
    place.turn()

    assert [] == here(place)


@pytest.mark.parametrize("theirs", ["", "other-node-0-0"])
@pytest.mark.parametrize("ours", ["", "job-node-0-0"])
def test_another_job_is_turned_away(theirs, ours):
    """Whose address this one's rank 0 had before, or whose machine it shares; where that is known for sure."""
    place = Place()
    place.leader.plan = plan(3, attempt="a1", job=theirs)
    place.open()
    member = place.member(1)
    told = {"attempt": "a1", "job": ours, "now": 0.0, "wall": place.wall}
    if theirs and ours:
        with pytest.raises(
            OtherJobError, match="rank 0 is other-node-0-0 of another job, and this node looks for job-"
        ):
            member.join(hello(1, 3), **told)
    else:
        assert "epoch-1" == member.join(hello(1, 3), **told)
    place.turn()

    assert ([] if theirs and ours else [1]) == here(place)
    assert (theirs and ours) == "" or "claim/1" not in place.store.values


@pytest.mark.parametrize("there,number", [("2", 2), ('{"protocol": "4"}', 4)])
def test_another_protocol_is_refused_before_anything_is_read(place, there, number):
    place.store.values = {"pulse": "0", "open": there}

    with pytest.raises(OtherProtocolError, match=f"speaks protocol {number} at the meeting place, and this one 3"):
        place.join(1)


def test_the_younger_of_two_with_one_rank_stays(place):
    older = place.join(1, born=1.0)
    younger = place.join(1, born=2.0)
    place.turn()

    with pytest.raises(SupersededError, match="another agent with node rank 1 has started later"):
        look(place, older)
    assert look(place, younger) is not None
    assert 2.0 == place.leader.roll.nodes[1].hello["born"]


def test_the_older_of_two_with_one_rank_does_not_join(place):
    younger = place.join(1, born=2.0)
    with pytest.raises(SupersededError):
        place.join(1, born=1.0)
    place.turn()

    assert look(place, younger) is not None
    assert 2.0 == place.leader.roll.nodes[1].hello["born"]


def test_an_agent_may_join_again(place):
    """It lost its connection, and is as old as its claim."""
    place.join(1, born=2.0)
    again = place.join(1, born=2.0)
    place.turn()

    assert look(place, again) is not None
    assert [1] == here(place)


def test_of_two_that_claim_a_rank_at_the_same_time_the_younger_stays(place):
    """Whatever the younger does between two requests of the older."""
    younger = []

    class Between(MemoryStore):
        def compare_set(self, key, expected, value):
            found = super().compare_set(key, expected, value)
            if key == "claim/1" and not younger:
                younger.append(Member(self, rank=1, born=2.0))
                younger[0].join(hello(1, 3), attempt="a1", now=0.0, wall=place.wall)
            return found

    store = Between()
    store.values = place.store.values
    older = Member(store, rank=1, born=1.0)

    def join_and_look():
        older.join(hello(1, 3), attempt="a1", now=0.0, wall=place.wall)
        older.look(now=0.0)

    with pytest.raises(SupersededError):
        join_and_look()
    assert younger[0].look(now=0.0) is not None


def test_the_board_is_read_only_when_it_has_changed(place):
    members = [place.join(rank) for rank in (0, 1)]
    place.turn(SHOW_S)
    assert [2, 2] == [look(place, member)["here"] for member in members]

    before = place.store.calls.copy()
    place.turn(0.1)
    assert [None, None] == [look(place, member) for member in members]
    assert (2, 1) == tuple((place.store.calls - before)[each] for each in ("get", "set"))  # the set is rank 0's pulse

    place.join(2)
    place.turn(0.1)
    assert [3, 3] == [look(place, member)["here"] for member in members]


def test_a_rank_zero_that_has_no_time_takes_no_clock_for_wrong(place):
    """Between two of its requests to a store that serves others meanwhile."""

    class Slow(MemoryStore):
        def set(self, key, value):
            if key == "pulse" and place.now == 0.1:
                place.now += 2.5
                place.join(1)
            super().set(key, value)

    slow = Slow()
    slow.values = place.store.values
    place.store = place.chair.store = slow
    place.turn(0.1)

    node = place.leader.roll.nodes[1]
    assert abs(node.offset_s) <= node.doubt_s + 0.001


def test_who_is_here_is_shown_once_a_second():
    """As thousands come within a second, and each time all would read it; a task and the end are shown at once."""
    place = Place(9)
    place.open()
    member = place.join(1)
    shown = []
    for rank in range(2, 9):
        place.join(rank)
        place.turn(0.2)
        shown.append((look(place, member) or {}).get("here"))
    assert [2, None, None, None, None, 7, None] == shown

    place.join(0)
    place.turn(0.1)
    board = look(place, member)
    assert ("all", 9, []) == (board["task"]["kind"], board["here"], board["missing"])


def test_a_clock_is_compared_with_the_last_sign_of_life(place):
    """Which may be some time ago: so much the comparison may be wrong."""
    place.turn(0.1)
    place.now += 0.4
    said = iter([place.wall() + 7, place.wall() + 7.2])  # to join takes a while
    place.member(1).join(hello(1, 3), attempt="a1", now=place.now, wall=lambda: next(said))
    place.turn(0.4)

    node = place.leader.roll.nodes[1]
    assert pytest.approx((7.1, 0.3), abs=1e-6) == (node.offset_s, node.doubt_s)


def test_a_sign_of_life_comes_every_second(place):
    member = place.join(1)
    signs = set()
    for tenth in range(50):
        member.beat(tenth / 10)
        signs.add(place.store.values["beat/1"])

    assert {f"1.0 {number}" for number in range(1, 6)} == signs
    assert 1.0 == BEAT_S


def test_rank_zero_gives_signs_of_life_of_its_own(place):
    for _ in range(21):
        place.turn(0.1)

    assert f"22 {BEGAN + place.now!r}" == place.store.values["pulse"]  # with the first, when it opened


def test_a_silent_rank_zero_is_noticed(place):
    member = place.join(1)
    place.turn()
    look(place, member)
    look(place, member)
    place.now += LOST_S
    assert look(place, member) is None

    place.now += 0.1
    with pytest.raises(LeaderSilentError, match="rank 0 has given no sign of life for 6 s"):
        look(place, member)


def test_a_hole_in_the_news_keeps_nothing_up(place):
    """A node took a number and died before it wrote; when something comes after all, it is heard, once."""
    hole = place.store.add("news", 1)
    place.join(1)
    place.turn()
    assert ([1], [hole]) == (here(place), place.chair.awaited)

    place.join(2)
    place.turn()
    assert ([1, 2], [hole]) == (here(place), place.chair.awaited)

    late = {"kind": "hello", "rank": 0, "born": 1.0, "sent": BEGAN, "heard": BEGAN, "now": BEGAN, **hello(0, 3)}
    place.store.values[f"news/{hole}"] = json.dumps(late)
    place.turn()
    assert ([0, 1, 2], []) == (here(place), place.chair.awaited)
    place.turn(0.1)
    assert 0.0 == place.leader.roll.nodes[0].arrived


def test_a_store_that_is_lost_is_told_to_everybody(place):
    member = place.join(1)
    place.store.lost = True

    for work in (lambda: look(place, member), lambda: member.beat(9.0), lambda: place.turn(1.0), member.verdict):
        with pytest.raises(StoreLostError):
            work()
