"""shells: who has to hear of a signal to a shell, asked of real ones."""

import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from podlab import eventually

from trainer_agent import shells
from trainer_agent.shells import ALONE_S, BelowShells, catches, is_shell, living, parent, words

pytestmark = pytest.mark.lab

# A program that tells its name and pid, and stays; one in capitals has a handler, TORCHRUN one for each signal to end.
PROGRAM = """
import os, signal, sys
path, name = sys.argv[1:]
handled = ["SIGTERM"] * name.isupper() + ["SIGINT", "SIGQUIT"] * (name == "TORCHRUN")
for each in handled:
    signal.signal(getattr(signal, each), lambda *_: None)
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
    settings = {"start_new_session": True, "stdin": subprocess.DEVNULL}
    with os.fdopen(fifo) as told, subprocess.Popen(words, **settings) as started:
        pids = {}
        try:
            pids |= dict(told.readline().split() for _ in range(programs))
            yield started.pid, pids
        finally:
            os.killpg(started.pid, signal.SIGKILL)
            for pid in pids.values():  # which may have a group of its own
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            (tmp_path / "told").unlink()


def looked(pid, *signums):
    """Return what is below a shell that gets some signals."""
    below = BelowShells()
    for signum in signums:
        below.look(pid, signum)
    return below


def asked(script, tmp_path, *, programs, signums=(signal.SIGTERM,), **settings):
    """Return the names of those that are told, of those that are spared, and of those that are the shell's to tell."""
    with running(script, tmp_path, programs=programs, **settings) as (shell, pids):
        names = {int(pid): name for name, pid in pids.items()}
        below = looked(shell, *signums)
        assert sum(map(len, (below.told, below.spared, below.heirs))) == len(below.awaited)
        return tuple(sorted(names.get(p, "?") for p in some) for some in (below.told, below.spared, below.heirs))


@pytest.mark.parametrize(
    "script, told, spared",
    [
        ("[a]; exit", ["a"], []),
        ("[A] & [b]; exit", ["A", "b"], []),
        ("[A] 2>&1 | [tee]", ["A"], ["tee"]),
        ("[A] 2>&1 >/dev/null | [tee]", ["A"], ["tee"]),
        ("[A] | [grep] | [tee]", ["A"], ["grep", "tee"]),
        ("[a] | [tee]", ["a"], ["tee"]),
        ("[A] | [LOGGER]", ["A", "LOGGER"], []),
        ("[PRODUCER] | [A] | [tee]", ["A", "PRODUCER"], ["tee"]),
        ("[yes] | [a]", ["yes"], ["a"]),
        ("[yes] | [A]", ["A", "yes"], []),
        ("[yes] | [A] | [tee]", ["A", "yes"], ["tee"]),
        ("[yes] | [A]; exit", ["A", "yes"], []),
    ],
)
def test_what_a_shell_waits_for(tmp_path, script, told, spared):
    """What writes is told; what reads it and has no handler ends by itself: killed first, it would end the other."""
    assert (told, spared, []) == asked(script, tmp_path, programs=len(told) + len(spared))


def test_what_a_shell_below_it_waits_for(tmp_path):
    """That one hands nothing on, either."""
    assert (["?", "A"], [], []) == asked("sh -c '[A]; exit'; exit", tmp_path, programs=1)
    assert (["?", "A"], ["tee"], []) == asked("{ [A]; exit; } | [tee]", tmp_path, programs=2)


@pytest.mark.parametrize(
    "script, order",
    [
        ("[A] | [B] | [C]; exit", "CBA"),
        ("{ [A]; exit; } | [B]; exit", "B?A"),
        ("[A] | { [B]; exit; }; exit", "BA"),
        ("{ [A] | [B]; exit; } | [C]; exit", "C?BA"),
        ("trap : EXIT; [A] | { [B] | [C]; exit; }; exit", "CBA"),
    ],
)
def test_who_hears_first(tmp_path, script, order):
    """A reader before its writer, whose end is the end of its data; a shell before what it would go on after."""
    with running(script, tmp_path, programs=sum(map(str.isupper, order))) as (shell, pids):
        names = {int(pid): name for name, pid in pids.items()}
        assert order == "".join(names.get(pid, "?") for pid in looked(shell, signal.SIGTERM).told)


def test_a_script_with_an_interpreter(tmp_path):
    """Its name is its own; what the kernel has started is a shell."""
    script = tmp_path / "train"
    script.write_text('#!/bin/sh\neval "$1"; exit\n')
    script.chmod(0o755)
    assert (["A"], [], []) == asked("[A]", tmp_path, programs=1, shell=(str(script),))


def test_the_log_of_a_whole_script(tmp_path):
    """`exec > >(tee log)` at its beginning: tee has the shell's own words to read, and the command's."""
    script = f"exec > >(tee {tmp_path}/log); [A]; exit"
    assert (["A"], ["?"], []) == asked(script, tmp_path, programs=1)


BOTH = pytest.mark.parametrize("shell", [("bash", "-c"), ("sh", "-c")], ids=["bash", "sh"])


