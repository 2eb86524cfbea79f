import pytest

from preflight_checks.shm import shm
from trainer_agent.check import Outcome
from trainer_agent.host import Space
from trainer_agent.testing import FakeHost, run_check

GIB = 1 << 30


def machine(tmp_path, *, size, free=None, writable=True):
    free = size if free is None else free
    return FakeHost(tmp_path, spaces={"/dev/shm": Space(size, free, writable=writable)})


def found(outcome):
    return [(str(f.severity), f.code, f.message) for f in outcome.findings]


@pytest.mark.parametrize("nproc, size", [(1, GIB), (8, 8 * GIB)])
def test_a_gibibyte_for_each_process_is_enough(tmp_path, nproc, size):
    outcome = run_check(shm, machine(tmp_path, size=size, free=GIB), nproc=nproc)

    measured = {"size_bytes": size, "free_bytes": GIB, "processes": nproc}
    assert Outcome(f"{nproc}.0 GiB, 1.0 GiB free", (), measured) == outcome


def test_the_default_of_containers_is_a_warning(tmp_path):
    outcome = run_check(shm, machine(tmp_path, size=64 << 20), nproc=8)

    assert [("warning", "shm-small", "/dev/shm has 0.06 GiB, wanted 8 GiB (8 processes)")] == found(outcome)


def test_a_byte_less_than_wanted_is_found(tmp_path):
    outcome = run_check(shm, machine(tmp_path, size=GIB - 1))

    assert ["shm-small"] == [f.code for f in outcome.findings]


def test_a_missing_one_is_an_error(tmp_path):
    outcome = run_check(shm, FakeHost(tmp_path))

    assert [("error", "shm-not-writable", "/dev/shm does not exist, wanted a writable tmpfs")] == found(outcome)


def test_a_read_only_one_is_an_error(tmp_path):
    outcome = run_check(shm, machine(tmp_path, size=GIB, writable=False))

    assert [("error", "shm-not-writable", "/dev/shm is read-only, wanted a writable tmpfs")] == found(outcome)
    assert {"size_bytes": GIB, "free_bytes": GIB, "processes": 1} == outcome.measurements
