"""Services are set up while files come."""

import threading
import time

import pytest

from trainer_agent.errors import FatalError, RetryError
from trainer_agent.initializers.services import LATE_S, Setup


class Service:
    uri = "cache://test"

    def __init__(self, error=None, until=None):
        self.error = error
        self.until = until
        self.deadline = None

    def serve(self, *, deadline):
        self.deadline = deadline
        if self.until:
            self.until.wait(20)
        if self.error:
            raise self.error


def test_all_are_waited_for():
    """Each gets the deadline."""
    release = threading.Event()
    services = [Service(), Service(until=release)]
    deadline = time.monotonic() + 60
    setup = Setup(services, deadline=deadline)
    setup.check()
    release.set()
    setup.finish()

    assert [s.deadline for s in services] == [deadline, deadline]


def test_an_error_ends_both_the_fetch_and_the_wait():
    """Whoever looks first raises it."""
    setup = Setup([Service(error=FatalError("no-image", "it cannot be pulled"))], deadline=time.monotonic() + 20)
    for look in (setup.finish, setup.check):
        with pytest.raises(FatalError, match="it cannot be pulled"):
            look()


def test_one_that_is_late_says_why_itself():
    """It has to remove what it made, which takes some seconds more."""
    release = threading.Event()
    late = Service(error=RetryError("cache-not-ready", "1 of 3 pods ready"), until=release)
    setup = Setup([late], deadline=time.monotonic() - 1)
    threading.Timer(0.3, release.set).start()
    with pytest.raises(RetryError, match="1 of 3 pods ready"):
        setup.finish()


def test_time_is_bounded():
    """A service that never comes back is named."""
    release = threading.Event()
    setup = Setup([Service(until=release)], deadline=time.monotonic() + 0.2 - LATE_S)
    with pytest.raises(RetryError, match="cache://test does not serve in time"):
        setup.finish()
    release.set()