@BOTH
def test_what_a_shell_with_a_trap_has_in_its_background(tmp_path, shell):
    """Its trap runs at once, and may tell it."""
    assert ([], [], ["a"]) == asked("trap 'kill $!' TERM; [a] & wait", tmp_path, programs=1, shell=shell)


@BOTH
def test_a_program_that_handles_what_shells_have_the_background_ignore(tmp_path, shell):
    """Its standard input says where it is; one from elsewhere has nothing to say of that."""
    for script, told, left in (
        ("[TORCHRUN] & wait", [], ["TORCHRUN"]),
        ("[TORCHRUN] & [A]; exit", ["A"], ["TORCHRUN"]),
        ("[TORCHRUN]; exit", ["TORCHRUN"], []),
        ("cat /dev/zero | [TORCHRUN]; exit", ["TORCHRUN"], []),
    ):
        found = asked(f"trap 'kill $!' TERM; {script}", tmp_path, programs=len(told + left), shell=shell)
        assert (told, left) == (found[0], [name for name in found[2] if name != "?"]), script


@BOTH
def test_what_a_shell_with_a_trap_has_in_its_foreground(tmp_path, shell):
    """Its trap comes too late; but what has no handler could only be killed."""
    script = "trap 'kill $!' TERM; [A] & [B]; exit"
    assert (["B"], [], ["A"]) == asked(script, tmp_path, programs=2, shell=shell)
    assert ([], [], ["a"]) == asked("trap : TERM; [a]; exit", tmp_path, programs=1, shell=shell)
    assert (["?", "A"], [], []) == asked("trap : TERM; sh -c '[A]; exit'; exit", tmp_path, programs=1, shell=shell)
    assert (["a"], [], []) == asked("trap 'kill $!' USR1; [a]; exit", tmp_path, programs=1, shell=shell)


def test_a_trap_of_exit_alone(tmp_path):
    """bash catches what ends it, runs the trap and ends; other shells catch nothing."""
    assert (["A"], [], []) == asked("trap 'echo bye' EXIT; [A]; exit", tmp_path, programs=1)
    assert ([], [], ["a"]) == asked("trap 'echo bye' EXIT; [a] & wait", tmp_path, programs=1)
    assert (["a"], [], []) == asked("trap 'echo bye' EXIT; [a] & wait", tmp_path, programs=1, shell=("sh", "-c"))


@BOTH
def test_a_shell_that_gets_the_signal_of_ctrl_c(tmp_path, shell):
    """It catches that while it waits, to see whether what it waits for ends of it, too."""
    assert (["a"], [], []) == asked("[a]; exit", tmp_path, programs=1, shell=shell, signums=[signal.SIGINT])


def test_jobs_in_groups_of_their_own(tmp_path):
    """Nobody can see which is in the background."""
    assert ([], [], ["A"]) == asked("set -m; trap 'kill $!' TERM; [A] & wait", tmp_path, programs=1)


def test_what_is_below_the_background(tmp_path):
    """It is for whoever is told by the trap."""
    script = "trap 'kill $!' TERM; { [a]; exit; } & wait"
    assert ([], [], ["?", "a"]) == asked(script, tmp_path, programs=1)


def test_a_shell_that_gets_two_signals(tmp_path):
    """What has been told stays so; a command that has come since may be the trap's own."""
    term = signal.SIGTERM
    assert (["A"], [], []) == asked("trap : TERM; [A]; exit", tmp_path, programs=1, signums=[term, term])
    with running("trap '[SAVE]' TERM; [a] & wait", tmp_path, programs=1) as (shell, pids):
        below = looked(shell, term)
        os.kill(shell, term)
        eventually(lambda: below.look(shell, term) or len(below.heirs) > 1, what="the trap runs")
        assert ({}, True) == (below.told, int(pids["a"]) in below.heirs)


def ends(pid):
    """Return whether a process ends soon."""
    return eventually(lambda: not living([pid]), what=f"{pid} ends")


def test_who_outlives_a_shell_with_a_trap(tmp_path):
    """After a while nobody else will tell it."""
    with running("trap 'exit 3' TERM; [a] & wait", tmp_path, programs=1) as (shell, pids):
        below, heir = looked(shell, signal.SIGTERM), int(pids["a"])
        below.tell_late(0.0)
        below.tell_late(ALONE_S)
        assert ({heir: shell}, {}) == (below.heirs, below.told)
        os.kill(shell, signal.SIGTERM)
        os.waitid(os.P_PID, shell, os.WEXITED | os.WNOWAIT)
        below.tell_late(10.0)
        below.tell_late(10.0 + ALONE_S - 0.1)
        assert ([heir], {}) == (living([heir]), below.told)
        below.tell_late(10.0 + ALONE_S)
        assert ({}, [heir]) == (below.heirs, [*below.told])
        assert ends(heir)


