"""errors: codes, exit codes and how findings read."""

import errno

import pytest

from trainer_agent.errors import (
    Action,
    AgentError,
    ConfigurationError,
    ExitCode,
    FatalError,
    Finding,
    RetryError,
    Severity,
    Terminated,
    exhausted,
)

NO_THREAD = RuntimeError("can't start new thread")


def test_exit_codes():
    """The codes are those of KEP-3416, and each kind of error has one."""
    expected = {"PASS": 0, "USAGE": 2, "WARN": 10, "RETRY": 20, "FATAL": 30, "BUG": 70}
    assert expected == {code.name: code.value for code in ExitCode}
    kinds = (AgentError, RetryError, FatalError, ConfigurationError)
    assert (20, 20, 30, 30) == tuple(kind.exit_code for kind in kinds)


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "x"), OSError(errno.EAGAIN, "x"), MemoryError(), NO_THREAD])
def test_what_is_used_up_is_no_bug(error):
    """Said as it is by Python and the system."""
    assert "system-exhausted" == exhausted(error).code


@pytest.mark.parametrize("error", [OSError(errno.EIO, "x"), RuntimeError("x"), ValueError("can't start new thread")])
def test_other_errors_are_left_alone(error):
    assert exhausted(error) is None


def test_an_error_knows_its_facts():
    """Code, message and hint are kept apart, and the message is the exception's text."""
    error = RetryError("some-code", "it is 1, wanted 2", hint="do this")
    expected = ("some-code", "it is 1, wanted 2", "do this", "it is 1, wanted 2")
    assert expected == (error.code, error.message, error.hint, str(error))


def test_a_configuration_error_states_all_findings():
    """The first finding gives code and hint, the message holds all."""
    findings = [Finding("one", "1 is wrong", hint="set 2"), Finding("two", "3 is wrong", hint="set 4")]
    error = ConfigurationError(findings)
    expected = ("one", "1 is wrong; 3 is wrong", "set 2", tuple(findings))
    assert expected == (error.code, error.message, error.hint, error.findings)


def test_a_finding_reads_as_one_line():
    """The hint stands behind the code when there is one."""
    assert "1 is wrong [one]. set 2" == str(Finding("one", "1 is wrong", hint="set 2"))
    assert "1 is wrong [one]" == str(Finding("one", "1 is wrong"))


def test_a_finding_stops_unless_it_says_otherwise():
    """What nobody thought about is an error that stops."""
    finding = Finding("one", "1 is wrong")
    assert (Severity.ERROR, Action.STOP, "", {}) == (finding.severity, finding.action, finding.hint, finding.evidence)


def test_actions_from_mild_to_grave():
    """The order decides which action of several wins."""
    assert ["continue", "retry", "reschedule", "stop"] == list(Action)


def test_termination_is_no_error():
    """`except Exception` must not swallow a signal."""
    assert (15, False) == (Terminated(15).signum, isinstance(Terminated(15), Exception))
