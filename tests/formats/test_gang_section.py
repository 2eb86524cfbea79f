"""gang_section: what is read is what was written, and whatever is damaged is refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_agent.formats.gang_section import Avoid, Blamed, Difference, Node, Row, State, Value, gang_of
from trainer_agent.policy import Severity, Suspect, Verdict


def test_what_is_read_is_what_was_written(gang):
    found = gang_of({"gang": gang})

    assert (4, Verdict.RETRY, Blamed.PEER, gang["summary"]) == (
        found.nnodes,
        found.verdict,
        found.blame,
        found.summary,
    )
    node = Node(1, "job1-node-0-1", "gpu-18", "10.77.0.1", 0.5, State.READY, "", -0.012)
    values = (Value("550.54", (0, 3)), Value("535.1", (1,)))
    assert (node, Difference("driver", Severity.WARNING, values, (1,))) == (found.nodes[1], found.differences[0])
    assert Suspect("node", "job1-node-0-2", 2, "it never arrived") == found.suspects[0]
    assert Row("all-gather", 1024, 0.001, 0.25, None) == found.collective.rows[1]
    assert Avoid(("gpu-18", "gpu-20"), tuple(gang["avoid"]["gpus"])) == found.avoid


def test_a_report_about_one_node_has_no_gang(data):
    assert gang_of(data) is None


def test_a_gang_without_a_collective(gang):
    assert gang_of({"gang": {**gang, "collective": None}}).collective is None


def test_a_value_may_be_a_number(gang):
    """Such as how many GPUs a node has."""
    gang["differences"][0]["values"][1]["value"] = 8

    assert Value(8, (1,)) == gang_of({"gang": gang}).differences[0].values[1]


def test_who_is_not_ready_the_worst_first(gang):
    for node, state in zip(gang["nodes"], ("superseded", "failed", "lost", "missing"), strict=True):
        node["state"] = state

    assert [3, 2, 1, 0] == [n.rank for n in gang_of({"gang": gang}).not_ready]


def test_a_pod_that_was_replaced_gives_its_rank_no_name(gang):
    """Whatever the order, the one that took its place does."""
    old = {**gang["nodes"][1], "hostname": "old", "state": "superseded"}
    for nodes in ([old, *gang["nodes"]], [*gang["nodes"], old]):
        found = gang_of({"gang": {**gang, "nodes": nodes}})
        assert ("node 1 (job1-node-0-1)", "node 9") == (found.name(1), found.name(9))


def places(value, path=()):
    """Yield the path of every value in the section."""
    if path:
        yield path
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, below in steps:
        yield from places(below, (*path, step))


def changed(value, path, new):
    """Return a copy in which one value is another."""
    step, *rest = path
    copy = value.copy()
    copy[step] = changed(value[step], rest, new) if rest else new
    return copy


BAD = [object(), math.nan, math.inf, 10**400, -(10**400), {"a": 1}, [[1]]]
REFUSED = (LookupError, TypeError, ValueError)


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: f"{bad!s:.20}")
def test_no_value_may_be_of_another_kind(gang, bad):
    """Neither may a number be endless, as it could not be drawn."""
    for path in places(gang):
        with pytest.raises(REFUSED):
            gang_of({"gang": changed(gang, path, bad)})


def test_no_field_may_be_missing_but_what_was_expected(gang):
    for *above, last in places(gang):
        if isinstance(last, str) and last != "expected_busbw_gbps":
            inside = gang
            for step in above:
                inside = inside[step]
            less = {name: value for name, value in inside.items() if name != last}
            with pytest.raises(LookupError):
                gang_of({"gang": changed(gang, above, less) if above else less})


@pytest.mark.parametrize("path", [("nnodes",), ("nodes", 1, "arrived_s")])
def test_true_is_no_number(gang, path):
    with pytest.raises(TypeError):
        gang_of({"gang": changed(gang, path, new=True)})


@pytest.mark.parametrize("gone", [None, [], "", 1])
def test_a_section_that_is_none_is_refused(gone):
    with pytest.raises(REFUSED):
        gang_of({"gang": gone})


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda below: st.lists(below, max_size=3)))
def test_whatever_it_is_it_is_refused_in_a_known_way(anything):
    with pytest.raises(REFUSED):
        gang_of({"gang": anything})
