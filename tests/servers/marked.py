"""Find processes by what stands in their environment, and wait for what they do."""

import os
import time
from contextlib import suppress
from pathlib import Path

import psutil


def marked(**variables):
    """Return the pids of living processes that were started with all of these variables."""
    wanted = {f"{name}={value}".encode() for name, value in variables.items()}
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and wanted <= set((entry / "environ").read_bytes().split(b"\0")):
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


def gone(pid):
    """Return whether a process ends in time; a zombie, which waits for somebody else to reap it, has ended."""

    def ended():
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    return until(ended)


def until(condition, *, limit_s=60):
    """Return what `condition` gives as soon as that is true."""
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)
    return value
