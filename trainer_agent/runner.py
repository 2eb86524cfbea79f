"""Run checks side by side, each in a child of its own with a deadline, so that none can harm or hold up another."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from trainer_agent.check import PROFILES, CheckResult, Outcome, Skip, Status, finding_as_dict
from trainer_agent.errors import Action, AgentError, ConfigurationError, FatalError, Finding, Severity
from trainer_agent.isolation import Answer, Children, CrashedError, TimedOutError
from trainer_agent.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainer_agent.catalogue import Listed
    from trainer_agent.check import Check, Context


def run_checks(
    listed: Sequence[Listed], context: Context, *, timeout_s: float, tell: Callable[..., None] = lambda **_: None
) -> list[CheckResult]:
    """
    Run all of `listed` and return their results in order, within `timeout_s` seconds or little more.

    Those that only look run side by side; those that keep the GPUs or CPUs busy follow one by one, as long as there is
    time. Only checks that wait for other nodes may take longer: as long as their own deadline says.

    Args:
        tell: called whenever one more is done.
    """
    began = time.monotonic()
    prepared = [_prepare(entry, context) for entry in listed]
    calls = [p for p in prepared if isinstance(p, _Call)]
    results: dict[str, CheckResult] = {p.name: p for p in prepared if isinstance(p, CheckResult)}
    with _Crew(results, lambda: tell(preflight_checks_done=len(results), preflight_checks=len(listed))) as crew:
        for call in calls:
            if not call.check.alone_s:
                crew.start_check(call, math.inf if call.check.waits_for_nodes else timeout_s)
        crew.wait_for([call for call in calls if not (call.check.alone_s or call.check.waits_for_nodes)])
        for call in (call for call in calls if call.check.alone_s):
            left = timeout_s - (time.monotonic() - began)
            if left < min(call.check.alone_s, call.timeout_s):
                results[call.check.name] = _too_late(call.check, left, timeout_s)
                continue
            crew.start_check(call.within(left), left)
            crew.wait_for([call])
        crew.wait_for(calls)
    return [results[entry.name] for entry in listed]


class _Crew(Children):
    """The checks that run now; what comes of them goes to `results` by name."""

    def __init__(self, results: dict[str, CheckResult], news: Callable[[], None]) -> None:
        super().__init__()
        self.results = results
        self.news = news
        self.calls: dict[int, tuple[Check, bool]] = {}

    def start_check(self, call: _Call, left_s: float) -> None:
        """Start a check that is killed at its deadline, or after `left_s` seconds."""
        self.calls[self.start(call, min(call.timeout_s, left_s))] = call.check, left_s < call.timeout_s

    def wait_for(self, calls: Sequence[_Call]) -> None:
        """Return when all of `calls` have a result."""
        while any(call.check.name not in self.results for call in calls):
            number, answer = self.next()
            check, is_cut = self.calls[number]
            self.results[check.name] = _result(check, answer, is_cut=is_cut)
            self.news()


def _too_late(check: Check, left: float, timeout_s: float) -> CheckResult:
    message = f"{max(0.0, left):.0f} of {timeout_s:g} s were left, and it needs {check.alone_s:g}; --timeout gives more"
    return CheckResult(check.name, Status.SKIP, message)


def _prepare(entry: Listed, context: Context) -> _Call | CheckResult:
    """Return what is to be run, or the result when there is nothing to run."""
    try:
        check = entry.load()
    except AgentError as error:
        return CheckResult(entry.name, Status.ERROR, f"{error.message}. {error.hint}")
    if PROFILES.index(check.profile) > PROFILES.index(context.options.profile):
        return CheckResult(check.name, Status.SKIP, f"runs from --profile {check.profile} on")
    try:
        deadline = float(check.deadline_s(context))
    except FatalError as error:
        return _refused(check, error)
    except Exception as error:  # noqa: BLE001  # somebody else's function
        return _broken(check, Answer(None, CrashedError(f"its timeout_s gives {type(error).__name__}: {error}"), 0.0))
    return _Call(check, context, deadline)


class _Call:
    """What the child does; a class because the answer must carry a skip and a broken promise too."""

    def __init__(self, check: Check, context: Context, timeout_s: float) -> None:
        self.check = check
        self.context = context
        self.timeout_s = timeout_s

    def within(self, left_s: float) -> _Call:
        """Return the same call of a check that is told how much is left of the budget."""
        options = replace(self.context.options, budget_s=left_s)
        return _Call(self.check, replace(self.context, options=options), self.timeout_s)

    def __call__(self) -> Outcome | FatalError | str:
        try:
            self._read_thresholds()
            outcome = self.check.function(self.context)
        except Skip as skip:
            return str(skip)
        except FatalError as error:
            return error
        if not isinstance(outcome, Outcome):
            raise TypeError(f"it returned a {type(outcome).__name__}, not an Outcome")
        _demand_valid(outcome, self.check)
        return outcome

    def _read_thresholds(self) -> None:
        """Raise the mistake in a setting of theirs, which is told also where the check finds nothing to look at."""
        try:
            if self.check.thresholds:
                self.check.thresholds(self.context)
        except Exception as error:  # somebody else's function; `checks NAME` tells that it is broken
            if isinstance(error, FatalError):
                raise


def _demand_valid(outcome: Outcome, check: Check) -> None:
    """Raise when an outcome has no place in the report; here, in the child, that is the fault of this check alone."""
    undeclared = {f.code for f in outcome.findings} - {rule.code for rule in check.rules}
    if undeclared and not check.finds_anything:
        raise ValueError(f"it found {sorted(undeclared)}, which its rules do not declare")
    for finding in outcome.findings:
        Severity(finding.severity), Action(finding.action)
    json.dumps([dict(outcome.measurements), *(finding_as_dict(f) for f in outcome.findings)], allow_nan=False)


def _result(check: Check, answer: Answer, *, is_cut: bool) -> CheckResult:
    if answer.error:
        return _broken(check, answer, is_cut=is_cut)
    if isinstance(answer.value, FatalError):
        return _refused(check, answer.value, answer.duration_s)
    if isinstance(answer.value, str):
        return CheckResult(check.name, Status.SKIP, answer.value, duration_s=answer.duration_s)
    outcome: Outcome = answer.value
    return CheckResult(
        check.name,
        outcome.status,
        outcome.message,
        outcome.action,
        answer.duration_s,
        outcome.findings,
        outcome.measurements,
    )


def _refused(check: Check, error: FatalError, duration_s: float = 0.0) -> CheckResult:
    """Return the failure of a check that cannot look before a setting is corrected: such a gate stays shut."""
    one = Finding(error.code, error.message, hint=error.hint)
    findings = error.findings if isinstance(error, ConfigurationError) else (one,)
    return CheckResult(check.name, Status.FAIL, error.message, Action.STOP, duration_s, findings)


def _broken(check: Check, answer: Answer, *, is_cut: bool = False) -> CheckResult:
    error = answer.error
    if isinstance(error, CrashedError) and error.trace:
        get_logger().error("a check broke", check=check.name, trace=error.trace)
    what = "ran out of time" if isinstance(error, TimedOutError) else "broke"
    cut = ", which is what was left of the budget; --timeout gives more" if is_cut and what != "broke" else ""
    message = f"the check {what}: {error}{cut}. It says nothing about the node; --skip {check.name} leaves it out"
    return CheckResult(check.name, Status.ERROR, message, duration_s=answer.duration_s)
