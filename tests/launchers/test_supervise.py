"""supervise: a real command as a child of a tiny program that does what PID 1 must do."""

import json
import os
import select
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from marked import gone
from podlab import eventually
from supervised import GRACEFUL, READY, STUBBORN, WAIT, finish, run, start

from trainer_agent.errors import FatalError
from trainer_agent.launchers.supervise import Ended, cannot_start, supervise

pytestmark = pytest.mark.lab


def open_files():
    """Return what is open in this process, each with its number."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the directory itself
            found.add((path.name, path.readlink()))
    return found


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


@pytest.mark.parametrize("blocking", [True, False])
def test_a_log_that_nobody_reads(blocking):
    """It costs a second of the grace, not all that is left to do."""
    read, write = os.pipe()
    os.set_blocking(write, blocking)
    fill = "fill = lambda: [os.write(2, b'x' * 500 + b'\\n') for _ in iter(int, 1)]; "
    fill += "threading.Thread(target=fill, daemon=True).start(); "
    driver = start(READY + GRACEFUL + fill + WAIT, feed="feed", stderr=write)
    try:
        assert "ready\n" == driver.stdout.readline()
        eventually(lambda: not select.select([], [write], [], 0)[1], what="the pipe is full")
        driver.send_signal(signal.SIGTERM)
        assert 0 == driver.wait(timeout=60)
        said, ended = driver.stdout.read().splitlines()
    finally:
        driver.kill()
        driver.wait()
        driver.stdout.close()
        os.close(read)
        os.close(write)
    assert ("saved", 7, False) == (said, json.loads(ended)["code"], json.loads(ended)["killed"])


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
        deadline = time.monotonic() + 60
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
    assert time.monotonic() - began < 40


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
