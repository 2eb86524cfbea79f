import errno
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from marked import until

from preflight_checks import storage as module
from preflight_checks._throughput import measurable_bytes, throughput
from preflight_checks.storage import Target, clean_up, examine, storage, targets, try_out, write_and_read
from trainer_agent.cgroup import read_limits
from trainer_agent.check import Context, Options, Status
from trainer_agent.errors import Action
from trainer_agent.host import Host
from trainer_agent.isolation import CrashedError
from trainer_agent.testing import NO_DEVICES, run_check
from trainer_agent.topology import read_topology

MIB, GIB = 1 << 20, 1 << 30
FREE = {"free_bytes": 5 * GIB, "size_bytes": 9 * GIB, "inodes_free": 50, "inodes": 100}
SPEED = {"write_mb_per_s", "read_mb_per_s"}
WANTED = "wanted a directory that can be written and read back"


@pytest.fixture
def host(tmp_path):
    (tmp_path / "tmp").mkdir()
    return Host(tmp_path)


def context_of(host, *, environ=None, **options):
    environ = environ or {}
    topology = read_topology(environ, hostname="a-host")
    return Context(environ, topology, read_limits(host), NO_DEVICES, host, Options(**options))


def labels(host, **more):
    return [(t.label, t.required) for t in targets(context_of(host, **more))]


def found(outcome):
    return [(str(f.severity), f.code, f.message, f.action) for f in outcome.findings]


def target(path, *, required=True, create=False):
    return Target(str(path), (Path(path),), required, create)


def files_under(path):
    return sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file())


def test_the_temporary_directory_is_always_needed(host):
    outcome = run_check(storage, host, options=Options(profile="quick"))

    assert (Status.PASS, ["/tmp"]) == (outcome.status, list(outcome.measurements["paths"]))
    assert outcome.message.startswith("1 of 1 paths work: /tmp ")
    assert set(FREE) == set(outcome.measurements["paths"]["/tmp"])


def test_every_path_is_probed_once_and_nothing_is_left_behind(host, tmp_path):
    for name in ("data", "scratch"):
        (tmp_path / name).mkdir()
    options = Options(storage=("/data", "/data"), optional_storage=("/scratch", "/data"))

    outcome = run_check(storage, host, options=options)

    assert (Status.PASS, ["/data", "/tmp", "/scratch"]) == (outcome.status, list(outcome.measurements["paths"]))
    assert [] == files_under(tmp_path)


@pytest.mark.parametrize(
    "environ, expected",
    [
        ({}, []),
        ({"TRAINER_AGENT_INIT_DATASET_OUTPUT_PATH": "/d"}, []),
        ({"TRAINER_AGENT_INIT_DATASET_STORAGE_URI": "s3://b/d"}, ["/workspace/dataset"]),
        (
            {
                "TRAINER_AGENT_INIT_DATASET_STORAGE_URI": "s3://b/d",
                "TRAINER_AGENT_INIT_DATASET_OUTPUT_PATH": "/d",
                "TRAINER_AGENT_INIT_MODEL_STORAGE_URI": "s3://b/m",
            },
            ["/d", "/workspace/model"],
        ),
    ],
)
def test_what_init_will_write_is_required(host, environ, expected):
    assert [*((path, True) for path in expected), ("/tmp", True)] == labels(host, environ=environ)


@pytest.mark.parametrize(
    "environ, expected",
    [
        ({"TMPDIR": "/mine", "TMP": "/other"}, "/mine"),
        ({"TEMP": "/mine"}, "/mine"),
        ({"TMPDIR": "relative"}, "/tmp"),
        ({"TMPDIR": ""}, "/tmp"),
    ],
)
def test_the_temporary_directory_is_pythons(host, environ, expected):
    assert [(expected, True)] == labels(host, environ=environ)


def test_one_temporary_directory_that_works_is_enough_as_it_is_for_python(host, tmp_path):
    (tmp_path / "tmp").rmdir()
    (tmp_path / "var" / "tmp").mkdir(parents=True)

    assert Status.PASS is run_check(storage, host).status