def test_a_shell_that_outlives_a_shell_with_a_trap(tmp_path):
    """What it waits for is told with it."""
    with running("trap 'exit 3' TERM; { [a]; exit; } & wait", tmp_path, programs=1) as (shell, pids):
        below = looked(shell, signal.SIGTERM)
        os.kill(shell, signal.SIGTERM)
        os.waitid(os.P_PID, shell, os.WEXITED | os.WNOWAIT)
        below.tell_late(0.0)
        below.tell_late(ALONE_S)
        assert (2, True) == (len(below.told), int(pids["a"]) in below.told)
        assert all(ends(pid) for pid in below.told)


@BOTH
@pytest.mark.parametrize(
    "script, heirs", [("[TORCHRUN] & wait", 1), ("[A] & [b] & wait", 2), ("{ [A]; exit; } & wait", 2), ("[a]; exit", 1)]
)
def test_the_last_call(tmp_path, shell, script, heirs):
    """Who is a shell's to tell, and still there, is told once; who is told already is not."""
    names = re.findall(r"\[(\w+)]", script)
    with running(f"trap : TERM; {script}", tmp_path, programs=len(names), shell=shell) as (started, pids):
        below = looked(started, signal.SIGTERM)
        late = below.tell_last()
        assert (heirs, {}, {*late}) == (len(late), below.heirs, {*below.told})
        assert all(late[int(pids[name])].startswith("python") for name in names)
        assert all(ends(int(pids[name])) for name in names if name.islower())
        assert {} == below.tell_last()


@pytest.mark.parametrize("trap", ["", "trap : TERM; "])
def test_who_reads_from_nobody_any_more(tmp_path, trap):
    """It has not ended at the end of what it reads; as long as somebody writes, it is left alone."""
    with running(trap + "[YES] | [a]; exit", tmp_path, programs=2) as (shell, pids):
        below, writer, reader = looked(shell, signal.SIGTERM), int(pids["YES"]), int(pids["a"])
        below.tell_late(0.0)
        below.tell_late(ALONE_S)
        assert ({reader}, [writer]) == (below.spared, [*below.told])
        os.kill(writer, signal.SIGKILL)
        assert ends(writer)
        below.tell_late(10.0)
        assert {reader} == below.spared
        below.tell_late(10.0 + ALONE_S)
        assert ({*()}, True) == (below.spared, ends(reader))


def test_who_reads_from_somebody_else(tmp_path):
    """What a program has started may write for longer than the program."""
    code = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:]).pid, file=sys.stderr)"
    script = f"{shlex.join([sys.executable, '-c', code])} [b] | [a]; exit"
    with running(script, tmp_path, programs=2) as (shell, pids):
        below, reader = looked(shell, signal.SIGTERM), int(pids["a"])
        below.tell_late(0.0)
        below.tell_late(ALONE_S)
        assert [reader] == living([reader])
        os.kill(int(pids["b"]), signal.SIGKILL)
        assert ends(int(pids["b"]))


def test_a_process_that_is_collected(tmp_path):
    """Whoever has its number then is not told."""
    with running("trap : TERM; [a] & [yes] | [b]; exit", tmp_path, programs=3) as (shell, _):
        below = looked(shell, signal.SIGTERM)
        for pid in (shell, *below.awaited):
            below.forget(pid)
        assert set() == below.awaited


def test_what_is_no_shell(tmp_path):
    """A program may have started anything; that is its own business."""
    code = "import subprocess, sys; subprocess.run(sys.argv[1], shell=True)"
    assert ([], [], []) == asked("[a]", tmp_path, programs=1, shell=(sys.executable, "-c", code))


def test_a_process_that_has_ended():
    """It waits for nothing, and catches nothing."""
    with subprocess.Popen(["sh", "-c", "exit"]) as gone:
        os.waitid(os.P_PID, gone.pid, os.WEXITED | os.WNOWAIT)
        assert set() == looked(gone.pid, signal.SIGTERM).awaited
        assert [os.getpid(), 1] == living([gone.pid, os.getpid(), 1])
    assert ([], False) == (living([gone.pid]), catches(gone.pid, signal.SIGTERM))
    assert set() == looked(gone.pid, signal.SIGTERM).awaited


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has processes of another user")
def test_a_process_of_another_user():
    """It hears nothing, as of no process of ours; the others do."""
    with subprocess.Popen(["sleep", "60"], user=4242) as foreign, subprocess.Popen(["sleep", "60"]) as own:
        code = "import sys; from trainer_agent.shells import tell; tell(map(int, sys.argv[1:]), 15)"
        command = ["setpriv", "--bounding-set=-kill", "--inh-caps=-kill", sys.executable, "-c", code]
        subprocess.run([*command, str(foreign.pid), str(own.pid)], check=True)
        assert (-signal.SIGTERM, [foreign.pid]) == (own.wait(), living([foreign.pid]))
        foreign.kill()


def test_the_command_of_a_process():
    with subprocess.Popen(["sleep", "60"]) as started:
        eventually(lambda: words(started.pid)[0] == "sleep", what="it runs")
        started.kill()
    assert ([""], os.getppid()) == (words(started.pid), parent(os.getpid()))


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
