"""isolation: whatever runs in a child comes back, or is killed at its deadline."""

import ctypes
import faulthandler
import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from marked import gone

from trainer_agent import isolation
from trainer_agent.isolation import CrashedError, IsolatedError, TimedOutError, isolated, run_all

pytestmark = pytest.mark.lab


def hang():
    threading.Event().wait()


def raises():
    raise ValueError("it broke")


def crash():
    faulthandler.disable()  # pytest switched it on
    ctypes.string_at(0)


class Unreadable:
    """Packs well and does not come out."""

    def __reduce__(self):
        return int, ("no number",)


class Unwritable:
    """Breaks while it is packed."""

    def __reduce__(self):
        raise RuntimeError("not me")


def test_values_come_back():
    """Whatever can be pickled is the answer, also None and ten megabytes."""
    assert {"a": (1, None)} == isolated(lambda: {"a": (1, None)}, timeout_s=30)
    assert isolated(lambda: None, timeout_s=30) is None
    assert 10_000_000 == len(isolated(lambda: b"x" * 10_000_000, timeout_s=30))


@given(st.recursive(st.none() | st.text() | st.integers(), st.lists))
def test_pickling_keeps_values(value):
    """A message is complete when its last byte is there, whatever the bytes are."""
    read, write = os.pipe()
    isolation._send(write, ("value", value, ""))
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert ("value", value, "") == isolation._unpack(pipe.read()[8:])


@pytest.mark.parametrize(
    "function, message",
    [
        (raises, "ValueError: it broke"),
        (lambda: sys.exit(3), "called sys.exit(3)"),
        (lambda: os._exit(3), "ended with exit code 3 and no answer"),
        (crash, "killed by SIGSEGV"),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), "killed by SIGTERM"),
        (lambda: signal.raise_signal(signal.SIGUSR1), "killed by SIGUSR1"),
        (Unreadable, "its result cannot be read: ValueError: invalid literal for int() with base 10: 'no number'"),
        (Unwritable, "its result cannot be sent: not me"),
    ],
)
def test_how_a_child_fails(function, message):
    """Exceptions, exits, signals and results that cannot travel are all said in words."""
    with pytest.raises(CrashedError) as crashed:
        isolated(function, timeout_s=30)
    assert message == str(crashed.value)


def test_what_cannot_be_pickled():
    """A lock cannot leave its process."""
    with pytest.raises(CrashedError, match=r"^its result cannot be sent: cannot pickle '_thread.lock' object$"):
        isolated(threading.Lock, timeout_s=30)


def test_the_traceback_of_a_child():
    """An exception brings its traceback, an exit has none."""
    with pytest.raises(CrashedError) as crashed:
        isolated(raises, timeout_s=30)
    assert ['    raise ValueError("it broke")', "ValueError: it broke"] == crashed.value.trace.splitlines()[-2:]
    with pytest.raises(CrashedError) as left:
        isolated(lambda: sys.exit(3), timeout_s=30)
    assert left.value.trace == ""


def test_a_hang_is_killed():
    """At the deadline the child is killed, not only left."""
    read, write = os.pipe()

    def function():
        os.write(write, str(os.getpid()).encode())
        hang()

    with pytest.raises(TimedOutError) as late:
        isolated(function, timeout_s=0.2)
    assert ("no answer within 0.2 s", False) == (str(late.value), late.value.hung)
    assert not psutil.pid_exists(int(os.read(read, 20)))
    os.close(read)
    os.close(write)


def test_a_child_that_cannot_die():
    """A process in state D is told apart."""
    expected = "no answer within 2 s; it does not die either (state D: it waits for a device or a file server)"
    assert expected == str(TimedOutError(2.0, hung=True))


