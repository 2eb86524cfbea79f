"""The table of models, and thresholds that a site sets otherwise."""

import json
import re
from pathlib import Path

import pytest
from nvml_checks import context_of, run_on
from nvml_machines import h100_sxm

from preflight_checks._gpu_models import MODELS, NAMES, UNKNOWN, VARIABLE, Thresholds, in_force, model_of, thresholds
from preflight_checks.gpu_link import gpu_link
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
        ("/nothing", f"{VARIABLE}=/nothing cannot be read within 3 s, wanted a readable file or a JSON"),
        ('{"idle": 5}', f"{VARIABLE} has 'idle', wanted models or one of "),
        ('{"idle_c": "hot"}', f"{VARIABLE} has idle_c='hot', wanted a number of 0 or more"),
        ('{"idle_c": true}', f"{VARIABLE} has idle_c=True, wanted a number of 0 or more"),
        ('{"idle_c": -1}', f"{VARIABLE} has idle_c=-1, wanted a number of 0 or more"),
        ('{"idle_c": NaN}', f"{VARIABLE} has idle_c=nan, wanted a number of 0 or more"),
        ("{", f"{VARIABLE} is no JSON ("),
        ('{"models": []}', f"{VARIABLE} has models=[], wanted an object of names"),
        ('{"models": {"H20": 5}}', f"{VARIABLE} has =5 for the model 'H20', wanted a number after one of links, "),
        (
            '{"models": {"H20": {"link": 5}}}',
            f"{VARIABLE} has link=5 for the model 'H20', wanted a number after one of ",
        ),
        (
            '{"models": {"H20": {"links": 5}}}',
            f"{VARIABLE} has links=5 for the model 'H20', wanted an array of one number or more",
        ),
        (
            '{"models": {"H20": {"links": []}}}',
            f"{VARIABLE} has links=[] for the model 'H20', wanted an array of one number or more",
        ),
        ('{"models": {"H20": {"links": [1.5]}}}', f"{VARIABLE} has links=[1.5] for the model 'H20', wanted an array"),
        ('{"models": {"H20": {"ecc": 1}}}', f"{VARIABLE} has ecc=1 for the model 'H20', wanted true or false"),
        (
            '{"models": {"H20": {"memory_gbps": "fast"}}}',
            f"{VARIABLE} has memory_gbps='fast' for the model 'H20', wanted",
        ),
    ],
)
def test_thresholds_that_make_no_sense(tmp_path, text, message):
    """They are refused by name; nothing falls back in silence."""
    with pytest.raises(FatalError) as caught:
        thresholds(context_of(tmp_path, {VARIABLE: text}))

    assert caught.value.message.startswith(message)


def test_models_from_the_environment(tmp_path):
    """A new one, by its whole name; and one of ours, whose other numbers stay."""
    told = {"H20 (96GB)": {"links": [18], "pcie": True}, "H200": {"matmul_tflops": 700, "ecc": False}}
    models = thresholds(context_of(tmp_path, {VARIABLE: json.dumps({"models": told})})).models

    new, ours = model_of("NVIDIA H20 (96GB)", models), model_of("NVIDIA H200", models)
    assert ((18,), None) == (new.links, new.memory_gbps)
    assert ((18,), 700, 4800, False) == (ours.links, ours.matmul_tflops, ours.memory_gbps, ours.ecc)
    assert UNKNOWN is model_of("NVIDIA H20", models)


@pytest.mark.parametrize("name", ["H100 80GB HBM3", "NVIDIA H100 80GB HBM3"])
def test_a_model_may_be_called_as_nvml_does(tmp_path, name):
    told = {VARIABLE: json.dumps({"models": {name: {"links": [12]}}})}

    assert (12,) == model_of("NVIDIA H100 80GB HBM3", thresholds(context_of(tmp_path, told)).models).links


def test_a_check_judges_by_the_models_of_the_environment(nvml_standin, tmp_path):
    """With one link less than ours has, eight healthy boards have nothing wrong; with one more, all have."""
    codes = {}
    for links in (17, 18, 19):
        environ = {VARIABLE: json.dumps({"models": {"H100 80GB HBM3": {"links": [links]}}})}
        outcome = run_on(nvml_standin, h100_sxm(), [gpu_link], tmp_path, environ=environ)["gpu-link"]
        codes[links] = [(f.code, len(f.evidence["gpus"])) for f in outcome.findings]

    assert {17: [], 18: [], 19: [("nvlink-down", 8)]} == codes


def test_they_are_told_with_their_origin(tmp_path):
    told = {"idle_c": 60, "models": {"H100 NVL": {"links": [12]}}}
    context = context_of(tmp_path, {VARIABLE: json.dumps(told)})

    found = in_force(("idle_c", "fabric_s"), context, of_models="links")

    assert {"value": 60, "origin": VARIABLE} == found["idle_c"]
    assert {"value": 50.0, "origin": "default"} == found["fabric_s"]
    assert {"value": "12", "origin": VARIABLE} == found["links of H100 NVL"]
    assert {"value": "0 or 12", "origin": "NVIDIA's data sheets"} == found["links of H100 PCIe"]
    assert "links of V100-PCIE-*GB" in found


def test_a_file_holds_an_object(tmp_path):
    (tmp_path / "list.json").write_text("[]")

    with pytest.raises(FatalError, match="holds a list"):
        thresholds(context_of(tmp_path, {VARIABLE: "/list.json"}))


def test_the_documentation_has_every_threshold():
    """With its default."""
    text = (Path(__file__).parents[2] / "docs" / "checks.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+_\w+)` \| ([0-9.]+) \|", text, re.MULTILINE))

    assert {name: getattr(Thresholds(), name) for name in NAMES} == {name: float(value) for name, value in rows.items()}
