"""What the agent does with MPI jobs: every play once, on one implementation after the other, and some on all."""

from __future__ import annotations

import pytest
from mpi_matrix import PLAYS, perform
from mpi_programs import IMPLEMENTATIONS

pytestmark = pytest.mark.lab

NAMES = list(IMPLEMENTATIONS)
ON_ALL = (
    "three workers",
    "many hosts",
    "own words",
    "uneven slots",
    "rank killed",
    "SIGTERM, checkpoint of 2 s",
    "worker deleted",
)
# `python tests/lab/mpi_matrix.py` does all of them on all of them, which takes some twenty minutes.
CASES = sorted(
    {(play, NAMES[number % len(NAMES)]) for number, play in enumerate(PLAYS)}
    | {(play, name) for play in PLAYS if play in ON_ALL for name in NAMES}
)


@pytest.mark.parametrize("play,name", CASES)
def test_the_agent_does_what_the_user_meant(lab_of_mpi, implementation, play, name):
    outcome = perform(play, implementation(name), "agent", lab=lab_of_mpi(3))

    assert outcome.problems == (), outcome


def test_those_on_all_are_there():
    assert set(ON_ALL) <= set(PLAYS)
