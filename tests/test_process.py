"""process: what it takes to end every process that we start."""

import os
import signal
import sys

from trainer_agent import process


def test_words_for_a_status():
    """Statuses, signals and exit codes follow the shell."""
    assert "does not end" == process.describe_status(None)
    assert ["SIGKILL", "signal 77"] == [process.signal_name(9), process.signal_name(77)]
    assert [42, 137] == [process.exit_code(42 << 8), process.exit_code(9)]


def test_spawn():
    """A command runs in a group of its own, with the environment that it was given and no blocked signals."""
    read, write = os.pipe()
    code = (
        "import os, signal; "
        "print(os.getpid() == os.getpgrp(), os.environ['A'], signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    )
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        child = process.spawn([sys.executable, "-c", code], env={"A": "b"}, stdout=write)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
    os.close(write)
    with os.fdopen(read) as pipe:
        assert "True b set()\n" == pipe.read()
    assert 0 == child.wait()


def test_there_may_be_no_terminal():
    """Then none is ours, and to take it does nothing, not even to the signals."""
    read, write = os.pipe()
    kept = os.dup(0)
    try:
        os.dup2(read, 0)
        assert not process.holds_terminal()
        process.take_terminal()
        assert set() == signal.pthread_sigmask(signal.SIG_BLOCK, [])
    finally:
        os.dup2(kept, 0)
        for each in (read, write, kept):
            os.close(each)


def test_kill_descendants():
    """All that lives below this process is found and ended."""
    child = process.spawn(["sleep", "60"], env={})
    assert child.pid in process.descendants()
    process.kill_descendants()
    assert -signal.SIGKILL == child.wait()
    assert child.pid not in process.descendants()
