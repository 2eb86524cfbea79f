import pytest

from preflight_checks.cgroup import cgroup
from trainer_agent.accelerators import Accelerators
from trainer_agent.check import Outcome
from trainer_agent.testing import FakeHost, run_check

MIB = 1 << 20
UNKNOWN = dict.fromkeys(
    ("memory_high_bytes", "memory_max_hits", "memory_high_hits", "throttled_periods", "throttled_s")
)
GPUS = Accelerators("nvidia", 8, "NVML: 8 GPUs")


def v2(tmp_path, *, cpus=64, **files):
    """A container of cgroup v2; `cpu_max="…"` writes cpu.max."""
    host = FakeHost(tmp_path, cpus=cpus)
    host.put("/proc/self/cgroup", "0::/\n")
    host.put("/sys/fs/cgroup/cgroup.controllers", "cpu memory pids\n")
    for name, text in files.items():
        host.put(f"/sys/fs/cgroup/{name.replace('_', '.', 1)}", text)
    return host


def v1(tmp_path, **files):
    """A container of cgroup v1 two levels down; `memory__limit_in_bytes="…"` writes memory.limit_in_bytes."""
    host = FakeHost(tmp_path, cpus=64)
    host.put("/proc/self/cgroup", "4:memory:/kubepods/pod1\n3:cpu,cpuacct:/kubepods/pod1\n")
    host.put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    for name, text in files.items():
        controller, _, rest = name.partition("__")
        host.put(f"/sys/fs/cgroup/{controller}/kubepods/pod1/{controller}.{rest}", text)
    return host


def found(outcome):
    return [(str(f.severity), f.code, f.message) for f in outcome.findings]


def test_a_machine_without_cgroups_passes(tmp_path):
    outcome = run_check(cgroup, FakeHost(tmp_path))

    measured = {
        "cgroup_version": 0,
        "cpus": 8,
        "cpu_quota": None,
        "memory_limit_bytes": None,
        "memory_used_bytes": None,
        **UNKNOWN,
        "oom_kills": None,
        "processes": 1,
    }
    assert Outcome("no cgroup is mounted", (), measured) == outcome


def test_a_roomy_container_of_v2_passes_with_its_numbers(tmp_path):
    host = v2(
        tmp_path,
        cpu_max="1600000 100000\n",
        memory_max=f"{4000 * MIB}\n",
        memory_current=f"{1500 * MIB}\n",
        memory_stat=f"anon 1\ninactive_file {1000 * MIB}\n",
        memory_events="low 0\nhigh 3\nmax 14\noom 0\noom_kill 0\n",
        memory_high=f"{3900 * MIB}\n",
        cpu_stat="usage_usec 9\nnr_periods 400\nnr_throttled 100\nthrottled_usec 2500000\n",
    )

    outcome = run_check(cgroup, host, nproc=8, accelerators=GPUS)

    measured = {
        "cgroup_version": 2,
        "cpus": 16.0,
        "cpu_quota": 16.0,
        "memory_limit_bytes": 4000 * MIB,
        "memory_used_bytes": 500 * MIB,
        "memory_high_bytes": 3900 * MIB,
        "memory_max_hits": 14,
        "memory_high_hits": 3,
        "throttled_periods": 100,
        "throttled_s": 2.5,
        "oom_kills": 0,
        "processes": 8,
    }
    assert Outcome("cgroup v2, 16 CPUs, memory limit 4000 MiB", (), measured) == outcome


def test_a_roomy_container_of_v1_passes_with_its_numbers(tmp_path):
    host = v1(
        tmp_path,
        cpu__cfs_quota_us="1600000\n",
        cpu__cfs_period_us="100000\n",
        memory__limit_in_bytes=f"{4000 * MIB}\n",
        memory__usage_in_bytes=f"{1500 * MIB}\n",
        memory__stat=f"inactive_file 1\ntotal_inactive_file {1000 * MIB}\n",
        memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
        memory__failcnt="7\n",
        cpu__stat="nr_periods 400\nnr_throttled 100\nthrottled_time 2500000000\n",
    )

    # The cpu controller is mounted as cpu,cpuacct with a link cpu; the membership names both.
    outcome = run_check(cgroup, host, nproc=8, accelerators=GPUS)

    measured = {
        "cgroup_version": 1,
        "cpus": 16.0,
        "cpu_quota": 16.0,
        "memory_limit_bytes": 4000 * MIB,
        "memory_used_bytes": 500 * MIB,
        "memory_high_bytes": None,
        "memory_max_hits": 7,
        "memory_high_hits": None,
        "throttled_periods": 100,
        "throttled_s": 2.5,
        "oom_kills": 0,
        "processes": 8,
    }
    assert Outcome("cgroup v1, 16 CPUs, memory limit 4000 MiB", (), measured) == outcome


