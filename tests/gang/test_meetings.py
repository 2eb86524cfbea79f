"""From the reports of nodes to rates, rows, and who has failed with whom."""

import pytest

from trainer_agent.gang.meetings import Round, Rounds, died, misconfigured, pair_gbps, problem, short_of_shm, timings
from trainer_agent.gang.pairs import Meeting
from trainer_agent.gang.speeds import Rate

MIB = 1 << 20


def fine(seconds=0.001, *, numbers=1, size=MIB):
    """Return the report of a node whose ranks did well."""
    timing = [{"of": "all-reduce", "bytes": size, "seconds": seconds}]
    return {"ok": True, "ranks": [{"number": n, "ok": True, "timings": timing} for n in range(numbers)]}


def bad(*rows):
    return {"ok": False, "ranks": [{"number": n, "ok": False, "timings": [], **row} for n, row in enumerate(rows)]}


WRONG = {
    "wrong": [{"of": "all-gather", "differ": 3, "of_numbers": 8}, {"of": "all-reduce", "differ": 1, "of_numbers": 8}]
}
KILLED = {"code": -9, "stage": "timing"}
ERROR = {"error": "RuntimeError", "text": "Connection reset by peer", "stage": "init", "code": 1}
HUNG = {"hung": True, "stage": "barrier"}


@pytest.mark.parametrize(
    "row,words",
    [
        (WRONG, "node 1: all-gather gave 3 wrong numbers of 8"),
        (KILLED, "node 1: its rank was killed by signal 9 in stage timing"),
        (ERROR, "node 1: RuntimeError in stage init: Connection reset by peer"),
        ({"error": "ValueError"}, "node 1: ValueError in stage start"),
        (HUNG, "node 1: nothing came after stage barrier in time"),
        ({"hung": True}, "node 1: nothing came after stage start in time"),
        ({"code": 7}, "node 1: its rank ended with exit code 7"),
        ({"code": -15}, "node 1: its rank ended with exit code -15"),
    ],
)
def test_what_a_rank_says_in_words(row, words):
    assert words == problem({0: fine(), 1: bad(row)}, [0, 1])


def test_the_most_telling_of_all_counts():
    """Wrong numbers before a death, before an error, before silence; of equal ones the first."""
    reports = {0: bad(HUNG, ERROR), 1: bad(HUNG, KILLED), 2: bad(WRONG), 3: bad(WRONG)}

    assert [problem(reports, nodes).partition(":")[0] for nodes in ([0, 1, 2, 3], [0, 1, 9], [9, 0])] == [
        "node 2",
        "node 1",
        "node 0",
    ]
    assert "node 9 reported nothing in time" == problem(reports, [9])
    assert "" == problem({0: fine()}, [0])
    assert "" == problem(reports, [])


@pytest.mark.parametrize(
    "code,told", [(-9, True), (-11, True), (-7, True), (-15, False), (-6, False), (1, False), (0, False)]
)
def test_a_rank_died_when_neither_we_nor_its_libraries_ended_it(code, told):
    assert told is died({"code": code})
    assert not died({})


@pytest.mark.parametrize(
    "row,told",
    [
        ({"error": "DistBackendError", "text": "NCCL error ... ncclInvalidUsage: this"}, True),
        ({"error": "DistBackendError", "text": "ncclInvalidArgument"}, True),
        ({"error": "DistBackendError", "text": "ncclSystemError"}, False),
        ({}, False),
    ],
)
def test_nccl_refuses_its_settings(row, told):
    assert told is misconfigured(row)


@pytest.mark.parametrize("row, short", [({"shm_free": 0}, True), ({"shm_free": 4 << 26}, False), ({}, False)])
def test_room_in_shared_memory_is_64_mib_for_each_rank(row, short):
    """Only a rank that met a system error tells it."""
    assert short is short_of_shm(row, ranks=4)


def test_the_slowest_rank_counts():
    found = timings([fine(0.001), None, fine(0.004), fine(0.002, numbers=2)], ranks=4)

    assert [{"of": "all-reduce", "bytes": MIB, "seconds": 0.004, "busbw_gbps": 0.3932}] == found
    assert [] == timings([fine(0.0), None], ranks=4)


def test_the_rate_of_a_pair_is_that_of_its_largest_all_reduce():
    a, b = fine(0.001), fine(0.002)
    gather = {"of": "all-gather", "bytes": 64 * MIB, "seconds": 1.0}
    for report in (a, b):
        report["ranks"][0]["timings"] += [{"of": "all-reduce", "bytes": 4 * MIB, "seconds": 0.001}, gather]

    assert 4.1943 == pair_gbps(a, b, ranks=2)
    assert [None] * 3 == [pair_gbps(*pair, ranks=2) for pair in ((a, None), (None, b), (bad(HUNG), bad(HUNG)))]


def rounds(*reports, pairs=((0, 1), (2, 3)), hosts=None):
    return Rounds(hosts or {}, [Round(n, pairs, each, 1) for n, each in enumerate(reports)])


def test_a_round_becomes_rows():
    """One is fine, of one a node reported nothing, one is too slow."""
    pairs = ((0, 1), (2, 3), (4, 5), (6, 7))
    found = rounds({n: fine(0.001) for n in (0, 1, 2, 6, 7)} | {n: fine(0.004) for n in (4, 5)}, pairs=pairs)

    assert [
        {"a": 0, "b": 1, "round": 0, "passed": True, "gbps": 1.0486, "why": ""},
        {"a": 2, "b": 3, "round": 0, "passed": False, "gbps": None, "why": "node 3 reported nothing in time"},
        {"a": 4, "b": 5, "round": 0, "passed": False, "gbps": 0.2621, "why": "slow"},
        {"a": 6, "b": 7, "round": 0, "passed": True, "gbps": 1.0486, "why": ""},
    ] == found.rows()
    assert [True, False, True, True] == [meeting.passed for meeting in found.meetings()]
    assert [True, False, False, True] == [meeting.passed for meeting in found.well()]
    assert [(0, True), (4, False), (6, True)] == [(meeting.a, meeting.passed) for meeting in found.timed()]


def test_what_failed_fails_however_fast_it_was():
    wrong = fine() | {"ok": False}
    wrong["ranks"] = [wrong["ranks"][0] | WRONG]
    found = rounds({0: wrong, 1: fine(), 2: fine(), 3: fine()})

    assert [Rate(0, 1, 0, 1.0486), Rate(2, 3, 0, 1.0486)] == found.rates()
    assert [Meeting(0, 1, 0, passed=False), Meeting(2, 3, 0, passed=True)] == found.meetings()


def test_each_round_has_its_own_reason():
    found = rounds({n: fine() for n in range(4)} | {0: bad(KILLED)}, {n: fine() for n in range(4)} | {1: bad(HUNG)})

    first, _, second, _ = found.meetings()
    assert "node 0: its rank was killed by signal 9 in stage timing" == found.why(first)
    assert "node 1: nothing came after stage barrier in time" == found.why(second)


def test_within_a_host_nothing_is_too_fast_to_compare():
    """Two nodes of one machine are no measure for the network between the others."""
    reports = {0: fine(0.0001), 1: fine(0.0001), 2: fine(0.001), 3: fine(0.001)}

    assert all(meeting.passed for meeting in rounds(reports, hosts={0: "x", 1: "x"}).well())
