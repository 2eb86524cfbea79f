"""`trainer-agent report` as a process, in every form, into a file and on a terminal."""

import json
import os
import pty
import subprocess
import sys
from xml.etree import ElementTree as ET

import pytest

from trainer_agent.formats import FORMATS, writer


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A report of a node that is to stop, saved by the program itself."""
    path = tmp_path_factory.mktemp("saved") / "report.json"
    argv = [sys.executable, "-m", "trainer_agent", "preflight", "--checks", "environment,limits"]
    environ = {"PET_NNODES": "0", "TRAINER_AGENT_PREFLIGHT_REPORT_FILE": str(path)}
    subprocess.run(argv, env=environ, capture_output=True, timeout=30, check=False)
    return path


@pytest.fixture
def report(saved):
    def run(*arguments, **environ):
        argv = [sys.executable, "-m", "trainer_agent", "report", str(saved), *arguments]
        return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=30, check=False)

    return run


@pytest.mark.parametrize("name", FORMATS)
def test_every_form(report, saved, name):
    """What goes to a file is what the form says, without colours, whatever the encoding where it can be avoided."""
    environ = {"PYTHONIOENCODING": "ascii"} if name in ("junit", "html") else {}

    done = report("--output", name, **environ)

    assert (0, "", writer(name)(json.loads(saved.read_text()))) == (done.returncode, done.stderr, done.stdout)


def test_text_is_the_default_and_a_variable_can_choose(report):
    assert report().stdout == report("--output", "text").stdout
    assert "failure" == ET.fromstring(report(TRAINER_AGENT_REPORT_OUTPUT="junit").stdout).find(".//testcase")[0].tag


@pytest.mark.parametrize("name", [n for n in FORMATS if n != "text"])
def test_preflight_prints_the_same_forms(saved, name):
    """Straight from the checks, as CI wants it; only times and durations differ from run to run."""
    argv = [sys.executable, "-m", "trainer_agent", "preflight", "--checks", "environment", "--output", name]

    done = subprocess.run(argv, env={"PET_NNODES": "0"}, capture_output=True, text=True, timeout=30, check=False)

    first = {"json": '{\n  "schema"', "junit": '<?xml version="1.0"', "html": "<!DOCTYPE html>"}[name]
    assert (30, True) == (done.returncode, done.stdout.startswith(first))
    assert "nnodes-invalid" in done.stdout


@pytest.mark.parametrize("name", [n for n in FORMATS if n != "json"])
def test_a_damaged_file_is_an_error_without_a_traceback(tmp_path, name):
    path = tmp_path / "report.json"
    path.write_text('{"schema": "trainer-agent.preflight/v1"}')
    argv = [sys.executable, "-m", "trainer_agent", "report", str(path), "--output", name]

    done = subprocess.run(argv, env={}, capture_output=True, text=True, timeout=30, check=False)

    assert (30, "") == (done.returncode, done.stdout)
    assert "report-damaged" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["text", "html"])
def test_a_damaged_gang_is_such_an_error_too(saved, tmp_path, name):
    """Though all that older reports have is there."""
    path = tmp_path / "report.json"
    path.write_text(json.dumps({**json.loads(saved.read_text()), "gang": {"summary": "s"}}))
    argv = [sys.executable, "-m", "trainer_agent", "report", str(path), "--output", name]

    done = subprocess.run(argv, env={}, capture_output=True, text=True, timeout=30, check=False)

    assert (30, "") == (done.returncode, done.stdout)
    assert "report-damaged" in done.stderr
    assert "KeyError: 'attempt'" in done.stderr
    assert "Traceback" not in done.stderr


def on_terminal(saved, **environ):
    """Return what the program writes to a real terminal."""
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-m", "trainer_agent", "report", str(saved)]
    subprocess.run(argv, env={"TERM": "xterm", **environ}, stdout=theirs, timeout=30, check=True)
    os.close(theirs)
    written = os.read(ours, 65536).decode()
    os.close(ours)
    return written.replace("\r\n", "\n")


def test_a_terminal_gets_colours_unless_it_asks_for_none(saved):
    data = json.loads(saved.read_text())

    assert writer("text")(data, colour=True) == on_terminal(saved)
    assert writer("text")(data, colour=False) == on_terminal(saved, NO_COLOR="1")
