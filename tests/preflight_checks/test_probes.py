"""_probes: whatever a probe does, the answer is its JSON object or one line that says what went wrong."""

import ast
import os
import sys

import pytest

from preflight_checks._probes import FOLDER, NoTorchError, ProbeError, ask, ask_side_by_side
from trainer_agent.check import Options
from trainer_agent.testing import FakeHost, context_on

pytestmark = pytest.mark.lab

PATH = {"PATH": os.environ["PATH"]}


@pytest.fixture
def host(tmp_path):
    return FakeHost(tmp_path / "root")


@pytest.fixture
def probe(tmp_path):
    """Return a function that writes a probe and returns what `ask` wants to know of it."""

    def write(text):
        (tmp_path / "it_probe.py").write_text(text)
        return str(tmp_path / "it")

    return write


def context(host, python="", environ=PATH):
    return context_on(host, environ=environ, options=Options(python=python))


def test_the_answer_is_the_last_line(host, probe):
    echo = probe("import sys; print('warming up'); print(); print(sys.argv[1])")

    assert {"device": "cpu"} == ask(context(host), echo, {"device": "cpu"}, timeout_s=10)


def test_variables_are_set_and_removed(host, probe):
    tell = probe("import json, os; print(json.dumps({n: os.environ.get(n) for n in ('KEPT', 'SET', 'GONE')}))")
    environ = {"KEPT": "1", "GONE": "1", **PATH}

    answer = ask(context(host, environ=environ), tell, {}, environ={"SET": "2", "GONE": ""}, timeout_s=10)

    assert {"KEPT": "1", "SET": "2", "GONE": None} == answer


@pytest.mark.parametrize(
    "text, what",
    [
        ("1 / 0", "it ended with exit code 1: ZeroDivisionError: division by zero"),
        ("import os; os.abort()", "it was killed by signal 6"),
        ("import signal; signal.pause()", "no answer within 3 s"),
        ("import signal, sys; print('at: x', file=sys.stderr, flush=True); signal.pause()", "its last words: at: x"),
        ("print('warm')", r"it printed no JSON: 'warm\\n'"),
        ("print(5)", "it printed int, wanted an object"),
        ("", "it printed no JSON: ''"),
    ],
)
def test_a_probe_that_breaks_says_how(host, probe, text, what):
    with pytest.raises(ProbeError, match=what):
        ask(context(host), probe(text), {}, timeout_s=3 if "pause" in text else 60)


def test_a_probe_may_take_what_the_container_has_left(host, probe):
    host.put("/sys/fs/cgroup/cgroup.controllers", "cpu memory")
    host.put("/sys/fs/cgroup/memory.max", str(300 << 20))
    host.put("/sys/fs/cgroup/memory.current", str(100 << 20))
    greedy = probe("x = bytearray(190 << 20); import signal; signal.pause()")

    with pytest.raises(ProbeError, match="it took more than 180 MiB of memory"):
        ask(context(host), greedy, {}, timeout_s=10)


def test_a_python_without_torch_is_told_apart(host, tmp_path):
    """The probes' own `main`, in a Python that has nothing but its standard library."""
    (tmp_path / "it_probe.py").write_text("import probe_base; probe_base.main(lambda request: {})")
    (tmp_path / "probe_base.py").write_text((FOLDER / "probe_base.py").read_text())
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)

    with pytest.raises(NoTorchError, match="has no torch: No module named 'torch'"):
        ask(context(host, python=str(bare)), str(tmp_path / "it"), {}, timeout_s=10)


def test_a_torch_that_does_not_load_is_a_broken_probe(host, tmp_path):
    (tmp_path / "it_probe.py").write_text("import probe_base; probe_base.main(lambda request: {})")
    (tmp_path / "probe_base.py").write_text((FOLDER / "probe_base.py").read_text())
    (tmp_path / "torch.py").write_text("import libtorch_that_is_not_here")

    with pytest.raises(ProbeError, match="exit code 1: ModuleNotFoundError: No module named 'libtorch"):
        ask(context(host), str(tmp_path / "it"), {}, timeout_s=10)


def test_a_python_that_is_not_there_names_the_option(host, probe):
    with pytest.raises(ProbeError, match="/no/python cannot be started: No such file or directory; --python names"):
        ask(context(host, python="/no/python"), probe(""), {}, timeout_s=5)


def test_side_by_side_one_that_breaks_leaves_the_others_alone(host, probe):
    text = "import json, os; print(json.dumps({'gpu': 6 // int(os.environ['GPU'])}))"
    requests = [({}, {"GPU": gpu}) for gpu in "102"]

    first, second, third = ask_side_by_side(context(host), probe(text), requests, timeout_s=10)

    assert ({"gpu": 6}, {"gpu": 3}) == (first, third)
    assert "it ended with exit code 1: ZeroDivisionError: integer division or modulo by zero" == str(second)


@pytest.mark.parametrize("file", sorted(set(FOLDER.glob("*.py")) - {FOLDER / "__init__.py"}), ids=lambda p: p.name)
def test_a_probe_is_for_any_python(file):
    """Its syntax is that of 3.8, and its name hides no module that torch imports: it lies where Python looks first."""
    ast.parse(file.read_text(), feature_version=(3, 8))

    assert file.name.endswith("_probe.py") or file.name.startswith("probe_")


def test_how_a_probe_was_killed_comes_along(host, probe):
    """Also from side by side, where each has a process of its own."""
    text = "import signal, sys; print('at: copies', file=sys.stderr, flush=True); signal.pause()"

    (late,) = ask_side_by_side(context(host), probe(text), [({}, {})], timeout_s=2)

    assert (True, "at: copies\n", -9) == (late.ended.timed_out, late.ended.stderr, late.ended.code)
