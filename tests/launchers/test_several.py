"""several: real processes side by side, and what is left of them."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from marked import gone
from supervised import STAY

from trainer_agent.launchers import several

pytestmark = pytest.mark.lab

DRIVER = """
import os, sys
from trainer_agent import log
from trainer_agent.launchers.several import several
log.configure({}, form="json")
argv = [*sys.argv[3:], sys.executable, "-c", sys.argv[2]]
sys.exit(several(argv, os.environ, {"N": ["0", "1"]}, grace_s=float(sys.argv[1])))
"""
# Runs the code as a child; a shell hands no signal on.
SHELL = ("bash", "-c", '"$@"; exit $?', "bash")
BEGIN = "import os, signal, subprocess, sys, time; n = os.environ['N']; "
TELL = "os.write(1, f'{n} {os.getpid()}\\n'.encode()); "
WAIT = TELL + STAY
SAVE = "signal.signal(15, lambda *_: (time.sleep(1), os.write(1, f'{n} saved\\n'.encode()), os._exit(0))); "
STUBBORN = "signal.signal(15, signal.SIG_IGN); "
# The other one is ready when it has told so, and a file says that to the one that fails.
FAIL_LATE = "n == '1' and (sys.stdin.readline(), {}); "


@contextmanager
def started(code, *, grace=10.0, below=(), prefix=()):
    """Run the code twice, with N=0 and N=1; both have told their pids."""
    words = [*prefix, sys.executable, "-c", DRIVER, str(grace), BEGIN + code, *below]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, **pipes) as driver:
        try:
            told = dict(driver.stdout.readline().split() for _ in range(2))
            yield driver, [int(told["0"]), int(told["1"])]
        finally:
            driver.kill()


def finish(driver):
    """Return the exit code, what was printed, and the texts of the log."""
    out, err = driver.communicate(timeout=60)
    return driver.returncode, sorted(out.splitlines()), [json.loads(line)["event"] for line in err.splitlines()]


def stopped(code, **settings):
    """Return how they end when SIGTERM comes while they run."""
    with started(code, **settings) as (driver, _):
        driver.send_signal(signal.SIGTERM)
        return finish(driver)


def run(*words, cwd=None, **environ):
    """Run the program from its command line."""
    env = {"PATH": "/usr/bin:/bin", **environ}
    done = subprocess.run(words, env=env, cwd=cwd, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_they_do_not_share_a_terminal():
    """The kernel would stop whoever reads from it; they read its end."""
    ours, theirs = pty.openpty()
    try:
        words = [sys.executable, "-c", DRIVER, "10", BEGIN + "os.write(1, repr(sys.stdin.read()).encode())"]
        done = subprocess.run(words, stdin=theirs, capture_output=True, text=True, check=False, timeout=60)
    finally:
        os.close(theirs)
        os.close(ours)
    assert (0, repr("") * 2) == (done.returncode, done.stdout)


def test_each_process_has_its_own_values(tmp_path):
    """The rest of the environment is the same for all; a signal.py of the user's is no obstacle."""
    (tmp_path / "signal.py").write_text("raise SystemExit('not this one')")
    script = "echo $TASK $DEVICE $OTHER $#"
    each = {"TASK": ["4", "5", "6"], "DEVICE": ["GPU-a", "", "2"]}
    code, out, err = run(*several.words(each, ["sh", "-c", script, "sh", "--", "a b"]), cwd=tmp_path, OTHER="x")
    assert (0, ["4 GPU-a x 2", "5 x 2", "6 2 x 2"], "") == (code, sorted(out.splitlines()), err)


def test_the_words():
    """They show in --dry-run and in the log, so they are for people, too."""
    expected = ("-m", "trainer_agent.launchers.several", "--each", "A=1,2", "--each", "B=x,y", "--", "prog", "--b")
    assert (sys.executable, "-P", *expected) == several.words({"A": ["1", "2"], "B": ["x", "y"]}, ["prog", "--b"])


@pytest.mark.parametrize(
    "end, code, how",
    [
        ("os._exit(42)", 42, "exited with code 42"),
        ("os.kill(os.getpid(), 9)", 137, "was killed by SIGKILL"),
        ("os.kill(os.getpid(), 50)", 178, "was killed by signal 50"),
    ],
)
def test_one_fails(end, code, how):
    """The others are ended, and the exit code is that of the one that failed, not of what we did to the others."""
    with started(TELL + FAIL_LATE.format(end) + STAY) as (driver, pids):
        driver.stdin.write("now\n")
        driver.stdin.flush()
        expected = ["one process failed, ending the others", f"the process with N=1 {how}"]
        assert (code, [], expected) == finish(driver)
        assert all(gone(pid) for pid in pids)


