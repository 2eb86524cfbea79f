"""The probes of single GPUs with the real torch, on the CPU: exactness, every wrong bit, time boxes, CUDA's words."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from nvml_checks import context_of

from preflight_checks._probes import ask

pytestmark = pytest.mark.lab

PATH = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def facts():
    """What one process with torch found out; importing it takes longer than all of the work."""
    script = Path(__file__).with_name("gpu_probe_facts.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100, check=True)
    return json.loads(done.stdout)


def test_no_row_counts_beyond_the_type_of_the_result(facts):
    """256 in bfloat16 and 2048 in float16, for inner sides of 1000, 3000 and 256; as many as fit otherwise."""
    assert {
        "bf16": [250, 250, 256],
        "fp16": [1000, 1500, 256],
        "tf32": [1000, 3000, 256],
        "fp32": [1000, 3000, 256],
        "fp8": [250, 250, 256],
        "int8": [1000, 3000, 256],
    } == facts["dense"]


def test_a_right_product_is_right(facts):
    """Also where no side is a multiple of anything."""
    assert {kind: [[], [], []] for kind in ("bf16", "fp16", "tf32", "fp32", "int8")} == facts["clean"]


def test_the_order_of_the_sum_does_not_matter(facts):
    """Even when every step is rounded to 8 or 11 bits: there is nothing to round."""
    assert [True, True] == facts["orders"]


def test_every_single_wrong_bit_is_found(facts):
    """With its place, and what was wanted there and found."""
    assert {"bf16": [True] * 16, "fp16": [True] * 16, "fp32": [True] * 32} == facts["bits"]


@pytest.mark.parametrize(
    "name, expected",
    [
        ("nan", ["product", 1]),
        ("infinite", ["product", 1]),
        ("fraction", ["product", 1]),
        ("tiny", ["product", 1]),
        ("cancelling", ["product", 2]),
        ("rows", "product"),
    ],
)
def test_other_wrong_numbers_are_found(facts, name, expected):
    """Those that integers cannot hold or a sum would swallow, two that cancel out, and a whole wrong row."""
    assert expected == facts[name]


def test_a_device_that_only_checks_wrong_is_wrong(facts):
    """The CPU finds the product right; the sums of the device are not."""
    assert {"what": "checksum", "rows": 1} == facts["checksum"]


def test_repetitions_are_compared_with_the_first_right_one(facts):
    assert [[], ["product", "product"], ["comparison"]] == facts["repetitions"]


def test_one_gpu_at_a_time_copies_from_the_host(facts):
    assert "one" == facts["turns"]


def test_a_box_of_time_ends_what_is_slow(facts):
    """Nothing without time; more than the least when fast; three times the box when slow."""
    none, many, few = facts["boxed"]

    assert (0, True) == (none, many)
    assert few < 50


def test_cuda_errors_are_told_from_mistakes(facts):
    """By type, by number, and by the beginning of their text, in the order of gpu_probe_facts.ERRORS."""
    assert [
        ["failed", None],
        ["failed", None],
        ["memory", None],
        ["memory", None],
        ["not-ready", 802],
        ["not-ready", None],
        ["mismatch", 803],
        ["mismatch", None],
        ["mismatch", None],
        ["failed", None],
        ["failed", None],
        ["memory", None],
        None,
        None,
        ["memory", None],
        ["mismatch", None],
        ["mismatch", None],
        ["mismatch", None],
        None,
    ] == facts["errors"]


def test_integers_on_the_cpu(tmp_path):
    answer = ask(context_of(tmp_path, PATH), "cuda", {"device": "cpu", "numbers": 1000}, timeout_s=60)

    assert (None, 1000) == (answer["wrong"], answer["numbers"])


def test_products_on_the_cpu(tmp_path):
    cases = [["bf16", 64, 48, 1000], ["fp32", 33, 65, 77]]
    request = {"device": "cpu", "cases": cases, "repeat": 2, "size": 128, "box_s": 0.05, "least": 20}
    answer = ask(context_of(tmp_path, PATH), "gemm", request, timeout_s=60)

    assert ([], {}) == (answer["wrong"], answer["not_done"])
    assert answer["verified"] > 4
    assert answer["products"] >= 20


def test_copies_on_the_cpu(tmp_path):
    sizes = {"memory_bytes": 1 << 20, "host_bytes": 1 << 18, "box_s": 0.02, "host_box_s": 0.02, "turn_s": 5}
    answer = ask(context_of(tmp_path, PATH), "bandwidth", {"device": "cpu", **sizes}, timeout_s=60)

    assert ({}, 1 << 20, 1 << 18) == (answer["not_done"], answer["memory_bytes"], answer["host_bytes"])
    assert min(answer["memory_gbps"], answer["h2d_gbps"], answer["d2h_gbps"]) > 0
