"""guarded: a program that is talked with over pipes, and ends with whoever started it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from marked import until

from trainer_agent.guarded import END_S, start_guarded
from trainer_agent.process import REAP_SECONDS, descendants, is_alive

pytestmark = pytest.mark.lab

ENVIRON = {"PATH": os.environ["PATH"]}
ECHO = "import sys\nfor line in sys.stdin: print(line.strip()[::-1], flush=True)\n"
# Starts a program that starts another, says their pids, and waits to be killed.
AGENT = """
import os, signal, sys
from trainer_agent.guarded import start_guarded

inner = "import os, signal; pid = os.fork(); pid and print(os.getpid(), pid, flush=True); signal.pause()"
stdin, ours = os.pipe()
program = start_guarded([sys.executable, "-c", inner], environ={}, stdin=stdin, stdout=os.dup(1))
signal.pause()
"""


class Talk:
    """A Python program under guard, and our ends of its pipes."""

    def __init__(self, text, *, fds=()):
        stdin, self.orders = os.pipe()
        self.words, stdout = os.pipe()
        argv = [sys.executable, "-c", text, *map(str, fds)]
        self.program = start_guarded(argv, environ=ENVIRON, stdin=stdin, stdout=stdout, fds=fds)
        for fd in (stdin, stdout, *fds):
            os.close(fd)

    def say(self, text):
        os.write(self.orders, text.encode())

    def hear(self):
        return os.read(self.words, 4096).decode()

    def close(self):
        os.close(self.orders)
        os.close(self.words)


@pytest.fixture
def talk():
    """A function that starts a program; all are ended with the test."""
    talks = []

    def start(text, **how):
        talks.append(Talk(text, **how))
        return talks[-1]

    yield start
    for each in talks:
        each.program.end()
        each.close()


def test_it_answers_as_long_as_it_is_asked(talk):
    echo = talk(ECHO)
    echo.say("abc\n")
    assert "cba\n" == echo.hear()
    echo.say("def\n")
    assert "fed\n" == echo.hear()


def test_more_than_one_mib_of_answers_is_not_too_much(talk):
    """Standard output is ours to read, and nobody counts it."""
    chatty = talk("import sys; sys.stdout.write('x' * (2 << 20))")
    heard = sum(len(text) for text in iter(chatty.hear, ""))

    assert 2 << 20 == heard
    assert (0, "") == (chatty.program.wait().code, chatty.program.wait().stdout)


def test_it_gets_the_files_that_it_is_given_and_no_others(talk):
    """By the numbers that they have here."""
    theirs, ours = os.pipe()
    files = "import os, sys; fd = int(sys.argv[1]); print(os.read(fd, 9).decode(), len(os.listdir('/proc/self/fd')))"
    os.write(ours, b"given")
    reader = talk(files, fds=(theirs,))
    os.close(ours)

    # Three standard ones, the given one, and the one that lists.
    assert "given 5\n" == reader.hear()


def test_the_end_of_its_input_is_its_end(talk):
    """It hears of it: nobody else, its guard included, holds our end of the pipe."""
    echo = talk(ECHO)
    orders, echo.orders = echo.orders, os.open(os.devnull, os.O_WRONLY)
    os.close(orders)

    assert 0 == echo.program.wait().code


def test_we_hear_of_its_end(talk):
    """By the end of its output, with its last words and how it ended."""
    dying = talk("import os, sys; sys.stderr.write('the reason'); sys.stderr.flush(); os.kill(os.getpid(), 9)")

    assert "" == dying.hear()
    assert (-9, "the reason", "was killed by signal 9") == (
        dying.program.wait().code,
        dying.program.wait().last_words,
        dying.program.wait().end,
    )


def test_ending_it_ends_what_it_started(talk):
    family = "import os, signal; pid = os.fork(); pid and print(os.getpid(), pid, flush=True); signal.pause()"
    parent = talk(family)
    pids = [int(word) for word in parent.hear().split()]
    ended = parent.program.end()

    assert (-9, "nobody waits for it any more") == (ended.code, ended.problem)
    assert [] == [pid for pid in pids if is_alive(pid)]
    assert ended == parent.program.end()


def test_ending_it_takes_no_guard_that_answers(talk):
    """One that is stopped is killed, with all that it guards."""
    family = "import os, signal; pid = os.fork(); pid and print(os.getpid(), pid, flush=True); signal.pause()"
    parent = talk(family)
    parent.hear()
    pids = [parent.program.guard, *descendants(parent.program.guard)]
    os.kill(parent.program.guard, signal.SIGSTOP)
    began = time.monotonic()
    ended = parent.program.end()

    assert (None, True) == (ended.code, ended.timed_out)
    assert ended.problem.startswith("no answer within 3 s, nor from its guard")
    assert time.monotonic() - began < END_S + REAP_SECONDS + 20
    assert len(pids) == 3
    assert until(lambda: not [pid for pid in pids if is_alive(pid)])


def test_what_cannot_be_started_raises_when_it_is_waited_for():
    with Path(os.devnull).open() as null:
        program = start_guarded(["/no/such/program"], environ={}, stdin=null.fileno(), stdout=null.fileno())
        with pytest.raises(FileNotFoundError):
            program.wait()
        with program:  # ends it, whatever became of it
            pass


def test_nothing_of_ours_is_left():
    children, files = psutil.Process().children(), psutil.Process().num_fds()
    for _ in range(3):
        echo = Talk(ECHO)
        echo.program.end()
        echo.close()

    assert (children, files) == (psutil.Process().children(), psutil.Process().num_fds())


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_the_agent(signum):
    with subprocess.Popen([sys.executable, "-c", AGENT], stdout=subprocess.PIPE, text=True) as agent:
        pids = [int(word) for word in agent.stdout.readline().split()]
        agent.send_signal(signum)

        assert -signum == agent.wait(timeout=60)
    assert len(pids) == 2
    assert until(lambda: not [pid for pid in pids if is_alive(pid)])
