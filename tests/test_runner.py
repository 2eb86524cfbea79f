import os
import signal
import threading
import time

import pytest
from marked import gone

from trainer_agent.catalogue import Listed
from trainer_agent.cgroup import read_limits
from trainer_agent.check import Check, Context, Options, Outcome, Rule, Skip, Status
from trainer_agent.errors import Action, ConfigurationError, FatalError, Finding, Severity
from trainer_agent.runner import _prepare, run_checks
from trainer_agent.testing import NO_DEVICES, FakeHost
from trainer_agent.topology import read_topology

WARN = Rule("odd", "it is odd", "look", severity=Severity.WARNING, action=Action.STOP)
FAIL = Rule("bad", "it is bad", "mend", action=Action.RESCHEDULE)


class Ready:
    """A check that needs no import."""

    def __init__(self, name, function, **more):
        self.name = name
        self.check = Check(name, "Is it?", (WARN, FAIL), function, **more)

    def load(self):
        return self.check


@pytest.fixture
def context(tmp_path):
    host = FakeHost(tmp_path)
    return Context({}, read_topology({}, hostname="a-host"), read_limits(host), NO_DEVICES, host, Options())


def run(context, function, *, timeout_s=5.0, **more):
    (result,) = run_checks([Ready("it", function, **more)], context, timeout_s=timeout_s)
    return result


def broke(what):
    return f"the check {what}. It says nothing about the node; --skip it leaves it out"


CUT = ", which is what was left of the budget; --timeout gives more"


def wait_for(*events):
    threading.Event().wait(*events)


@pytest.mark.parametrize(
    "rules, status, action",
    [
        ([], Status.PASS, Action.CONTINUE),
        ([WARN], Status.WARN, Action.CONTINUE),
        ([FAIL, WARN], Status.FAIL, Action.RESCHEDULE),
    ],
)
def test_the_findings_decide_status_and_action(context, rules, status, action):
    findings = tuple(rule.found("1, wanted 2", value=1) for rule in rules)

    result = run(context, lambda c: Outcome("measured", findings, {"value": 1}))

    expected = ("it", status, action, "measured", findings, {"value": 1})
    assert expected == (
        result.name,
        result.status,
        result.action,
        result.message,
        result.findings,
        result.measurements,
    )
    assert 0 < result.duration_s < 5


def test_a_warning_never_asks_for_anything(context):
    """Whatever action stands in a finding that was made without a rule."""
    finding = Finding("odd", "odd", Severity.WARNING, action=Action.STOP)

    assert Action.CONTINUE is run(context, lambda c: Outcome("odd", (finding,))).action


def test_a_skip_keeps_its_reason(context):
    def function(c):
        raise Skip("no GPUs here")

    result = run(context, function)

    assert (Status.SKIP, "no GPUs here", Action.CONTINUE) == (result.status, result.message, result.action)


def crash(c):
    os.kill(os.getpid(), signal.SIGKILL)


def leave(c):
    raise SystemExit(3)


def fail(c):
    raise RuntimeError("disk on fire")


@pytest.mark.parametrize(
    "function, what",
    [
        (fail, "broke: RuntimeError: disk on fire"),
        (leave, "broke: called sys.exit(3)"),
        (crash, "broke: killed by SIGKILL"),
        (lambda c: os._exit(0), "broke: ended with exit code 0 and no answer"),
        (lambda c: 42, "broke: TypeError: it returned a int, not an Outcome"),
        (
            lambda c: Outcome("found", (Finding("new", "new"),)),
            "broke: ValueError: it found ['new'], which its rules do not declare",
        ),
        (
            lambda c: Outcome("found", (Finding("bad", "bad", severity="awful"),)),
            "broke: ValueError: 'awful' is not a valid Severity",
        ),
        (
            lambda c: Outcome("found", (Finding("bad", "bad", action="panic"),)),
            "broke: ValueError: 'panic' is not a valid Action",
        ),
        (
            lambda c: Outcome("found", (Finding("bad", "bad", evidence={"x": {1}}),)),
            "broke: TypeError: Object of type set is not JSON serializable",
        ),
        (
            lambda c: Outcome("found", (), {"x": float("nan")}),
            "broke: ValueError: Out of range float values are not JSON compliant",
        ),
    ],
)
def test_a_check_that_breaks_is_an_error_and_says_why(context, function, what):
    result = run(context, function)

    assert (Status.ERROR, broke(what), ()) == (result.status, result.message, result.findings)


def test_the_same_inside_this_process(context):
    """What happens in the children above is not seen by coverage."""

    def call(function):
        return _prepare(Ready("it", function), context)()

    def skip(c):
        raise Skip("no GPUs here")

    valid = Outcome("found", (FAIL.found("1, wanted 2"),))
    assert valid == call(lambda c: valid)
    assert "no GPUs here" == call(skip)
    with pytest.raises(TypeError, match="it returned a int, not an Outcome"):
        call(lambda c: 42)
    with pytest.raises(ValueError, match=r"it found \['new'\], which its rules do not declare"):
        call(lambda c: Outcome("found", (Finding("new", "new"),)))


def test_a_check_that_hangs_is_killed_with_what_it_started(context, tmp_path):
    file = tmp_path / "pid"

    def function(c):
        if os.fork() == 0:
            file.write_text(str(os.getpid()))
        signal.pause()

    result = run(context, function, timeout_s=2)

    assert (Status.ERROR, broke(f"ran out of time: no answer within 2 s{CUT}")) == (result.status, result.message)
    assert gone(int(file.read_text()))


