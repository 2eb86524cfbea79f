"""supervise at a terminal: whose it is, and Ctrl-Z."""

import os
import pty
import select
import shlex
import signal
import sys
import termios
import time
from contextlib import suppress

import pytest

pytestmark = pytest.mark.lab

ON_A_TERMINAL = """
import os, signal, sys
from trainer_agent import log
from trainer_agent.errors import AgentError
from trainer_agent.launchers.supervise import supervise
log.configure({}, form="json")
try:
    code = supervise(sys.argv[1:], os.environ, grace_s=5, feed=lambda line: True).code
except AgentError as error:
    code = int(error.exit_code)
print("ended", code, os.tcgetpgrp(0) == os.getpgrp(), input(), flush=True)
"""
ASK = "import os; os.write(2, b'said\\n'); print('foreground', os.tcgetpgrp(0) == os.getpgrp(), input(), flush=True); "


def on_a_terminal(*argv, typed, after=b"", within_s=20.0):
    """Run a command supervised, on a terminal of its own, type words after others are shown; return what it shows."""
    return at_terminal([sys.executable, "-c", ON_A_TERMINAL, *argv], [(after, typed)], within_s=within_s)


def at_terminal(argv, steps, *, within_s=20.0):
    """Run a command on a terminal; type what each step says after its other words have been shown since the last."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp(argv[0], argv)
    settings = termios.tcgetattr(terminal)
    settings[3] = settings[3] & ~termios.ECHO | termios.TOSTOP  # and who has it not may not write to it, either
    termios.tcsetattr(terminal, termios.TCSANOW, settings)
    shown, seen, deadline = b"", 0, time.monotonic() + within_s
    try:
        while (left := deadline - time.monotonic()) > 0:
            while steps and steps[0][0] in shown[seen:]:
                os.write(terminal, steps.pop(0)[1])
                seen = len(shown)
            if not select.select([terminal], [], [], left)[0]:
                break
            shown += os.read(terminal, 4096)
    except OSError:  # nobody has it open any more
        pass
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)
    return shown.decode().splitlines()


@pytest.mark.parametrize("end, code", [("", 0), ("os.kill(os.getpid(), 9)", 137), ("raise SystemExit(7)", 7)])
def test_a_command_reads_from_the_terminal(end, code):
    """A shell or a breakpoint has the terminal, and we have it again however the command ends."""
    shown = on_a_terminal(sys.executable, "-c", ASK + end, typed=b"one\ntwo\n", after=b"said")
    assert ["said", "foreground True one", f"ended {code} True two"] == shown


def test_a_command_that_cannot_start_leaves_us_the_terminal():
    """It has had it for a moment."""
    assert "ended 30 True one" in on_a_terminal("no-such-command", typed=b"one\n")


def test_ctrl_z_in_a_container():
    """There is no shell that could have it go on; stopped, it would hear nothing any more."""
    steps = [(b"said", b"\x1a"), (b"", b"one\ntwo\n")]
    shown = at_terminal([sys.executable, "-c", ON_A_TERMINAL, sys.executable, "-c", ASK], steps)
    assert ["said", "foreground True one", "ended 0 True two"] == shown[-3:]


# As `docker run --init -it` does it: process 1 gives what it starts a group of its own, and the terminal.
OF_A_CONTAINER = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
OF_A_CONTAINER += ["--pid", "--fork", "--kill-child", "--mount-proc"]


# As tini does, which docker brings.
INIT = """
import os, signal, sys
if os.fork() == 0:
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
    os.tcsetpgrp(0, os.getpgrp())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTTOU])
    os.execvp(sys.argv[1], sys.argv[1:])
os.wait()
"""


@pytest.mark.parametrize("init", [("catatonit", "--"), (sys.executable, "-c", INIT)], ids=["catatonit", "tini"])
def test_ctrl_z_below_an_init_process(init):
    """It is no shell, either."""
    agent = [sys.executable, "-c", ON_A_TERMINAL, sys.executable, "-c", ASK]
    steps = [(b"said", b"\x1a"), (b"", b"one\ntwo\n")]
    shown = at_terminal([*OF_A_CONTAINER, *init, *agent], steps, within_s=10)
    assert ["said", "foreground True one", "ended 0 True two"] == shown[-3:]


@pytest.mark.parametrize("container", [[], OF_A_CONTAINER], ids=["", "in a container"])
def test_ctrl_z_below_a_shell(container):
    """The shell has the terminal while the job is stopped, and the command has it again after `fg`."""
    agent = shlex.join([sys.executable, "-c", ON_A_TERMINAL, sys.executable, "-c", ASK])
    steps = [
        (b"PROMPT", f"{agent}\n".encode()),
        (b"said\r", b"\x1a"),
        (b"PROMPT", b"echo shell $((40 + 2))\n"),
        (b"shell 42", b"fg\none\ntwo\nexit\n"),
    ]
    shown = "\n".join(at_terminal([*container, "env", "PS1=PROMPT", "bash", "--norc", "--noediting", "-i"], steps))
    assert "Stopped" in shown
    assert "foreground True one" in shown
    assert "ended 0 True two" in shown
