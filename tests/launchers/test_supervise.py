"""supervise: a real command as a child of a tiny program that does what PID 1 must do."""

import json
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from trainer_agent.errors import FatalError
from trainer_agent.launchers.supervise import Ended, cannot_start, supervise

pytestmark = pytest.mark.lab

DRIVER = """
import dataclasses, json, os, signal, sys
from trainer_agent import log
from trainer_agent.launchers.supervise import supervise
log.configure({}, form="json")
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])  # one may come after supervise has ended
grace, feeding, *argv = sys.argv[1:]
feed = (lambda line: b"hidden" not in line) if feeding == "feed" else None
ended = supervise(argv, os.environ, grace_s=float(grace), feed=feed)
print(json.dumps(dataclasses.asdict(ended)))
"""
# With a companion, who says what it hears, and whether it is enough.
WITH_COMPANION = """
class Companion:
    def start(self, pid):
        print("started", pid, flush=True)
    def stop(self, signum):
        print("asked", signum, flush=True)
        return {enough}
ended = supervise(argv, os.environ, grace_s=float(grace), feed=feed, companion=Companion())
"""
# A command says that it is ready, then does what the test wants.
READY = "import os, signal, subprocess, sys, threading; say = lambda: (print('ready', flush=True)); "
GRACEFUL = "signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), os._exit(7))); "
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN); "
WAIT = "say(); threading.Event().wait()"


def gone(pid, *, within_s=5.0):
    """Return whether a killed process ends in time; init collects it some moments later."""
    deadline = time.monotonic() + within_s
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return False
        select.select([], [], [], 0.01)
    return True


def open_files():
    """Return what is open in this process, each with its number."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the directory itself
            found.add((path.name, path.readlink()))
    return found


def start(code, *, grace=10.0, feed="none", companion=None, shell="", script="", prefix=()):
    alone = "ended = supervise(argv, os.environ, grace_s=float(grace), feed=feed)\n"
    driver = DRIVER if companion is None else DRIVER.replace(alone, WITH_COMPANION.replace("{enough}", str(companion)))
    command = [sys.executable, "-c", code]
    command = [shell, "-c", script or f"if :; then {shlex.join(command)}; fi"] if shell else command
    argv = [sys.executable, "-c", driver, str(grace), feed, *command]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*prefix, *argv], **pipes)


def finish(driver):
    """Return how the command ended without its duration, what it printed before, and standard error."""
    out, err = driver.communicate(timeout=20)
    *printed, last = out.splitlines() or [err]
    ended = json.loads(last)
    return Ended(**{**ended, "elapsed_s": 0.0}), printed, err


def run(code, **settings):
    with start(code, **settings) as driver:
        return finish(driver)


@pytest.mark.parametrize(
    "code, expected",
    [
        ("pass", 0),
        ("raise SystemExit(42)", 42),
        ("import os; os.kill(os.getpid(), 9)", 137),
        ("import os; os.abort()", 134),
    ],
)
def test_exit_codes(code, expected):
    """The command's code passes through, 128 + n for a signal."""
    assert (Ended(expected, 0, killed=False, reaped=0, elapsed_s=0.0), [], "") == run(code)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stopping_signal_is_forwarded(signum):
    """The command gets the signal and the time to save its state."""
    handler = GRACEFUL.replace("SIGTERM", signal.Signals(signum).name)
    with start(READY + handler + WAIT) as driver:
        assert "ready\n" == driver.stdout.readline()
        driver.send_signal(signum)
        ended, printed, _ = finish(driver)
    assert (Ended(7, signum, killed=False, reaped=0, elapsed_s=0.0), ["saved"]) == (ended, printed)


@pytest.mark.parametrize("shell", ["sh", "/bin/bash"])
def test_what_a_shell_waits_for_hears_of_the_end_and_has_its_time(shell):
    """A shell that is told to end does so at once, and tells nobody."""
    with start(READY + GRACEFUL + WAIT, shell=shell) as driver:
        assert "ready\n" == driver.stdout.readline()
        driver.send_signal(signal.SIGTERM)
        ended, printed, _ = finish(driver)
    assert (143, signal.SIGTERM, False, ["saved"]) == (ended.code, ended.signum, ended.killed, printed)


