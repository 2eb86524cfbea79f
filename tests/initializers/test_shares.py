"""Many small files are fetched by several processes, and nobody can tell by what lies there."""

import errno
import os
import resource
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from fetching import BLOCK, held_back, order, tree
from memory_source import Memory
from podlab import eventually

from trainer_agent.errors import FatalError, RetryError
from trainer_agent.host import Host
from trainer_agent.initializers import HIDDEN
from trainer_agent.initializers.fetch import Bounds, fetch
from trainer_agent.isolation import contained
from trainer_agent.process import is_alive

MIB = 1 << 20
SMALL = {f"{number % 3}/{number:04}": BLOCK[number : 2 * number] for number in range(1, 1001)}
LARGE = {"large": BLOCK * 9}


class Machine(Host):
    """This one with another number of CPUs."""

    def __init__(self, cpus=4):
        super().__init__()
        self.cpus = cpus

    def affinity(self):
        return set(range(self.cpus))


class Log:
    """A hook that notes in a file who reads what; children note it too."""

    def __init__(self, path, then=lambda path: None):
        self.path, self.then = path, then
        self.path.touch()

    def __call__(self, path, at):
        with self.path.open("a") as file:
            file.write(f"{os.getpid()} {path}\n")
        self.then(path)

    @property
    def lines(self):
        return [line.split() for line in self.path.read_text().splitlines()]

    @property
    def pids(self):
        return {int(pid) for pid, _ in self.lines}

    @property
    def reads(self):
        return Counter(path for _, path in self.lines)


def bring(files, destination, log, *, cpus=4, **bounds):
    """Fetch in a process whose only thread is our own."""
    source, limits = Memory(files, hook=log), Bounds(**({"timeout_s": 60} | bounds))
    work = order(source, destination)
    return contained(lambda: fetch([work], host=Machine(cpus), bounds=limits), grace_s=1)


@pytest.fixture
def destination(tmp_path):
    return tmp_path / "to"


@pytest.mark.parametrize("files", [SMALL, SMALL | LARGE], ids=["small", "and a large one"])
def test_all_processes_fetch(destination, tmp_path, files):
    """The large one in ranges, by the process that began; what is there is recorded as always."""
    log = Log(tmp_path / "log")
    done = bring(files, destination, log)

    assert (files, 4) == (tree(destination), len(log.pids))
    assert len(files) == len(log.reads) == done.fetched_files
    assert ("large" in files) == len({pid for pid, path in log.lines if path == "large"})
    assert 0 == bring(files, destination, log).fetched_files
    assert ["lock", "record.json"] == sorted(p.name for p in (destination / HIDDEN).iterdir())


@pytest.mark.parametrize(
    "change,expected",
    [({}, 4), ({"cpus": 1}, 1), ({"cpus": 3}, 3), ({"files": 499}, 1), ({"files": 500}, 2), ({"streams": 16}, 2)],
)
def test_there_are_no_more_processes_than_help(destination, tmp_path, change, expected):
    """A processor, 250 files and 8 connections for each."""
    log = Log(tmp_path / "log")
    count = change.pop("files", 1000)
    bring(dict(list(SMALL.items())[:count]), destination, log, **change)

    assert expected == len(log.pids)


def test_where_there_are_no_more_processes_one_fetches_all(destination, tmp_path):
    """As a limit of processes (RLIMIT_NPROC, pids.max) has it."""
    log = Log(tmp_path / "log")

    def run():
        fork, forks = os.fork, []

        def refused():
            forks.append(fork)
            if len(forks) > 1:
                raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
            return fork()

        os.fork = refused
        fetch([order(Memory(SMALL, hook=log), destination)], host=Machine(), bounds=Bounds(timeout_s=60))
        return len(forks)

    assert 3 == contained(run, grace_s=1)
    assert (SMALL, 2) == (tree(destination), len(log.pids))


