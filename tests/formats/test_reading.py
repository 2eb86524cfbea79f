"""reading: what comes first for people, and text without traps."""

import pytest

from trainer_agent.formats.reading import MEANINGS, cause, counted, findings_of, visible
from trainer_agent.policy import Verdict


@pytest.mark.parametrize(
    "left, name, code",
    [
        ("environment shm gpu-count gpu-memory gpu-link gpu-clocks cuda", "gpu-memory", "gpu-memory-errors"),
        ("environment shm gpu-count gpu-link gpu-clocks cuda", "cuda", None),
        ("environment gpu-count gpu-link gpu-clocks", "gpu-link", "link-slow"),
    ],
)
def test_the_cause(data, left, name, code):
    """A failure before a check that broke, which has no finding, before a warning."""
    check, finding = cause({"checks": [c for c in data["checks"] if c["name"] in left.split()]})

    assert (name, code) == (check["name"], finding and finding["code"])


def test_a_broken_gpu_is_looked_at_before_a_wrong_configuration(data):
    """Though the configuration decides the verdict: the GPU can be its reason, and never the other way round."""
    starved = {"code": "cpu-starved", "severity": "error", "message": "1 CPU, wanted 8", "hint": "more", "evidence": {}}
    wrong = {**data["checks"][1], "name": "cgroup", "status": "fail", "action": "stop", "findings": [starved]}
    (broken,) = [c for c in data["checks"] if c["name"] == "gpu-memory"]

    assert wrong is cause({"checks": [broken, wrong]})[0]
    broken["findings"][0]["evidence"] = {"gpus": [{"index": 5}]}
    assert broken is cause({"checks": [wrong, broken]})[0]


def test_where_nothing_is_wrong_there_is_no_cause(data):
    assert cause({"checks": [c for c in data["checks"] if c["status"] in ("pass", "skip")]}) is None


def test_counts_and_order(data):
    """Statuses by weight, findings by severity."""
    mixed = [{"severity": severity} for severity in ("info", "error", "warning")]

    assert ("1 fail, 1 error, 2 warn, 2 pass, 1 skip", "") == (counted(data["checks"]), counted([]))
    assert [mixed[1], mixed[2], mixed[0]] == findings_of({"findings": mixed})


def test_control_characters_become_visible():
    assert ("ü 日本", r"\x1b[2J\n\u202e", "a\nb\\t") == (
        visible("ü 日本"),
        visible("\x1b[2J\n\u202e"),
        visible("a\nb\t", keep="\n"),
    )


def test_every_verdict_has_a_meaning():
    assert [str(v) for v in Verdict] == list(MEANINGS)
