"""The table of models, and thresholds that a site sets otherwise."""

import re
from dataclasses import asdict
from pathlib import Path

import pytest
from nvml_checks import context_of

from preflight_checks._gpu_models import MODELS, UNKNOWN, VARIABLE, Thresholds, model_of, thresholds
from trainer_agent.errors import FatalError


@pytest.mark.parametrize(
    "name, links",
    [
        ("NVIDIA A100-SXM4-80GB", (12,)),
        ("A100-SXM4-40GB", (12,)),
        ("NVIDIA A100 80GB PCIe", (0, 12)),
        ("NVIDIA H100 80GB HBM3", (18,)),
        ("NVIDIA H100 NVL", (0, 12)),
        ("NVIDIA H200", (18,)),
        ("NVIDIA H200 NVL", (0, 18)),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA GB200", (18,)),
        ("NVIDIA L4", (0,)),
        ("NVIDIA L40S", (0,)),
        ("Tesla T4", (0,)),
        ("Tesla V100-SXM2-32GB", None),
        ("NVIDIA GeForce RTX 4090", None),
        ("NVIDIA RTX 6000 Ada Generation", None),
    ],
)
def test_a_name_is_known_as_a_whole(name, links):
    assert links == model_of(name).links
    assert model_of(name) in MODELS


@pytest.mark.parametrize("name", ["NVIDIA H200X", "NVIDIA H20", "", "Graphics Device"])
def test_a_part_of_a_name_is_not_enough(name):
    """`GH200` is no H200."""
    assert UNKNOWN is model_of(name)


def test_thresholds_from_the_environment_and_from_a_file(tmp_path):
    file = tmp_path / "etc" / "thresholds.json"
    file.parent.mkdir()
    file.write_text('{"idle_c": 60}')

    assert Thresholds() == thresholds(context_of(tmp_path))
    assert Thresholds(idle_c=80) == thresholds(context_of(tmp_path, {VARIABLE: ' {"idle_c": 80}'}))
    assert Thresholds(idle_c=60) == thresholds(context_of(tmp_path, {VARIABLE: "/etc/thresholds.json"}))


@pytest.mark.parametrize(
    "text, message",
    [
        ("/nothing", f"{VARIABLE}=/nothing cannot be read, wanted a readable file or a JSON object"),
        ('{"idle": 5}', f"{VARIABLE} has 'idle', wanted one of "),
        ('{"idle_c": "hot"}', f"{VARIABLE} has idle_c='hot', wanted a number of 0 or more"),
        ('{"idle_c": true}', f"{VARIABLE} has idle_c=True, wanted a number of 0 or more"),
        ('{"idle_c": -1}', f"{VARIABLE} has idle_c=-1, wanted a number of 0 or more"),
        ('{"idle_c": NaN}', f"{VARIABLE} has idle_c=nan, wanted a number of 0 or more"),
        ("{", f"{VARIABLE} is no JSON ("),
    ],
)
def test_thresholds_that_make_no_sense(tmp_path, text, message):
    """They are refused by name; nothing falls back in silence."""
    with pytest.raises(FatalError) as caught:
        thresholds(context_of(tmp_path, {VARIABLE: text}))

    assert caught.value.message.startswith(message)


def test_a_file_holds_an_object(tmp_path):
    (tmp_path / "list.json").write_text("[]")

    with pytest.raises(FatalError, match="holds a list"):
        thresholds(context_of(tmp_path, {VARIABLE: "/list.json"}))


def test_the_documentation_has_every_threshold():
    """With its default."""
    text = (Path(__file__).parents[2] / "docs" / "checks.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+_\w+)` \| ([0-9.]+) \|", text, re.MULTILINE))

    assert asdict(Thresholds()) == {name: float(value) for name, value in rows.items()}