def test_what_an_earlier_attempt_left_is_taken_up(destination, tmp_path):
    """A process was killed: the fetch says so, and the next one fetches what was not whole, and nothing else."""
    log, test = Log(tmp_path / "log"), os.getpid()

    def kill(path):
        if len(log.lines) > 300 and os.getppid() != test:  # none that began
            os.kill(os.getpid(), signal.SIGKILL)

    log.then = kill
    with pytest.raises(RetryError, match="a process of the fetch was ended from outside: killed by SIGKILL") as caught:
        bring(SMALL, destination, log)
    assert "fetch-killed" == caught.value.code
    assert {} == tree(destination)
    log.then = lambda path: None
    bring(SMALL, destination, log)

    assert SMALL == tree(destination)
    # Those that were open: at most 128 connections.
    assert sum(log.reads.values()) - len(SMALL) <= 128


class Busy(Machine):
    """Others have left so much to write that each file is put on disk by itself."""

    def read(self, path):
        return "Dirty: 9000000 kB\nWriteback: 0 kB\n" if str(path) == "/proc/meminfo" else super().read(path)


@pytest.mark.parametrize("host", [Machine, Busy])
def test_what_others_have_written_is_on_disk(destination, host):
    """Before anything has its final name; of temporary file systems the kernel holds nothing back."""
    work = order(Memory(SMALL), destination)
    contained(lambda: fetch([work], host=host(), bounds=Bounds(timeout_s=60)), grace_s=1)

    assert [0] * len(SMALL) == [held_back(destination / path) for path in SMALL]


@pytest.mark.parametrize("at", [0, 1], ids=["of the process that began", "of another"])
def test_what_a_source_refuses_ends_all(destination, tmp_path, at):
    """With the error as it was raised; no process is left."""
    log = Log(tmp_path / "log")

    def refuse(path):
        if path == sorted(SMALL, key=lambda name: -len(SMALL[name]))[at + 4]:
            raise FatalError("source-refused", f"{path} may not be read", hint="ask for it")

    log.then = refuse
    with pytest.raises(FatalError, match="may not be read") as caught:
        bring(SMALL, destination, log)

    assert ("source-refused", "ask for it") == (caught.value.code, caught.value.hint)
    assert [] == [pid for pid in log.pids if is_alive(pid)]


def test_what_the_disk_refuses_another_process_is_told_as_ever(destination, tmp_path):
    """By the name of the destination, with what becomes of the rest."""
    log = Log(tmp_path / "log")

    def limit(path):
        if len(log.pids) == 4:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))

    log.then = limit
    with pytest.raises(FatalError, match=f"{destination} takes no files so large: File too large"):
        bring(SMALL, destination, log)
    assert {} == tree(destination)


@pytest.fixture
def slow(destination, tmp_path):
    """A fetch under way in a process of its own, and its log."""
    log = Log(tmp_path / "log", then=lambda path: time.sleep(0.02))
    pid = os.fork()
    if pid == 0:
        try:
            work = order(Memory(SMALL, hook=log), destination)
            fetch([work], host=Machine(), bounds=Bounds(streams=32, timeout_s=60))
            os._exit(0)
        finally:
            os._exit(1)
    eventually(lambda: len(log.pids) == 4, what="four processes fetch")
    yield pid, log
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def state(pid):
    """Return the letter that the kernel has for it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_others_stop_with_the_one_that_renews_the_lease(slow, destination):
    """Else they would write where another agent has taken over; they go on with it."""
    pid, log = slow
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: {"T"} == {state(one) for one in log.pids}, what="all have stopped")
    os.kill(pid, signal.SIGCONT)

    assert (pid, 0) == os.waitpid(pid, 0)
    assert SMALL == tree(destination)
    assert len(SMALL) == sum(log.reads.values())


def test_others_end_with_the_one_that_began(slow):
    """Also when it is killed."""
    pid, log = slow
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)

    assert eventually(lambda: not any(is_alive(one) for one in log.pids), what="all have ended")


def test_what_comes_is_counted_everywhere(destination, tmp_path):
    """Bytes and files of all processes, never fewer than before."""
    log, told = Log(tmp_path / "log", then=lambda path: time.sleep(0.005)), []
    work = order(Memory(SMALL, hook=log), destination)

    def run():
        fetch([work], host=Machine(), bounds=Bounds(timeout_s=60), tell=lambda **facts: told.append(facts))
        return told

    seen = [(facts["init_bytes_done"], facts["init_files_done"]) for facts in contained(run, grace_s=1)]

    assert seen == sorted(seen)
    assert sum(map(len, SMALL.values())) / 2 < seen[-1][0]
    assert len(SMALL) / 2 < seen[-1][1]
