"""A source that changes or goes away while the agent fetches from it."""

import re
import shutil

import pytest
from agent_process import Data
from breakage import Fault, s3_error
from breaker import FaultProxy
from plain_s3 import PlainS3, Stored, read_directory

MIB = 1 << 20


@pytest.fixture
def changing(tmp_path, data):
    """Return a copy of the bucket that may be changed, its server and a slow proxy in front of it."""
    directory = tmp_path / "bucket"
    shutil.copytree(data.directory, directory / "data")
    with PlainS3(read_directory(directory)) as server, FaultProxy(server.server_port, bytes_per_s=50e6) as proxy:
        yield directory, server, proxy


@pytest.mark.lab
def test_a_replaced_object_is_never_mixed(agent, changing, destination):
    """Old and new bytes do not meet in one file: 20, and the next run fetches the new one."""
    directory, server, proxy = changing
    new = directory / "new-big"
    new.write_bytes(b"n" * 96 * MIB)
    stored = Stored.of(new)
    run = agent(endpoint=proxy.endpoint)
    assert proxy.wait(lambda: proxy.served("big") > 8 * MIB)
    server.objects["data/big.bin"] = stored
    # Whatever was asked before goes on; whoever asks again is told.
    proxy.down()
    proxy.up()

    assert run.finish() == 20, run.output
    assert run.error == "source-changed"
    shutil.copyfile(new, directory / "data" / "big.bin")
    old_and_new = Data(directory / "data")
    assert old_and_new.wrong(destination) == []
    assert agent(endpoint=proxy.endpoint).finish() == 0
    assert old_and_new.lacking(destination) == []


@pytest.mark.lab
def test_a_server_that_dies_ends_the_run_in_time_and_the_next_goes_on(agent, data, destination, proxy):
    """What has arrived of a file is kept: next to nothing is fetched twice."""
    proxy.pace.bytes_per_s = 50e6
    run = agent("--timeout", "4")
    assert proxy.wait(lambda: proxy.served("big") > 40 * MIB)
    proxy.down()

    assert run.finish() == 20, run.output
    assert run.seconds < 30
    assert data.wrong(destination) == []
    proxy.up()
    assert agent().finish() == 0
    assert data.lacking(destination) == []
    # A range that was open when time was up counts as far as it came.
    assert proxy.twice() <= 64 * MIB


@pytest.mark.lab
def test_retry_after_is_obeyed(agent, proxy):
    """After 429 nobody asks this server for data until the second that it asked for is over."""
    # The first attempt cannot tell statuses; small files are still to come when the second is told.
    proxy.add(Fault("GET .*five", answer=s3_error(429, "TooManyRequests", Retry_After="2"), times=2))
    proxy.add(Fault("GET .*small", latency_s=0.3, times=None))

    assert agent().finish() == 0

    told = [e for e in proxy.seen("five") if e.status == 429][-1].at
    after = [e.at for e in proxy.seen("GET .*/(a|small)/") if e.at > told + 0.1]
    assert min(after) - told >= 2.0


def test_expired_keys_say_which_variables_to_renew(agent, proxy):
    """The hint names the settings."""
    proxy.add(Fault("list-type", answer=s3_error(400, "ExpiredToken"), times=None))
    run = agent()

    assert run.finish() == 30
    assert {"ACCESS_KEY_ID", "SECRET_ACCESS_KEY"} <= set(re.findall(r"\w+", run.log[-1]["hint"]))
