"""What a program of `--checks-dir` may print: one JSON object, read so that every mistake in it is named."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, NoReturn

from trainer_agent.check import Outcome, Skip, Status
from trainer_agent.errors import Action, Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Mapping

KEBAB = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
STATUSES = (Status.PASS, Status.WARN, Status.FAIL, Status.SKIP)
ANSWER: dict[str, type] = {"message": str, "status": str, "findings": list, "measurements": dict}
FINDING: dict[str, type] = {"code": str, "message": str, "severity": str, "hint": str, "action": str, "evidence": dict}
WORDS: dict[type, str] = {str: "a string", list: "an array", dict: "an object"}
SHOWN = 60  # characters of what was printed instead


class AnswerError(Exception):
    """A program printed something else than it should; says what, and what was wanted."""


def read_answer(name: str, text: str) -> Outcome:
    """
    Return what a program found, as it printed it.

    A failure or a warning without findings becomes a finding that is called as the check is.

    Raises:
        Skip: the program has nothing to look at.
        AnswerError: this is no answer.
    """
    answer = _object(text)
    _demand(answer, ANSWER, "the object", wanted=("message",))
    findings = tuple(_finding(item, f"findings[{n}]") for n, item in enumerate(answer.get("findings", ())))
    outcome = Outcome(answer["message"], findings, answer.get("measurements", {}))
    status = _one_of(Status, answer.get("status", outcome.status), "status", STATUSES)
    if status is Status.SKIP and not findings:
        raise Skip(outcome.message)
    if not findings and status is not Status.PASS:
        return Outcome(outcome.message, (_whole(name, outcome.message, status),), outcome.measurements)
    if status is not outcome.status:
        raise AnswerError(f"its status is {status}, and its findings make it {outcome.status}; status may be left out")
    return outcome


def _whole(name: str, message: str, status: Status) -> Finding:
    if status is Status.WARN:
        return Finding(name, message, Severity.WARNING, action=Action.CONTINUE)
    return Finding(name, message, action=Action.RESCHEDULE)


def _object(text: str) -> dict[str, Any]:
    """Return the only JSON object in `text`."""
    if "\ufffd" in text:  # what run_guarded puts where bytes are no text
        raise AnswerError("it printed bytes that are not UTF-8, or U+FFFD")
    told = text.strip()
    if not told:
        raise AnswerError("it printed nothing, wanted one JSON object")
    if not told.startswith("{"):
        raise AnswerError(f"it printed {_cut(told)!r}, wanted one JSON object; anything else goes to standard error")
    try:
        answer, end = json.JSONDecoder(parse_constant=_no_number, parse_float=_number).raw_decode(told)
    except (ValueError, RecursionError) as error:
        raise AnswerError(f"it printed no valid JSON: {error}") from error
    if rest := told[end:].strip():
        what = "a second JSON value" if rest.startswith("{") else repr(_cut(rest))
        raise AnswerError(f"it printed {what} after the JSON object, wanted one object and nothing else")
    found: dict[str, Any] = answer
    return found


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON; leave the measurement out")


def _number(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits} is too large a number")
    return number


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _finding(item: Any, where: str) -> Finding:
    if not isinstance(item, dict):
        raise AnswerError(f"{where} is {_cut(json.dumps(item))}, wanted an object")
    _demand(item, FINDING, where, wanted=("code", "message"))
    if not KEBAB.fullmatch(item["code"]):
        raise AnswerError(f"{where}.code is {item['code']!r}, wanted kebab-case such as disk-worn")
    severity = _one_of(Severity, item.get("severity", Severity.ERROR), f"{where}.severity", tuple(Severity))
    evidence = item.get("evidence", {})
    for kind in ("gpus", "nics"):  # the report names them as suspects
        devices = evidence.get(kind, [])
        if not isinstance(devices, list) or not all(isinstance(device, dict) for device in devices):
            raise AnswerError(f"{where}.evidence.{kind} is no array of objects, which this name is kept for")
    action = _one_of(Action, item.get("action", Action.RESCHEDULE), f"{where}.action", tuple(Action))
    action = action if severity is Severity.ERROR else Action.CONTINUE
    return Finding(item["code"], item["message"], severity, item.get("hint", ""), action, evidence)


def _demand(found: Mapping[str, Any], kinds: Mapping[str, type], where: str, *, wanted: tuple[str, ...]) -> None:
    """Raise when a key is missing, unknown, or of another type."""
    missing = [key for key in wanted if not found.get(key)]
    if missing:
        raise AnswerError(f"{where} has no {' and no '.join(missing)}")
    for key, value in found.items():
        if key not in kinds:
            raise AnswerError(f"{where} has an unknown key {key!r}, wanted only {', '.join(kinds)}")
        if not isinstance(value, kinds[key]):
            raise AnswerError(f"{key} of {where} is {_cut(json.dumps(value))}, wanted {WORDS[kinds[key]]}")


def _one_of(kind: type[Any], value: str, where: str, allowed: tuple[Any, ...]) -> Any:
    if value not in allowed:
        raise AnswerError(f"{where} is {value!r}, wanted one of {', '.join(allowed)}")
    return kind(value)
