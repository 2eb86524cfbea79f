"""guarded: whatever a program does, it is told in words, and nothing of it stays."""

import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest
from marked import until

from trainer_agent.guarded import run_guarded
from trainer_agent.process import is_alive

pytestmark = pytest.mark.lab

PATH = {"PATH": os.environ["PATH"]}
# Starts what is told, then does what is told to itself; used to kill the agent while a program runs.
PARENT = """
import os, signal, sys
from trainer_agent.errors import Terminated
from trainer_agent.guarded import run_guarded
from trainer_agent.process import catch_termination

catch_termination()
try:
    run_guarded([sys.executable, "-c", sys.argv[1]], environ=dict(os.environ), timeout_s=60)
except Terminated as error:
    sys.exit(128 + error.signum)
"""
# A child, one in a session of its own, and an orphan of one: their pids on a line each, in a file that is told.
FAMILY = """
import os, signal, sys

def tell():
    with open(os.environ["PIDS"], "a") as file:
        file.write(f"{os.getpid()}\\n")

if os.fork() == 0:
    tell()
    signal.pause()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        tell()
        signal.pause()
    os._exit(0)
tell()
"""
WAIT = "signal.pause()"


def guarded(text, *, timeout_s=30.0, environ=PATH, **how):
    """Run Python text under guard."""
    return run_guarded([sys.executable, "-c", textwrap.dedent(text)], environ=environ, timeout_s=timeout_s, **how)


def alive(pids):
    """Return those that run; a zombie that waits for somebody else's parent does not."""
    return [pid for pid in pids if is_alive(pid)]


@pytest.fixture
def family(tmp_path):
    """A function that returns the pids that a family has told, once all three have."""
    file = tmp_path / "pids"

    def pids():
        told = file.read_text().split() if file.exists() else []
        return [int(pid) for pid in told] if len(told) == 3 else []

    pids.environ = {**os.environ, "PIDS": str(file)}
    return pids


