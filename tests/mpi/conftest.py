"""Worlds for tests, which leave nothing behind."""

from __future__ import annotations

import resource
import shutil

import pytest
from mpi_ranks import Play, wanted
from mpi_sshd import Servers, make_key
from podlab import without


@pytest.fixture
def play():
    """Return what makes a world with so many ranks, and ends it after the test."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    plays = []

    def make(ranks=1, **settings):
        plays.append(Play(settings.pop("expected", None) or wanted(ranks), **settings))
        return plays[-1]

    yield make
    for each in plays:
        each.end()
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.fixture
def ssh():
    """Say what is missing; on CI it may not be."""
    if shutil.which("ssh") is None:
        without("there is no ssh")


@pytest.fixture
def servers(tmp_path):
    """Real sshd, on loopback."""
    found = Servers(tmp_path)
    with found.stack:
        yield found


@pytest.fixture(scope="session")
def key(tmp_path_factory):
    """A job's key, as Trainer makes it."""
    return make_key(tmp_path_factory.mktemp("key") / "id_rsa")
