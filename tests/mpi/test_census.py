"""The census: when a world is right, and what is said of one that is not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_agent.errors import Finding
from trainer_agent.hostfile import Entry, Hostfile
from trainer_agent.mpi.census import SHOWN, WRONG_HINT, Arrival, Census, Expected, expected, listed, placed

ADDRESSES = {"n-0.job": "10.0.0.1", "n-1.job": "10.0.0.2"}
HOSTS = Hostfile((Entry("n-0.job", 2), Entry("n-1.job", 1)))
SAME_MPI = "use the mpirun of the MPI that is on all hosts; `mpirun --version` must say the same everywhere"


def census(*arrivals, wanted=None):
    """Return a census of ranks, each (rank, size, hostname) or with an address as well."""
    found = Census(wanted or Expected({"n-0.job": 2, "n-1.job": 1}, ADDRESSES, 3))
    for arrival in arrivals:
        found.add(Arrival(*arrival, *[""][len(arrival) - 3 :]))
    return found


@pytest.mark.parametrize(
    "count, placed_by_user, hosts, total",
    [
        (None, False, {"n-0.job": 2, "n-1.job": 1}, 3),
        (3, False, {"n-0.job": 2, "n-1.job": 1}, 3),
        (2, False, {}, 2),
        (8, False, {}, 8),
        (None, True, {}, None),
        (3, True, {}, 3),
    ],
)
def test_who_has_to_come(count, placed_by_user, hosts, total):
    """All slots; where the user says otherwise only what he says, and where he places the ranks not even that."""
    assert Expected(hosts, ADDRESSES, total) == expected(HOSTS, ADDRESSES, count=count, placed=placed_by_user)


@given(st.data())
def test_a_world_is_right_when_every_host_has_its_slots(data):
    """However the ranks are numbered and in whatever order they come; with one rank elsewhere it is wrong."""
    slots = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    names = [f"n-{number}.job" for number in range(len(slots))]
    homes = [name for name, count in zip(names, slots, strict=True) for _ in range(count)]
    total = len(homes)
    arrivals = [Arrival(rank, total, home, "") for rank, home in enumerate(data.draw(st.permutations(homes)))]
    arrivals = data.draw(st.permutations(arrivals))
    wanted = Expected(dict(zip(names, slots, strict=True)), {name: name for name in names}, total)

    found = Census(wanted)
    for number, arrival in enumerate(arrivals):
        assert (number == total) == found.full
        found.add(arrival)
    assert (True, None) == (found.full, found.wrong())

    moved = data.draw(st.sampled_from(range(total)))
    elsewhere = data.draw(st.sampled_from([*names, "stranger"]))
    other = Census(wanted)
    for number, arrival in enumerate(arrivals):
        home = elsewhere if number == moved else arrival.hostname
        other.add(Arrival(arrival.rank, total, home, ""))
    assert (elsewhere == arrivals[moved].hostname) == (other.wrong() is None)


@pytest.mark.parametrize(
    "arrival, name",
    [
        (("n-0", ""), "n-0.job"),
        (("n-0.job.default.svc.cluster.local", ""), "n-0.job"),
        (("other", "10.0.0.2"), "n-1.job"),
        (("n-0", "10.0.0.2"), "n-0.job"),  # a pod may have a second network
        (("other", "10.0.0.9"), "other"),
    ],
)
def test_whose_rank_it_is(arrival, name):
    """A pod knows its own name, more or less; else its address tells."""
    assert name == census((0, 1, *arrival)).host(0)


def test_hosts_that_are_addresses():
    """A hostfile may hold addresses, and their first number is nobody's name."""
    addresses = {"10.0.0.1": "10.0.0.1", "10.0.0.2": "10.0.0.2", "fd00::3": "fd00::3"}
    wanted = Expected(dict.fromkeys(addresses, 1), addresses, 3)
    found = census(*((rank, 3, "pod", address) for rank, address in enumerate(addresses)), wanted=wanted)
    assert (None, dict.fromkeys(addresses, 1)) == (found.wrong(), found.count())


