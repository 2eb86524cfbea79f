"""Somebody else's checks, installed as a distribution of their own, through the real program."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from marked import gone

from preflight_checks import CATALOGUE as OURS
from trainer_agent.catalogue import list_checks
from trainer_agent.commands.checks import explain, facts

pytestmark = pytest.mark.lab

EXAMPLES = Path(__file__).parents[1] / "examples"
PAGE = EXAMPLES.parent / "docs" / "writing-a-check.md"
CATALOGUE = """
CATALOGUE = {
    "acme-good": "acme_checks:good",
    "acme-raises": "acme_checks:raises",
    "acme-segfault": "acme_checks:segfault",
    "acme-hangs": "acme_checks:hangs",
    "acme-nonsense": "acme_checks:nonsense",
    "acme-undeclared": "acme_checks:undeclared",
    "acme-forks": "acme_checks:forks",
    "acme-prints": "acme_checks:prints",
    "acme-absent": "acme_checks:absent",
    "shm": "acme_checks:shm",
}
"""
SLOPPY = """
from trainer_agent.check import Outcome, check

def broken(context):
    raise KeyError("widgets")

@check("sloppy-deadline", rules=(), timeout_s=broken)
def deadline(context):
    '''Has it a deadline?'''
    return Outcome("fine")

@check("sloppy-thresholds", rules=(), thresholds=broken)
def thresholds(context):
    '''Has it thresholds?'''
    return Outcome("fine")

@check("sloppy-shape", rules=(), thresholds=lambda context: {"widgets": 3})
def shape(context):
    '''Are they what they should be?'''
    return Outcome("fine")

CATALOGUE = {f"sloppy-{name}": f"sloppy:{name}" for name in ("deadline", "thresholds", "shape")}
"""

CHECKS = '''
import ctypes, os, pathlib, signal
from trainer_agent.check import Context, Outcome, Rule, check
from trainer_agent.errors import Action, Finding

LOW = Rule("acme-low", "less than 3 widgets", "buy widgets", action=Action.RESCHEDULE, source="acme's manual")

@check("acme-good", rules=(LOW,))
def good(context: Context) -> Outcome:
    """Are there enough widgets?"""
    found = int(context.environ.get("WIDGETS", "3"))
    findings = () if found >= 3 else (LOW.found(f"{found} widgets, wanted 3"),)
    return Outcome(f"{found} widgets", findings, {"widgets": found})

@check("acme-raises", rules=())
def raises(context: Context) -> Outcome:
    """Does it raise?"""
    raise RuntimeError("disk on fire")

@check("acme-segfault", rules=())
def segfault(context: Context) -> Outcome:
    """Does it crash?"""
    ctypes.string_at(0)

@check("acme-hangs", rules=(), timeout_s=1.0)
def hangs(context: Context) -> Outcome:
    """Does it hang?"""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        signal.pause()

@check("acme-nonsense", rules=())
def nonsense(context: Context) -> Outcome:
    """Does it return what it should?"""
    return {"status": "fine"}

@check("acme-undeclared", rules=(LOW,))
def undeclared(context: Context) -> Outcome:
    """Does it find what it declares?"""
    return Outcome("found", (Finding("acme-other", "other"),))

@check("acme-forks", rules=(), timeout_s=60)
def forks(context: Context) -> Outcome:
    """Does it leave processes behind?"""
    if os.fork() == 0:
        pathlib.Path(os.environ["PID_FILE"]).write_text(str(os.getpid()))
    signal.pause()

@check("acme-prints", rules=())
def prints(context: Context) -> Outcome:
    """Does it print?"""
    print("a line of somebody else's")
    os.system("echo another")
    return Outcome("printed")

@check("shm", rules=())
def shm(context: Context) -> Outcome:
    """Is it ours?"""
    return Outcome("replaced")
'''


@pytest.fixture
def agent(tmp_path):
    """The program, in an environment where the distribution `acme` is installed."""
    install(tmp_path, "acme", "acme_list", acme_list=CATALOGUE, acme_checks=CHECKS)

    def run(*args, **environ):
        known = {"PYTHONPATH": str(tmp_path), "PID_FILE": str(tmp_path / "pid"), **environ}
        argv = [sys.executable, "-m", "trainer_agent", *args]
        return subprocess.run(
            argv, env={**os.environ, **known}, capture_output=True, text=True, timeout=60, check=False
        )

    return run


def install(folder, name, entry, **modules):
    """Lay out an installed distribution by hand: what pip would write, without a build."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[trainer_agent.checks]\n{name} = {entry}:CATALOGUE\n")
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text)


def checks_of(done):
    return {c["name"]: c for c in json.loads(done.stdout)["checks"]}


