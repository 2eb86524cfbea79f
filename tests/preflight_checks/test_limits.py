import pytest

from preflight_checks.limits import limits
from trainer_agent.check import Outcome
from trainer_agent.testing import FakeHost, run_check

IPC_LOCK = "Name:\tpython\nCapEff:\t0000000000004000\n"
ALL_BUT_IPC_LOCK = "Name:\tpython\nCapEff:\t000001ffffffbfff\n"


def found(outcome):
    return [(str(f.severity), f.code, f.message) for f in outcome.findings]


def rdma(host, status):
    host.put("/sys/class/infiniband/mlx5_0/node_guid")
    host.put("/sys/class/infiniband/mlx5_1/node_guid")
    if status is not None:
        host.put("/proc/self/status", status)
    return host


def test_without_limits_all_is_well(tmp_path):
    measured = {"open_files": None, "processes": None, "locked_memory_bytes": None}
    message = "unlimited open files, unlimited processes, unlimited bytes of locked memory"
    assert Outcome(message, (), measured) == run_check(limits, FakeHost(tmp_path))


def test_limits_that_are_just_high_enough_pass(tmp_path):
    host = FakeHost(tmp_path, limits={"NOFILE": 65536, "NPROC": 4096, "MEMLOCK": 65536})

    measured = {"open_files": 65536, "processes": 4096, "locked_memory_bytes": 65536}
    message = "65536 open files, 4096 processes, 65536 bytes of locked memory"
    assert Outcome(message, (), measured) == run_check(limits, host)


def test_few_open_files_are_a_warning(tmp_path):
    outcome = run_check(limits, FakeHost(tmp_path, limits={"NOFILE": 1024}))

    assert [("warning", "open-files-low", "1024 open files are allowed, wanted 65536 or more")] == found(outcome)


@pytest.mark.parametrize("nproc, pids", [(1000, None), (None, 1000), (1000, 9000), (9000, 1000)])
def test_the_smaller_of_both_limits_of_processes_counts(tmp_path, nproc, pids):
    host = FakeHost(tmp_path, limits={"NPROC": nproc} if nproc else {})
    host.put("/sys/fs/cgroup/cgroup.controllers")
    host.put("/sys/fs/cgroup/pids.max", f"{pids}\n" if pids else "max\n")

    expected = [("warning", "processes-low", "1000 processes and threads are allowed, wanted 4096 or more")]
    assert expected == found(run_check(limits, host))


@pytest.mark.parametrize("status", [ALL_BUT_IPC_LOCK, None, "nonsense\n"])
def test_rdma_without_locked_memory_is_a_warning(tmp_path, status):
    host = rdma(FakeHost(tmp_path, limits={"MEMLOCK": 65536}), status)

    message = (
        "65536 bytes of memory may be locked and CAP_IPC_LOCK is absent, wanted no limit or the capability "
        "for the RDMA devices mlx5_0, mlx5_1"
    )
    assert [("warning", "locked-memory-low", message)] == found(run_check(limits, host))


def test_the_capability_lifts_the_limit_of_locked_memory(tmp_path):
    assert [] == found(run_check(limits, rdma(FakeHost(tmp_path, limits={"MEMLOCK": 65536}), IPC_LOCK)))


def test_an_unlimited_limit_needs_no_capability(tmp_path):
    assert [] == found(run_check(limits, rdma(FakeHost(tmp_path), ALL_BUT_IPC_LOCK)))
