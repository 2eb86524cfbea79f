"""Run checks side by side, each in a child of its own with a deadline, so that none can harm or hold up another."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from trainer_agent.check import PROFILES, CheckResult, Outcome, Skip, Status, finding_as_dict
from trainer_agent.errors import Action, AgentError, Severity
from trainer_agent.log import get_logger
from trainer_agent.process import Answer, CrashedError, TimedOutError, run_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer_agent.catalogue import Listed
    from trainer_agent.check import Check, Context


def run_checks(listed: Sequence[Listed], context: Context, *, timeout_s: float) -> list[CheckResult]:
    """
    Run all of `listed` and return their results in order, within `timeout_s` seconds or little more.

    Only checks that wait for other nodes may take longer: as long as their own deadline says.
    """
    prepared = [_prepare(entry, context, timeout_s=timeout_s) for entry in listed]
    answers = iter(run_all([(call, call.timeout_s) for call in prepared if isinstance(call, _Call)]))
    return [_result(p.check, next(answers)) if isinstance(p, _Call) else p for p in prepared]


def _prepare(entry: Listed, context: Context, *, timeout_s: float) -> _Call | CheckResult:
    """Return what is to be run, or the result when there is nothing to run."""
    try:
        check = entry.load()
    except AgentError as error:
        return CheckResult(entry.name, Status.ERROR, f"{error.message}. {error.hint}")
    if PROFILES.index(check.profile) > PROFILES.index(context.options.profile):
        return CheckResult(check.name, Status.SKIP, f"runs from --profile {check.profile} on")
    try:
        deadline = float(check.deadline_s(context))
    except Exception as error:  # noqa: BLE001  # somebody else's function
        return _broken(check, Answer(None, CrashedError(f"its timeout_s gives {type(error).__name__}: {error}"), 0.0))
    return _Call(check, context, deadline if check.waits_for_nodes else min(deadline, timeout_s))


class _Call:
    """What the child does; a class because the answer must carry a skip and a broken promise too."""

    def __init__(self, check: Check, context: Context, timeout_s: float) -> None:
        self.check = check
        self.context = context
        self.timeout_s = timeout_s

    def __call__(self) -> Outcome | str:
        try:
            outcome = self.check.function(self.context)
        except Skip as skip:
            return str(skip)
        if not isinstance(outcome, Outcome):
            raise TypeError(f"it returned a {type(outcome).__name__}, not an Outcome")
        _demand_valid(outcome, {rule.code for rule in self.check.rules})
        return outcome


def _demand_valid(outcome: Outcome, codes: set[str]) -> None:
    """Raise when an outcome has no place in the report; here, in the child, that is the fault of this check alone."""
    undeclared = {f.code for f in outcome.findings} - codes
    if undeclared:
        raise ValueError(f"it found {sorted(undeclared)}, which its rules do not declare")
    for finding in outcome.findings:
        Severity(finding.severity), Action(finding.action)
    json.dumps([dict(outcome.measurements), *(finding_as_dict(f) for f in outcome.findings)], allow_nan=False)


def _result(check: Check, answer: Answer) -> CheckResult:
    if answer.error:
        return _broken(check, answer)
    if isinstance(answer.value, str):
        return CheckResult(check.name, Status.SKIP, answer.value, duration_s=answer.duration_s)
    outcome: Outcome = answer.value
    asked = [f.action for f in outcome.findings if f.severity is Severity.ERROR]  # warnings always continue
    worst = max(asked, key=list(Action).index, default=Action.CONTINUE)
    return CheckResult(
        check.name,
        outcome.status,
        outcome.message,
        worst,
        answer.duration_s,
        outcome.findings,
        outcome.measurements,
    )


def _broken(check: Check, answer: Answer) -> CheckResult:
    error = answer.error
    if isinstance(error, CrashedError) and error.trace:
        get_logger().error("a check broke", check=check.name, trace=error.trace)
    what = "ran out of time" if isinstance(error, TimedOutError) else "broke"
    message = f"the check {what}: {error}. It says nothing about the node; --skip {check.name} leaves it out"
    return CheckResult(check.name, Status.ERROR, message, duration_s=answer.duration_s)
