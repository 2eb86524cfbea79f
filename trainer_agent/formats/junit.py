"""The report as JUnit XML, for the test pages of Jenkins, GitLab and others: one test case for each check."""

from __future__ import annotations

import json
from typing import Any

from trainer_agent.formats.markup import Markup, element, only_ascii
from trainer_agent.formats.reading import MEANINGS, findings_of

OUTCOMES = {"fail": "failure", "error": "error", "skip": "skipped"}


def write(data: dict[str, Any], *, colour: bool = False) -> str:
    """Return one suite; a warning is a success whose output says what was found."""
    statuses = [c["status"] for c in data["checks"]]
    counts = {
        "tests": len(statuses),
        "failures": statuses.count("fail"),
        "errors": statuses.count("error"),
        "skipped": statuses.count("skip"),
        "time": f"{data['duration_s']:.3f}",
    }
    suite = element(
        "testsuite",
        _properties(data),
        *(part for c in data["checks"] for part in ("\n", _case(c, rank=data["node"]["rank"]))),
        name="trainer-agent preflight",
        **counts,
        timestamp=data["started_at"][:19],  # Jenkins' schema has neither fractions nor a zone
        hostname=data["node"]["hostname"],
    )
    suites = element("testsuites", suite, name="trainer-agent", **counts)
    return only_ascii(f'<?xml version="1.0" encoding="UTF-8"?>\n{suites}\n')


def _properties(data: dict[str, Any]) -> Markup:
    suspects = [f"{s['kind']} {s['id']}: {s['reason']}" for s in data["suspects"]]
    facts = [
        ("schema", data["schema"]),
        ("verdict", data["verdict"]),
        ("meaning", MEANINGS[data["verdict"]]),
        ("exit_code", data["exit_code"]),
        ("action", data["action"]),
        *(("suspect", s) for s in suspects),
        *data["versions"].items(),
    ]
    return element("properties", *(element("property", name=n, value=v) for n, v in facts))


def _case(check: dict[str, Any], *, rank: int) -> Markup:
    """Return one test case; named after the rank, as names of pods change and would end its history."""
    return element(
        "testcase",
        _outcome(check),
        classname=f"trainer-agent.preflight.node-{rank}",
        name=check["name"],
        time=f"{check['duration_s']:.3f}",
    )


def _outcome(check: dict[str, Any]) -> Markup:
    outcome = OUTCOMES.get(check["status"])
    if outcome == "skipped":
        return element(outcome, message=check["message"])
    text = "\n".join([check["message"], *(line for f in findings_of(check) for line in _lines(f)), *_measured(check)])
    if outcome is None:
        return element("system-out", text)
    kind = next((f["code"] for f in findings_of(check)), "check-broke" if outcome == "error" else check["name"])
    return element(outcome, text, message=check["message"], type=kind)


def _lines(finding: dict[str, Any]) -> list[str]:
    hint = [f"  -> {finding['hint']}"] if finding["hint"] else []
    evidence = [f"  evidence: {json.dumps(finding['evidence'])}"] if finding["evidence"] else []
    return [f"{finding['severity']}: {finding['message']} [{finding['code']}]", *hint, *evidence]


def _measured(check: dict[str, Any]) -> list[str]:
    return [f"{name}: {json.dumps(value)}" for name, value in check["measurements"].items()]
