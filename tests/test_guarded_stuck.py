"""guarded: a program in state D, which no signal ends. A file system that never answers makes one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.lab

# The server of a FUSE file system: it answers FUSE_INIT, so that requests are taken, and then nothing. A request that
# has been read waits without heed of signals, until the server ends and the kernel gives it up.
SERVER = """
import ctypes, json, os, struct, sys
from trainer_agent.guarded import run_guarded

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
    ended = run_guarded(["stat", f"{folder}/file"], environ=dict(os.environ), timeout_s=0.5)
    print(json.dumps([ended.code, ended.problem]), flush=True)
    os._exit(0)
os.read(fuse, 1 << 17)
os.waitpid(client, 0)
"""


def test_a_program_that_does_not_die_is_left_behind_and_told(tmp_path):
    """The answer comes all the same, and says where in the kernel it waits."""
    if os.geteuid() or not Path("/dev/fuse").exists():
        pytest.skip("it takes root and a kernel with FUSE to make a process that no signal ends")
    argv = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", SERVER, str(tmp_path)]

    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)

    code, problem = json.loads(done.stdout)
    assert code is None
    assert problem.startswith("no answer within 0.5 s; something of it does not die when killed (state D: ")
    assert " in " in problem
