"""What the nodes and rank 0 write at the meeting place: the verdict, and what all of it costs."""

import pytest
from meeting_place import Place, here, look
from simulated import Gang, MemoryStore, failed_local, plan

from trainer_agent.gang.member import AT_ONCE, NotOpenError

# ---- the verdict


def concluded(place):
    """Let all come, and all be done: nothing is left but the verdict."""
    members = [place.join(rank) for rank in range(3)]
    place.leader.plan = plan(3, attempt="a1", collective="left out")
    place.turn()
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


def test_a_verdict_that_stopped_the_others_is_for_those_that_come_later_too(place):
    place.join(1, local=failed_local())
    for _ in range(20):
        place.turn(0.5)
    late = place.join(2)

    assert look(place, late)["verdict"]
    assert "retry" == late.verdict()["verdict"]


def test_rank_zero_asks_for_little_at_a_time():
    """What thousands of nodes say at once may be more than a store sends in time."""
    place = Place(600)
    place.open()

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
    assert rest.pop() < 250
    small, large = (costs[nodes][1] / nodes for nodes in (16, 64))
    assert large < 1.2 * small


def test_a_whole_gang_costs_as_much_as_it_has_nodes():
    calls = {}
    for nodes in (16, 64):
        gang = Gang(nodes)
        gang.run()
        calls[nodes] = gang.store.calls.total()

    assert calls[64] < 4 * calls[16]
