"""A server that takes a TrainJob's status, for each test."""

import pytest
from status_server import StatusServer


@pytest.fixture
def server(tmp_path):
    """What takes a TrainJob's status."""
    with StatusServer(tmp_path) as found:
        yield found


@pytest.fixture
def server_that(server):
    """Return a function that makes the server answer otherwise."""

    def plays(play):
        server.play = play
        return server

    return plays
