"""What the check `mpi` makes of what hosts and ranks say; the real thing is in tests/lab/test_mpi_preflight.py."""

import json

import pytest

from preflight_checks._mpi_hosts import Said, most_common, odd_ones
from preflight_checks._mpi_ranks import _judged
from trainer_agent.guarded import Ended
from trainer_agent.mpi.census import Census, Expected

WANTED = Expected({"n-0.job": 1, "n-1.job": 1}, {"n-0.job": "10.0.0.1", "n-1.job": "10.0.0.2"}, 2)


def run(*said, code=0, timed_out=False, stderr=""):
    """Judge an mpirun whose ranks said this: `(rank, stage, right)`."""
    lines = [
        json.dumps({"stage": stage, "rank": rank, "host": f"n-{rank}", "size": 2, "right": right})
        for rank, stage, right in said
    ]
    out = "\n".join(["mpirun: a word of its own", *lines])
    return _judged(Census(WANTED), Ended(code, out, stderr, "", timed_out, 40.0), 1.0)


STARTED = [(0, "start", None), (1, "start", None)]
DONE = [*STARTED, (0, "done", True), (1, "done", True)]


@pytest.mark.parametrize("settings", [{}, {"timed_out": True, "code": -9}, {"code": 1}])
def test_all_have_the_right_sum(settings):
    """Libraries that hang or fail in MPI_Finalize have nothing to say about hosts."""
    assert "" == run(*DONE, **settings).problem


def test_a_wrong_sum():
    found = run(*STARTED, (0, "done", True), (1, "done", False), timed_out=True)

    assert ("the sum is wrong", ["n-1.job"]) == (found.problem, found.wrong_hosts)


@pytest.mark.parametrize(
    "said,settings,problem",
    [
        (STARTED[:1], {"timed_out": True}, "no answer after 40 s from ranks on n-0.job"),
        ([], {"timed_out": True}, "no answer after 40 s from ranks on any host"),
        (STARTED, {"code": 255, "stderr": "x\nno route"}, "mpirun ended with exit code 255: no route"),
        (STARTED, {}, "0 of 2 ranks had an answer"),
        ([], {}, "0 of 0 ranks had an answer"),
    ],
)
def test_no_sum(said, settings, problem):
    assert problem == run(*said, **settings).problem


def test_ranks_on_the_wrong_host():
    """Each has a right sum, and a host of the hostfile has none of them."""
    lines = [
        {"stage": s, "rank": r, "host": "n-0", "size": 2, "right": True} for r in (0, 1) for s in ("start", "done")
    ]
    out = "\n".join(map(json.dumps, lines))

    found = _judged(Census(WANTED), Ended(0, out, "", "", timed_out=False, duration_s=1.0), 1.0)

    assert found.problem.startswith("mpirun put 2 ranks on the wrong hosts")


def test_who_is_odd():
    """Those that say nothing are nobody's."""
    values = {"a": "1", "b": "2", "c": "1", "d": ""}

    assert ({"b": "2"}, "1", "") == (odd_ones(values, "1"), most_common(values), most_common({"a": ""}))


@pytest.mark.parametrize(
    "refusal,denied",
    [
        ("root@10.0.0.1: Permission denied (publickey).", True),
        ("Host key verification failed.", True),
        ("ssh: connect to host 10.0.0.1 port 2222: Connection refused", False),
        ("", False),
    ],
)
def test_who_refused_the_key(refusal, denied):
    assert denied is Said(refusal, {}).denied