@pytest.mark.parametrize("shell", ["sh", "/bin/bash"])
def test_the_log_that_a_shell_keeps_has_the_last_words(shell, tmp_path):
    """Without tee, the first of them would kill the command in the middle of its checkpoint."""
    save = "(print('saving', flush=True), time.sleep(0.3), print('saved', flush=True), os._exit(0))"
    code = f"import time; {READY}signal.signal(signal.SIGTERM, lambda *_: {save}); {WAIT}"
    script = f"{shlex.join([sys.executable, '-c', code])} 2>&1 | tee {tmp_path}/log"
    with start("", shell=shell, script=script) as driver:
        assert "ready\n" == driver.stdout.readline()
        driver.send_signal(signal.SIGTERM)
        ended, printed, _ = finish(driver)
    assert (143, False, ["saving", "saved"]) == (ended.code, ended.killed, printed)
    assert "ready\nsaving\nsaved\n" == (tmp_path / "log").read_text()


@pytest.mark.parametrize("shell", ["sh", "/bin/bash"])
def test_a_shell_with_a_trap_is_told_alone(shell):
    """It hands the signal on itself; two of them make some programs give up at once."""
    child = "import signal, time; got = []; signal.signal(signal.SIGTERM, lambda *_: got.append(1)); "
    child += "print('ready', flush=True); [time.sleep(0.05) for _ in iter(lambda: len(got), 1)]; time.sleep(0.3); "
    child += "print(len(got), flush=True)"
    trap = "trap 'sleep 0.1; kill -TERM $p; wait $p; exit 9' TERM"
    script = f"{trap}; {shlex.join([sys.executable, '-c', child])} & p=$!; wait $p"
    with start("", shell=shell, script=script) as driver:
        assert "ready\n" == driver.stdout.readline()
        driver.send_signal(signal.SIGTERM)
        ended, printed, _ = finish(driver)
    assert (9, ["1"]) == (ended.code, printed)


def test_what_a_shell_waits_for_has_no_more_than_the_grace():
    with start(READY + STUBBORN + WAIT, grace=0.3, shell="sh") as driver:
        assert "ready\n" == driver.stdout.readline()
        driver.send_signal(signal.SIGTERM)
        ended, _, err = finish(driver)
    assert (143, True) == (ended.code, ended.killed)
    assert ["stopping", "the grace is over, killing"] == [json.loads(line)["event"] for line in err.splitlines()]


def test_other_signals_are_forwarded_and_stop_nothing():
    """SIGUSR1 asks for a checkpoint in many jobs."""
    handler = "signal.signal(signal.SIGUSR1, lambda *_: os._exit(5)); "
    with start(READY + handler + WAIT) as driver:
        assert "ready\n" == driver.stdout.readline()
        driver.send_signal(signal.SIGUSR1)
        assert Ended(5, 0, killed=False, reaped=0, elapsed_s=0.0) == finish(driver)[0]


def test_what_whoever_started_us_ignores_is_ignored():
    """A terminal that is closed ends nothing that nohup has started."""
    handler = "signal.signal(signal.SIGUSR1, lambda *_: os._exit(5)); "
    with start(READY + handler + WAIT, prefix=["nohup"]) as driver:
        assert "ready\n" == driver.stdout.readline()
        driver.send_signal(signal.SIGHUP)
        driver.send_signal(signal.SIGUSR1)
        assert Ended(5, 0, killed=False, reaped=0, elapsed_s=0.0) == finish(driver)[0]


def test_who_is_stopped_hears_of_the_end():
    """A debugger or an operator may have stopped it; its time is not spent asleep."""
    with start("import os; print(os.getpid()); " + READY + GRACEFUL + WAIT) as driver:
        pid = int(driver.stdout.readline())
        assert "ready\n" == driver.stdout.readline()
        os.kill(pid, signal.SIGSTOP)
        driver.send_signal(signal.SIGTERM)
        ended, _, _ = finish(driver)
    assert (7, False) == (ended.code, ended.killed)


