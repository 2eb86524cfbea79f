"""Run checks side by side, each in a child of its own with a deadline, so that none can harm or hold up another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer_agent.check import CheckResult, Outcome, Skip, Status
from trainer_agent.errors import Action, AgentError
from trainer_agent.log import get_logger
from trainer_agent.process import Answer, CrashedError, TimedOutError, run_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer_agent.catalogue import Listed
    from trainer_agent.check import Check, Context


def run_checks(listed: Sequence[Listed], context: Context, *, timeout_s: float) -> list[CheckResult]:
    """Run all of `listed` and return their results in order, within `timeout_s` seconds or little more."""
    checks: list[Check | CheckResult] = [_load(entry) for entry in listed]
    running = [c for c in checks if not isinstance(c, CheckResult)]
    calls = [(_Call(check, context), min(check.deadline_s(context), timeout_s)) for check in running]
    answers = dict(zip((c.name for c in running), run_all(calls), strict=True))
    return [c if isinstance(c, CheckResult) else _result(c, answers[c.name]) for c in checks]


class _Call:
    """What the child does; a class because the answer must carry a skip and a broken promise too."""

    def __init__(self, check: Check, context: Context) -> None:
        self.check = check
        self.context = context

    def __call__(self) -> Outcome | str:
        try:
            outcome = self.check.function(self.context)
        except Skip as skip:
            return str(skip)
        if not isinstance(outcome, Outcome):
            raise TypeError(f"it returned a {type(outcome).__name__}, not an Outcome")
        undeclared = {f.code for f in outcome.findings} - {r.code for r in self.check.rules}
        if undeclared:
            raise ValueError(f"it found {sorted(undeclared)}, which its rules do not declare")
        return outcome


def _load(entry: Listed) -> Check | CheckResult:
    try:
        return entry.load()
    except AgentError as error:
        return CheckResult(entry.name, Status.ERROR, f"{error.message}. {error.hint}")


def _result(check: Check, answer: Answer) -> CheckResult:
    if answer.error:
        return _broken(check, answer)
    if isinstance(answer.value, str):
        return CheckResult(check.name, Status.SKIP, answer.value, duration_s=answer.duration_s)
    outcome: Outcome = answer.value
    worst = max((f.action for f in outcome.findings), key=list(Action).index, default=Action.CONTINUE)
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
