"""Killed at any moment: nothing wrong ever has a final name, and little is fetched twice."""

import random
import shutil
import signal
import time

import pytest
from agent_process import Data, present
from breaker import FaultProxy
from fault_cases import ALONE, SHARED
from plain_s3 import PlainS3, read_directory

from trainer_agent.initializers import HIDDEN

MIB = 1 << 20
RANGE = 64 * MIB
KILLS = 50
TINY = 3000
STREAMS = 32


@pytest.mark.lab
def test_fifty_kills(agent, data, destination, proxy, report):
    """Each run is killed after a random number of bytes; what has completed is checked and begins anew."""
    chance, most, kills, rounds = random.Random(50), 0, 0, 0
    proxy.pace.bytes_per_s = 200e6
    proxy.log.clear()
    while kills < KILLS:
        before, again = proxy.served(), proxy.twice()
        run = agent()
        until = before + chance.randrange(0, 110 * MIB)
        while run.running and not proxy.wait(lambda u=until: proxy.served() >= u, within=0.05):
            pass
        run.kill()
        if run.finish() == 0:
            assert data.lacking(destination) == []
            rounds += 1
            shutil.rmtree(destination)
            proxy.log.clear()
            continue
        kills += 1
        most = max(most, proxy.twice() - again)
        assert data.wrong(destination) == []

    assert agent().finish() == 0
    assert data.lacking(destination) == []

    report(f"{kills} kills, {rounds} completions: at most {most / MIB:.1f} MiB fetched again after one")
    assert most <= 2 * RANGE + SHARED  # the large file has two ranges, each with a connection of its own


@pytest.mark.lab
def test_sigterm_keeps_what_has_come(agent, data, destination, proxy):
    """143 at once, and the next run goes on within each range."""
    proxy.pace.bytes_per_s = 60e6
    run = agent(*ALONE)
    assert proxy.wait(lambda: proxy.served() > 30 * MIB)
    run.kill(signal.SIGTERM)
    asked = time.monotonic()

    assert run.finish() == 143, run.output
    assert time.monotonic() - asked < 20
    assert data.wrong(destination) == []
    proxy.pace.bytes_per_s = float("inf")
    assert agent(*ALONE).finish() == 0
    assert data.lacking(destination) == []
    # What lay in the buffers of the kernel and of the client.
    assert proxy.twice("(big|/a/)") <= 8 * MIB


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Return a bucket of many tiny files and its server."""
    directory, chance = tmp_path_factory.mktemp("tiny"), random.Random(3)
    for n in range(TINY):
        path = directory / "data" / f"{n % 7}" / f"{n:04}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chance.randbytes(chance.randrange(1, 2000)))
    with PlainS3(read_directory(directory)) as server:
        yield Data(directory / "data"), server


@pytest.mark.lab
def test_killed_while_putting_files_in_place(agent, destination, tiny):
    """Whatever is in place is right and whatever is not is not lost: no file is fetched twice."""
    data, server = tiny
    chance = random.Random(8)
    with FaultProxy(server.server_port) as proxy:
        for target in sorted(chance.sample(range(1, TINY), 6)):
            run = agent(endpoint=proxy.endpoint)
            while run.running and _count(destination) < target:
                time.sleep(0.001)
            run.kill()
            run.finish()
            assert data.wrong(destination) == []

        assert agent(endpoint=proxy.endpoint).finish() == 0
        assert data.lacking(destination) == []
        assert proxy.twice() == 0
    assert sorted(p.name for p in (destination / HIDDEN).iterdir()) == ["lock", "record.json"]


@pytest.mark.lab
def test_killed_at_any_time_with_many_files(agent, destination, tiny, report):
    """Kills between start and end; of 3,000 files only those that were open come twice."""
    data, server = tiny
    chance = random.Random(9)
    with FaultProxy(server.server_port) as proxy:
        for _ in range(10):
            run = agent("--streams", str(STREAMS), endpoint=proxy.endpoint)
            asked = len(proxy.log)
            until = asked + chance.randrange(1, 900)
            proxy.wait(lambda u=until: len(proxy.log) >= u, within=2)
            run.kill()
            run.finish()
            assert data.wrong(destination) == []

        assert agent(endpoint=proxy.endpoint).finish() == 0
        assert data.lacking(destination) == []
        twice = [e for e in proxy.seen("^GET /bucket/data/") if e.bytes]
        report(f"{len(twice) - TINY} of {TINY} files came twice in 10 kills")
        assert len(twice) - TINY <= 10 * STREAMS


def _count(destination):
    return len(present(destination)) if destination.exists() else 0