def test_the_grace_ends():
    """Who ignores SIGTERM is killed, with everything that it started."""
    code = READY + STUBBORN + "child = subprocess.Popen(['sleep', '60']); print(child.pid, flush=True); " + WAIT
    with start(code, grace=0.2) as driver:
        grandchild = int(driver.stdout.readline())
        assert "ready\n" == driver.stdout.readline()
        driver.send_signal(signal.SIGTERM)
        ended, _, err = finish(driver)
    assert (137, 15, True) == (ended.code, ended.signum, ended.killed)
    assert gone(grandchild)
    assert ["stopping", "the grace is over, killing"] == [json.loads(line)["event"] for line in err.splitlines()]


def test_more_signals_do_not_prolong_the_grace():
    """The grace counts from the first signal, and that one is reported, however often somebody asks again."""
    with start(READY + STUBBORN + STUBBORN.replace("TERM", "HUP") + WAIT, grace=0.3) as driver:
        assert "ready\n" == driver.stdout.readline()
        driver.send_signal(signal.SIGTERM)
        assert "stopping" == json.loads(driver.stderr.readline())["event"]
        deadline = time.monotonic() + 5
        while driver.poll() is None and time.monotonic() < deadline:
            driver.send_signal(signal.SIGHUP)
            select.select([], [], [], 0.05)
        assert driver.poll() == 0
        ended = finish(driver)[0]
    assert Ended(137, 15, killed=True, reaped=0, elapsed_s=0.0) == ended


def test_orphans_are_reaped():
    """Orphans are adopted and collected while the command runs, as PID 1 must do."""
    orphan = "subprocess.Popen(['sh', '-c', 'true & true & true &']).wait(); "
    until = "import select; select.select([], [], [], 0.3)"
    ended, _, _ = run(READY + orphan + until)
    assert (0, 3) == (ended.code, ended.reaped)


def test_nothing_outlives_the_command():
    """An orphan in a session of its own ends with the command."""
    code = "import subprocess; p = subprocess.Popen(['sleep', '60'], start_new_session=True); print(p.pid, flush=True)"
    ended, printed, _ = run(code)
    assert ended.code == 0
    assert gone(int(printed[0]))


def test_standard_error_is_filtered():
    """`feed` sees every line and decides which the user sees; standard output is not touched."""
    code = "import sys; print('out', flush=True); sys.stderr.write('one\\nhidden two\\nthree without end')"
    ended, printed, err = run(code, feed="feed")
    assert (0, ["out"], "one\nthree without end") == (ended.code, printed, err)


@pytest.mark.parametrize("words", ["name? ", "loading {"])
def test_what_has_no_line_end_is_seen(words):
    """A prompt is nothing that a newline will follow."""
    with start(READY + f"os.write(2, {words.encode()!r}); " + WAIT, feed="feed") as driver:
        assert "ready\n" == driver.stdout.readline()
        assert select.select([driver.stderr], [], [], 10)[0]
        assert words.encode() == os.read(driver.stderr.fileno(), 100)
        driver.send_signal(signal.SIGTERM)
        finish(driver)


def test_an_event_that_comes_in_two_parts_is_one_line():
    """torchrun may have to wait in the middle of a long one; `feed` must see all of it to know it."""
    code = "import os, time; os.write(2, b'{\"hid'); time.sleep(0.5); os.write(2, b'den\": 1}\\nshown\\n')"
    assert "shown\n" == run(code, feed="feed")[2]


def test_a_line_that_never_ends():
    """A progress bar without line ends is passed on in pieces."""
    _, _, err = run("import sys; sys.stderr.write('x' * 300_000)", feed="feed")
    assert "x" * 300_000 == err


