import pytest

from preflight_checks.clock import clock
from trainer_agent.check import Outcome, Status
from trainer_agent.errors import Action
from trainer_agent.testing import run_check

NOW = 1_800_000_000.0
SOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"


def found(outcome):
    return [(str(f.severity), f.code, f.message, f.action) for f in outcome.findings]


def test_without_a_cluster_only_the_clock_itself_is_looked_at(host):
    host.put(SOURCE, "tsc\n")

    expected = Outcome("tsc, not compared: no API server answers", (), {"clocksource": "tsc", "skew_s": None})
    assert expected == run_check(clock, host)


def test_an_unknown_clocksource_is_no_finding(host):
    outcome = run_check(clock, host)

    assert ("clocksource unknown, not compared: no API server answers", ()) == (outcome.message, outcome.findings)


@pytest.mark.parametrize("source", ["tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page"])
def test_fast_clocksources_pass(host, source):
    host.put(SOURCE, f"{source}\n")

    assert () == run_check(clock, host).findings


@pytest.mark.parametrize("source", ["hpet", "acpi_pm"])
def test_slow_clocksources_are_warnings(host, source):
    host.put(SOURCE, f"{source}\n")

    wanted = "wanted one of tsc, kvm-clock, arch_sys_counter, hyperv_clocksource_tsc_page"
    expected = [("warning", "clocksource-slow", f"the clocksource is {source}, {wanted}", Action.CONTINUE)]
    assert expected == found(run_check(clock, host))


def test_an_unusual_clocksource_is_only_told(host):
    host.put(SOURCE, "xen\n")

    outcome = run_check(clock, host)

    assert (Status.PASS, [("info", "clocksource-unusual")]) == (outcome.status, [row[:2] for row in found(outcome)])


def test_the_first_second_of_2026_is_believed(host):
    host.clock = 1_767_225_600.0

    assert [] == found(run_check(clock, host))


def test_a_clock_before_this_release_asks_for_another_node(host):
    host.clock = 1_767_225_599.0

    message = "the clock says 2025-12-31T23:59:59+00:00, wanted 2026 or later"
    assert [("error", "clock-before-release", message, Action.RESCHEDULE)] == found(run_check(clock, host))


@pytest.mark.parametrize(
    "ahead, expected",
    [
        (0.0, []),
        (0.9, []),  # the Date header is rounded down, so up to a second may be its
        (2.9, []),
        (3.0, []),
        (3.1, [("warning", "clock-skewed", "the clock is 2.1 s ahead of the API server's, wanted 2 s or less")]),
        (-1.9, []),
        (-2.5, [("warning", "clock-skewed", "the clock is 2.5 s behind the API server's, wanted 2 s or less")]),
        (30.9, [("warning", "clock-skewed", "the clock is 29.9 s ahead of the API server's, wanted 2 s or less")]),
        (31.0, [("warning", "clock-skewed", "the clock is 30.0 s ahead of the API server's, wanted 2 s or less")]),
        (31.5, [("error", "clock-wrong", "the clock is 30.5 s ahead of the API server's, wanted 30 s or less")]),
        (-90.0, [("error", "clock-wrong", "the clock is 90.0 s behind the API server's, wanted 30 s or less")]),
    ],
)
def test_skew_against_the_api_server(host, api, ahead, expected):
    host.clock = NOW + ahead

    outcome = run_check(clock, host, environ=api.environ)

    assert expected == [row[:3] for row in found(outcome)]


def test_a_wrong_clock_asks_for_another_node_and_is_measured(host, api):
    host.clock = NOW - 90

    outcome = run_check(clock, host, environ=api.environ)

    assert "clocksource unknown, -90.0 s against the API server" == outcome.message
    assert {"clocksource": "", "skew_s": -90.0} == outcome.measurements
    assert [Action.RESCHEDULE] == [f.action for f in outcome.findings]


def test_a_server_that_is_not_trusted_still_tells_the_time(host, api):
    """A clock that is off is one reason why its certificate is refused."""
    api.trusted_by(host, authority="stranger")

    assert 0.0 == run_check(clock, host, environ=api.environ).measurements["skew_s"]


@pytest.mark.parametrize("date", [None, "yesterday"])
def test_an_answer_without_a_usable_date_is_not_compared(host, api, date):
    api.date = date

    assert run_check(clock, host, environ=api.environ).measurements["skew_s"] is None


def test_no_answer_is_not_compared(host):
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}

    outcome = run_check(clock, host, environ=environ)

    assert ("clocksource unknown, not compared: no API server answers", ()) == (outcome.message, outcome.findings)