def test_the_last_words_are_those_of_the_first_that_failed():
    """Whoever loses it says so a moment later, as in a collective; each line of theirs is passed on, too."""
    lost = "signal.signal(15, lambda *_: sys.exit('a peer is gone')); "
    with started(lost + TELL + FAIL_LATE.format("sys.exit('the label has NaN')") + STAY) as (driver, _):
        _, err = driver.communicate("now\n", timeout=60)

    assert ["a peer is gone", "the label has NaN", "the label has NaN"] == sorted(
        line for line in err.splitlines() if not line.startswith("{")
    )
    assert "the label has NaN" == err.splitlines()[-1]


def test_whoever_raised_first_is_the_cause(tmp_path):
    """Python closes what it has, and takes its time, after a traceback; who was waiting for it may end before it."""
    told = f"({str(tmp_path)!r} + '/told')"
    slow = f"import atexit; n == '1' and atexit.register(lambda: (os.mkdir{told}, time.sleep(60))); "
    wait = f"\nwhile n == '0' and not os.path.exists{told}: time.sleep(0.01)\nraise ValueError(n)"
    with started(slow + TELL + "sys.stdin.readline()" + wait) as (driver, _):
        _, err = driver.communicate("now\nnow\n", timeout=60)

    events = [json.loads(line)["event"] for line in err.splitlines() if line.startswith("{")]
    assert (1, "the process with N=1 exited with code 1", "ValueError: 1") == (
        driver.returncode,
        events[-1],
        err.splitlines()[-1],
    )


def test_a_code_of_its_own_is_that_of_whoever_chose_it():
    """Another one may have told of an error that it got over."""
    over = "n == '0' and os.write(2, b'Traceback (most recent call last):\\nok\\n'); "
    with started(over + TELL + FAIL_LATE.format("os._exit(42)") + STAY) as (driver, _):
        driver.communicate("now\n", timeout=60)

    assert 42 == driver.returncode


def test_one_fails_and_another_does_not_listen():
    """It is killed after the grace."""
    with started(STUBBORN + TELL + FAIL_LATE.format("os._exit(3)") + STAY, grace=0.3) as (driver, pids):
        began = time.monotonic()
        driver.stdin.write("now\n")
        driver.stdin.flush()
        assert 3 == finish(driver)[0]
        assert time.monotonic() - began > 0.3
        assert all(gone(pid) for pid in pids)


def test_one_fails_and_another_saves_its_state():
    """SIGTERM comes first, and the grace is its own."""
    with started(SAVE + TELL + FAIL_LATE.format("os._exit(3)") + STAY) as (driver, _):
        driver.stdin.write("now\n")
        driver.stdin.flush()
        assert (3, ["0 saved"]) == finish(driver)[:2]


def test_both_fail_in_one_moment():
    """What a signal killed is the cause: the other lost its connection to it."""
    end = "os._exit(1) if n == '0' else os.kill(os.getpid(), 11)"
    code = "signal.pthread_sigmask(signal.SIG_BLOCK, [10]); " + TELL + "signal.sigwait([10]); " + end
    with started(code) as (driver, pids):
        driver.send_signal(signal.SIGSTOP)  # so that it learns of both at once
        for pid in pids:
            os.kill(pid, signal.SIGUSR1)
        assert all(gone(pid) for pid in pids)
        driver.send_signal(signal.SIGCONT)
        assert (139, [], ["the process with N=1 was killed by SIGSEGV"]) == finish(driver)


def test_the_first_may_end_well_before_the_others():
    """It has done its part; there is nothing to end."""
    code = "signal.signal(15, lambda *_: os._exit(9)); " + TELL + "n == '1' and time.sleep(0.3)"
    with started(code) as (driver, _):
        assert (0, [], []) == finish(driver)


def test_a_stopping_signal_goes_to_all_and_gives_them_time():
    """Their grace is counted by whoever sent it: ours, which is shorter than what they need, is not for this."""
    assert (0, ["0 saved", "1 saved"], []) == stopped(SAVE + WAIT, grace=0.1)


def test_what_a_shell_waits_for_is_told_and_has_its_time():
    """Every process may be a script that prepares something before it trains."""
    code, out, _ = stopped(SAVE + WAIT, below=SHELL)
    assert (143, ["0 saved", "1 saved"]) == (code, out)


@pytest.mark.parametrize("end", ["", " & wait"])
def test_what_a_shell_with_a_trap_does_not_tell(end):
    """bash ends at once for a trap of EXIT alone."""
    script = f'trap : EXIT; "$@"{end}; exit $?'
    code, out, _ = stopped(SAVE + WAIT, below=("bash", "-c", script, "bash"))
    assert (143, ["0 saved", "1 saved"]) == (code, out)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has processes of another user")
