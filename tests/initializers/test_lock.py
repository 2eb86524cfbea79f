"""There is never more than one agent at work in a destination, and none waits for a dead one longer than it must."""

import errno
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
from claiming import (
    FOREIGN,
    PATIENT,
    QUICK,
    as_nobody,
    claim,
    error_of,
    names_in,
    read,
    unsupported,
    write,
)
from marked import until
from structlog.testing import capture_logs

from trainer_agent.errors import RetryError
from trainer_agent.initializers.lock import LEASE, LOCK, Claim, Times, _take_lease, _Wait
from trainer_agent.isolation import isolated

pytestmark = pytest.mark.lab

AGENT = """
import sys, time
from pathlib import Path
from trainer_agent.initializers.lock import Times, claimed

directory, name = Path(sys.argv[1]), sys.argv[2]

def note(what):
    with (directory.parent / "log").open("a") as log:
        log.write(f"{what} {name}\\n")

with claimed(directory, boot="boot", deadline=time.monotonic() + 30, times=Times(stale_s=60, look_s=0.01)):
    note("enter")
    print("in", flush=True)
    sys.stdin.readline()
    note("leave")
"""


@contextmanager
def agent(directory, name):
    """Start an agent, a process, which ends when it is told to."""
    argv = [sys.executable, "-c", AGENT, directory, name]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_agents_work_one_after_the_other(directory):
    names = ["a", "b", "c"]
    with agent(directory, "a") as a, agent(directory, "b") as b, agent(directory, "c") as c:
        for process in (a, b, c):
            process.stdin.write("leave as soon as you can\n")
            process.stdin.flush()
        assert [0, 0, 0] == [process.wait(30) for process in (a, b, c)]

    log = (directory.parent / "log").read_text().splitlines()
    order = [line.split()[1] for line in log[::2]]
    assert names == sorted(order)
    assert [f"{what} {name}" for name in order for what in ("enter", "leave")] == log
    assert {LOCK} == names_in(directory)


def test_after_a_killed_agent_the_next_begins_at_once(directory):
    """The kernel says that it is dead, so nobody waits for its lease."""
    with agent(directory, "victim") as victim:
        assert "in\n" == victim.stdout.readline()
        with pytest.raises(RetryError, match=f"process {victim.pid}"), claim(directory, wait_s=0.05, times=PATIENT):
            pytest.fail("both are in")
        victim.send_signal(signal.SIGKILL)
        victim.wait()

    assert read(directory)["pid"] == victim.pid
    with claim(directory, wait_s=0.5, times=PATIENT) as mine:
        assert read(directory)["id"] == mine.id


def test_the_lease_of_a_dead_node_is_taken_over_when_it_is_stale(directory):
    write(directory, FOREIGN)
    began = time.monotonic()

    with claim(directory) as mine:
        took = time.monotonic() - began
        assert mine.id == read(directory)["id"]
        mine.check()

    assert took >= QUICK.stale_s
    assert {LOCK} == names_in(directory)


@pytest.mark.parametrize("other", ["boot", "lock"])
def test_a_lock_of_another_mount_or_an_unknown_kernel_proves_nothing(directory, other):
    """Two mounts of a network file system on one node may each have a lock of their own."""
    boot = "boot" if other == "lock" else ""
    mount = f"boot:{directory.stat().st_dev + 1}" if other == "lock" else ""
    write(directory, FOREIGN | {"lock": mount})
    began = time.monotonic()

    with claim(directory, boot=boot):
        assert time.monotonic() - began >= QUICK.stale_s


def test_a_living_agent_elsewhere_is_waited_for(directory):
    """However long: only from its last renewal on does time count."""
    write(directory, FOREIGN)
    renewed_at = []

    def live():
        pause = threading.Event()
        for n in range(2, 22):
            write(directory, FOREIGN | {"n": n})
            renewed_at.append(time.monotonic())
            pause.wait(QUICK.renew_s)

    elsewhere = threading.Thread(target=live)
    elsewhere.start()
    with claim(directory):
        entered_at = time.monotonic()
    elsewhere.join()

    assert len(renewed_at) == 20
    assert entered_at >= renewed_at[-1] + QUICK.stale_s


def test_an_agent_elsewhere_that_ends_is_followed_at_once(directory):
    write(directory, FOREIGN)
    gone = threading.Timer(0.05, (directory / LEASE).unlink)
    gone.start()

    with claim(directory, wait_s=5, times=PATIENT) as mine:
        gone.join()

    assert mine.id != FOREIGN["id"]


@pytest.mark.parametrize("stale", [True, False], ids=["after a dead one", "from the beginning"])
def test_without_kernel_locks_the_lease_alone_decides(tmp_path, stale):
    """Three begin at the same moment, on what may be three nodes; each gets in, alone."""
    times = Times(renew_s=0.05, stale_s=2, look_s=0.005)
    for repetition in range(3 if stale else 10):
        directory = tmp_path / f"destination-{repetition}" / "hidden"
        directory.mkdir(parents=True)
        if stale:
            write(directory, FOREIGN)
        inside, most, together = [], [], threading.Barrier(3)

        def work(directory=directory, inside=inside, most=most, together=together):
            together.wait()
            with claim(directory, times=times, flock=unsupported) as mine:
                inside.append(mine.id)
                most.append(len(inside))
                time.sleep(0.01)
                mine.check()
                inside.remove(mine.id)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert [1, 1, 1] == most
        assert {LOCK} == names_in(directory)


