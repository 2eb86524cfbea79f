"""run_ranks: what is left of ranks that were killed, and what they are not told."""

import os
import sys

import pytest

from preflight_checks._ranks import LOG_BYTES, clean, run_ranks
from trainer_agent.testing import FakeHost, context_on

pytestmark = pytest.mark.lab

PATH = {"PATH": os.environ["PATH"]}
# As NCCL does, into a file of its own.
HANGS = """
import os, signal
with open(os.environ["NCCL_DEBUG_FILE"].replace("%p", str(os.getpid())), "w") as log:
    log.write("vm:1:1 NCCL INFO Bootstrap\\nvm:1:1 NCCL INFO comm 0x1 rank 0 - Init START\\nvm:1:1 NCCL WARN no\\n")
    log.write("vm:1:1 NCCL WARN again\\n" * {times})
open(os.environ["TMPDIR"] + "/left", "w").close()
signal.pause()
"""


@pytest.fixture
def context(tmp_path):
    (tmp_path / "scratch").mkdir()
    theirs = {"NCCL_DEBUG": "VERSION", "NCCL_DEBUG_FILE": str(tmp_path / "theirs")}
    return context_on(FakeHost(tmp_path / "root"), environ={**PATH, **theirs, "TMPDIR": str(tmp_path / "scratch")})


def ran(context, times=0, wait_s=3.0):
    argv = [sys.executable, "-c", HANGS.format(times=times)]
    return run_ranks(context, argv, count=1, environ={}, wait_s=wait_s, gpus=())


def test_the_log_of_a_rank_that_hangs_is_read(context, tmp_path):
    """What NCCL writes to standard output libc keeps, until a signal ends both; a file of the job's is the job's."""
    run = ran(context)

    assert run.hung
    assert ("vm:1:1 NCCL INFO comm 0x1 rank 0 - Init START", "vm:1:1 NCCL WARN no") == run.log
    assert ["vm:1:1 NCCL WARN no"] == run.nccl
    assert [] == [*(tmp_path / "scratch").iterdir(), *tmp_path.glob("theirs*")]


def test_of_a_log_without_end_only_the_beginning_is_read(context):
    run = ran(context, times=LOG_BYTES // 10)

    assert LOG_BYTES * 0.9 < sum(map(len, run.log)) <= LOG_BYTES


def test_ranks_that_write_no_log_have_none(context):
    assert run_ranks(context, [sys.executable, "-c", ""], count=1, environ={}, wait_s=60, gpus=()).log is None


def test_torch_does_not_debug_itself(context):
    """A job that hunts a fault sets these for its own ranks."""
    context.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"

    assert ("OFF", "0") == tuple(clean(context)[n] for n in ("TORCH_DISTRIBUTED_DEBUG", "TORCH_NCCL_DUMP_ON_TIMEOUT"))
