"""outcome: what is told of a run's end where more than one thing happened."""

import pytest

from trainer_agent.launchers.autopsy import Autopsy
from trainer_agent.launchers.outcome import outcome
from trainer_agent.launchers.supervise import Ended


@pytest.mark.parametrize("code, expected", [(1, 137), (134, 137), (137, 137), (42, 42)])
def test_a_rank_that_outlived_an_oom_kill_has_its_own_code(code, expected):
    """A data loader's worker may have been killed and started again hours before."""
    ended = Ended(code, 0, killed=False, reaped=0, elapsed_s=9.0)
    told = outcome(ended, Autopsy(elastic_agent=False), oom_kills=1, hostname="n1")

    assert expected == told["exit_code"]
    assert told["reason"].startswith("out of memory: the kernel killed 1 process(es) of this container; the command ")
