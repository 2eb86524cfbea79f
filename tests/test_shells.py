"""shells: who has to hear of a signal to a shell, asked of real ones."""

import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from trainer_agent import shells
from trainer_agent.shells import below_shell, catches, is_shell, living

pytestmark = pytest.mark.lab

# A program that tells its name and pid, and stays; one in capitals has a handler.
PROGRAM = """
import os, signal, sys
path, name = sys.argv[1:]
if name.isupper():
    signal.signal(signal.SIGTERM, lambda *_: None)
with open(path, "w") as told:
    told.write(f"{name} {os.getpid()}\\n")
while True:
    signal.pause()
"""


@contextmanager
def running(script, tmp_path, *, programs, shell=("bash", "-c")):
    """Run a script whose words in square brackets are programs; yield the shell's pid, and theirs by their names."""
    (tmp_path / "program.py").write_text(PROGRAM)
    os.mkfifo(tmp_path / "told")
    program = shlex.join([sys.executable, str(tmp_path / "program.py"), str(tmp_path / "told")])
    words = [*shell, re.sub(r"\[(\w+)\]", rf"{program} \1", script)]
    fifo = os.open(tmp_path / "told", os.O_RDWR)  # so that it has no end between two of them
    with os.fdopen(fifo) as told, subprocess.Popen(words, start_new_session=True) as started:
        try:
            yield started.pid, dict(told.readline().split() for _ in range(programs))
        finally:
            os.killpg(started.pid, signal.SIGKILL)
            (tmp_path / "told").unlink()


def asked(script, tmp_path, *, programs, **settings):
    """Return the names of those that are told and of those that are spared."""
    with running(script, tmp_path, programs=programs, **settings) as (shell, pids):
        names = {int(pid): name for name, pid in pids.items()}
        told, spared = below_shell(shell, signal.SIGTERM)
        return sorted(names.get(p, "?") for p in told), sorted(names.get(p, "?") for p in spared)


@pytest.mark.parametrize(
    "script, told, spared",
    [
        ("[a]; exit", ["a"], []),
        ("[A] & [b]; exit", ["A", "b"], []),
        ("[A] 2>&1 | [tee]", ["A"], ["tee"]),
        ("[A] 2>&1 >/dev/null | [tee]", ["A"], ["tee"]),
        ("[A] | [grep] | [tee]", ["A"], ["grep", "tee"]),
        ("[a] | [tee]", ["a"], ["tee"]),
        ("[A] | [LOGGER]", ["A"], ["LOGGER"]),
        ("[yes] | [A]", ["A", "yes"], []),
        ("[yes] | [A] | [tee]", ["A", "yes"], ["tee"]),
        ("[yes] | [A]; exit", ["A", "yes"], []),
    ],
)
def test_what_a_shell_waits_for(tmp_path, script, told, spared):
    """What writes is told, what reads it ends by itself: killed first, it would take the other with it."""
    assert (told, spared) == asked(script, tmp_path, programs=len(told) + len(spared))


def test_what_a_shell_below_it_waits_for(tmp_path):
    """That one hands nothing on, either."""
    assert (["?", "A"], []) == asked("sh -c '[A]; exit'; exit", tmp_path, programs=1)
    assert (["?", "A"], ["tee"]) == asked("{ [A]; exit; } | [tee]", tmp_path, programs=2)


def test_a_script_with_an_interpreter(tmp_path):
    """Its name is its own; what the kernel has started is a shell."""
    script = tmp_path / "train"
    script.write_text('#!/bin/sh\neval "$1"; exit\n')
    script.chmod(0o755)
    assert (["A"], []) == asked("[A]", tmp_path, programs=1, shell=(str(script),))


def test_the_log_of_a_whole_script(tmp_path):
    """`exec > >(tee log)` at its beginning: tee has the shell's own words to read, and the command's."""
    script = f"exec > >(tee {tmp_path}/log); [A]; exit"
    assert (["A"], ["?"]) == asked(script, tmp_path, programs=1)


def test_a_shell_with_a_trap(tmp_path):
    """It hands the signal on itself."""
    assert ([], []) == asked("trap 'kill $!' TERM; [a] & wait", tmp_path, programs=1)
    assert (["a"], []) == asked("trap 'kill $!' INT; [a]; exit", tmp_path, programs=1)


def test_what_is_no_shell(tmp_path):
    """A program may have started anything; that is its own business."""
    code = "import subprocess, sys; subprocess.run(sys.argv[1], shell=True)"
    assert ([], []) == asked("[a]", tmp_path, programs=1, shell=(sys.executable, "-c", code))


def test_a_process_that_has_ended():
    """It waits for nothing, and catches nothing."""
    with subprocess.Popen(["sh", "-c", "exit"]) as gone:
        os.waitid(os.P_PID, gone.pid, os.WEXITED | os.WNOWAIT)
        assert ([], []) == below_shell(gone.pid, signal.SIGTERM)
        assert [os.getpid(), 1] == living([gone.pid, os.getpid(), 1])
    assert ([], False, []) == (living([gone.pid]), catches(gone.pid, signal.SIGTERM), below_shell(gone.pid, 15)[0])


@pytest.mark.parametrize(
    "word, expected", [("sh", True), ("/bin/bash", True), ("-bash", True), ("bashful", False), ("python", False)]
)
def test_the_names_of_shells(word, expected):
    assert expected == is_shell((word, "-c", "x"))


def test_it_needs_nothing_of_ours():
    """mpi/rank_shim.py takes it along to hosts where nothing else of ours is."""
    text = Path(shells.__file__).read_text()
    subprocess.run([sys.executable, "-IS", "-c", text], cwd="/", check=True)
    assert "trainer_agent" not in text