def test_it_is_listed_after_ours_with_its_question(agent):
    done = agent("checks")

    lines = done.stdout.splitlines()
    assert 0 == done.returncode
    assert ["acme-good", "Are there enough widgets? (acme)"] == lines[len(OURS)].split(maxsplit=1)
    assert ["shm", "Is /dev/shm large enough for the processes of this node?"] == lines[2].split(maxsplit=1)


def test_one_that_cannot_be_loaded_is_listed_with_the_reason(agent):
    (line,) = [line for line in agent("checks").stdout.splitlines() if line.startswith("acme-absent")]

    reason = "AttributeError: module 'acme_checks' has no attribute 'absent'"
    assert f"(check acme-absent (acme_checks:absent) cannot be loaded: {reason})" == line.split(maxsplit=1)[1]


def test_it_can_be_explained(agent):
    expected = """\
acme-good
  Are there enough widgets?

  provider  acme
  profile   quick and above
  deadline  5 s

can find:
  acme-low (error, reschedule)
    when      less than 3 widgets
    do        buy widgets
    source    acme's manual
"""
    assert expected == agent("checks", "acme-good").stdout


def test_it_can_be_explained_to_a_program(agent):
    (rule,) = json.loads(agent("checks", "acme-good", "--output", "json").stdout)["rules"]

    expected = {
        "code": "acme-low",
        "severity": "error",
        "when": "less than 3 widgets",
        "source": "acme's manual",
        "hint": "buy widgets",
        "action": "reschedule",
    }
    assert expected == rule


def test_all_of_them_are_listed_for_a_program(agent):
    """With the reason for those that cannot be loaded."""
    listed = {c["name"]: c for c in json.loads(agent("checks", "--output", "json").stdout)}

    assert [*OURS, "acme-good"] == list(listed)[: len(OURS) + 1]
    assert ("acme", True) == (listed["acme-absent"]["provider"], "cannot be loaded" in listed["acme-absent"]["error"])


@pytest.mark.parametrize(
    "name, deadline, broken",
    [
        ("sloppy-deadline", None, "its timeout_s gives KeyError: 'widgets'"),
        ("sloppy-thresholds", 5.0, "its thresholds gives KeyError: 'widgets'"),
        ("sloppy-shape", 5.0, "its thresholds gives TypeError: 'int' object is not subscriptable"),
    ],
)
def test_one_that_breaks_when_it_is_asked_is_explained_all_the_same(agent, tmp_path, name, deadline, broken):
    """It is no bug of ours, and the others are listed."""
    install(tmp_path, "sloppy", "sloppy", sloppy=SLOPPY)

    text, told, everything = agent("checks", name), agent("checks", name, "--output", "json"), agent("checks")

    assert (0, 0, 0) == (text.returncode, told.returncode, everything.returncode)
    assert broken in " ".join(text.stdout.split())
    facts = json.loads(told.stdout)
    assert (deadline, [broken], {}) == (facts["deadline_s"], facts["broken"], facts["thresholds"])
    assert 0 == agent("checks", "--output", "json").returncode


def test_thresholds_are_those_in_force_here(agent):
    """With what has set them."""
    done = agent("checks", "gpu-clocks", TRAINER_AGENT_GPU_THRESHOLDS='{"idle_c": 80}')

    expected = """\
thresholds in force here:
  throttled_fraction  0.5  default
  power_fraction      0.9  default
  idle_c              80   TRAINER_AGENT_GPU_THRESHOLDS
"""
    assert expected in done.stdout


def test_every_explanation_fits_a_terminal():
    """Of 80 columns, as far as a single word does."""
    for name, entry in list_checks().items():
        lines = explain(facts(entry)).splitlines()
        assert name == lines[0]
        assert [] == [line for line in lines if len(line) > 80 and len(line.split()) > 2]