def test_only_one_can_create_the_lease(directory):
    first, second = (Claim(directory, lock="", times=QUICK) for _ in range(2))

    assert [True, False] == [first.create(), second.create()]
    assert first.id == read(directory)["id"]


def test_one_that_writes_late_does_not_get_in_before_the_holder_knows(directory):
    """It was stopped between seeing a stale lease and taking it over; meanwhile another did."""
    times = Times(renew_s=0.1, stale_s=0.2, look_s=0.01)
    stopped, go_on = threading.Event(), threading.Event()
    events = []

    class Late(Claim):
        def renew(self):
            stopped.set()
            assert go_on.wait(60)
            super().renew()

    late = Late(directory, lock="", times=times)
    write(directory, FOREIGN)

    def take():
        _take_lease(late, _Wait(directory, times.look_s, time.monotonic() + 10))
        events.append("the late one is in")

    taker = threading.Thread(target=take)
    taker.start()
    assert stopped.wait(60)
    with claim(directory, times=times) as holder:
        go_on.set()
        while not events:
            try:
                holder.check()
            except RetryError as error:
                events.append(error.code)
    taker.join()

    assert ["destination-lost", "the late one is in"] == events
    assert late.id == read(directory)["id"]


def test_a_late_writer_loses_to_a_holder_who_renews(directory):
    """What it wrote is gone when it looks again, so it waits."""
    write(directory, FOREIGN)
    taken = Times(renew_s=0.05, stale_s=0.1, look_s=0.01)

    class Overwritten(Claim):
        def renew(self):
            super().renew()
            write(directory, FOREIGN | {"n": time.monotonic()})

    with pytest.raises(RetryError) as caught:
        _take_lease(Overwritten(directory, lock="", times=taken), _Wait(directory, 0.01, time.monotonic() + 0.5))

    assert "destination-busy" == caught.value.code


def test_the_holder_notices_that_another_has_taken_over(directory):
    """And leaves the other's lease alone."""
    lost = []
    with claim(directory) as mine:
        mine.check()

        def noticed():
            if read(directory) != FOREIGN:  # at first, and where a renewal had begun before, which hides it
                write(directory, FOREIGN)
            try:
                mine.check()
            except RetryError as error:
                lost.append((error.code, error.message, error.hint))
            return lost

        until(noticed)

    hint = "this node may have been out of touch with the volume; another agent goes on"
    assert ("destination-lost", f"another agent has taken over {directory.parent}", hint) == lost[0]
    assert FOREIGN == read(directory)


def test_a_lease_that_somebody_removed_is_written_anew(directory):
    with claim(directory) as mine:
        (directory / LEASE).unlink()
        until((directory / LEASE).exists)
        mine.check()
        assert mine.id == read(directory)["id"]


def test_a_volume_may_be_away_for_a_while(directory):
    """What cannot be renewed now is renewed later."""
    with claim(directory) as mine:
        away = directory.rename(directory.with_name("away"))
        before = read(away)["n"]
        with pytest.raises(FileNotFoundError):
            mine.renew_if_ours()
        away.rename(directory)
        until(lambda: read(directory)["n"] > before + 2)
        mine.check()


def test_after_the_end_nothing_is_renewed(directory):
    """A renewal may just have begun when the work ends."""
    with claim(directory) as mine:
        pass
    mine.renew_if_ours()

    assert {LOCK} == names_in(directory)


def test_at_the_deadline_it_says_who_is_at_work(directory):
    write(directory, FOREIGN)
    with capture_logs() as logs, pytest.raises(RetryError) as caught, claim(directory, wait_s=0.05, times=PATIENT):
        pytest.fail("both are in")

    message = f"{directory.parent} is still being filled by node-7 (process 4711)"
    assert ("destination-busy", message, "look there, or raise --timeout") == (
        caught.value.code,
        caught.value.message,
        caught.value.hint,
    )
    said = {"destination": str(directory.parent), "who": "node-7 (process 4711)", "by": "lease"}
    assert [{"event": "waiting for another agent", "log_level": "info", **said}] == logs
    assert FOREIGN == read(directory)


def test_threads_of_one_process_exclude_each_other_too(directory):
    with (
        claim(directory),
        pytest.raises(RetryError, match=re.escape(f"(process {os.getpid()})")),
        claim(directory, wait_s=0.05, times=PATIENT),
    ):
        pytest.fail("both are in")


def test_a_directory_that_cannot_be_written_is_an_error_and_no_wait(directory):
    directory.chmod(0o555)

    def enter():
        with claim(as_nobody(directory)):
            pass

    assert errno.EACCES == isolated(lambda: error_of(enter), timeout_s=10)


@pytest.mark.parametrize("there", [{}, {LEASE: json.dumps(FOREIGN)}], ids=["no lease", "a stale one"])
def test_a_full_disk_is_an_error_and_leaves_nothing_behind(directory, there):
    for name, text in there.items():
        (directory / name).write_text(text)

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with capture_logs(), pytest.raises(OSError) as caught:  # noqa: PT011, PT012  # the number is looked at below
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        try:
            with claim(directory):
                pass
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert errno.EFBIG == caught.value.errno
    assert there == {p.name: p.read_text() for p in directory.iterdir() if p.name != LOCK}


def test_a_lock_that_fails_is_an_error(directory):
    def broken(fd, how):
        raise OSError(errno.EIO, "the disk is broken")

    def enter():
        with claim(directory, flock=broken):
            pass

    assert errno.EIO == error_of(enter)
    assert {LOCK} == names_in(directory)
