"""Nodes in namespaces meet, and something is wrong with one of them: it is named by all, and nobody else is."""

from __future__ import annotations

import pytest
from gang_faults import perform
from gang_plays import FAULTS

pytestmark = pytest.mark.lab

# The whole table is long: python tests/lab/gang_faults.py
PLAYS = [
    ("healthy", 4),
    ("healthy", 8),
    ("never started", 2),
    ("rank 0 never started", 3),
    ("killed at roll-call", 3),
    ("killed in the collective", 4),
    ("rank 0 killed in the collective", 3),
    ("stopped in the collective", 3),
    ("link cut in the collective", 3),
    ("link half-cut before the start", 3),
    ("link slow", 4),
    ("pair cut", 4),
    ("names flapping", 2),
    ("a stranger", 3),
    ("second attempt", 3),
    ("another nnodes", 3),
    ("wrong numbers", 4),
]


@pytest.mark.parametrize("name,nodes", PLAYS)
def test_the_right_one_is_named(lab_of_faults, tmp_path_factory, name, nodes):
    """Every surviving node names whoever it is, or a cut-off one says honestly that it cannot tell; codes are right."""
    for _ in range(3 if name == "healthy" else 1):  # who is well may take more than ten seconds on a busy machine
        outcome = perform(name, lab_of_faults(nodes), tmp_path_factory.mktemp("shim"), patience=3)
        if not outcome.problem:
            break
    assert outcome.verdict in ("right", "honest"), outcome.said
    assert outcome.problem == "", outcome.said


def test_every_play_is_known():
    assert {name for name, _ in PLAYS} <= set(FAULTS)