@pytest.mark.parametrize("widgets, status, code", [("3", "pass", 0), ("2", "fail", 20)])
def test_it_runs_and_its_verdict_counts(agent, widgets, status, code):
    done = agent("preflight", "--checks", "acme-good", "--output", "json", WIDGETS=widgets)

    (check,) = json.loads(done.stdout)["checks"]
    assert (code, status, f"{widgets} widgets", {"widgets": int(widgets)}) == (
        done.returncode,
        check["status"],
        check["message"],
        check["measurements"],
    )


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Where pip has installed examples/check-package."""
    folder = tmp_path_factory.mktemp("template")
    shutil.copytree(EXAMPLES / "check-package", folder / "source")  # a build writes beside its source
    words = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", folder / "installed"]
    subprocess.run([sys.executable, "-m", "pip", *words, folder / "source"], timeout=100, check=True)
    return folder


def test_the_package_of_the_documentation_is_found_once_it_is_installed(template):
    argv = [sys.executable, "-m", "trainer_agent", "preflight", "--checks", "acme-widgets", "--output", "json"]
    environ = {**os.environ, "PYTHONPATH": str(template / "installed"), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60, check=False)

    found = checks_of(done)["acme-widgets"]
    assert (0, "skip", "this machine has no widgets") == (done.returncode, found["status"], found["message"])


def test_the_tests_of_its_template_pass(template):
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(template / "source")]
    environ = {**os.environ, "PYTHONPATH": str(template / "installed"), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(argv, env=environ, cwd=template, capture_output=True, text=True, timeout=60, check=False)

    assert (0, "2 passed") == (done.returncode, done.stdout.splitlines()[-1][:8]), done.stdout


def test_the_page_shows_the_files_of_the_templates():
    """Each code block that is more than an excerpt, as it stands in the repository."""
    files = [file.read_text() for folder in ("checks", "check-package") for file in (EXAMPLES / folder).glob("*.*")]
    blocks = re.findall(r"```(?:python|toml|sh)\n(.*?)```", PAGE.read_text(), re.DOTALL)

    assert sorted(files) == sorted(block for block in blocks if block.count("\n") > 1)


def test_the_commands_of_the_page_work(template):
    """All but pip, which the template has done already."""
    commands = re.findall(r"^\$ (.*)$", PAGE.read_text(), re.MULTILINE)
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": tools, "PYTHONPATH": str(template / "installed"), "SCRATCH_WANTED_MIB": "0"}
    run = [command for command in commands if not command.startswith("pip ")]

    done = [subprocess.run(c.split(), env=environ, cwd=EXAMPLES.parent, capture_output=True, check=False) for c in run]
    assert [0] * 5 == [d.returncode for d in done]


def test_it_cannot_replace_one_of_ours(agent):
    done = agent("preflight", "--checks", "shm", "--output", "json")

    assert "replaced" != checks_of(done)["shm"]["message"]
    (warning,) = [json.loads(line) for line in done.stderr.splitlines()]
    event = "a check with this name exists already, the later one is ignored"
    assert (event, "shm", "acme", "warning") == (
        warning["event"],
        warning["check"],
        warning["provider"],
        warning["level"],
    )


def test_a_package_that_does_not_import_takes_none_of_ours_away(agent, tmp_path):
    install(tmp_path, "broken", "broken_list", broken_list="raise RuntimeError('no licence')")

    done = agent("checks")

    assert (0, len(OURS) + 9) == (done.returncode, len(done.stdout.splitlines()))
    assert "RuntimeError('no licence')" in done.stderr


@pytest.mark.parametrize(
    "name, what",
    [
        ("acme-raises", "broke: RuntimeError: disk on fire"),
        ("acme-segfault", "broke: killed by SIGSEGV"),
        ("acme-hangs", "ran out of time: no answer within 1 s"),
        ("acme-nonsense", "broke: TypeError: it returned a dict, not an Outcome"),
        ("acme-undeclared", "broke: ValueError: it found ['acme-other'], which its rules do not declare"),
    ],
)
def test_whatever_it_does_is_reported_as_its_own_failure(agent, name, what):
    """An error is a warning for the job: it says nothing about the node, and the other checks run."""
    done = agent("preflight", "--checks", f"{name},acme-good", "--output", "json")

    found = checks_of(done)
    message = f"the check {what}. It says nothing about the node; --skip {name} leaves it out"
    assert (10, "error", message) == (done.returncode, found[name]["status"], found[name]["message"])
    assert "pass" == found["acme-good"]["status"]


def test_all_of_them_at_once_stay_within_the_budget_and_leave_nothing_running(agent, tmp_path):
    began = time.monotonic()
    done = agent("preflight", "--timeout", "2", "--output", "json", "--skip", "kube-api")
    seconds = time.monotonic() - began

    found = checks_of(done)
    broken = {name for name, c in found.items() if c["status"] == "error"}
    kinds = ("raises", "segfault", "hangs", "nonsense", "undeclared", "forks", "absent")
    assert {f"acme-{kind}" for kind in kinds} == broken
    assert {"acme-good": "pass", "storage": "pass"} == {n: found[n]["status"] for n in ("acme-good", "storage")}
    assert seconds < 2 + 20
    assert gone(int((tmp_path / "pid").read_text()))


def test_what_it_prints_is_not_in_the_report(agent):
    done = agent("preflight", "--checks", "acme-prints", "--output", "json")

    assert "pass" == checks_of(done)["acme-prints"]["status"]
    assert "a line of somebody else's" not in done.stdout


def test_a_check_with_a_traceback_logs_it_in_one_line(agent):
    done = agent("preflight", "--checks", "acme-raises", "--output", "json")

    lines = [json.loads(line) for line in done.stderr.splitlines()]
    (broke,) = [line for line in lines if line["event"] == "a check broke"]
    assert "RuntimeError: disk on fire" == broke["trace"].strip().splitlines()[-1]
