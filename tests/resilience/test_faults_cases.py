"""Each thing that may go wrong between agent and bucket, with the agent as a process."""

import pytest
from fault_cases import CASES


@pytest.mark.lab
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_ends_as_the_table_says(case, agent, data, destination, proxy):
    """Exit code, code of the error, files, and bytes fetched twice; a next run without the fault completes."""
    faults = case.made()
    proxy.add(*faults)

    run = agent(*case.args)

    assert case.code == run.finish(), run.output
    assert case.error in {"", run.error}
    assert all(fault.done for fault in faults if fault.match)
    assert run.seconds < case.within_s
    assert proxy.twice("/(a|small)/") <= case.again
    assert proxy.twice("big") <= case.again + case.shared
    assert data.wrong(destination) == []
    if case.code:
        proxy.clear()
        assert agent().finish() == 0
    assert data.lacking(destination) == []