@pytest.mark.parametrize(
    "quota, accelerators, expected",
    [
        ("800000", GPUS, []),
        ("799999", GPUS, [("warning", "cpu-scarce", "7.99999 CPUs, 1.00 for each process (8), wanted 1 or more")]),
        ("400000", GPUS, [("warning", "cpu-scarce", "4 CPUs, 0.50 for each process (8), wanted 1 or more")]),
        ("390000", GPUS, [("error", "cpu-starved", "3.9 CPUs, 0.49 for each process (8), wanted 1 or more")]),
        # An init container without devices may have small limits of its own, which say nothing of the trainer's.
        ("100000", None, [("warning", "cpu-scarce", "1 CPUs, 0.12 for each process (8), wanted 1 or more")]),
    ],
)
def test_cpus_for_each_process(tmp_path, quota, accelerators, expected):
    host = v2(tmp_path, cpu_max=f"{quota} 100000\n")

    none = Accelerators("none", 0, "0 device nodes")
    assert expected == found(run_check(cgroup, host, nproc=8, accelerators=accelerators or none))


def test_affinity_limits_as_a_quota_does(tmp_path):
    outcome = run_check(cgroup, v2(tmp_path, cpus=2, cpu_max="max 100000\n"), nproc=8, accelerators=GPUS)

    assert [("error", "cpu-starved", "2 CPUs, 0.25 for each process (8), wanted 1 or more")] == found(outcome)


@pytest.mark.parametrize(
    "used, expected",
    [
        (0, []),
        (400, []),
        (
            401,
            [
                (
                    "warning",
                    "memory-scarce",
                    "300 MiB of memory are left for each process (2, limit 1000 MiB), wanted 300 MiB or more",
                )
            ],
        ),
        (
            900,
            [
                (
                    "warning",
                    "memory-scarce",
                    "50 MiB of memory are left for each process (2, limit 1000 MiB), wanted 300 MiB or more",
                )
            ],
        ),
    ],
)
def test_memory_for_each_process(tmp_path, used, expected):
    host = v2(tmp_path, memory_max=f"{1000 * MIB}\n", memory_current=f"{used * MIB}\n")

    assert expected == found(run_check(cgroup, host, nproc=2))


def test_a_limit_whose_usage_cannot_be_read_counts_as_unused(tmp_path):
    outcome = run_check(cgroup, v2(tmp_path, memory_max=f"{100 * MIB}\n"))

    message = "100 MiB of memory are left for each process (1, limit 100 MiB), wanted 300 MiB or more"
    assert [("warning", "memory-scarce", message)] == found(outcome)


def test_page_cache_is_no_memory_in_use(tmp_path):
    """After a download most of the limit is page cache, which the kernel drops when memory is needed."""
    host = v2(
        tmp_path,
        memory_max=f"{1000 * MIB}\n",
        memory_current=f"{990 * MIB}\n",
        memory_stat=f"inactive_file {900 * MIB}\n",
    )

    assert [] == found(run_check(cgroup, host))


@pytest.mark.parametrize(
    "lay_out",
    [
        lambda root: v2(root, memory_events="oom 3\noom_kill 2\n"),
        lambda root: v1(root, memory__oom_control="under_oom 0\noom_kill 2\n"),
    ],
    ids=["v2", "v1"],
)
def test_kills_so_far_are_a_warning(tmp_path, lay_out):
    expected = [("warning", "oom-killed", "2 processes of this container were killed for memory, wanted 0")]
    assert expected == found(run_check(cgroup, lay_out(tmp_path)))


@pytest.mark.parametrize(
    "throttled, periods, expected",
    [
        (25, 100, []),
        (99, 99, []),
        (26, 100, ["the quota held this container back in 26 of 100 periods, wanted 25% or less"]),
    ],
)
def test_a_throttled_past_only_informs(tmp_path, throttled, periods, expected):
    host = v2(tmp_path, cpu_stat=f"nr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec 5\n")

    assert [("info", "cpu-throttled", message) for message in expected] == found(run_check(cgroup, host))


@pytest.mark.parametrize("quota, contradiction", [("800000", False), ("899999", False), ("900000", True)])
def test_a_quota_above_the_cpus_that_may_be_used_is_a_warning(tmp_path, quota, contradiction):
    outcome = run_check(cgroup, v2(tmp_path, cpus=8, cpu_max=f"{quota} 100000\n"))

    message = "the quota is 9 CPUs, and this process may run on 8, wanted as many"
    assert ([("warning", "cpu-quota-unreachable", message)] if contradiction else []) == found(outcome)


@pytest.mark.parametrize("limit", ["max", f"{8000 * MIB}"])
def test_memory_high_counts_as_a_limit(tmp_path, limit):
    """Above it the kernel makes every allocation wait: training crawls, and nobody is killed."""
    host = v2(tmp_path, memory_max=f"{limit}\n", memory_high=f"{1000 * MIB}\n", memory_current=f"{800 * MIB}\n")

    message = "200 MiB of memory are left for each process (1, memory.high 1000 MiB), wanted 300 MiB or more"
    assert [("warning", "memory-scarce", message)] == found(run_check(cgroup, host))