@pytest.mark.parametrize("afterwards", [hang, lambda: None, raises, lambda: os._exit(1)])
def test_a_grandchild_does_not_outlive_its_group(afterwards):
    """What the child started goes with it, however the child ends."""
    read, write = os.pipe()

    def function():
        child = subprocess.Popen(["sleep", "60"])
        os.write(write, str(child.pid).encode())
        afterwards()

    answer = run_all([(function, 0.5)])[0]
    assert gone(int(os.read(read, 20))), answer
    os.close(read)
    os.close(write)


def test_output_of_a_child_goes_to_standard_error(capfd):
    """Standard output carries only what was asked for."""
    isolated(lambda: os.write(1, b"from the child"), timeout_s=30)
    assert ("", "from the child") == capfd.readouterr()


def test_side_by_side():
    """Many waits take about as long as the longest, and the answers keep their order."""

    def wait(index):
        select.select([], [], [], 2.0)
        return index

    began = time.monotonic()
    answers = run_all([(lambda i=i: wait(i), 30.0) for i in range(10)])
    assert list(range(10)) == [a.value for a in answers]
    assert time.monotonic() - began < 16  # one after the other, 20


def test_one_of_many_fails():
    """A hang and a crash hold nobody up and hurt nobody."""
    answers = run_all([(hang, 0.2), (raises, 30.0), (Unreadable, 30.0), (lambda: 1, 30.0)])
    kinds = [type(a.error) for a in answers]
    assert [TimedOutError, CrashedError, CrashedError, type(None)] == kinds
    assert answers[3].value == 1
    assert 0.2 <= answers[0].duration_s < 20
    assert [] == run_all([])


DRIVER = """
import os, threading
from trainer_agent.errors import Terminated
from trainer_agent.isolation import run_all
from trainer_agent.process import catch_termination

def hang():
    os.write(2, f"{os.getpid()}\\n".encode())
    threading.Event().wait()

catch_termination()
try:
    run_all([(hang, 60.0), (hang, 60.0)])
except Terminated as error:
    print("signal", error.signum)
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_termination_kills_the_children(signum):
    """A signal ends the wait, and no child is left behind."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", DRIVER], **pipes) as driver:
        pids = [int(driver.stderr.readline()) for _ in range(2)]
        driver.send_signal(signum)
        assert (f"signal {signum.value}\n", "") == driver.communicate(timeout=60)
    assert [True, True] == [gone(pid) for pid in pids]


AFTER_FORK = """
import os, signal
os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGTERM))
"""


def test_a_signal_in_the_moment_of_the_fork():
    """Python swallows what a handler raises in its hooks after a fork, so the signal must wait until they are over."""
    argv = [sys.executable, "-c", AFTER_FORK + DRIVER]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert ("signal 15\n", 0) == (done.stdout, done.returncode)
    assert "Exception ignored" not in done.stderr


def test_a_child_has_no_blocked_signals():
    """What is held back around the fork is let through in the child."""
    assert isolated(lambda: signal.pthread_sigmask(signal.SIG_BLOCK, []), timeout_s=30) == set()


def test_a_killed_parent_takes_its_children_along():
    """Not even SIGKILL of the agent leaves a check running."""
    with subprocess.Popen([sys.executable, "-c", DRIVER], stderr=subprocess.PIPE, text=True) as driver:
        pids = [int(driver.stderr.readline()) for _ in range(2)]
        driver.kill()
        assert [True, True] == [gone(pid) for pid in pids]


@pytest.mark.parametrize("end", ["returns", "raises", "hangs"])
def test_what_leaves_its_group_is_ended_too(end, tmp_path):
    """A daemon with a session of its own, started by a program that is gone already."""
    file = tmp_path / "pid"

    def function():
        command = f"echo $$ > {file}.new; mv {file}.new {file}; exec sleep 60"
        subprocess.run(["setsid", "--fork", "sh", "-c", command], check=True)
        while not file.exists():
            select.select([], [], [], 0.01)
        if end == "raises":
            raises()
        if end == "hangs":
            hang()

    with suppress(IsolatedError):
        isolated(function, timeout_s=1)

    assert gone(int(file.read_text()))