def test_names_that_begin_alike():
    """Two jobs' first pods have one first word; their addresses tell them apart."""
    addresses = {"n-0.a": "10.0.0.1", "n-0.b": "10.0.0.2"}
    wanted = Expected(dict.fromkeys(addresses, 1), addresses, 2)
    found = census((0, 2, "n-0", "10.0.0.1"), (1, 2, "n-0", "10.0.0.2"), wanted=wanted)
    assert (None, {"n-0.a": 1, "n-0.b": 1}) == (found.wrong(), found.count())


def test_all_ranks_on_the_launcher():
    """As Open MPI 5 does with the hostfile of a variable that it does not know."""
    found = census(*((rank, 3, "launcher", "10.0.0.9") for rank in range(3)))
    there = "mpirun put 3 ranks on the wrong hosts: 0 on n-0.job, 0 on n-1.job, 3 on launcher"
    message = f"{there}; wanted 2 on n-0.job, 1 on n-1.job"
    assert Finding("mpi-hosts-unused", message, hint=WRONG_HINT) == found.wrong()


def test_one_rank_that_is_alone():
    """Singletons: each is a world of one."""
    found = census((0, 1, "n-0"))
    message = "mpirun put 1 ranks on the wrong hosts: 1 on n-0.job, 0 on n-1.job; wanted 2 on n-0.job, 1 on n-1.job"
    assert (True, message) == (found.full, found.wrong().message)


def test_too_many_ranks():
    """Every host has its ranks, and one more is too many."""
    found = census((0, 4, "n-0"), (1, 4, "n-0"), (2, 4, "n-1"), (3, 4, "n-1"))
    message = "the world has 4 ranks, wanted 3: 2 on n-0.job, 2 on n-1.job"
    assert Finding("mpi-world-wrong", message, hint=WRONG_HINT) == found.wrong()


@pytest.mark.parametrize("total, right", [(None, True), (2, True), (3, False)])
def test_ranks_that_the_user_places(total, right):
    """Their number is looked at where it is known, and nothing else."""
    found = census((0, 2, "n-1"), (1, 2, "n-1"), wanted=Expected({}, ADDRESSES, total))
    assert right == (found.wrong() is None)


def test_a_rank_that_comes_twice():
    """That is found at once, as the rest may never come."""
    found = census((0, 3, "n-0"), (0, 3, "n-1"))
    message = "rank 0 came twice, from n-0 and n-1"
    assert (True, Finding("mpi-ranks-strange", message, hint=SAME_MPI)) == (found.full, found.wrong())


@pytest.mark.parametrize("rank, size", [(-1, -1), (0, -1), (0, 0), (-1, 3)])
def test_processes_without_a_number(rank, size):
    """mpirun has started something, and not as ranks."""
    found = census((rank, size, "n-1"), (rank, size, "n-0"))
    message = "processes on n-0, n-1 have no rank: mpirun set neither OMPI_COMM_WORLD_RANK nor PMI_RANK"
    assert (True, Finding("mpi-ranks-strange", message, hint=SAME_MPI)) == (found.full, found.wrong())


def test_a_rank_that_is_gone_leaves_a_gap():
    """The world is not full without it, and its host is still known."""
    found = census((0, 2, "n-0"), (1, 2, "n-1"))
    found.gone.add(1)
    assert (False, {"n-0.job": 1, "n-1.job": 1}) == (found.full, found.count())


def test_nobody_has_come():
    """An empty census is neither full nor a reason to divide by anything."""
    found = census()
    assert (False, 0, {"n-0.job": 0, "n-1.job": 0}) == (found.full, found.size, found.count())
    assert {"n-0.job": 0, "n-1.job": 0} == found.missing()


def test_long_lists_are_shortened():
    """A message that names 512 hosts is read by nobody."""
    assert "a, b" == listed(["a", "b"])
    names = [f"n-{number}" for number in range(SHOWN + 4)]
    assert ", ".join(names[:SHOWN]) + " and 4 more" == listed(names)
    assert ", ".join(names[:SHOWN]) == listed(names[:SHOWN])
    assert "1 on a, 0 on b" == placed({"a": 1, "b": 0})
