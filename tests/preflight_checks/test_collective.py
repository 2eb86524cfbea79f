"""collective: on its own it only says why nobody computes together; the work itself is trainer_agent.gang's."""

import pytest

from preflight_checks.collective import collective
from trainer_agent.check import Options
from trainer_agent.testing import FakeHost, run_check

TWO = {"PET_NNODES": "2", "PET_NODE_RANK": "0", "PET_MASTER_ADDR": "job-node-0-0.job"}


@pytest.mark.parametrize(
    "environ, gang, reason",
    [
        ({}, False, "the job has one node"),
        (TWO | {"PET_NNODES": "1:2"}, False, "the job is elastic: nobody knows how many nodes will come"),
        (TWO, False, "the nodes meet with --scope gang"),
        (TWO, True, "the nodes did not meet"),
    ],
    ids=["one node", "elastic", "scope node", "without roll-call"],
)
def test_it_is_skipped_with_the_reason(tmp_path, environ, gang, reason):
    assert reason == run_check(collective, FakeHost(tmp_path), environ=environ, options=Options(gang=gang))


def test_it_starts_nothing_of_its_own():
    """The meeting is that of roll-call, once for both."""
    assert ("", 0.0) == (collective.program, collective.alone_s)
