"""Agents that give way to younger ones with their rank, as where a pod was replaced."""

import pytest
from simulated import BEGAN, Gang, failed_local, outcome

from trainer_agent.gang.course import REPLACED


def test_of_two_agents_with_one_rank_the_younger_takes_part():
    gang = Gang(4, changes={3: {"comes": 2.0}})
    older, younger = gang.pods[1], gang.rejoin(1, born=BEGAN + 1)
    gang.run()

    assert outcome(gang) == ("pass", [])
    assert ("rank-taken", None) == (older.error.code, older.verdict)
    assert gang.leader.verdict == younger.verdict


@pytest.mark.parametrize("at", ["collective", "localisation"])
@pytest.mark.parametrize(
    "says,expected", [({}, ("pass", [])), ({"local": failed_local()}, ("retry", [("node-failed", (1,))]))]
)
def test_an_agent_that_gives_way_at_work_is_no_fault(at, says, expected):
    """What it took part in tells nothing, and all begins anew; what the younger one says of its checks counts."""
    gang = Gang(5, changes={1: {"fault": "error"}})
    while gang.leader.phase != at or gang.leader.task is None:
        gang.step()
    gang.rejoin(1).says = says
    gang.pods[1].fault = ""
    gang.run()

    assert expected == outcome(gang)
    assert ("rank-taken", None) == (gang.pods[1].error.code, gang.pods[1].verdict)


def test_an_agent_that_gives_way_again_and_again_holds_nobody_up():
    gang = Gang(5, changes={1: {"fault": "error"}})
    while gang.leader.task is None:
        gang.step()
    for number in range(2 * REPLACED):
        gang.rejoin(1, born=BEGAN + 30 + number)
        gang.step()
    gang.run()

    assert outcome(gang) == ("retry", [("collective-node-failed", (1,))])
    assert 1 + REPLACED == gang.kinds.count("all")
