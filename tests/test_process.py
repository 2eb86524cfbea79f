"""process: what it takes to end every process that we start."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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


def test_what_we_are_to_ignore_is_not_heeded():
    """nohup and a shell's `&` say so before we start; PID 1 cannot afford it, but this is none."""
    previous = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        assert {signal.SIGUSR1} == process.heeded([signal.SIGUSR1, signal.SIGUSR2])
    finally:
        signal.signal(signal.SIGUSR2, previous)


def test_the_end_of_children_is_heard():
    """Whatever we have inherited."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    process.hear_of_children()
    assert signal.SIG_DFL == signal.getsignal(signal.SIGCHLD)
    assert signal.SIGCHLD not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_write_whole():
    """What cannot be written is left, and a file that wants no waiting is waited for."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    child = process.spawn([sys.executable, "-c", "print(len(input()), end='')"], env={}, stdin=read, stdout=write)
    os.close(read)
    assert b"" == process.write_whole(write, b"x" * 300_000 + b"\n")
    assert 0 == child.wait()
    assert b"nobody reads it" == process.write_whole(write, b"nobody reads it")
    os.close(write)
    assert b"no file" == process.write_whole(write, b"no file")


@pytest.mark.parametrize("blocking", [True, False])
def test_write_whole_where_nobody_reads(blocking):
    """What there is room for is written, and the rest is left after the time that it may take."""
    read, write = os.pipe()
    os.set_blocking(write, blocking)
    began = time.monotonic()
    left = len(process.write_whole(write, b"x" * 300_000, within_s=0.2))
    assert 0.2 <= time.monotonic() - began < 20
    assert b"" == process.write_whole(write, b"", within_s=0)
    taken = len(os.read(read, 300_000))
    assert 300_000 == taken + left
    assert b"" == process.write_whole(write, b"x" * taken, within_s=0)
    os.close(read)
    assert b"nobody reads it" == process.write_whole(write, b"nobody reads it", within_s=0.2)
    os.close(write)


SPAWN = "import sys; from trainer_agent.process import spawn; spawn([sys.executable, '-c', sys.argv[1]], env={}).wait()"


@pytest.mark.parametrize("mode", ["rb", "r+b"])
def test_a_standard_input_without_anything(mode):
    """It is as a container's own, unlike what shells give to what is in their background."""
    look = "import os, fcntl; print(os.read(0, 9), os.readlink('/proc/self/fd/0'), fcntl.fcntl(0, fcntl.F_GETFL) & 3)"
    with Path(os.devnull).open(mode) as null:
        words = [sys.executable, "-c", SPAWN, look]
        done = subprocess.run(words, stdin=null, stdout=subprocess.PIPE, text=True, check=True)
    assert f"b'' /dev/null {os.O_RDWR}\n" == done.stdout


def test_a_standard_input_with_something():
    """It is the command's to read."""
    words = [sys.executable, "-c", SPAWN, "print(input())"]
    assert "words\n" == subprocess.run(words, input="words", stdout=subprocess.PIPE, text=True, check=True).stdout


def test_no_standard_input():
    """A command that reads nothing needs none."""
    words = ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-c", SPAWN, "print('runs')"]
    assert "runs\n" == subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout


def test_who_was_stopped():
    """It is said once, and of children alone."""
    child = process.spawn(["sleep", "60"], env={})
    assert not process.was_stopped(child.pid)
    os.kill(child.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    assert [True, False] == [process.was_stopped(child.pid), process.was_stopped(child.pid)]
    child.kill()
    child.wait()
    assert not process.was_stopped(child.pid)


def test_kill_descendants():
    """All that lives below this process is found and ended."""
    child = process.spawn(["sleep", "60"], env={})
    assert child.pid in process.descendants()
    process.kill_descendants()
    assert -signal.SIGKILL == child.wait()
    assert child.pid not in process.descendants()
