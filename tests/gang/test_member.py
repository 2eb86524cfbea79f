"""What nodes and rank 0 write at the meeting place."""

import json

import pytest
from simulated import BEGAN, Gang, MemoryStore, hello, plan

from trainer_agent.gang.leader import CLOCKS_S, Leader
from trainer_agent.gang.member import (
    AT_ONCE,
    PULSE_S,
    Chair,
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


class Place:
    """A meeting place with rank 0's chair, and a clock."""

    def __init__(self, nodes=3, *, attempt="a1"):
        self.store = MemoryStore()
        self.leader = Leader(plan(nodes, attempt=attempt), lambda _: "")
        self.chair = Chair(self.store, self.leader, "epoch-1")
        self.now = 0.0

    def member(self, rank, *, born=1.0):
        return Member(self.store, rank=rank, born=born)

    def join(self, rank, *, born=1.0, attempt="a1", **says):
        member = self.member(rank, born=born)
        words = hello(rank, self.leader.plan.nnodes, **says) | {"now": BEGAN + self.now}
        member.epoch = member.join(words, attempt=attempt, now=self.now)
        return member

    def turn(self, seconds=0.0):
        self.now += seconds
        self.chair.turn(now=self.now, wall=BEGAN + self.now)


@pytest.fixture
def place():
    found = Place()
    found.chair.open()
    return found


def look(place, member):
    return member.look(now=place.now, wall=BEGAN + place.now)


def here(place):
    return [node.rank for node in place.leader.roll.here]


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
                assert {"attempt", "epoch", "pulse", "board", "version"} <= self.values.keys()
            super().set(key, value)

    place = Place()
    place.chair.store = Recording()
    place.chair.open()
    assert "1" == place.chair.store.values["open"]


def test_a_node_joins_and_reads_the_board(place):
    member = place.join(1)
    place.turn()

    assert ("epoch-1", [1]) == (member.epoch, here(place))
    board = look(place, member)
    assert {
        "phase": "roll-call",
        "here": 1,
        "missing": [0, 2],
        "task": None,
        "doors": {"1": "10.0.0.1"},
        "verdict": False,
        "wall": BEGAN,
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
    place.chair.open()
    member = place.member(1)
    words = hello(1, 3) | {"now": BEGAN}
    if theirs and ours:
        with pytest.raises(
            OtherJobError, match="rank 0 is other-node-0-0 of another job, and this node looks for job-"
        ):
            member.join(words, attempt="a1", job=ours, now=0.0)
    else:
        assert "epoch-1" == member.join(words, attempt="a1", job=ours, now=0.0)
    place.turn()

    assert ([] if theirs and ours else [1]) == here(place)
    assert (theirs and ours) == "" or "claim/1" not in place.store.values


def test_another_protocol_is_refused_before_anything_is_read(place):
    place.store.set("open", "2")

    with pytest.raises(OtherProtocolError, match="speaks protocol 2 at the meeting place, and this one 1"):
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
                younger[0].join(hello(1, 3) | {"now": BEGAN}, attempt="a1", now=0.0)
            return found

    store = Between()
    store.values = place.store.values
    older = Member(store, rank=1, born=1.0)

    def join_and_look():
        older.join(hello(1, 3) | {"now": BEGAN}, attempt="a1", now=0.0)
        older.look(now=0.0, wall=BEGAN)

    with pytest.raises(SupersededError):
        join_and_look()
    assert younger[0].look(now=0.0, wall=BEGAN) is not None


def test_the_board_is_read_only_when_it_has_changed(place):
    members = [place.join(rank) for rank in (0, 1)]
    place.turn()
    assert [2, 2] == [look(place, member)["here"] for member in members]
    place.turn()  # hears their clocks

    before = place.store.calls.copy()
    place.turn(0.1)
    assert [None, None] == [look(place, member) for member in members]
    assert 2 == (place.store.calls - before)["get"]
    assert 0 == (place.store.calls - before)["set"]

    place.join(2)
    place.turn(0.1)
    assert [3, 3] == [look(place, member)["here"] for member in members]


def test_clocks_are_compared_once(place):
    """With the first board that was written since the node has joined, as that was written just now."""
    member = place.join(1)
    look(place, member)
    for rank in (0, 2):
        place.join(rank)
        place.turn(0.1)
        member.look(now=place.now, wall=BEGAN + place.now + 7)
    place.turn()

    news = [json.loads(text) for key, text in place.store.values.items() if key.startswith("news/")]
    told = [{"kind": "clock", "rank": 1, "born": 1.0, "sent": BEGAN + 0.1, "heard": BEGAN + 7.1}]
    assert told == [each for each in news if each["kind"] == "clock"]
    assert 3.45 == place.leader.roll.nodes[1].offset_s  # the half of it: hello was said by the clock of rank 0


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

    assert int(2.0 / PULSE_S) <= int(place.store.values["pulse"]) <= int(2.1 / PULSE_S) + 1


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

    late = {"kind": "hello", "rank": 0, "born": 1.0, "now": BEGAN, **hello(0, 3)}
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


# ---- the verdict


def concluded(place):
    """Let all come, and all be done: nothing is left but the verdict."""
    members = [place.join(rank) for rank in range(3)]
    place.leader.plan = plan(3, attempt="a1", collective="left out")
    place.turn()
    place.turn(CLOCKS_S)
    return members


def test_the_verdict_is_read_by_all(place):
    members = concluded(place)
    assert not place.chair.everybody_knows()

    assert [True] * 3 == [look(place, member)["verdict"] for member in members]
    assert [place.leader.verdict] * 2 == [member.verdict() for member in members[:2]]
    assert not place.chair.everybody_knows()
    members[2].verdict()
    assert place.chair.everybody_knows()


def test_strangers_that_read_the_verdict_are_not_taken_for_nodes(place):
    """As pods that were told of more nodes, and whoever reads it twice; they too are waited for."""
    strangers = [place.join(rank, nnodes=9) for rank in (7, 8)]
    nodes = [place.join(rank) for rank in range(3)]
    place.turn()
    for member in (*strangers, *strangers, nodes[0]):
        assert "fatal" == member.verdict()["verdict"]

    assert not place.chair.everybody_knows()
    for member in nodes[1:]:
        member.verdict()
    assert place.chair.everybody_knows()


def test_a_node_that_lost_its_connection_comes_back_for_the_verdict(place):
    """However good the verdict is: rank 0 still waits for it. Another agent with its rank is too late."""
    place.leader.plan = plan(3, attempt="a1", collective="left out")
    members = concluded(place)
    again = place.join(1)

    assert look(place, again)["verdict"]
    assert place.leader.verdict == again.verdict()
    with pytest.raises(NotOpenError):
        place.join(1, born=members[1].born + 1)


def test_rank_zero_asks_for_little_at_a_time():
    """What thousands of nodes say at once may be more than a store sends in time."""
    place = Place(600)
    place.chair.open()

    class Small(MemoryStore):
        def get(self, keys):
            assert AT_ONCE >= len(keys) or not keys[0].startswith("news")
            return super().get(keys)

    store = Small()
    store.values = place.store.values
    place.store = place.chair.store = store
    for rank in range(600):
        place.join(rank)
    place.turn()

    assert list(range(600)) == here(place)


@pytest.mark.parametrize("nodes", [64, 1024])
def test_that_all_have_read_is_asked_in_few_requests(nodes):
    gang = Gang(nodes, collective="left out")
    gang.run()
    before = gang.store.calls.copy()
    for rank in range(nodes):
        gang.store.values[f"read/{rank}"] = "1"

    assert gang.chair.everybody_knows()
    assert {"has": -(-nodes // AT_ONCE)} == dict(gang.store.calls - before)


def test_a_verdict_is_written_once(place):
    """When nodes gave rank 0 up and one of them has written, rank 0 says the same as they do, as does the next one."""
    first, second = place.join(1), place.join(2)
    theirs = {"verdict": "retry", "written_by": 1}

    assert theirs == first.write_verdict(theirs)
    assert theirs == second.write_verdict({"verdict": "retry", "written_by": 2})
    concluded(place)
    assert theirs == place.leader.verdict == second.verdict()


def test_after_the_verdict_of_rank_zero_nobody_else_has_one(place):
    members = concluded(place)

    assert place.leader.verdict == members[1].write_verdict({"verdict": "retry"})


# ---- what it costs


def idle_cost(nodes):
    """Return the requests, and the characters, of all nodes but one in ten seconds in which they wait for it."""
    gang = Gang(nodes, changes={nodes - 1: {"comes": None}}, gang_timeout_s=100.0)
    for _ in range(30):
        gang.step()
    calls, characters = gang.store.calls.total(), gang.store.characters
    for _ in range(100):
        gang.step()
    return gang.store.calls.total() - calls, gang.store.characters - characters


def test_every_node_costs_the_same_however_many_there_are():
    """A look in each turn, a sign of life each second; what rank 0 asks for itself does not depend on their number."""
    costs = {nodes: idle_cost(nodes) for nodes in (4, 16, 64)}

    looks, beats = 100, 10
    rest = {calls - (nodes - 1) * (looks + beats) for nodes, (calls, _) in costs.items()}
    assert len(rest) == 1
    assert rest.pop() < 200
    small, large = (costs[nodes][1] / nodes for nodes in (16, 64))
    assert large < 1.2 * small


def test_a_whole_gang_costs_as_much_as_it_has_nodes():
    calls = {}
    for nodes in (16, 64):
        gang = Gang(nodes)
        gang.run()
        calls[nodes] = gang.store.calls.total()

    assert calls[64] < 4 * calls[16]