@pytest.fixture
def parent(family):
    """An agent whose guarded program has a family and waits; its standard output is ours to read."""
    argv = [sys.executable, "-c", PARENT, FAMILY + WAIT]
    with subprocess.Popen(argv, env=family.environ, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert until(family)
        yield process
        process.kill()


def test_what_a_program_says_comes_back():
    ended = guarded("import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)")

    assert (7, "out\n", "err\n", "") == (ended.code, ended.stdout, ended.stderr, ended.problem)


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGKILL"])
def test_a_signal_is_a_negative_code(name):
    """A segmentation fault is no problem of ours: the program ended by itself."""
    number = signal.Signals[name]
    ended = guarded(
        f"import os, resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.kill(os.getpid(), {number:d})"
    )

    assert (-number, "") == (ended.code, ended.problem)


def test_a_program_that_hangs_is_killed_whatever_it_ignores():
    deaf = "import signal\nfor number in (1, 2, 15): signal.signal(number, signal.SIG_IGN)\n"
    ended = guarded(f"{deaf}print('here', flush=True); signal.pause()", timeout_s=1.0)

    assert (-9, "here\n", "no answer within 1 s") == (ended.code, ended.stdout, ended.problem)


def test_endless_output_ends_it():
    ended = guarded("while True: print('x' * 4096)")

    assert (-9, "it wrote more than 1 MiB to standard output") == (ended.code, ended.problem)
    assert (1 << 20) < len(ended.stdout) <= (1 << 20) + (1 << 16)


def test_one_mib_is_not_too_much():
    ended = guarded(f"import sys; sys.stdout.write('x' * {1 << 20})")

    assert (0, 1 << 20, "") == (ended.code, len(ended.stdout), ended.problem)


def test_of_standard_error_the_end_is_kept():
    """However much it is: a chatty program is not killed for it."""
    ended = guarded("import sys; sys.stderr.write('x' * (8 << 20) + 'the end')")

    assert (0, "", 4096, "x the end") == (
        ended.code,
        ended.problem,
        len(ended.stderr),
        f"{ended.stderr[-8]} {ended.stderr[-7:]}",
    )


def test_endless_standard_error_ends_at_the_deadline():
    ended = guarded("import sys\nwhile True: sys.stderr.write('x' * 4096)", timeout_s=0.5)

    assert (-9, "no answer within 0.5 s", 4096) == (ended.code, ended.problem, len(ended.stderr))


def test_bytes_that_are_no_text_are_replaced():
    assert "a\ufffdb" == guarded(r"import os; os.write(1, b'a\xffb')").stdout


@pytest.mark.parametrize("forks", [0, 1], ids=["itself", "its child"])
def test_memory_is_limited_with_all_descendants(forks):
    greedy = f"import os, signal\n{'os.fork()' if forks else ''}\nx = bytearray(b'x') * (100 << 20)\nsignal.pause()"
    limit = (150 if forks else 80) << 20

    ended = guarded(greedy, memory_bytes=limit)

    assert (-9, f"it took more than {limit >> 20} MiB of memory") == (ended.code, ended.problem)


def test_the_kernel_takes_the_program_first():
    """As far as we may ask for it; the agent itself keeps its place."""
    ours = Path("/proc/self/oom_score_adj")
    before = ours.read_text()

    told = guarded("import pathlib; print(pathlib.Path('/proc/self/oom_score_adj').read_text())").stdout
    assert "1000" == told.strip()
    assert before == ours.read_text()


def test_standard_input_is_empty():
    assert "b''\n" == guarded("import sys; print(sys.stdin.buffer.read())").stdout


def test_the_environment_is_what_is_given_and_nothing_else():
    ended = run_guarded(["env"], environ={"PATH": PATH["PATH"], "A": "1\u00e9"}, timeout_s=10)

    assert {f"PATH={PATH['PATH']}", "A=1\u00e9"} == set(ended.stdout.splitlines())


def test_the_directory_is_what_is_given(tmp_path):
    here = "import os; print(os.getcwd())"

    assert [str(tmp_path), str(Path.cwd())] == [
        guarded(here, cwd=str(tmp_path)).stdout.strip(),
        guarded(here).stdout.strip(),
    ]


def test_signals_and_limits_are_those_of_a_fresh_program():
    """Python ignores SIGPIPE, and the guard all that ends it; the program does neither."""
    text = "import signal; print([s.name for s in signal.valid_signals() if isinstance(s, signal.Signals) "
    text += "and signal.getsignal(s) is signal.SIG_IGN], signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        told = guarded(text).stdout.strip()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)

    assert "['SIGPIPE', 'SIGXFSZ'] set()" == told  # the two that every Python ignores by itself


def test_it_has_no_files_of_ours(tmp_path):
    with (tmp_path / "file").open("w") as file:
        os.set_inheritable(file.fileno(), True)  # noqa: FBT003  # as os has it
        told = guarded("import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1])").stdout.strip()

    assert "[0, 1, 2]" == told


@pytest.mark.parametrize(
    "argv, error",
    [
        (["/no/such/program"], FileNotFoundError),
        (["no-such-program"], FileNotFoundError),
        (["/etc/passwd"], PermissionError),
        (["/"], PermissionError),
    ],
)
def test_what_cannot_be_started_raises(argv, error):
    with pytest.raises(error):
        run_guarded(argv, environ=PATH, timeout_s=10)


def test_a_directory_that_is_missing_raises():
    with pytest.raises(FileNotFoundError):
        run_guarded(["true"], environ=PATH, timeout_s=10, cwd="/no/such/directory")


@pytest.mark.parametrize("last", ["", WAIT], ids=["ends", "hangs"])
def test_nothing_that_it_forked_is_left(family, last):
    """Not an orphan in a session of its own either."""
    wait = "import time\nwhile len(open(os.environ['PIDS']).read().split()) < 3: time.sleep(0.01)\n"
    ended = guarded(FAMILY + wait + last, environ=family.environ, timeout_s=20 if not last else 2)

    assert ("no answer within 2 s" if last else "") == ended.problem
    assert (3, []) == (len(family()), alive(family()))


def test_a_program_that_ends_does_not_wait_for_who_holds_its_output(family):
    """A daemon that keeps standard output open is killed, not waited for."""
    began = time.monotonic()
    ended = guarded(
        "import os, signal\nif os.fork() == 0:\n    os.setsid()\n    signal.pause()\nprint('done')", timeout_s=60
    )

    assert (0, "done\n", "") == (ended.code, ended.stdout, ended.problem)
    assert time.monotonic() - began < 30


def test_no_child_and_no_file_of_ours_is_left():
    children, files = psutil.Process().children(), psutil.Process().num_fds()
    for _ in range(5):
        guarded("pass")

    assert (children, files) == (psutil.Process().children(), psutil.Process().num_fds())


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_nothing_is_left_of_an_agent_that_is_told_to_end_or_killed(parent, family, signum):
    parent.send_signal(signum)

    assert -9 if signum == signal.SIGKILL else 128 + signum == parent.wait(timeout=60)
    assert until(lambda: not alive(family()))


def test_who_reads_the_output_of_a_killed_agent_does_not_wait(parent):
    """The guard, which goes on for a moment, holds none of its pipes."""
    parent.kill()

    assert b"" == parent.stdout.read()


def test_a_killed_guard_is_an_error(family):
    """As by an administrator; the program dies with it."""
    text = "import os, signal; os.kill(os.getppid(), signal.SIGKILL); signal.pause()"

    with pytest.raises(OSError, match="its guard was killed"):
        guarded(text)


def test_many_open_files_cost_nothing():
    """A container may have a limit of a billion; only those that are open are closed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        assert "1\n" == guarded("print(1)", timeout_s=20).stdout
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
