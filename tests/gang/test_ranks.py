"""ranks: every rank of every group exactly once, and what the ranks of a node said as one result."""

import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_agent.gang.ranks import Place, Ranks, places

TASK = {"backend": "gloo", "timeout_s": 60.0, "numbers": 8, "sizes": [], "seconds": 0.0}
ALL = {**TASK, "id": "all-1", "kind": "all", "members": [0, 1], "per_node": 2}


class Side:
    """Takes down the orders that a torch side would get."""

    def __init__(self):
        self.given, self.ended = [], []

    def give(self, tasks):
        self.given.append(tasks)

    def end(self, numbers):
        self.ended.append(numbers)


@pytest.fixture
def side():
    return Side()


@pytest.fixture
def ranks(side):
    """The two ranks of node 1, in the middle of a task for two nodes."""
    ranks = Ranks(side, node=1, host="10.0.0.1", port=29501, environ={"GLOO_SOCKET_IFNAME": "eth0"})
    assert ranks.start(ALL)
    return ranks


def said(number, stage, **facts):
    return {"rank": number, "task": "all-1", "pid": 100 + number, "stage": stage, "at": 1.0, **facts}


@st.composite
def tasks(draw):
    """A task of any kind for some of up to twelve nodes."""
    kind, per_node = draw(st.sampled_from(["all", "pairs", "rails"])), draw(st.integers(1, 8))
    nodes = draw(st.permutations(range(draw(st.integers(2, 12)))))
    if kind == "all":
        return {"id": "all-1", "kind": kind, "per_node": per_node, "members": nodes[: draw(st.integers(1, len(nodes)))]}
    count = draw(st.integers(1, len(nodes) // 2))
    pairs = [[nodes[2 * i], nodes[2 * i + 1]] for i in range(count)]
    return {"id": f"{kind}-1", "kind": kind, "per_node": per_node, "pairs": pairs}


@given(tasks())
def test_every_rank_of_every_group_is_there_once(task):
    """A group is what has one prefix; all of it agree on its size, and nobody else is in it."""
    found = [place for node in range(12) for place in places(task, node).values()]
    groups = {place.prefix: place.world for place in found}

    every = [Place(rank, world, prefix) for prefix, world in groups.items() for rank in range(world)]
    assert Counter(every) == Counter(found)


@given(tasks())
def test_who_is_in_a_task_has_all_of_its_ranks_in_it(task):
    inside = set(task.get("members", ())) | {node for pair in task.get("pairs", ()) for node in pair}
    for node in range(12):
        numbers = list(range(task["per_node"])) if node in inside else []
        assert numbers == sorted(places(task, node)), node


@given(tasks())
def test_groups_are_as_large_as_their_kind_says(task):
    """All nodes with all ranks; two nodes with all ranks; two nodes with one rank each, of the same number."""
    wanted = {"all": len(task.get("members", ())) * task["per_node"], "pairs": 2 * task["per_node"], "rails": 2}
    found = [item for node in range(12) for item in places(task, node).items()]
    for number, place in found:
        assert wanted[task["kind"]] == place.world
        assert task["kind"] != "rails" or place.prefix.endswith(f"/{number}")


def test_the_ranks_of_a_pair_are_numbered_through():
    task = {"id": "pairs-2", "kind": "pairs", "per_node": 2, "pairs": [[0, 3], [4, 1]]}

    assert {0: Place(2, 4, "pairs-2/4-1"), 1: Place(3, 4, "pairs-2/4-1")} == places(task, 1)
    assert {} == places(task, 2)


def test_each_rank_is_given_its_place(side, ranks):
    shared = {name: ALL[name] for name in ("id", "backend", "timeout_s", "numbers", "sizes", "seconds")}
    shared |= {"host": "10.0.0.1", "port": 29501, "environ": {"GLOO_SOCKET_IFNAME": "eth0"}}
    one = {**shared, "world": 4, "prefix": "all-1"}

    assert [{0: {**one, "rank": 2}, 1: {**one, "rank": 3}}] == side.given


def test_what_ranks_say_bit_by_bit_is_one_result(side, ranks):
    """The best of several timings counts; fields of earlier stages stay."""
    timing = [{"of": "all-reduce", "bytes": 8, "seconds": [0.2, 0.1]}]
    assert ranks.hear([said(0, "init", gpu="H100", uuid="GPU-0"), said(0, "timing", wrong=[])]) is None
    assert ranks.hear([said(1, "barrier", timings=timing, transport="tcp"), said(0, "done")]) is None
    result = ranks.hear([said(1, "done")])

    assert {
        "task": "all-1",
        "ok": True,
        "ranks": [
            {"number": 0, "stage": "done", "gpu": "H100", "uuid": "GPU-0", "ok": True, "timings": []},
            {
                "number": 1,
                "stage": "done",
                "transport": "tcp",
                "ok": True,
                "timings": [{"of": "all-reduce", "bytes": 8, "seconds": 0.1}],
            },
        ],
    } == result
    assert [] == side.ended
    assert ranks.hear([said(0, "done")]) is None


def test_one_wrong_number_is_not_ok(ranks):
    wrong = [{"of": "all-reduce", "differ": 1, "of_numbers": 8}]
    result = ranks.hear([said(0, "timing", wrong=wrong), said(0, "done"), said(1, "done")])

    assert not result["ok"]
    assert [(wrong, False), (None, True)] == [(row.get("wrong"), row["ok"]) for row in result["ranks"]]


def test_what_was_said_of_another_task_is_not_heard(ranks):
    """Nor is the end of a process that said nothing of this one."""
    late = [{**said(n, "done"), "task": "all-0"} for n in (0, 1)] + [{"rank": 0, "pid": 7, "code": -9}]

    assert ranks.hear(late) is None
    assert ranks.hear([said(0, "done"), said(1, "done")])["ok"]


def test_the_end_of_a_process_is_that_of_its_rank(ranks):
    """A rank that ends is waited for no longer; one that ends well after its last word is."""
    result = ranks.hear([said(0, "init"), {"rank": 0, "pid": 100, "code": -9}, said(1, "done")])

    assert [("init", -9), ("done", None)] == [(row["stage"], row.get("code")) for row in result["ranks"]]
    assert not result["ok"]


def test_after_a_failure_the_others_are_not_waited_for_long(side, ranks):
    """They may still say what they saw; who says nothing is ended, and called hung."""
    assert ranks.hear([said(0, "init"), said(0, "init", error="RuntimeError", text="x" * 1000)]) is None
    ranks.running.failed_at -= 10
    result = ranks.hear([])

    first, second = result["ranks"]
    assert ("RuntimeError", 300) == (first["error"], len(first["text"]))
    assert {"number": 1, "ok": False, "timings": [], "hung": True} == second
    assert [[1]] == side.ended


def test_no_room_in_shared_memory_is_told(ranks):
    """Also where there is none at all; who met no system error says nothing of it."""
    result = ranks.hear(
        [said(0, "init", error="DistBackendError", text="ncclSystemError", shm_free=0), said(1, "done")]
    )

    assert [0, None] == [row.get("shm_free") for row in result["ranks"]]


def test_at_the_deadline_all_that_run_are_ended(side, ranks):
    ranks.running.deadline = time.monotonic() - 1
    result = ranks.hear([said(1, "all-reduce")])

    assert [(0, None), (1, "all-reduce")] == [(row["number"], row.get("stage")) for row in result["ranks"]]
    assert all(row["hung"] for row in result["ranks"])
    assert [[0, 1]] == side.ended


def test_a_new_task_ends_the_one_before(side, ranks):
    assert not ranks.start({**ALL, "id": "all-2", "members": [0]})
    assert [[0, 1]] == side.ended
    assert ranks.running is None
    ranks.stop()
    assert [[0, 1]] == side.ended


def test_an_unfit_torch_is_not_ok(ranks):
    result = ranks.hear([said(n, "done", unfit="torch 2.4 was built without gloo") for n in (0, 1)])

    assert not result["ok"]
    assert {"torch 2.4 was built without gloo"} == {row["unfit"] for row in result["ranks"]}
