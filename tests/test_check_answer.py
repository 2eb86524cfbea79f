"""check_answer: what a program of --checks-dir may print, and the words for every mistake in it."""

import json

import pytest

from trainer_agent.check import Skip, Status
from trainer_agent.check_answer import AnswerError, read_answer
from trainer_agent.errors import Action, Severity


@pytest.mark.parametrize(
    "answer, status, found",
    [
        ({"message": "m"}, Status.PASS, []),
        ({"message": "m", "status": "pass"}, Status.PASS, []),
        ({"message": "m", "status": "warn"}, Status.WARN, [("it", Severity.WARNING, Action.CONTINUE)]),
        ({"message": "m", "status": "fail"}, Status.FAIL, [("it", Severity.ERROR, Action.RESCHEDULE)]),
        (
            {"message": "m", "findings": [{"code": "a", "message": "b", "action": "stop"}]},
            Status.FAIL,
            [("a", Severity.ERROR, Action.STOP)],
        ),
        (
            {"message": "m", "findings": [{"code": "a", "message": "b", "severity": "warning", "action": "stop"}]},
            Status.WARN,
            [("a", Severity.WARNING, Action.CONTINUE)],
        ),
        (
            {"message": "m", "status": "pass", "findings": [{"code": "a", "message": "b", "severity": "info"}]},
            Status.PASS,
            [("a", Severity.INFO, Action.CONTINUE)],
        ),
    ],
)
def test_the_status_may_be_said_or_left_to_the_findings(answer, status, found):
    outcome = read_answer("it", f"\n{json.dumps(answer)}\n\n")

    assert (status, found) == (outcome.status, [(f.code, f.severity, f.action) for f in outcome.findings])


def test_a_skip_needs_a_reason_and_no_findings():
    with pytest.raises(Skip, match="no widgets here"):
        read_answer("it", '{"status": "skip", "message": "no widgets here"}')


def finding(**more):
    return json.dumps({"message": "m", "findings": [{"code": "a", "message": "b", **more}]})


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "it printed nothing, wanted one JSON object"),
        ("OK", "it printed 'OK', wanted one JSON object; anything else goes to standard error"),
        ('looking…\n{"message": "m"}', 'it printed \'looking…\\n{"message": "m"}\', wanted one JSON object; anything'),
        ('{"message": "m"} done', "it printed 'done' after the JSON object, wanted one object and nothing else"),
        ('{"message": "m"}\n{"message": "n"}', "it printed a second JSON value after the JSON object"),
        ("[]", "it printed '[]', wanted one JSON object"),
        ("x" * 100, f"it printed '{'x' * 60}…', wanted one JSON object"),
        ('{"message": "m",}', "it printed no valid JSON: "),
        ('{"message": "m"', "it printed no valid JSON: "),
        ('{"a":' * 100_000, "it printed no valid JSON: "),
        ('{"message": "m\ufffd"}', "it printed bytes that are not UTF-8"),
        ("{}", "the object has no message"),
        ('{"message": ""}', "the object has no message"),
        ('{"message": 5}', "message of the object is 5, wanted a string"),
        ('{"message": "m", "finding": []}', "the object has an unknown key 'finding', wanted only message, status, "),
        ('{"message": "m", "findings": {}}', "findings of the object is {}, wanted an array"),
        ('{"message": "m", "findings": ["low"]}', 'findings[0] is "low", wanted an object'),
        ('{"message": "m", "measurements": [1]}', "measurements of the object is [1], wanted an object"),
        ('{"message": "m", "measurements": {"x": NaN}}', "NaN is no number of JSON"),
        ('{"message": "m", "measurements": {"x": -Infinity}}', "-Infinity is no number of JSON"),
        ('{"message": "m", "measurements": {"x": 1e999}}', "1e999 is too large a number"),
        ('{"message": "m", "status": "ok"}', "status is 'ok', wanted one of pass, warn, fail, skip"),
        ('{"message": "m", "status": "error"}', "status is 'error', wanted one of pass, warn, fail, skip"),
        (finding(code="Low"), "findings[0].code is 'Low', wanted kebab-case such as disk-worn"),
        (finding(code=""), "findings[0] has no code"),
        (finding(message=""), "findings[0] has no message"),
        (finding(severity="bad"), "findings[0].severity is 'bad', wanted one of info, warning, error"),
        (finding(action="reboot"), "findings[0].action is 'reboot', wanted one of continue, retry, reschedule, stop"),
        (finding(colour="red"), "findings[0] has an unknown key 'colour', wanted only code, message"),
        (finding(evidence=5), "evidence of findings[0] is 5, wanted an object"),
        (finding(evidence={"gpus": 5}), "findings[0].evidence.gpus is no array of objects"),
        (finding(evidence={"nics": ["mlx5_0"]}), "findings[0].evidence.nics is no array of objects"),
        ('{"status": "pass", ' + finding()[1:], "its status is pass, and its findings make it fail"),
        ('{"status": "skip", ' + finding()[1:], "its status is skip, and its findings make it fail"),
    ],
)
def test_every_mistake_in_an_answer_is_named(text, message):
    with pytest.raises(AnswerError) as caught:
        read_answer("it", text)

    assert message in str(caught.value)
