"""Fetch from a scripted source, and look at what lies there afterwards."""

import ctypes
import errno
import hashlib
import os
import random
import threading

import pytest
from memory_source import PIECE

from trainer_agent.host import Host
from trainer_agent.initializers.fetch import Bounds, fetch
from trainer_agent.initializers.order import Order

MIB = 1 << 20
CACHESTAT = 451  # the same number on all architectures, since Linux 6.5
BLOCK = random.Random(1).randbytes(MIB)
# When an idle stream takes the second half of a range, the first has a piece or two at hand that are not needed.
AT_HAND = 32 * PIECE
BIG = BLOCK * 130 + b"the end"  # three ranges of 64 MiB, seventeen of 8 MiB


FEW = Bounds(attempts=2, timeout_s=60)


def order(source, destination, *, kind="dataset", **more):
    return Order(kind, source, destination, **more)


def bring(source, destination, *, bounds=None, **more):
    """Fetch one source."""
    return fetch([order(source, destination, **more)], host=Host(), bounds=bounds or Bounds(timeout_s=60))


def tree(directory):
    """Return the files of a destination without what is ours."""
    files = (p for p in directory.rglob("*") if p.is_file())
    return {
        name: path.read_bytes()
        for path in files
        if not (name := path.relative_to(directory).as_posix()).startswith(".trainer-agent/")
    }


def held_back(path):
    """Return how many pages of a file are not on disk yet."""
    fields = (ctypes.c_uint64 * 5)()  # cached, dirty, being written, …
    span = (ctypes.c_uint64 * 2)(0, 0)
    with path.open("rb") as file:
        if ctypes.CDLL(None, use_errno=True).syscall(CACHESTAT, file.fileno(), span, fields, 0) != 0:
            if ctypes.get_errno() != errno.ENOSYS or os.environ.get("CI") == "true":
                raise OSError(ctypes.get_errno(), "cachestat")
            pytest.skip("this kernel has no cachestat, which Linux 6.5 brought")
    return fields[1] + fields[2]


def hidden(directory):
    """Return the names of what is ours."""
    return sorted(p.name for p in (directory / ".trainer-agent").iterdir())


def move_to_another_node(directory):
    """Let the next attempt take what was noted for the work of another kernel."""
    journal = directory / ".trainer-agent" / "journal"
    boot = Host().read("/proc/sys/kernel/random/boot_id").strip()
    journal.write_text(journal.read_text().replace(boot, "another-kernel"))


def sha256(body):
    return "sha256:" + hashlib.sha256(body).hexdigest()


def md5(body):
    return "md5:" + hashlib.md5(body).hexdigest()


class Faults:
    """A hook that raises given errors at given places, each once; None as a path is any."""

    def __init__(self, *faults):
        self.left = list(faults)
        self.lock = threading.Lock()

    def __call__(self, path, at):
        with self.lock:
            for fault in self.left:
                where, offset, outcome = fault
                if where in (path, None) and offset == at:
                    self.left.remove(fault)
                    if isinstance(outcome, bytes):
                        return outcome
                    raise outcome
        return None