def test_without_any_temporary_directory_torchrun_would_die(host, tmp_path):
    (tmp_path / "tmp").rmdir()

    expected = [("error", "storage-missing", f"/tmp does not exist, {WANTED} (required)", Action.STOP)]
    assert expected == found(run_check(storage, host))


@pytest.mark.lab
def test_paths_with_one_parent_do_not_disturb_each_other(tmp_path):
    chosen = [target(tmp_path / "new" / f"part-{i}", create=True) for i in range(8)]

    for _ in range(5):
        assert [] == found(examine(chosen))
    assert [] == files_under(tmp_path)


def test_output_paths_that_will_be_made_count_by_their_nearest_parent(host, tmp_path):
    (tmp_path / "workspace").mkdir()

    outcome = run_check(storage, host, environ={"TRAINER_AGENT_INIT_MODEL_STORAGE_URI": "s3://b/m"})

    assert (Status.PASS, ["/workspace/model", "/tmp"]) == (outcome.status, list(outcome.measurements["paths"]))
    assert ["tmp", "workspace"] == sorted(p.name for p in tmp_path.iterdir()), "nothing was made"


NO_ENTRY = "No such file or directory"  # what root is told
UNUSABLE = pytest.mark.parametrize(
    "path, code, reason",
    [
        ("/nowhere/at/all", "storage-missing", "does not exist"),
        ("/etc/passwd", "storage-missing", "is no directory"),
        ("/etc/passwd/below", "storage-missing", "does not exist"),
        ("/" + "x" * 300, "storage-missing", "cannot be used: File name too long"),
        ("/proc", "storage-not-writable", f"cannot be used: {'Permission denied' if os.geteuid() else NO_ENTRY}"),
        ("/sys", "storage-not-writable", "cannot be used: Permission denied"),
    ],
)


@UNUSABLE
def test_real_paths_that_cannot_be_written(path, code, reason):
    required = examine([target(path)])
    optional = examine([target(path, required=False)])

    assert [("error", code, f"{path} {reason}, {WANTED} (required)", Action.STOP)] == found(required)
    assert [("warning", code, f"{path} {reason}, {WANTED} (optional)", Action.CONTINUE)] == found(optional)
    assert "0 of 1 paths work: " == required.message


@UNUSABLE
def test_what_a_child_says_of_them(path, code, reason):
    """The same inside this process: the children above are not seen by coverage."""
    failure = try_out(target(path), ".probe", write_and_read)

    assert (code, reason) == (failure.rule.code, failure.reason)


def test_what_a_child_says_of_paths_that_work(tmp_path):
    """Bytes come back as they were written, and nothing stays."""
    assert set(FREE) == set(try_out(target(tmp_path / "to" / "be" / "made", create=True), ".probe", write_and_read))
    assert "storage-relative" == try_out(target("data"), ".probe", write_and_read).rule.code
    assert [] == files_under(tmp_path)


def test_cleaning_up_removes_the_probes_file_and_no_other(tmp_path):
    for name in (".probe", "data"):
        (tmp_path / name).write_text("")

    clean_up(target(tmp_path), ".probe")

    assert ["data"] == files_under(tmp_path)


def test_a_relative_path_is_refused_and_never_looked_at(host):
    outcome = run_check(storage, host, options=Options(storage=("data",)))

    expected = [("error", "storage-relative", f"data is not absolute, {WANTED} (required)", Action.STOP)]
    assert expected == found(outcome)


