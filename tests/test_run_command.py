"""run: a dry run is dry, and the timeline changes nothing about the training."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.lab

AGENT = (sys.executable, "-m", "trainer_agent")
# A preflight that fails at once.
BROKEN = {"TRAINER_AGENT_PREFLIGHT_CHECKS": "storage", "TRAINER_AGENT_PREFLIGHT_STORAGE": "/nowhere"}


def run(*words, **environ):
    """Run `trainer-agent run`; return exit code, standard output and standard error."""
    environ = {"PATH": "/usr/bin:/bin", **environ}
    done = subprocess.run([*AGENT, "run", *words], env=environ, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout, done.stderr


def events(stderr, *keys):
    return [tuple(json.loads(line).get(k) for k in keys) for line in stderr.splitlines() if line.startswith("{")]


def test_a_dry_run_takes_no_step(tmp_path):
    """It prints the command; nothing is checked, fetched or written."""
    timeline, report, output = (tmp_path / name for name in ("timeline", "report", "output"))
    fetching = {"STORAGE_URI": f"file://{tmp_path}/none", "OUTPUT_PATH": str(output)}
    environ = {**BROKEN, **fetching, "TRAINER_AGENT_PREFLIGHT_REPORT_FILE": str(report)}
    code, out, err = run("--dry-run", "--timeline", str(timeline), "--", "sh", "-c", "exit 3", **environ)
    assert (0, "sh -c 'exit 3'\n", []) == (code, out, events(err, "event"))
    assert [] == list(tmp_path.iterdir())


def test_a_dry_run_without_the_launch():
    """There is no command to print: that nothing was done must not look like a preflight that passed."""
    code, out, err = run("--dry-run", "--steps", "preflight", **BROKEN)
    assert (2, "") == (code, out)
    assert "--dry-run prints the command of the step launch, which is not among --steps." in err


def test_the_timeline(tmp_path):
    """Each step has a line, also the one that failed."""
    timeline = tmp_path / "timeline"
    code, _, err = run("--supervise", "--timeline", str(timeline), "--steps", "launch", "--", "sh", "-c", "exit 3")
    assert 3 == code, err
    lines = [json.loads(line) for line in timeline.read_text().splitlines()]
    assert [("launch", 3)] == [(line["step"], line["exit_code"]) for line in lines]


def test_a_timeline_that_cannot_be_written(tmp_path):
    """It is said before the first step, not after the last."""
    path = tmp_path / "none" / "timeline"
    code, out, err = run("--timeline", str(path), "--", "echo", "trained", **BROKEN)
    message = f"cannot write the timeline to {path}: No such file or directory"
    assert (30, "") == (code, out)
    assert [(message, "not-writable", "give a path on a writable volume")] == events(err, "event", "code", "hint")


def test_a_timeline_that_cannot_be_written_any_more(tmp_path):
    """Its volume may be gone when the training ends: that is no reason to end with another code."""
    path = tmp_path / "volume" / "timeline"
    path.parent.mkdir()
    script = f"rm -r {path.parent}; exit 3"
    code, _, err = run("--supervise", "--timeline", str(path), "--steps", "launch", "--", "sh", "-c", script)
    message = f"cannot write the timeline to {path}: No such file or directory"
    assert (3, ("warning", message, "not-writable")) == (code, events(err, "level", "event", "code")[-1])


@pytest.mark.parametrize("words", [("--launcher", "python"), ()])
def test_a_pod_of_a_plainml_job(words):
    """Nothing is injected there: with the launcher named, preflight and launch warn; without, the pod is stopped."""
    environ = {"HOSTNAME": "job-node-0-1", "TRAINER_AGENT_PREFLIGHT_CHECKS": "environment"}
    code, out, err = run("--steps", "preflight,launch", *words, "--", "echo", "trained", **environ)
    assert (0 if words else 30, "trained\n" if words else "") == (code, out), err
    assert ("pet-missing" in [code for (code,) in events(err, "code")]) == bool(words)