def test_an_orphan_that_holds_standard_error():
    """A daemon that keeps standard error open is ended and does not hold us up."""
    code = "import subprocess; subprocess.Popen(['sleep', '60'], start_new_session=True)"
    began = time.monotonic()
    assert run(code, feed="feed")[0].code == 0
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("name, reason", [("no-such-command", "No such file or directory"), ("/", "Permission denied")])
@pytest.mark.parametrize("feed", [None, bytes])
def test_a_command_that_cannot_start(name, reason, feed):
    """The kernel's answer becomes an error with a hint; signals and pipes are as before."""
    blocked, already_open = signal.pthread_sigmask(signal.SIG_BLOCK, []), open_files()
    with pytest.raises(FatalError) as refused:
        supervise([name], {"PATH": "/bin"}, grace_s=1, feed=feed)
    error = refused.value
    hint = "check the command after `--`, and that the training image has it on PATH"
    assert ("command-not-started", f"cannot start {name!r}: {reason}", hint) == (error.code, error.message, error.hint)
    assert blocked == signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert set() == open_files() - already_open


def test_cannot_start_names_the_command():
    """Only the program is named, its arguments may be secret."""
    error = cannot_start(("train", "--token", "x"), OSError(7, "Argument list too long"))
    assert "cannot start 'train': Argument list too long" == error.message


def told(driver):
    """Return the pid that the companion was told, when the command is ready."""
    lines = sorted(driver.stdout.readline().split() for _ in range(2))
    assert ["ready"] == lines[0]
    return int(lines[1][1])


def test_a_companion_that_is_not_enough():
    """It is told who the command is and what it should do; then the command gets the signal as well."""
    code = READY + GRACEFUL + "print(os.getpid(), flush=True); " + WAIT
    with start(code, companion=False) as driver:
        lines = sorted(driver.stdout.readline() for _ in range(3))
        assert f"started {lines[0]}" == lines[2]
        driver.send_signal(signal.SIGTERM)
        ended, printed, _ = finish(driver)
    assert (Ended(7, 15, killed=False, reaped=0, elapsed_s=0.0), ["asked 15", "saved"]) == (ended, printed)


def test_a_companion_that_is_enough():
    """The command gets no signal, as the companion lets it end by itself: here, by ending it."""
    with start(READY + GRACEFUL + WAIT, companion=True) as driver:
        pid = told(driver)
        driver.send_signal(signal.SIGTERM)
        assert "asked 15\n" == driver.stdout.readline()
        psutil.Process(pid).send_signal(signal.SIGUSR1)  # SIGINT may be ignored where tests run in the background
        ended, printed, _ = finish(driver)
    assert ((138, 15, False), []) == ((ended.code, ended.signum, ended.killed), printed)


def test_a_companion_does_not_prolong_the_grace():
    """Whatever it promised."""
    with start(READY + WAIT, companion=True, grace=0.2) as driver:
        told(driver)
        driver.send_signal(signal.SIGTERM)
        ended, printed, _ = finish(driver)
    assert ((137, 15, True), ["asked 15"]) == ((ended.code, ended.signum, ended.killed), printed)


def test_a_companion_hears_only_of_the_end():
    """SIGUSR1 is the command's, each stopping signal is told."""
    handler = "signal.signal(signal.SIGUSR1, lambda *_: os._exit(5)); "
    with start(READY + handler + WAIT, companion=True) as driver:
        told(driver)
        driver.send_signal(signal.SIGHUP)
        assert "asked 1\n" == driver.stdout.readline()
        driver.send_signal(signal.SIGTERM)
        assert "asked 15\n" == driver.stdout.readline()
        driver.send_signal(signal.SIGUSR1)
        ended, printed, _ = finish(driver)
    assert (Ended(5, 1, killed=False, reaped=0, elapsed_s=0.0), []) == (ended, printed)


def test_a_companion_of_a_command_that_cannot_start():
    """It hears nothing of it."""

    class Companion:
        def start(self, pid):
            raise AssertionError(pid)

    with pytest.raises(FatalError, match="cannot start"):
        supervise(["no-such-command"], {"PATH": "/bin"}, grace_s=1, companion=Companion())