def test_a_process_of_another_user_below_a_shell():
    """Nobody may tell what sudo has started; all others are told."""
    script = 'setpriv --reuid 4242 --clear-groups sleep 2 & "$@"; exit $?'
    powerless = ("setpriv", "--bounding-set=-kill", "--inh-caps=-kill")
    code, out, _ = stopped(SAVE + WAIT, below=("bash", "-c", script, "bash"), prefix=powerless)
    assert (143, ["0 saved", "1 saved"]) == (code, out)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has processes of another user")
def test_one_fails_and_what_is_left_is_of_another_user():
    """It is not waited for after the grace."""
    script = 'setpriv --reuid 4242 --clear-groups sleep 30 >&- 2>&- & "$@"; exit $?'
    powerless = ("setpriv", "--bounding-set=-kill", "--inh-caps=-kill")
    code = TELL + FAIL_LATE.format("os._exit(3)") + STAY
    with started(code, below=("bash", "-c", script, "bash"), prefix=powerless, grace=0.3) as (driver, _):
        began = time.monotonic()
        driver.stdin.write("now\n")
        driver.stdin.flush()
        assert 3 == finish(driver)[0]
        assert time.monotonic() - began < 20


def test_one_fails_and_what_another_shell_waits_for_saves_its_state():
    """Its shell has ended long before, as soon as it was told."""
    with started(SAVE + TELL + FAIL_LATE.format("os._exit(3)") + STAY, below=SHELL) as (driver, _):
        driver.stdin.write("now\n")
        driver.stdin.flush()
        assert (3, ["0 saved"]) == finish(driver)[:2]


def test_who_ends_at_once_does_not_hurry_the_others():
    """After a stopping signal an exit code is no failure that the others would have to be ended for."""
    said = ["the process with N=1 was killed by SIGTERM"]
    assert (143, ["0 saved"], said) == stopped("n == '0' and " + SAVE + WAIT, grace=0.1)


def test_a_stopping_signal_ends_what_has_no_handler():
    """The exit code is that of the signal."""
    code, out, events = stopped(WAIT)
    assert (143, []) == (code, out)
    assert events[-1].endswith("was killed by SIGTERM")
    assert "one process failed, ending the others" not in events


@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP])
def test_other_signals_go_to_all(signum):
    """SIGUSR1 asks for a checkpoint in many jobs."""
    handler = f"signal.signal({int(signum)}, lambda *_: (os.write(1, f'{{n}} heard\\n'.encode()), os._exit(0))); "
    with started(handler + WAIT) as (driver, _):
        driver.send_signal(signum)
        assert (0, ["0 heard", "1 heard"], []) == finish(driver)


def test_nothing_outlives_them():
    """An orphan in a session of its own ends with them."""
    child = "p = subprocess.Popen(['sleep', '60'], start_new_session=True); os.write(1, f'{n} {p.pid}\\n'.encode())"
    with started(child) as (driver, orphans):
        assert (0, [], []) == finish(driver)
        assert all(gone(pid) for pid in orphans)


def test_they_do_not_outlive_us():
    """Killed without a chance to do anything, the kernel sends them SIGTERM."""
    with started(WAIT) as (driver, pids):
        driver.kill()
        assert all(gone(pid) for pid in pids)


@pytest.mark.parametrize("form, is_json", [("json", True), ("console", False)])
def test_a_command_that_cannot_start(form, is_json):
    """One line in the form that was chosen for the agent, and its exit code."""
    words = several.words({"A": ["1", "2"]}, ["no-such-command"])
    code, out, err = run(*words, TRAINER_AGENT_LOG_FORMAT=form)
    assert (30, "", is_json) == (code, out, err.startswith("{"))
    assert "cannot start 'no-such-command': No such file or directory" in err
    assert "command-not-started" in err


def test_whoever_starts_it_may_ignore_the_end_of_children():
    """They would vanish without a word, and it would wait for them for ever."""
    words = several.words({"A": ["1", "2"]}, ["sh", "-c", "exit 4"])
    ignore = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execvp(sys.argv[1], sys.argv[1:])"
    )
    code, _, err = run(sys.executable, "-c", ignore, *words)
    assert (4, True) == (code, "exited with code 4" in err)


@pytest.mark.parametrize(
    "words, complaint",
    [
        ((), "the following arguments are required: --each"),
        (("--each", "A", "--", "true"), "'A' is not NAME=A,B"),
        (("--each", "=1", "--", "true"), "'=1' is not NAME=A,B"),
        (("--each", "A=1,2", "--each", "B=1", "--", "true"), "wanted as many values in every --each"),
        (("--each", "A=1", "--"), "then -- and a command"),
        (("--each", "A=1", "true"), "unrecognized arguments: true"),
    ],
)
def test_wrong_usage(words, complaint):
    """It is for launchers, and says all the same what it wanted."""
    code, out, err = run(sys.executable, "-m", several.MODULE, *words)
    assert (2, "", True) == (code, out, complaint in err)
