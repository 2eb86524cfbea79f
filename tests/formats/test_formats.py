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
def test_every_form_can_be_printed_whatever_it_says(name, hostile):
    """Bytes that are no text, which Python stands in for, would end printing with an error."""
    assert writer(name)(hostile, colour=False).encode("utf-8").endswith(b"\n")


@pytest.mark.parametrize("name", [n for n in FORMATS if n != "json"])
@pytest.mark.parametrize("damage", DAMAGES, ids=str)
def test_every_form_refuses_damage_in_the_same_way(name, damage, data):
    """`report` turns these errors into one that names the file."""
    with pytest.raises((LookupError, TypeError, ValueError, AttributeError)):
        writer(name)({**data, **damage})


def test_json_is_the_report_itself(data):
    assert data == json.loads(writer("json")(data))
