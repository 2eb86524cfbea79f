"""formats: the table leads to writers that keep the same promises."""

import json

import pytest

from trainer_agent.formats import FORMATS, writer

DAMAGES = [
    {"node": []},
    {"checks": 1},
    {"checks": [{"name": "a", "status": "odd", "action": "stop", "message": "", "findings": []}]},
    {"suspects": [1]},
    {"duration_s": "x"},
    {"verdict": None},
]


@pytest.mark.parametrize("name", FORMATS)
def test_every_form_ends_its_last_line(name, data):
    assert writer(name)(data, colour=False).endswith("\n")


@pytest.mark.parametrize("name", FORMATS)
def test_every_form_can_be_printed_whatever_it_says(name, hostile, hostile_gang):
    """Bytes that are no text, which Python stands in for, would end printing with an error."""
    assert writer(name)({**hostile, "gang": hostile_gang}, colour=False).encode("utf-8").endswith(b"\n")


@pytest.mark.parametrize("name", [n for n in FORMATS if n != "json"])
@pytest.mark.parametrize("damage", DAMAGES, ids=str)
def test_every_form_refuses_damage_in_the_same_way(name, damage, data):
    """`report` turns these errors into one that names the file."""
    with pytest.raises((LookupError, TypeError, ValueError, AttributeError)):
        writer(name)({**data, **damage})


@pytest.mark.parametrize("name", ["text", "html"])
@pytest.mark.parametrize("damage", [{"nodes": 1}, {"summary": None}, {"blame": "me"}, {"pairs": [{"a": 0}]}], ids=str)
def test_a_damaged_gang_is_refused_in_the_same_way(name, damage, data, gang):
    with pytest.raises((LookupError, TypeError, ValueError)):
        writer(name)({**data, "gang": {**gang, **damage}})


def test_of_a_gang_junit_has_what_the_checks_found(data, gang):
    assert writer("junit")(data) == writer("junit")({**data, "gang": gang})


def test_json_is_the_report_itself(data):
    assert data == json.loads(writer("json")(data))
