"""Two agents, one destination."""

import pytest
from fault_cases import SHARED

MIB = 1 << 20


@pytest.mark.lab
def test_the_second_finds_everything_there(agent, data, destination, proxy):
    """Both succeed, and nothing is fetched for the second."""
    proxy.pace.bytes_per_s = 100e6
    both = [agent(), agent()]

    assert [0, 0] == [run.finish() for run in both], [run.output for run in both]
    assert data.lacking(destination) == []
    assert proxy.twice("/(a|small)/") == 0
    assert proxy.twice() <= SHARED


@pytest.mark.lab
def test_the_second_takes_over(agent, data, destination, proxy):
    """When the first is killed, the second goes on where that one was."""
    proxy.pace.bytes_per_s = 60e6
    first = agent()
    assert proxy.wait(lambda: proxy.served() > 10 * MIB)
    second = agent()
    assert proxy.wait(lambda: proxy.served() > 60 * MIB)
    first.kill()

    assert second.finish() == 0, second.output
    assert data.lacking(destination) == []
    assert proxy.twice() <= 2 * 64 * MIB + SHARED
