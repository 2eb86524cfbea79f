"""Whatever lies where lock and lease go, the wait ends in time, names it, and follows and damages nothing."""

import os
import subprocess
import sys
import time
import tracemalloc
from contextlib import suppress

import pytest
from claiming import (
    FOREIGN,
    PATIENT,
    QUICK,
    as_nobody,
    claim,
    lost,
    read,
    unsupported,
    write,
)
from marked import until
from strange import NO_FILES, is_untouched, make_elsewhere
from structlog.testing import capture_logs

from trainer_agent.errors import FatalError, RetryError
from trainer_agent.initializers.lock import LEASE, LOCK, Claim, Times, _take_lease, _Wait
from trainer_agent.isolation import isolated

pytestmark = pytest.mark.lab


NONSENSE = {"empty": "", "text": "no JSON", "list": "[]", "bytes": "\udcff", "deep": "[" * 4000, "number": "9" * 4000}


@pytest.mark.parametrize("lease", NONSENSE.values(), ids=NONSENSE)
def test_a_lease_that_makes_no_sense_is_somebodys_until_it_is_stale(directory, lease):
    """A writer may just be at it."""
    (directory / LEASE).write_bytes(lease.encode(errors="surrogateescape"))
    began = time.monotonic()

    with claim(directory):
        assert time.monotonic() - began >= QUICK.stale_s


def test_a_huge_lease_makes_no_sense(directory):
    """Of which no more is read than a lease may have."""
    with (directory / LEASE).open("wb") as file:
        file.truncate(256 << 20)
    tracemalloc.start()
    try:
        with claim(directory) as mine:
            assert mine.id == read(directory)["id"]
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("what", NO_FILES)
@pytest.mark.parametrize("name", [LOCK, LEASE])
def test_what_is_no_file_ends_the_wait_at_once(tmp_path, directory, name, what):
    """Whatever lies where lock and lease go: nobody can ever finish there, and what it leads to is not touched."""
    elsewhere = make_elsewhere(tmp_path / "elsewhere")
    NO_FILES[what](directory / name, elsewhere)

    with pytest.raises(FatalError) as caught, claim(directory, times=PATIENT):
        pytest.fail("it is in")

    assert "unsafe-destination" == caught.value.code
    assert caught.value.message.startswith(f"{directory / name} is ")
    assert is_untouched(elsewhere)


@pytest.mark.parametrize("what", NO_FILES)
def test_a_lease_that_has_become_something_else_is_lost(tmp_path, directory, what):
    """The holder ends, and follows nothing; nobody else comes in."""
    elsewhere = make_elsewhere(tmp_path / "elsewhere")
    with claim(directory) as mine:
        (directory / LEASE).unlink()
        NO_FILES[what](directory / LEASE, elsewhere)
        until(lambda: lost(mine))
        with pytest.raises(FatalError), claim(directory, flock=unsupported):
            pytest.fail("both are in")

    assert is_untouched(elsewhere)
    assert os.path.lexists(directory / LEASE)


def test_a_holder_of_our_own_lock_that_never_ends_is_not_waited_for_longer(directory):
    """Somebody writes again and again what only we can say; the time ends all the same."""

    class Forged(Claim):
        def renew(self):
            super().renew()
            write(directory, FOREIGN | {"lock": self.lock})

    write(directory, FOREIGN | {"lock": "boot:1"})
    never = Times(renew_s=0, look_s=0.01)
    with pytest.raises(RetryError) as caught:
        _take_lease(Forged(directory, lock="boot:1", times=never), _Wait(directory, 0.01, time.monotonic() + 0.1))

    assert "destination-busy" == caught.value.code


@pytest.mark.parametrize("lease", ["", "{}", '{"host": "a\\ud800", "pid": 1}', '{"host": ["a"], "pid": 1}'])
def test_at_the_deadline_it_names_a_lease_that_says_nothing(directory, lease):
    """Nothing of it goes into a message that is no plain text."""
    write(directory, lease)
    with capture_logs(), pytest.raises(RetryError) as caught, claim(directory, wait_s=0.05, times=PATIENT):
        pytest.fail("both are in")

    who = f"another agent, of which {directory / LEASE} tells nothing"
    assert f"{directory.parent} is still being filled by {who}" == caught.value.message


LIVING = f"""
import sys, time
from pathlib import Path
directory = Path(sys.argv[1])
lease, mine = directory / "{LEASE}", directory / "mine"
while True:
    mine.write_text("{{}}")
    mine.chmod(0)
    mine.replace(lease)
    time.sleep({QUICK.renew_s})
    if lease.stat().st_mode & 0o777:
        sys.exit("another has taken over")
"""


def test_an_agent_whose_lease_may_not_be_read_is_waited_for_too(directory):
    """Another user's, of a strict umask: while it changes, its owner lives."""
    directory.chmod(0o777)

    def enter():
        with capture_logs(), suppress(RetryError), claim(as_nobody(directory), wait_s=3 * QUICK.stale_s):
            return "in"
        return "waited"

    with subprocess.Popen([sys.executable, "-c", LIVING, directory]) as living:
        try:
            until((directory / LEASE).exists)
            assert "waited" == isolated(enter, timeout_s=10)
            assert living.poll() is None
        finally:
            living.kill()
    assert "in" == isolated(enter, timeout_s=10)
