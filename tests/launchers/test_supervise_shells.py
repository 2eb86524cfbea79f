"""supervise above a shell: what the shell waits for hears of the end, and has its time."""

import json
import os
import shlex
import signal
import sys
import time

import pytest
from supervised import GRACEFUL, READY, STUBBORN, WAIT, finish, start

pytestmark = pytest.mark.lab


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


@pytest.mark.parametrize(
    "script, code, said",
    [
        ("trap 'echo bye' EXIT; {}; exit", 143, ["bye", "saved"]),
        ("trap 'echo bye' EXIT; {} & wait", 143, ["bye", "saved"]),
        ("trap 'echo bye; exit 9' TERM; {}; exit", 9, ["saved", "bye"]),
        ("trap 'echo bye; exit 9' TERM; {} & wait", 9, ["bye", "saved"]),
        ("trap 'echo bye; exit 9' TERM; echo ready; while :; do sleep 0.1; done", 9, ["bye"]),
        ("exec > >(cat); trap 'echo bye' EXIT; {}; exit", 143, ["bye", "saved"]),
    ],
)
def test_what_a_shell_with_a_trap_does_not_tell(script, code, said):
    """bash ends at once for a trap of EXIT alone, and runs another when its command has ended."""
    save = "(time.sleep(0.3), print('saved', flush=True), os._exit(0))"
    command = f"import time; {READY}signal.signal(signal.SIGTERM, lambda *_: {save}); {WAIT}"
    with start("", shell="bash", script=script.format(shlex.join([sys.executable, "-c", command]))) as driver:
        assert "ready\n" == driver.stdout.readline()
        driver.send_signal(signal.SIGTERM)
        ended, printed, _ = finish(driver)
    assert (code, False, said) == (ended.code, ended.killed, printed)


@pytest.mark.parametrize("shell", ["sh", "/bin/bash"])
def test_ctrl_c_that_comes_to_a_shell_alone(shell):
    """It waits for its command, which no terminal has told."""
    with start(READY + GRACEFUL.replace("SIGTERM", "SIGINT") + WAIT, shell=shell) as driver:
        assert "ready\n" == driver.stdout.readline()
        driver.send_signal(signal.SIGINT)
        ended, printed, _ = finish(driver)
    assert (False, ["saved"]) == (ended.killed, printed)


def test_who_reads_from_a_program_that_ends_at_once():
    """It has a handler, too: the end of its data is not the end of its training."""
    data = f"import itertools, time; {READY}{GRACEFUL.replace('saved', '')}"
    data += "[(print('batch', flush=True), time.sleep(0.05)) for _ in itertools.count()]"
    train = f"{READY}{GRACEFUL}{READY}sys.stdin.readline(); say(); sys.stdin.read(); print('finished')"
    script = " | ".join(shlex.join([sys.executable, "-c", code]) for code in (data, train)) + "; exit"
    with start("", shell="bash", script=script) as driver:
        assert "ready\n" == driver.stdout.readline()
        driver.send_signal(signal.SIGTERM)
        ended, printed, _ = finish(driver)
    assert (143, False, ["saved"]) == (ended.code, ended.killed, printed)


def test_who_does_not_end_with_what_it_reads():
    """A command without a handler is left to itself for a moment, not for the whole grace."""
    script = f"yes | {shlex.join([sys.executable, '-c', READY + WAIT])}; exit"
    with start("", shell="bash", script=script) as driver:
        assert "ready\n" == driver.stdout.readline()
        driver.send_signal(signal.SIGTERM)
        ended, _, _ = finish(driver)
    assert (143, False) == (ended.code, ended.killed)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has processes of another user")
def test_a_process_of_another_user_below_a_shell():
    """Others hear of the end; what sudo has started ends by itself, and nobody waits for it after the grace."""
    command = shlex.join([sys.executable, "-c", READY + GRACEFUL + WAIT])
    script = f"setpriv --reuid 4242 --clear-groups sleep 30 >&- 2>&- & {command}; exit"
    powerless = ("setpriv", "--bounding-set=-kill", "--inh-caps=-kill")
    with start("", shell="bash", script=script, grace=1, prefix=powerless) as driver:
        assert "ready\n" == driver.stdout.readline()
        began = time.monotonic()
        driver.send_signal(signal.SIGTERM)
        ended, printed, _ = finish(driver)
        assert 1 <= time.monotonic() - began < 20
    assert (143, True, ["saved"]) == (ended.code, ended.killed, printed)


@pytest.mark.parametrize("shell", ["sh", "/bin/bash"])
@pytest.mark.parametrize("handled", ["TERM", "TERM, INT, HUP, QUIT"])
def test_a_shell_with_a_trap_is_told_alone(shell, handled):
    """It hands the signal on itself; two of them make some programs give up at once, as torchrun with its handlers."""
    signals = ", ".join(f"signal.SIG{name}" for name in handled.split(", "))
    child = f"import signal, time; got = []; [signal.signal(s, lambda *_: got.append(1)) for s in ({signals},)]; "
    child += "print('ready', flush=True); [time.sleep(0.05) for _ in iter(lambda: len(got), 1)]; time.sleep(0.3); "
    child += "print(len(got), flush=True)"
    trap = "trap 'sleep 0.1; kill -TERM $p; wait $p; exit 9' TERM"
    script = f"{trap}; {shlex.join([sys.executable, '-c', child])} & p=$!; wait $p"
    with start("", shell=shell, script=script) as driver:
        assert "ready\n" == driver.stdout.readline()
        driver.send_signal(signal.SIGTERM)
        ended, printed, err = finish(driver)
    assert (9, ["1"], ["stopping"]) == (ended.code, printed, [json.loads(line)["event"] for line in err.splitlines()])


@pytest.mark.parametrize(
    "script",
    [
        "{} 2>&1 | tee /dev/null & p=$!; trap 'kill -TERM $p; wait $p' TERM; wait $p",
        "trap 'kill -TERM $(jobs -p) 2>/dev/null; wait' TERM; {} & wait",
    ],
)
def test_what_the_trap_of_a_shell_does_not_reach(tmp_path, script):
    """In sh `$!` is tee, and `$(jobs -p)` nothing: the command is told before the grace is over, and saves."""
    save = f"lambda *_: os._exit(open({str(tmp_path / 'saved')!r}, 'a').write('saved'))"
    handlers = f"[signal.signal(s, {save}) for s in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)]; "
    command = READY + handlers + WAIT
    with start("", shell="sh", script=script.format(shlex.join([sys.executable, "-c", command])), grace=6) as driver:
        assert "ready\n" == driver.stdout.readline()
        began = time.monotonic()
        driver.send_signal(signal.SIGTERM)
        ended, _, err = finish(driver)
        assert time.monotonic() - began >= 4.8
    assert (False, "saved") == (ended.killed, (tmp_path / "saved").read_text())
    stopping, told = (json.loads(line) for line in err.splitlines() if line.startswith("{"))
    (program,) = told["programs"]
    assert ("stopping", "warning", "python") == (stopping["event"], told["level"], program[:6])
    assert told["event"].startswith("the script's trap has not reached these")


def test_what_a_shell_waits_for_has_no_more_than_the_grace():
    with start(READY + STUBBORN + WAIT, grace=0.3, shell="sh") as driver:
        assert "ready\n" == driver.stdout.readline()
        driver.send_signal(signal.SIGTERM)
        ended, _, err = finish(driver)
    assert (143, True) == (ended.code, ended.killed)
    assert ["stopping", "the grace is over, killing"] == [json.loads(line)["event"] for line in err.splitlines()]
