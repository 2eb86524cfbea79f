"""Which pairs and nodes are too slow, and what a collective should reach."""

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_agent.errors import Severity
from trainer_agent.gang.pairs import Meeting
from trainer_agent.gang.speeds import (
    Compared,
    Judged,
    Rate,
    Row,
    Straggler,
    against_expected,
    against_history,
    busbw_gbps,
    expected_busbw_gbps,
    judge,
    read_history,
    stragglers,
)

MIB, GIB = 2**20, 2**30
B200 = {"nodes": 4, "ranks": 32, "gpus": "8 x NVIDIA B200", "rdma_gbits": 8 * 400}
ROW = Row("nccl", 4, 32, "all-reduce", 512 * MIB, 300.0)


def rates(pairs):
    """Return the rates of `{"01": 10}`, each pair in a round of its own."""
    return [Rate(int(pair[0]), int(pair[1]), number, gbps) for number, (pair, gbps) in enumerate(pairs.items())]


def circle(nodes, rounds, gbps):
    """Return the rates of some rounds in which everybody meets somebody new."""
    order = list(range(nodes))
    found = []
    for number in range(rounds):
        pairs = zip(order[: nodes // 2], reversed(order[nodes // 2 :]), strict=True)
        found += [Rate(a, b, number, gbps(a, b)) for a, b in pairs]
        order = [order[0], order[-1], *order[1:-1]]
    return found


@pytest.mark.parametrize(
    "pairs,hosts,reference,failed",
    [
        pytest.param({"01": 10, "02": 1, "12": 1}, {}, 10, {"02", "12"}, id="one slow node of three"),
        pytest.param({"01": 10, "02": 10, "12": 5}, {}, 10, set(), id="half of the reference passes"),
        pytest.param({"01": 10, "02": 10, "12": 4.99}, {}, 10, {"12"}, id="less than half does not"),
        pytest.param({"01": 10, "23": 4}, {}, 10, {"23"}, id="four nodes, one round"),
        pytest.param({"01": 1}, {}, None, set(), id="two nodes are not compared"),
        pytest.param({}, {}, None, set(), id="nobody met"),
        pytest.param(
            {"01": 90, "02": 10, "13": 10, "23": 2},
            {0: "x", 1: "x", 2: "y", 3: "z"},
            10,
            {"23"},
            id="a loopback is no reference",
        ),
        pytest.param(
            {"01": 1, "02": 10, "12": 10, "03": 10},
            {0: "x", 1: "x"},
            10,
            set(),
            id="what stays within a host passes, however slow",
        ),
        pytest.param(
            {"01": 90, "02": 10, "12": 10},
            dict.fromkeys(range(3), "x"),
            90,
            {"02", "12"},
            id="all on one host are compared",
        ),
        pytest.param({"01": 90, "23": 80}, {0: "x", 1: "x", 2: "y", 3: "y"}, None, set(), id="loopbacks alone"),
    ],
)
def test_meetings_are_judged_by_what_a_usual_node_reaches(pairs, hosts, reference, failed):
    meetings = tuple(
        Meeting(int(pair[0]), int(pair[1]), number, pair not in failed) for number, pair in enumerate(pairs)
    )

    assert Judged(meetings, reference) == judge(rates(pairs), hosts)


def test_a_pair_of_two_nodes_passes_however_its_rate_changes():
    assert (True, True) == tuple(m.passed for m in judge([Rate(0, 1, 0, 10), Rate(0, 1, 1, 1)], {}).meetings)


def test_the_same_pair_may_pass_once_and_fail_once():
    seen = [Rate(0, 1, 0, 10), Rate(0, 2, 1, 10), Rate(1, 2, 2, 9), Rate(1, 2, 3, 1)]

    assert (True, True, True, False) == tuple(m.passed for m in judge(seen, {}).meetings)


ALL_PAIRS = [f"{a}{b}" for a in range(5) for b in range(a + 1, 5)]


def with_node(gbps, node="4"):
    """Return the rates of five nodes that carry 100 with each other, and another number with one of them."""
    return rates({pair: gbps if node in pair else 100 for pair in ALL_PAIRS})


@pytest.mark.parametrize(
    "gbps,expected",
    [
        (50, []),
        (49, [Straggler(4, 49, 0.49, Severity.WARNING)]),
        (25, [Straggler(4, 25, 0.25, Severity.WARNING)]),
        (24, [Straggler(4, 24, 0.24, Severity.ERROR)]),
    ],
)
def test_a_node_that_is_slow_with_everybody_is_a_straggler(gbps, expected):
    assert expected == stragglers(with_node(gbps), {})


def test_of_three_nodes_one_is_found():
    assert [Straggler(2, 1, 0.1, Severity.ERROR)] == stragglers(rates({"01": 10, "02": 1, "12": 1}), {})


def test_one_good_partner_is_enough_to_be_no_straggler():
    """It is the link to the others that is slow, or they are."""
    seen = [*with_node(10), Rate(4, 0, 99, 90)]

    assert [] == stragglers(seen, {})


def test_whoever_met_only_one_other_is_not_accused():
    """Node 7 of eight is slow, and makes its partner of the first round look slow."""
    one, three = (circle(8, rounds, lambda a, b: 10 if 7 in (a, b) else 100) for rounds in (1, 3))

    assert [] == stragglers(one, {})
    assert [7] == [each.node for each in stragglers(three, {})]


@pytest.mark.parametrize("spread,found", [(8, [6]), (10, [])])
def test_where_rates_vary_widely_nobody_stands_out(spread, found):
    """
    Best rates 100 - spread, 100 and 100 + spread, two of each, and 30: the median is 100, the MAD the spread.

    5 x 1.4826 x 8 below 100 is 40.7, with 10 it is 25.9.
    """
    usual = [Rate(0, 1, 0, 100 - spread), Rate(2, 3, 0, 100), Rate(4, 5, 0, 100 + spread)]
    slow = [Rate(node, 6, node + 1, 30) for node in range(6)]

    assert found == [each.node for each in stragglers([*usual, *slow], {})]


def test_the_slowest_comes_first():
    seen = circle(16, 15, lambda a, b: min({3: 40, 5: 10, 9: 10}.get(node, 100) for node in (a, b)))

    assert [(5, 0.1), (9, 0.1), (3, 0.4)] == [(each.node, each.ratio) for each in stragglers(seen, {})]


@pytest.mark.parametrize("seen", [[], [Rate(0, 1, 0, 1)], rates({"01": 0, "02": 0, "12": 0})])
def test_without_a_comparison_there_is_no_straggler(seen):
    assert [] == stragglers(seen, {})


def test_a_loopback_hides_no_straggler():
    """Nodes 4 and 5 share a host; 4 is slow to everybody else."""
    seen = [*with_node(10), *(Rate(node, 5, 50 + node, 100) for node in range(4)), Rate(4, 5, 99, 500)]

    assert [4] == [each.node for each in stragglers(seen, {4: "x", 5: "x"})]


@given(st.integers(3, 24), st.integers(0, 2**32), st.floats(0.01, 1000))
def test_nodes_that_are_alike_are_neither_slow_nor_stragglers(nodes, seed, usual):
    chance = random.Random(seed)
    seen = circle(nodes - nodes % 2, 3, lambda *_: usual * chance.uniform(0.75, 1.25))

    assert all(meeting.passed for meeting in judge(seen, {}).meetings)
    assert [] == stragglers(seen, {})


@given(st.integers(3, 12), st.integers(0, 11), st.floats(0.001, 0.49))
def test_one_slow_node_is_found_whichever_it_is_and_nobody_else(half, slow, part):
    """And so are all its meetings, and no others."""
    nodes, slow = 2 * half, slow % (2 * half)
    seen = circle(nodes, 3, lambda a, b: part if slow in (a, b) else 1.0)

    assert [slow] == [each.node for each in stragglers(seen, {})]
    assert all(meeting.passed is (slow not in (meeting.a, meeting.b)) for meeting in judge(seen, {}).meetings)


@pytest.mark.parametrize(
    "of,ranks,expected",
    [("all-reduce", 2, 1.0), ("all-reduce", 8, 1.75), ("all-gather", 2, 0.5), ("all-gather", 8, 0.875)],
)
def test_the_bus_bandwidth_is_that_of_nccl_tests(of, ranks, expected):
    """The factors of its PERFORMANCE.md, 2(n-1)/n and (n-1)/n, for 2 GB in 2 s."""
    assert expected == pytest.approx(busbw_gbps(of, ranks, 2 * 10**9, 2.0))


@pytest.mark.parametrize(
    "size,expected",
    [(64 * MIB, 157), (512 * MIB, 327), (GIB, 338), (16 * GIB, 382), (64 * GIB, 382)],
)
def test_what_was_published_is_expected_and_in_between_a_part(size, expected):
    """1 GiB is one of the five doublings from 512 MiB to 16 GiB, 338 a fifth of the way from 327 to 382."""
    assert expected == pytest.approx(expected_busbw_gbps("all-reduce", size, **B200), rel=1e-6)


def test_it_grows_with_the_network():
    wide, narrow = ({**B200, "rdma_gbits": gbits} for gbits in (3200, 1600))

    assert expected_busbw_gbps("all-reduce", GIB, **wide) == 2 * expected_busbw_gbps("all-reduce", GIB, **narrow)


@pytest.mark.parametrize(
    "changed",
    [
        {"of": "all-gather"},
        {"size": 64 * MIB - 1},
        {"rdma_gbits": None},
        {"rdma_gbits": 0},
        {"nodes": 1, "ranks": 8},
        {"ranks": 16},
        {"gpus": "8 x NVIDIA L40S"},
        {"gpus": "8 x NVIDIA H100 NVL"},
        {"gpus": "4 x NVIDIA H200"},
        {"gpus": "none"},
    ],
)
def test_what_nobody_has_published_is_not_expected(changed):
    known = {"of": "all-reduce", "size": GIB, **B200}

    assert expected_busbw_gbps(**known) is not None
    assert expected_busbw_gbps(**(known | changed)) is None


@pytest.mark.parametrize("measured", [164, 169])
def test_the_other_published_cluster_is_well(measured):
    """NDv4: 8 A100 and 8 x 200 Gb/s of InfiniBand."""
    ndv4 = {"nodes": 2, "ranks": 16, "gpus": "8 x NVIDIA A100-SXM4-80GB", "rdma_gbits": 1600}

    assert against_expected(measured, expected_busbw_gbps("all-reduce", 16 * GIB, **ndv4)) is None


@pytest.mark.parametrize(
    "measured,severity",
    [(80, None), (79.9, Severity.WARNING), (60, Severity.WARNING), (59.9, Severity.ERROR), (200, None)],
)
def test_a_collective_is_judged_by_what_is_expected(measured, severity):
    assert severity == against_expected(measured, 100)


def earlier(*rows):
    return [Row("nccl", 4, 32, "all-reduce", 512 * MIB, gbps) for gbps in rows]


@pytest.mark.parametrize(
    "history,expected",
    [
        pytest.param([], Compared(ROW), id="no history"),
        pytest.param(earlier(900, 900), Compared(ROW), id="two are too few"),
        pytest.param(earlier(100, 500, 400), Compared(ROW, 400, 0.75), id="the median of three"),
        pytest.param(earlier(500, 500, 500), Compared(ROW, 500, 0.6), id="0.6 of it is well"),
        pytest.param(earlier(501, 501, 501), Compared(ROW, 501, 300 / 501, Severity.WARNING), id="less is not"),
        pytest.param(earlier(100, 100, 100), Compared(ROW, 100, 3.0), id="faster is well"),
    ],
)
def test_a_row_is_compared_with_the_median_of_earlier_ones(history, expected):
    assert [expected] == against_history([ROW], history)


@pytest.mark.parametrize(
    "other", [{"backend": "gloo"}, {"nodes": 5}, {"ranks": 31}, {"of": "all-gather"}, {"bytes": 1}], ids=str
)
def test_only_the_same_collective_is_comparable(other):
    lines = [json.dumps(row.as_dict() | other) for row in earlier(900, 900, 900)]

    assert [Compared(ROW)] == against_history([ROW], read_history(lines))


def test_a_row_survives_its_history():
    line = '{"backend": "nccl", "nodes": 4, "ranks": 32, "of": "all-reduce", "bytes": 536870912, "busbw_gbps": 300.0}'

    assert line == json.dumps(ROW.as_dict())
    assert [ROW, replace(ROW, busbw_gbps=0.001)] == read_history([line, line.replace("300.0", "0.001")])


WHOLE = ROW.as_dict()


@pytest.mark.parametrize(
    "line",
    [
        "",
        "\n",
        '{"backend": "nc',
        "[" * 100_000,
        "9" * 5_000,
        "null",
        "[]",
        '"text"',
        "{}",
        *(json.dumps({k: v for k, v in WHOLE.items() if k != name}) for name in WHOLE),
        *(json.dumps(WHOLE | {name: value}) for name in WHOLE for value in (None, [], {}, True)),
        *(json.dumps(WHOLE | {"busbw_gbps": value}) for value in (0, -1, float("nan"), float("inf"), "300", 10**400)),
        json.dumps(WHOLE | {"nodes": 4.0}),
    ],
    ids=lambda line: line[:40],
)
def test_lines_that_are_no_rows_are_left_out(line):
    assert [ROW] == read_history([line, json.dumps(WHOLE), line])


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()


@given(st.lists(st.text() | st.dictionaries(st.sampled_from(list(WHOLE)), VALUES).map(json.dumps)))
def test_no_history_breaks_the_comparison(lines):
    history = read_history(lines)

    assert all(isinstance(each, Compared) for each in against_history([*history, ROW], history * 3))