def test_what_a_check_leaves_running_is_killed(context, tmp_path):
    file = tmp_path / "pid"

    def function(c):
        if os.fork() == 0:
            file.write_text(str(os.getpid()))
            signal.pause()
        while not (file.exists() and file.read_text()):
            wait_for(0.01)
        return Outcome("done")

    assert Status.PASS is run(context, function).status
    assert gone(int(file.read_text()))


def test_the_budget_cuts_the_deadline_of_a_check(context):
    began = time.monotonic()

    result = run(context, lambda c: wait_for(), timeout_s=0.3)

    assert broke(f"ran out of time: no answer within 0.3 s{CUT}") == result.message
    assert time.monotonic() - began < 20


def test_a_check_has_its_own_deadline_within_the_budget(context):
    (result,) = run_checks([Ready("it", lambda c: wait_for(), timeout_s=0.2)], context, timeout_s=60)

    assert broke("ran out of time: no answer within 0.2 s") == result.message


def test_a_check_that_waits_for_other_nodes_is_not_cut_by_the_budget(context):
    def function(c):
        wait_for(0.4)
        return Outcome("they came")

    listed = [Ready("it", function, timeout_s=lambda c: 60, waits_for_nodes=True)]

    assert "they came" == run_checks(listed, context, timeout_s=0.1)[0].message


def test_checks_run_side_by_side_and_keep_their_order(context, tmp_path):
    """Each waits until all are there; the last ends first."""

    def after(seconds):
        def function(c):
            (tmp_path / f"{seconds}").touch()
            while len(list(tmp_path.iterdir())) < 3:
                wait_for(0.01)
            wait_for(seconds)
            return Outcome(f"{seconds}")

        return function

    results = run_checks([Ready(f"c{s}", after(s)) for s in (0.3, 0.2, 0.1)], context, timeout_s=60)

    assert [("c0.3", "0.3"), ("c0.2", "0.2"), ("c0.1", "0.1")] == [(r.name, r.message) for r in results]


def test_a_check_that_does_not_load_is_an_error_and_the_others_run(context):
    results = run_checks(
        [Listed("gone", "no_such_module:x", "acme"), Ready("it", lambda c: Outcome("fine"))], context, timeout_s=5
    )

    message = (
        "check gone (no_such_module:x) cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'. "
        "reinstall or remove the package that provides 'acme', or run with --skip gone"
    )
    assert [("gone", Status.ERROR, message), ("it", Status.PASS, "fine")] == [
        (r.name, r.status, r.message) for r in results
    ]


def test_a_deadline_that_cannot_be_computed_is_an_error(context):
    listed = [Ready("it", lambda c: Outcome("fine"), timeout_s=lambda c: c.nothing)]
    (result,) = run_checks(listed, context, timeout_s=5)

    what = "broke: its timeout_s gives AttributeError: 'Context' object has no attribute 'nothing'"
    assert (Status.ERROR, broke(what)) == (result.status, result.message)


@pytest.mark.parametrize(
    "chosen, profile, status",
    [
        ("quick", "quick", Status.PASS),
        ("quick", "standard", Status.SKIP),
        ("standard", "deep", Status.SKIP),
        ("deep", "quick", Status.PASS),
        ("deep", "deep", Status.PASS),
    ],
)
def test_a_profile_runs_its_checks_and_the_cheaper_ones(tmp_path, chosen, profile, status):
    host = FakeHost(tmp_path)
    options = Options(profile=chosen)
    context = Context({}, read_topology({}, hostname="a-host"), read_limits(host), NO_DEVICES, host, options)

    result = run(context, lambda c: Outcome("ran"), profile=profile)

    message = "ran" if status is Status.PASS else f"runs from --profile {profile} on"
    assert (status, message) == (result.status, result.message)


def refuse(c):
    raise FatalError("idle-invalid", "IDLE=hot, wanted a number", hint="set a number")


def ok(c):
    return Outcome("fine")


@pytest.mark.parametrize("where", ["function", "thresholds", "timeout_s"])
def test_a_setting_that_a_check_refuses_stops_the_job(context, where):
    """A gate that cannot look because of a mistake in a setting is not open: no other node would help."""
    (result,) = run_checks([Ready("it", **{"function": ok, where: refuse})], context, timeout_s=5)

    wanted = Finding("idle-invalid", "IDLE=hot, wanted a number", hint="set a number")
    assert (Status.FAIL, Action.STOP, wanted.message, (wanted,)) == (
        result.status,
        result.action,
        result.message,
        result.findings,
    )


def test_all_that_is_wrong_with_the_settings_is_told(context):
    def function(c):
        raise ConfigurationError([Finding("one", "1 is wrong"), Finding("two", "2 is wrong")])

    assert ["one", "two"] == [f.code for f in run(context, function).findings]


@pytest.mark.parametrize("function, status", [(ok, Status.PASS), (lambda c: found_bad(), Status.FAIL)])
def test_thresholds_that_break_leave_the_gate_to_the_check(context, function, status):
    """They are only for `checks NAME`, which tells that they are broken."""
    broken = {"thresholds": lambda c: 1 / 0}

    assert status is run(context, function, **broken).status
    assert status is _prepare(Ready("it", function, **broken), context)().status


def found_bad():
    return Outcome("measured", (FAIL.found("1, wanted 2"),))
