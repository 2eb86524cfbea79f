"""Claim a destination, and see or write what others would."""

import errno
import json
import os
import time
from pathlib import Path

from trainer_agent.errors import RetryError
from trainer_agent.initializers.lock import LEASE, Times, claimed

QUICK = Times(renew_s=0.05, stale_s=0.3, look_s=0.02)
# A test that would have to wait so long fails by its deadline.
PATIENT = Times(stale_s=60.0, look_s=0.01)
FOREIGN = {"id": "other", "host": "node-7", "pid": 4711, "lock": "another-boot:1", "n": 1}


def claim(directory, *, boot="boot", wait_s=10.0, times=QUICK, **rest):
    return claimed(directory, boot=boot, deadline=time.monotonic() + wait_s, times=times, **rest)


def write(directory, lease):
    """Put a lease in place as an agent does."""
    part = directory / "written"
    part.write_text(lease if isinstance(lease, str) else json.dumps(lease))
    part.replace(directory / LEASE)


def names_in(directory):
    return {path.name for path in directory.iterdir()}


def read(directory):
    return json.loads((directory / LEASE).read_text())


def lost(claim):
    """Return whether a claim is another's."""
    try:
        claim.check()
    except RetryError:
        return True
    return False


def unsupported(fd, how):
    raise OSError(errno.ENOLCK, "no locks here")


def error_of(function):
    """Return the error number that a function fails with."""
    try:
        function()
    except OSError as error:
        return error.errno
    return None


def as_nobody(directory):
    """Be a user who may not do everything, for ever; return a path that does not lead through what is root's."""
    os.chdir(directory)
    if os.geteuid() == 0:
        os.setresuid(65534, 65534, 65534)
    return Path()
