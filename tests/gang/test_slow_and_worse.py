"""Simulated nodes and links that are slow, and at times worse than that."""

import pytest
from simulated import Gang


class Flaky(Gang):
    """
    A gang in whose meetings of two something goes wrong now and then, which the collective of all nodes does not show.

    Args:
        group: whose meetings: those of a node, or of a link.
        worse: how they fail, with a probability of 0.3.
        speed: of the group's meetings in which nothing does.
    """

    def __init__(self, nodes, *, group, worse, speed, seed):
        self.group, self.worse, self.speed = set(group), worse, speed
        super().__init__(nodes, screen=10, seed=seed, noise=0.1)
        self.run()

    def _outcome(self, group, task):
        fault, seconds = super()._outcome(group, task)
        if task["kind"] != "pairs" or not self.group <= set(group):
            return fault, seconds
        return self.worse if self.chance.random() < 0.3 else fault, seconds / self.speed


@pytest.mark.parametrize("nodes", [3, 4, 8])
def test_a_link_that_loses_some_and_at_times_all_is_one_fault(nodes):
    for seed in range(10):
        gang = Flaky(nodes, group=(1, 2), worse="hang", speed=0.1, seed=seed)

        assert [("collective-link-failed", (1, 2))] == gang.codes()


@pytest.mark.parametrize("nodes", [3, 4, 8])
def test_a_very_slow_node_does_not_explain_wrong_numbers(nodes):
    told = set()
    for seed in range(10):
        gang = Flaky(nodes, group=(2,), worse="wrong", speed=0.1, seed=seed)

        seen = any("wrong numbers" in row["why"] for row in gang.leader.verdict["pairs"])
        assert seen == any("wrong numbers" in charge["message"] for charge in gang.leader.verdict["charges"])
        assert {2} == gang.culprits()
        told.add(seen)
    assert True in told