@pytest.mark.parametrize(
    "number, code, action",
    [
        (errno.EROFS, "storage-not-writable", Action.STOP),
        (errno.EACCES, "storage-not-writable", Action.STOP),
        (errno.ENOSPC, "storage-full", Action.RESCHEDULE),
        (errno.EDQUOT, "storage-full", Action.RESCHEDULE),
        (errno.EIO, "storage-io-error", Action.RESCHEDULE),
        (errno.ESTALE, "storage-io-error", Action.RESCHEDULE),
    ],
)
def test_what_the_file_system_answers_decides(number, code, action):
    def probe(path, name):
        raise OSError(number, os.strerror(number))

    outcome = examine([target("/data")], probe=probe)

    message = f"/data cannot be used: {os.strerror(number)}, {WANTED} (required)"
    assert [("error", code, message, action)] == found(outcome)


def test_a_path_that_hangs_is_named_and_holds_up_no_other(tmp_path):
    """As on a dead NFS server: the probe never returns, and what it had written goes."""
    for name in ("good", "dead"):
        (tmp_path / name).mkdir()

    def probe(path, name):
        if path.name == "dead":
            (path / name).write_text("half")
            signal.pause()
        return write_and_read(path, name)

    began = time.monotonic()
    outcome = examine([target(tmp_path / "dead"), target(tmp_path / "good")], probe=probe, timeout_s=2)

    message = f"{tmp_path}/dead gives no answer within 2 s, {WANTED} (required)"
    assert [("error", "storage-hung", message, Action.RESCHEDULE)] == found(outcome)
    assert [f"{tmp_path}/good"] == list(outcome.measurements["paths"])
    assert [] == files_under(tmp_path)
    assert time.monotonic() - began < 30


def killed_when(call, ready):
    """Run `call` in a process of its own and kill that without a word when `ready(its pid)` is true."""
    pid = os.fork()
    if pid == 0:
        call()
        os._exit(0)
    assert until(lambda: ready(pid))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_a_probe_that_is_killed_with_all_of_us_leaves_nothing(tmp_path):
    """As when the budget is used up, or the pod is deleted, in the middle of it."""

    def probe(path, name):
        (path / name).write_text("half")
        signal.pause()

    killed_when(lambda: examine([target(tmp_path)], probe=probe, timeout_s=60), lambda _: files_under(tmp_path))

    assert until(lambda: not files_under(tmp_path))


def test_what_is_measured_has_no_name_that_could_stay(tmp_path):
    """It is up to 256 MiB; where the whole container is killed, nobody is left to remove it."""

    def writes(pid):
        fds = Path(f"/proc/{pid}/fd")
        return any(str(tmp_path) in str(fd.readlink()) and fd.stat().st_size > MIB for fd in fds.iterdir())

    killed_when(lambda: throughput(tmp_path / "probe", 1 << 30, seconds=60), writes)

    assert [] == files_under(tmp_path)


def test_a_probe_that_crashes_says_nothing_of_the_path():
    def probe(path, name):
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(CrashedError, match="killed by SIGKILL"):
        examine([target("/data")], probe=probe)


@pytest.mark.parametrize(
    "changed, expected",
    [
        ({}, []),
        ({"free_bytes": GIB, "inodes_free": 1}, []),
        ({"free_bytes": GIB - 1}, ["/data has 1.00 GiB free, wanted 1 GiB"]),
        ({"free_bytes": 0, "size_bytes": 0}, []),  # object stores mounted as directories
        ({"inodes_free": 0}, ["/data has 0 of 100 inodes free, wanted 1%"]),
        ({"inodes_free": 0, "inodes": 0}, []),  # file systems without a limit of inodes
        (
            {"free_bytes": 0, "inodes_free": 0},
            ["/data has 0.00 GiB free, wanted 1 GiB", "/data has 0 of 100 inodes free, wanted 1%"],
        ),
    ],
)
def test_little_space_is_a_warning(changed, expected):
    outcome = examine([target("/data")], probe=lambda path, name: {**FREE, **changed})

    assert [("warning", "storage-low", message, Action.CONTINUE) for message in expected] == found(outcome)


def test_the_check_has_time_to_leave_every_dead_path_behind(host):
    quick = storage.deadline_s(context_of(host, profile="quick"))
    few = storage.deadline_s(context_of(host))
    many = storage.deadline_s(context_of(host, storage=("/a", "/b", "/c")))

    assert (10 + 1 + 2 + 1, 20 + 1 + 2 + 1, 20 + 1 + 8 + 1) == (quick, few, many)


