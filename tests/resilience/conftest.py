"""A bucket, the proxy that breaks what comes from it, and agents that fetch through it."""

import itertools
import random

import pytest
from agent_process import Agent, Data
from breaker import FaultProxy
from plain_s3 import PlainS3, read_directory

MIB = 1 << 20
MEASURED = pytest.StashKey[list[str]]()


def write_data(directory):
    """One file of two ranges, one that the checksum is asked of beforehand and some around that, many small ones."""
    chance = random.Random(20261121)
    sizes = {"big.bin": 96 * MIB, "a/nine.bin": 9 * MIB + 1, "a/five.bin": 5 * MIB, "a/one.bin": MIB}
    sizes |= {f"small/{n:02}.json": chance.randrange(1, 40_000) for n in range(50)}
    for name, size in sizes.items():
        path = directory / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chance.randbytes(size))


@pytest.fixture(scope="session")
def bucket(tmp_path_factory):
    """Return the directory of the bucket and its objects."""
    directory = tmp_path_factory.mktemp("bucket")
    write_data(directory)
    return directory, read_directory(directory)


@pytest.fixture
def data(bucket):
    """Return what is to arrive."""
    return Data(bucket[0] / "data")


@pytest.fixture
def server(bucket):
    """Return the bucket's server, near and fast."""
    with PlainS3(bucket[1]) as server:
        yield server


@pytest.fixture
def proxy(server):
    """Return a proxy in front of it, without a fault."""
    with FaultProxy(server.server_port) as proxy:
        yield proxy


@pytest.fixture
def destination(tmp_path):
    """Return where the data goes."""
    return tmp_path / "destination"


@pytest.fixture
def agent(tmp_path, proxy, destination):
    """Return a function that starts an agent, by default through the proxy into the destination."""
    started, count = [], itertools.count()

    def start(*args, endpoint=None, to=destination, **more):
        output = tmp_path / f"output-{next(count)}"
        started.append(Agent(endpoint or proxy.endpoint, to, *args, output=output, **more))
        return started[-1]

    yield start
    for one in started:
        one.end()


@pytest.fixture
def report(pytestconfig):
    """Return a function that keeps a measured number for the end of the session."""
    return pytestconfig.stash.setdefault(MEASURED, []).append


def pytest_terminal_summary(terminalreporter, config):
    """Print what was measured."""
    for line in config.stash.get(MEASURED, []):
        terminalreporter.write_line(line)
