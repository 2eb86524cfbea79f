"""guarded: a program in state D, which no signal ends. A file system that never answers makes one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from marked import until

from trainer_agent.guarded import END_S
from trainer_agent.process import REAP_SECONDS, is_alive

pytestmark = pytest.mark.lab

# The server of a FUSE file system: it answers FUSE_INIT, so that requests are taken, and then nothing. A request that
# has been read waits without heed of signals, until the server ends and the kernel gives it up.
SERVER = """
import ctypes, json, os, signal, struct, sys, time
from trainer_agent.guarded import run_guarded, start_guarded
from trainer_agent.process import descendants

folder, fuse = sys.argv[1], os.open("/dev/fuse", os.O_RDWR)
options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0".encode()
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"stuck", folder.encode(), b"fuse", 0, options):
    sys.exit(f"cannot mount: {os.strerror(ctypes.get_errno())}")
request = os.read(fuse, 1 << 17)
unique = struct.unpack_from("<Q", request, 8)[0]
init = struct.pack("<IIIIHHI", 7, 31, 0, 0, 0, 0, 4096).ljust(64, b"\\0")
os.write(fuse, struct.pack("<IiQ", 16 + len(init), 0, unique) + init)
client = os.fork()
if not client:
    os.close(fuse)  # only the server's end counts
    exec(sys.argv[2])
    os._exit(0)
os.read(fuse, 1 << 17)
os.waitpid(client, 0)
"""
RUN = """
began = time.monotonic()
ended = run_guarded([%s], environ=dict(os.environ), timeout_s=0.5)
print(json.dumps([ended.code, ended.problem, time.monotonic() - began]), flush=True)
"""
# Starts a program that lies there, and ends it; SIGALRM, as SIGTERM does, raises what is no Exception.
END = """
def give_up(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, give_up)
program = start_guarded([f"{folder}/python"], environ={}, stdin=os.open(os.devnull, 0), stdout=os.dup(2))
while len(descendants(program.guard)) < 1:
    time.sleep(0.01)
time.sleep(0.2)
pids = [program.guard, *descendants(program.guard)]
signal.setitimer(signal.ITIMER_REAL, %s)
began, how = time.monotonic(), "ended"
try:
    program.end()
except KeyboardInterrupt:
    how = "interrupted"
print(json.dumps([how, pids, time.monotonic() - began]), flush=True)
"""


@pytest.fixture
def beside(tmp_path):
    """A function that runs Python text beside a file system that never answers; it returns what the text prints."""
    if os.geteuid() or not Path("/dev/fuse").exists():
        pytest.skip("it takes root and a kernel with FUSE to make a process that no signal ends")

    def run(text):
        argv = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", SERVER, str(tmp_path), text]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    return run


def test_a_program_that_does_not_die_is_left_behind_and_told(beside):
    """The answer comes all the same, and says where in the kernel it waits."""
    code, problem, _ = beside(RUN % '"stat", f"{folder}/file"')

    assert code is None
    assert problem.startswith("no answer within 0.5 s; something of it does not die when killed (state D: ")
    assert " in " in problem


def test_a_program_that_cannot_even_be_read_is_told_in_time(beside):
    """Its guard waits for it, deaf; whoever started both does not."""
    code, problem, seconds = beside(RUN % 'f"{folder}/python"')

    limit_s = 0.5 + END_S
    assert code is None
    assert problem.startswith(
        f"no answer within {limit_s:g} s, nor from its guard: it may wait for a file server (state D)"
    )
    assert seconds < limit_s + END_S + REAP_SECONDS + 20


@pytest.mark.parametrize("alarm_s, how", [(0, "ended"), (1, "interrupted")])
def test_ending_what_cannot_even_be_read_has_a_limit(beside, alarm_s, how):
    """And so has it where a signal comes meanwhile; what is left behind goes when the file server does."""
    came, pids, seconds = beside(END % alarm_s)

    assert how == came
    assert seconds < END_S + REAP_SECONDS + 20
    assert len(pids) == 2
    assert until(lambda: not [pid for pid in pids if is_alive(pid)])
