"""What may pass is tried again: not too soon, and not for ever."""

import time

import pytest
from structlog.testing import capture_logs

from trainer_agent.errors import FatalError
from trainer_agent.initializers import ChangedError, NoRangesError, TransientError
from trainer_agent.initializers.retry import pause_s, persist


def transient(*, retry_after_s=None):
    return TransientError("source-unavailable", "it answers 503", retry_after_s=retry_after_s)


class Failing:
    """Raises its errors one after the other, then returns."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.called_at = []

    def __call__(self):
        self.called_at.append(time.monotonic())
        if self.errors:
            raise self.errors.pop(0)
        return "value"


def spread(attempt, retry_after_s):
    """Return the shortest and the longest pause of many."""
    pauses = [pause_s(attempt, retry_after_s) for _ in range(2000)]
    return min(pauses), max(pauses)


@pytest.mark.parametrize(
    "attempt,retry_after_s,shortest,longest",
    [
        (1, None, 0.1, 0.2),
        (2, None, 0.2, 0.4),
        (7, None, 6.4, 12.8),
        (8, None, 10.0, 20.0),
        (5000, None, 10.0, 20.0),
        (1, 0.0, 0.1, 0.2),
        (1, 7.0, 7.1, 7.2),
        (7, 0.0, 6.4, 12.8),
        (9, 1.0, 10.0, 20.0),
        (1, 3600.0, 300.1, 300.2),
        (1, float("inf"), 300.1, 300.2),
    ],
)
def test_pauses_double_and_are_as_long_as_the_server_says(attempt, retry_after_s, shortest, longest):
    """A server that always says 0 gets them too; and spread, so that a thousand clients do not come back at once."""
    low, high = spread(attempt, retry_after_s)

    tenth = (longest - shortest) / 10
    assert shortest <= low < shortest + tenth
    assert longest - tenth < high <= longest


def test_a_value_is_returned_without_a_pause():
    function = Failing()

    assert "value" == persist(function)
    assert 1 == len(function.called_at)


def test_what_may_pass_is_tried_again():
    """With a line that says why and when."""
    function = Failing(transient(), transient(retry_after_s=0.0))
    with capture_logs() as logs:
        assert "value" == persist(function)

    first, second, third = function.called_at
    assert second - first >= 0.1
    assert third - second >= 0.2
    pauses = [log.pop("again_in_s") for log in logs]
    said = {"event": "it answers 503", "code": "source-unavailable", "log_level": "warning"}
    assert [said | {"attempt": 1}, said | {"attempt": 2}] == logs
    assert [True, True] == [0.1 <= pauses[0] <= 0.2, 0.2 <= pauses[1] <= 0.4]


def test_retry_after_is_obeyed():
    function = Failing(transient(retry_after_s=0.3))
    persist(function)

    assert function.called_at[1] - function.called_at[0] >= 0.4


def test_patience_ends():
    """The last error is raised, without a pause that leads nowhere."""
    errors = [transient() for _ in range(9)]
    function = Failing(*errors)
    began = time.monotonic()
    with pytest.raises(TransientError) as caught:
        persist(function, patience_s=0.3)

    assert time.monotonic() - began < 20
    assert errors[len(function.called_at) - 1] is caught.value
    assert len(function.called_at) in (2, 3)


def test_one_who_says_when_gets_more_patience():
    """Five times as much; not more."""
    function = Failing(transient(retry_after_s=0.1), transient(retry_after_s=3600.0))
    with pytest.raises(TransientError):
        persist(function, patience_s=0.1)

    assert 2 == len(function.called_at)


@pytest.mark.parametrize(
    "error",
    [
        ChangedError("source-changed", "another size"),
        NoRangesError("no-ranges", "all of it"),
        FatalError("access-denied", "403"),
        OSError("disk"),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_another_attempt_would_not_change_is_raised_at_once(error):
    function = Failing(error)
    with pytest.raises(type(error)) as caught:
        persist(function)

    assert error is caught.value
    assert 1 == len(function.called_at)
