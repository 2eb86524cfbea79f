"""process.contained: a function in a child of ours that may be told to stop and killed."""

import os
import signal
import subprocess
import sys
import time

import pytest

from trainer_agent.errors import ConfigurationError, ExitCode, FatalError, Finding, RetryError
from trainer_agent.initializers import TransientError
from trainer_agent.isolation import CrashedError, contained

pytestmark = pytest.mark.lab

# It says that it is at work, on standard error and through a pipe, once it is ready to be told to stop.
SCRIPT = """
import os, signal, sys, threading
from trainer_agent.errors import Terminated
from trainer_agent.isolation import contained
from trainer_agent.process import catch_termination

def work():
    {before}
    try:
        print("at work", flush=True, file=sys.stderr)
        os.write(say, b".")
        threading.Event().wait()
    except Terminated as error:
        print("told", error.signum, flush=True, file=sys.stderr)
        {after}

heard, say = os.pipe()
catch_termination()
{first}
try:
    contained(work, grace_s={grace_s})
except Terminated as error:
    sys.exit(128 + error.signum)
"""


def command(*, first="pass", before="pass", after="pass", grace_s=60):
    """Return a command that runs the script with these lines in it."""
    return [sys.executable, "-c", SCRIPT.format(first=first, before=before, after=after, grace_s=grace_s)]


def test_values_and_processes():
    """The value comes back from another process, and no child is left."""
    value, pid = contained(lambda: ("value", os.getpid()), grace_s=1)

    assert (value, pid != os.getpid()) == ("value", True)
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


@pytest.mark.parametrize(
    "error",
    [
        FatalError("code", "message", hint="hint"),
        TransientError("busy", "later", busy=True, retry_after_s=1.5),
        ConfigurationError([Finding("a", "A is wrong", hint="set A"), Finding("b", "B is wrong")]),
    ],
    ids=lambda e: e.code,
)
def test_errors_of_ours_come_back_whole(error):
    """With their class, code, hint and exit code."""

    def fail():
        raise error

    with pytest.raises(type(error)) as caught:
        contained(fail, grace_s=1)

    assert caught.value.__dict__ == error.__dict__
    assert (str(caught.value), caught.value.exit_code) == (str(error), error.exit_code)


def test_a_bug_brings_its_traceback():
    """Nobody has to guess where it was."""
    with pytest.raises(CrashedError, match="ZeroDivisionError") as caught:
        contained(lambda: 1 // 0, grace_s=1)

    assert "1 // 0" in caught.value.trace


def test_what_is_used_up_is_no_bug():
    def fail():
        raise MemoryError

    with pytest.raises(RetryError, match="the system refuses: memory"):
        contained(fail, grace_s=1)


def test_a_kill_is_told():
    """As by the kernel that is out of memory."""
    with pytest.raises(CrashedError, match="killed by SIGKILL"):
        contained(lambda: os.kill(os.getpid(), signal.SIGKILL), grace_s=1)


@pytest.mark.parametrize(
    "lines,told",
    [
        ({"grace_s": 60}, ["at work", "told 15"]),
        ({"grace_s": 2, "after": "threading.Event().wait()"}, ["at work", "told 15"]),
        ({"grace_s": 0.2, "before": "signal.pthread_sigmask(signal.SIG_BLOCK, [15])"}, ["at work"]),
    ],
    ids=["obeys", "dawdles", "deaf"],
)
def test_sigterm_is_passed_on_and_then_enforced(lines, told):
    """A child that does not obey in time is killed; for one that does, nobody waits any longer."""
    with subprocess.Popen(command(**lines), stderr=subprocess.PIPE, text=True) as parent:
        output = parent.stderr.readline()
        parent.send_signal(signal.SIGTERM)
        began = time.monotonic()
        output += parent.stderr.read()
        code = parent.wait(timeout=60)

    assert (143, told) == (code, output.splitlines())
    assert time.monotonic() - began < 30


def test_sigterm_is_passed_on_from_the_first_moment():
    """The child may be at work before its parent has come back from the fork, where signals are held."""
    hook = "os.register_at_fork(after_in_parent=lambda: (os.read(heard, 1), os.kill(os.getpid(), signal.SIGTERM)))"
    done = subprocess.run(command(first=hook), capture_output=True, text=True, timeout=60, check=False)

    assert (143, "at work\ntold 15\n") == (done.returncode, done.stderr)


def test_a_killed_parent_takes_the_child_along():
    """Nobody goes on writing into a destination that somebody else may claim."""
    with subprocess.Popen(command(), stderr=subprocess.PIPE, text=True) as parent:
        assert parent.stderr.readline() == "at work\n"
        parent.kill()
        # The pipe ends when the last writer is gone.
        assert parent.stderr.read() == ""

    assert parent.returncode == -signal.SIGKILL


def test_the_exit_codes_are_those_of_the_error():
    """A fatal error stays one."""
    assert FatalError("a", "b").exit_code == ExitCode.FATAL