def test_the_speed_is_measured_where_there_is_room(host, tmp_path):
    """Not in the quick profile; and what is written for it goes."""
    outcome = run_check(storage, host)

    assert set(FREE) | SPEED == set(outcome.measurements["paths"]["/tmp"])
    assert all(outcome.measurements["paths"]["/tmp"][name] > 0 for name in SPEED)
    assert [] == files_under(tmp_path)


@pytest.mark.parametrize(
    "name, speed, expected",
    [
        ("write_mb_per_s", 10.0, []),
        ("write_mb_per_s", 9.9, ["/data is written at 9.9 MB/s, wanted 10 or more"]),
        ("read_mb_per_s", 0.5, ["/data is read at 0.5 MB/s, wanted 10 or more"]),
    ],
)
@pytest.mark.parametrize("required", [True, False])
def test_an_absurdly_slow_path_is_a_warning(name, speed, expected, required):
    outcome = examine([target("/data", required=required)], probe=lambda path, file: {**FREE, name: speed})

    assert [("warning", "storage-slow", message, Action.CONTINUE) for message in expected] == found(outcome)


@pytest.mark.parametrize(
    "profile, limit, expected",
    [
        ("quick", None, 0),
        ("standard", None, 64 << 20),
        ("deep", None, 256 << 20),
        ("deep", 800 << 20, 100 << 20),  # the path may lie in memory
        ("deep", 0, 0),
    ],
)
def test_how_much_is_written_to_measure_the_speed(host, profile, limit, expected):
    context = context_of(host, profile=profile)

    assert expected == module._measured_bytes(replace(context, limits=replace(context.limits, memory_limit=limit)))


@pytest.mark.parametrize("budget_s, expected", [(20, 64 << 20), (19, 0)])
def test_a_small_budget_leaves_no_time_to_measure(host, budget_s, expected):
    """A check that is cut says nothing of the path at all."""
    assert expected == module._measured_bytes(context_of(host, profile="standard", budget_s=budget_s))


@pytest.mark.parametrize("free, expected", [(800 << 20, 8 << 20), (799 << 20, 0), (1 << 40, 64 << 20)])
def test_never_more_than_a_hundredth_of_what_is_free(free, expected):
    assert expected == measurable_bytes(64 << 20, free=free)


def test_a_slow_place_is_given_up(tmp_path):
    """The first chunk is small, and is the last when the time is over."""
    assert SPEED == set(throughput(tmp_path / "probe", 64 << 20, seconds=0))
    assert [] == files_under(tmp_path)


@pytest.mark.parametrize("files, size, expected", [(1, "9m", True), (9, "4m", False)], ids=["inodes", "room"])
def test_a_file_system_that_is_used_up(tmp_path, files, size, expected):
    """A real one, in a mount namespace of its own; measuring the speed of one that has little room finds nothing."""
    script = f"""
import sys; from pathlib import Path; from preflight_checks.storage import *
from preflight_checks.storage import Target, throughput
place = Path({str(tmp_path)!r})
error = try_out(Target(str(place), (place,)), ".probe", write_and_read)
print(error.rule.code, error.reason) if isinstance(error, ProbeError) else print(throughput(place / ".probe", 64 << 20))
print(len(list(place.iterdir())))
"""
    mount = f"mount -t tmpfs -o size={size},nr_inodes={files} none {tmp_path}"
    command = ["unshare", "-rm", "sh", "-c", f'{mount} && exec "$@"', "-", sys.executable, "-c", script]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    if "unshare:" in ended.stderr or "mount:" in ended.stderr:
        pytest.skip(f"no mount namespaces here: {ended.stderr.strip()}")

    said = "storage-full has none of its 1 inodes left\n0\n" if expected else "{}\n0\n"
    assert ("", said) == (ended.stderr, ended.stdout)
