"""runner: who runs when. Checks that only look go first and together; those that keep devices busy follow alone."""

import threading
import time

import pytest

from trainer_agent.cgroup import read_limits
from trainer_agent.check import Check, Context, Options, Outcome, Status
from trainer_agent.host import Host
from trainer_agent.runner import run_checks
from trainer_agent.testing import NO_DEVICES
from trainer_agent.topology import read_topology

pytestmark = pytest.mark.lab


class Ready:
    """A check that needs no import."""

    def __init__(self, name, function, **more):
        self.name = name
        self.check = Check(name, "Is it?", (), function, **more)

    def load(self):
        return self.check


@pytest.fixture
def context(tmp_path):
    host = Host(tmp_path)
    return Context({}, read_topology({}, hostname="a-host"), read_limits(host), NO_DEVICES, host, Options())


def takes(seconds):
    """Return a check's function that says when it ran."""

    def function(c):
        began = time.monotonic()
        threading.Event().wait(seconds)
        return Outcome("ran", (), {"began": began, "ended": time.monotonic()})

    return function


def ran(result, what):
    assert "ran" == result.message
    return result.measurements[what]


def test_busy_checks_run_alone_and_after_those_that_look(context):
    listed = [
        Ready("busy-1", takes(0.1), alone_s=1),
        Ready("look-1", takes(0.2)),
        Ready("busy-2", takes(0.1), alone_s=1),
        Ready("look-2", takes(0.2)),
    ]

    first, look_1, second, look_2 = run_checks(listed, context, timeout_s=20)

    assert ran(look_2, "began") < ran(look_1, "ended")
    assert max(ran(look_1, "ended"), ran(look_2, "ended")) <= ran(first, "began")
    assert ran(first, "ended") <= ran(second, "began")


def test_nobody_who_waits_for_nodes_holds_up_a_busy_check(context):
    listed = [Ready("peers", takes(0.5), waits_for_nodes=True, timeout_s=10), Ready("busy", takes(0), alone_s=1)]

    peers, busy = run_checks(listed, context, timeout_s=20)

    assert ran(busy, "ended") < ran(peers, "ended")


def test_what_the_budget_leaves_no_time_for_is_skipped_and_said(context):
    listed = [Ready("look", takes(0.3)), Ready("busy", takes(0), alone_s=5)]

    look, busy = run_checks(listed, context, timeout_s=5.2)

    message = "5 of 5.2 s were left, and it needs 5; --timeout gives more"
    assert (Status.PASS, Status.SKIP, message) == (look.status, busy.status, busy.message)


def test_a_check_that_needs_less_than_it_says_runs_in_what_its_deadline_allows(context):
    (result,) = run_checks([Ready("busy", takes(0), alone_s=50, timeout_s=2)], context, timeout_s=3)

    assert "ran" == result.message


def test_a_busy_check_gets_what_is_left_of_the_budget(context):
    began = time.monotonic()
    (result,) = run_checks([Ready("busy", takes(60), alone_s=0.1, timeout_s=60)], context, timeout_s=0.4)

    assert Status.ERROR is result.status
    assert "the check ran out of time: no answer within 0.4 s" in result.message
    assert time.monotonic() - began < 40


def test_a_busy_check_is_told_what_is_left(context):
    def says(c):
        return Outcome(f"{c.options.budget_s:.1f}")

    look, busy = run_checks([Ready("look", takes(0.3)), Ready("busy", says, alone_s=1)], context, timeout_s=20)

    assert "ran" == look.message
    assert 19.0 < float(busy.message) < 19.75
