"""launch where its surroundings are odd: a log that is full or unread, nohup, a terminal."""

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from supervised import STAY

pytestmark = pytest.mark.lab

AGENT = (sys.executable, "-m", "trainer_agent")


@pytest.mark.parametrize("code", [0, 42])
def test_a_log_that_cannot_be_written(code):
    """The volume of the log is full; how the training ended is still the exit code."""
    script = f"raise SystemExit({code})"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*AGENT, "launch", "--supervise", "--", "-c", script], stderr=full, check=False)
    assert code == done.returncode


def test_sigterm_is_forwarded_though_nobody_reads_the_log(tmp_path):
    """The checkpoint is what counts."""
    script = "import signal, sys, time; signal.signal(15, lambda *_: (open(sys.argv[1], 'x'), sys.exit())); "
    words = [
        *AGENT,
        "launch",
        "--supervise",
        "--",
        "-c",
        f"{script}print(flush=True); {STAY}",
        str(tmp_path / "c"),
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as agent:
        agent.stdout.readline()
        agent.stderr.close()
        agent.send_signal(signal.SIGTERM)
        assert 143 == agent.wait(timeout=60)
    assert (tmp_path / "c").exists()


@pytest.mark.parametrize("mode", ["--exec", "--supervise"])
def test_nohup(tmp_path, mode):
    """What is to go on when the terminal is closed goes on, whoever is asked to look after it."""
    script = "import signal, sys, time; signal.signal(signal.SIGUSR1, lambda *_: sys.exit(5)); print(flush=True); "
    script += STAY
    words = ["nohup", *AGENT, "launch", mode, "--", "-c", script]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as agent:
        agent.stdout.readline()
        agent.send_signal(signal.SIGHUP)
        agent.send_signal(signal.SIGUSR1)
        assert 5 == agent.wait(timeout=60)


IGNORANT = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
IGNORANT += "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD]); os.execv(sys.argv[1], sys.argv[1:])"


@pytest.mark.parametrize(
    "words", [("launch", "--supervise", "sh", "-c", "exit 4"), ("preflight", "--checks", "cgroup")]
)
def test_whoever_starts_it_may_ignore_the_end_of_children(words):
    """The agent hears of it all the same: it needs to know how they have ended."""
    with subprocess.Popen(
        [sys.executable, "-c", IGNORANT, *AGENT, *words], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as agent:
        try:
            _, err = agent.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            agent.kill()
            raise
    assert ((4,) if "launch" in words else (0, 10)).count(agent.returncode), err


def at_a_terminal(*words, typed=b""):
    """Return the exit code of a launch on a terminal of its own, and what that shows."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(AGENT[0], [*AGENT, "launch", "--supervise", *words], {"PS1": "PROMPT", "PATH": "/usr/bin:/bin"})
    os.write(terminal, typed)
    shown = b""
    with suppress(OSError):  # it has ended
        while more := os.read(terminal, 4096):
            shown += more
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown


@pytest.mark.parametrize("line", ["bash --norc", "env X=1 bash --norc", "sh -c 'cd / && exec bash --norc'"])
def test_a_shell_at_a_terminal_has_a_prompt(line):
    """It writes it to standard error, and only where that is the terminal, too."""
    code, shown = at_a_terminal(*shlex.split(line), typed=b"test -t 2 && exit 3; exit 4\n")
    assert (3, True) == (code, b"PROMPT" in shown)


@pytest.mark.parametrize("line", ["-c 'raise SystemExit(\"last words\")'", "sh -c 'echo last words >&2; exit 1'"])
def test_last_words_at_a_terminal(tmp_path, line):
    """A pod with `tty: true` has one, too, and is asked later by its termination message."""
    code, shown = at_a_terminal("--termination-log", str(tmp_path / "log"), "--", *shlex.split(line))
    assert (1, True) == (code, b"last words" in shown)
    assert "last words" == json.loads((tmp_path / "log").read_text())["error"].strip()
