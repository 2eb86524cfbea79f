"""process.contained: a function in a child of ours that may be told to stop and killed."""

import os
import signal
import subprocess
import sys
import time

import pytest

from trainer_agent.errors import ConfigurationError, ExitCode, FatalError, Finding
from trainer_agent.initializers import TransientError
from trainer_agent.process import CrashedError, contained

SCRIPT = """
import os, sys, threading
from trainer_agent.errors import Terminated
from trainer_agent.process import catch_termination, contained

def work():
    print("at work", flush=True, file=sys.stderr)
    try:
        {body}
    except Terminated as error:
        print("told", error.signum, flush=True, file=sys.stderr)
        {after}

catch_termination()
try:
    contained(work, grace_s=0.5)
except Terminated as error:
    sys.exit(128 + error.signum)
"""


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


def test_a_kill_is_told():
    """As by the kernel that is out of memory."""
    with pytest.raises(CrashedError, match="killed by SIGKILL"):
        contained(lambda: os.kill(os.getpid(), signal.SIGKILL), grace_s=1)


@pytest.mark.parametrize(
    "body,after,told",
    [
        ("threading.Event().wait()", "pass", ["at work", "told 15"]),
        ("threading.Event().wait()", "threading.Event().wait()", ["at work", "told 15"]),
        ("signal.pthread_sigmask(signal.SIG_BLOCK, [15]); threading.Event().wait()", "pass", ["at work"]),
    ],
    ids=["obeys", "dawdles", "deaf"],
)
def test_sigterm_is_passed_on_and_then_enforced(body, after, told):
    """The child gets half a second to obey; then it is killed."""
    script = "import signal" + SCRIPT.format(body=body, after=after)
    with subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True) as parent:
        lines = [parent.stderr.readline().strip()]
        parent.send_signal(signal.SIGTERM)
        began = time.monotonic()
        lines += parent.stderr.read().split("\n")
        code = parent.wait(timeout=10)

    assert (code, [line for line in lines if line]) == (143, told)
    assert time.monotonic() - began < 5


def test_a_killed_parent_takes_the_child_along():
    """Nobody goes on writing into a destination that somebody else may claim."""
    script = SCRIPT.format(body="threading.Event().wait()", after="pass")
    with subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True) as parent:
        assert parent.stderr.readline().strip() == "at work"
        parent.kill()
        # The pipe ends when the last writer is gone.
        assert parent.stderr.read() == ""

    assert parent.returncode == -signal.SIGKILL


def test_the_exit_codes_are_those_of_the_error():
    """A fatal error stays one."""
    assert FatalError("a", "b").exit_code == ExitCode.FATAL
