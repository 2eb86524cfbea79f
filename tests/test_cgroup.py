"""cgroup: limits of the container, from version 1 or 2, with and without a namespace."""

import pytest

from trainer_agent.cgroup import Limits, Pressure, read_limits, read_pressure
from trainer_agent.testing import FakeHost

V1_UNLIMITED = "9223372036854771712\n"


def lay_out(root, files, *, cpus=8):
    host = FakeHost(root, cpus=cpus)
    for path, text in files.items():
        host.put(path, text)
    return host


def v2(files, *, own="/"):
    mount = "/sys/fs/cgroup"
    return {
        "/proc/self/cgroup": f"0::{own}\n",
        f"{mount}/cgroup.controllers": "cpu memory pids\n",
        **{f"{mount}{path}": text for path, text in files.items()},
    }


def test_no_cgroup(tmp_path):
    """Without a cgroup file system only the affinity limits anything."""
    limits = read_limits(FakeHost(tmp_path, cpus=3))
    assert Limits(0, None, 3, None, None, None, None) == limits
    assert limits.cpus == 3


def test_v2_in_a_namespace(tmp_path):
    """A container sees its own cgroup as the root."""
    files = {
        "/cpu.max": "150000 100000\n",
        "/memory.max": "2147483648\n",
        "/memory.current": "1024\n",
        "/memory.events": "low 0\nhigh 0\nmax 4\noom 2\noom_kill 3\noom_group_kill 0\n",
        "/pids.max": "100\n",
    }
    limits = read_limits(lay_out(tmp_path, v2(files)))
    assert Limits(2, 1.5, 8, 2147483648, 1024, 3, 100) == limits
    assert limits.cpus == 1.5


def test_v2_without_limits(tmp_path):
    """`max` is no limit."""
    files = {"/cpu.max": "max 100000\n", "/memory.max": "max\n", "/pids.max": "max\n", "/memory.current": "7\n"}
    limits = read_limits(lay_out(tmp_path, v2(files)))
    assert Limits(2, None, 8, None, 7, None, None) == limits
    assert limits.cpus == 8


def test_v2_nested(tmp_path):
    """The smallest limit of all ancestors wins; what is used is this cgroup's own."""
    files = {
        "/pods/cpu.max": "100000 100000\n",
        "/pods/memory.max": "1000\n",
        "/pods/pids.max": "max\n",
        "/pods/memory.current": "900\n",
        "/pods/memory.events": "oom_kill 9\n",
        "/pods/me/cpu.max": "400000 100000\n",
        "/pods/me/memory.max": "2000\n",
        "/pods/me/pids.max": "50\n",
        "/pods/me/memory.current": "10\n",
        "/pods/me/memory.events": "oom 1\noom_kill 1\n",
    }
    assert Limits(2, 1.0, 8, 1000, 10, 1, 50) == read_limits(lay_out(tmp_path, v2(files, own="/pods/me")))


@pytest.mark.parametrize("own", ["/kubepods/pod1/box", "/../../elsewhere"])
def test_v2_path_of_the_host(tmp_path, own):
    """Without a namespace the path is the host's and leads nowhere here, so the mount itself counts."""
    files = {"/cpu.max": "50000 100000\n", "/memory.max": "5\n"}
    assert Limits(2, 0.5, 8, 5, None, None, None) == read_limits(lay_out(tmp_path, v2(files, own=own)))


def test_a_quota_above_the_affinity(tmp_path):
    """Of quota and affinity the smaller counts."""
    limits = read_limits(lay_out(tmp_path, v2({"/cpu.max": "1600000 100000\n"}), cpus=2))
    assert (16.0, 2) == (limits.cpu_quota, limits.cpus)


V1_MEMBERS = "12:cpu,cpuacct:/box\n11:memory:/box\n10:pids:/box\n1:name=systemd:/box\n"


def test_v1(tmp_path):
    """Each controller of version 1 has a tree of its own; -1 and a huge number mean no limit."""
    mount = "/sys/fs/cgroup"
    files = {
        "/proc/self/cgroup": V1_MEMBERS,
        f"{mount}/cpu/box/cpu.cfs_quota_us": "50000\n",
        f"{mount}/cpu/box/cpu.cfs_period_us": "100000\n",
        f"{mount}/cpu/cpu.cfs_quota_us": "-1\n",
        f"{mount}/cpu/cpu.cfs_period_us": "100000\n",
        f"{mount}/memory/box/memory.limit_in_bytes": V1_UNLIMITED,
        f"{mount}/memory/memory.limit_in_bytes": "4096\n",
        f"{mount}/memory/box/memory.usage_in_bytes": "17\n",
        f"{mount}/memory/box/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        f"{mount}/pids/box/pids.max": "max\n",
    }
    assert Limits(1, 0.5, 8, 4096, 17, 2, None) == read_limits(lay_out(tmp_path, files))


def test_v1_path_of_the_host(tmp_path):
    """A container of version 1 without a namespace finds its own limits at the mount."""
    mount = "/sys/fs/cgroup"
    files = {
        "/proc/self/cgroup": V1_MEMBERS.replace("/box", "/kubepods/pod1/box"),
        f"{mount}/cpu/cpu.cfs_quota_us": "200000\n",
        f"{mount}/cpu/cpu.cfs_period_us": "100000\n",
        f"{mount}/memory/memory.limit_in_bytes": "4096\n",
        f"{mount}/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\n",
    }
    assert Limits(1, 2.0, 8, 4096, None, None, None) == read_limits(lay_out(tmp_path, files))


@pytest.mark.parametrize("text", ["", "max", "x y", "100000", "100000 0", "0 100000", "² 100000", "1 2 3", "9" * 5000])
def test_a_quota_that_is_none(tmp_path, text):
    """What cannot be understood is no quota."""
    assert read_limits(lay_out(tmp_path, v2({"/cpu.max": text}))).cpu_quota is None


def test_pressure_of_v2(tmp_path):
    """What happened is this cgroup's own; of several marks the lowest counts."""
    files = {
        "/pods/memory.high": "500\n",
        "/pods/memory.events": "high 9\nmax 9\n",
        "/pods/me/memory.high": "900\n",
        "/pods/me/memory.events": "low 0\nhigh 2\nmax 4\noom 0\n",
        "/pods/me/cpu.stat": "usage_usec 5\nnr_periods 40\nnr_throttled 3\nthrottled_usec 1500000\n",
    }
    assert Pressure(500, 4, 2, 40, 3, 1.5) == read_pressure(lay_out(tmp_path, v2(files, own="/pods/me")))


def test_pressure_of_v1(tmp_path):
    """Version 1 counts nanoseconds, and has no mark below the limit."""
    mount = "/sys/fs/cgroup"
    files = {
        "/proc/self/cgroup": V1_MEMBERS,
        f"{mount}/cpu/box/cpu.stat": "nr_periods 40\nnr_throttled 3\nthrottled_time 1500000000\n",
        f"{mount}/memory/box/memory.failcnt": "7\n",
    }
    assert Pressure(None, 7, None, 40, 3, 1.5) == read_pressure(lay_out(tmp_path, files))


def test_no_pressure_is_known_without_a_cgroup(tmp_path):
    """Nothing is mounted, and nothing is made up."""
    assert Pressure() == read_pressure(FakeHost(tmp_path))
