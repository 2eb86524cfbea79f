"""launch: the real program, from its variables to what it becomes."""

import json
import os
import signal
import subprocess
import sys

import pytest
from supervised import STAY

from trainer_agent.commands.launch import find_torchrun, start
from trainer_agent.commands.launch_options import LaunchOptions
from trainer_agent.errors import FatalError
from trainer_agent.testing import FakeHost

pytestmark = pytest.mark.lab

AGENT = (sys.executable, "-m", "trainer_agent")
TORCH = {
    "PET_NNODES": "1",
    "PET_NPROC_PER_NODE": "1",
    "PET_MASTER_ADDR": "no.such.host.invalid",
    "PET_MASTER_PORT": "29500",
}


def launch(*words, **environ):
    """Run `trainer-agent launch`; return exit code, standard output and the log's lines."""
    environ = {"PATH": "/usr/bin:/bin", **environ}
    done = subprocess.run([*AGENT, "launch", *words], env=environ, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def events(stderr, *keys):
    return [tuple(json.loads(line).get(k) for k in keys) for line in stderr.splitlines() if line.startswith("{")]


@pytest.fixture
def torchrun():
    return " ".join(find_torchrun(sys.executable, {"PATH": "/usr/bin:/bin"}))


@pytest.mark.parametrize(
    "environ, words, command",
    [
        (TORCH, ("train.py", "a b"), "{torchrun} --standalone --nproc-per-node 1 train.py 'a b'"),
        ({}, ("train.py", "--help"), f"{sys.executable} train.py --help"),
        ({}, ("--python", "/opt/py", "--", "-m", "pkg"), "/opt/py -m pkg"),
        (
            {},
            ("--launcher", "torchrun", "--nproc", " 1 ", "--", "t.py"),
            "{torchrun} --standalone --nproc-per-node 1 t.py",
        ),
        ({"TRAINER_AGENT_LAUNCH_LAUNCHER": "python", **TORCH}, ("t.py",), f"{sys.executable} t.py"),
        (
            {"TRAINER_AGENT_LAUNCH_NPROC": "cpu", **TORCH},
            ("--nproc", "1", "t.py"),
            "{torchrun} --standalone --nproc-per-node 1 t.py",
        ),
        ({}, ("sh", "-c", "exit 3"), "sh -c 'exit 3'"),
    ],
)
def test_dry_run(torchrun, environ, words, command):
    """The command is printed and not run; options win over variables, and the script's options are its own."""
    code, out, _ = launch("--dry-run", *words, **environ)
    assert (0, command.replace("{torchrun}", torchrun) + "\n") == (code, out)


def test_the_file_of_accelerate_config_counts(tmp_path):
    """Where accelerate would find one, its distributed_type is left alone."""
    words = ("--dry-run", "--", "accelerate", "launch", "--num_processes", "2", "t.py")
    before = launch(*words, **TORCH, HF_HOME=str(tmp_path))[1]
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "default_config.yaml").touch()
    after = launch(*words, **TORCH, HF_HOME=str(tmp_path))[1]
    assert (True, before.replace(" --multi_gpu", "")) == (" --multi_gpu" in before, after)


@pytest.mark.parametrize("launcher, code", [("python", 0), ("auto", 30)])
def test_a_pod_of_a_plainml_job(launcher, code):
    """Nothing is injected there; who names the launcher is only warned, and the hint of the error names it."""
    got, out, err = launch("--launcher", launcher, "--", "echo", "trained", HOSTNAME="job-node-0-1")
    assert (code, "" if code else "trained\n") == (got, out)
    found, hint = events(err, "code", "hint")[0]
    assert ("pet-missing", True) == (found, "--launcher python" in hint)


def test_who_names_python_waits_for_no_tracker(tmp_path):
    """The script may have none, or listen elsewhere."""
    (tmp_path / "xgboost-3.2.0.dist-info").mkdir()
    (tmp_path / "xgboost-3.2.0.dist-info" / "METADATA").write_text("Name: xgboost\nVersion: 3.2.0\n")
    job = {"NUM_WORKER": "2", "TASK_ID": "1", "TRACKER_URI": "127.0.0.1", "TRACKER_PORT": "9"}
    environ = {f"DMLC_{name}": value for name, value in job.items()} | {"PYTHONPATH": str(tmp_path)}
    words = ("--launcher", "python", "--rendezvous-timeout", "3", "--", "echo", "trained")

    assert (0, "trained\n") == launch(*words, **environ)[:2]


def test_dry_run_waits_for_nobody():
    """A name that does not exist is no obstacle to printing a command."""
    code, out, _ = launch("--dry-run", "t.py", **{**TORCH, "PET_NNODES": "2"})
    place = "--nnodes 2 --node-rank 0 --master-addr no.such.host.invalid --master-port 29500 --rdzv-conf timeout=900"
    assert (0, f"{place} --nproc-per-node 1 t.py\n") == (code, out.partition(" ")[2])


def test_all_contradictions_are_logged(tmp_path):
    """Every finding is one line with its code and hint, the first one last with the exit code."""
    log = tmp_path / "termination-log"
    environ = {**TORCH, "PET_NNODES": "x", "PET_NODE_RANK": "²"}
    code, out, err = launch("--termination-log", str(log), "t.py", **environ)
    nnodes = "PET_NNODES='x' is neither a number of nodes (1 or more) nor a range MIN:MAX"
    rank = "PET_NODE_RANK='²' is not a whole number"
    expected = [(rank, "not-an-integer", None), (nnodes, "nnodes-invalid", 30)]
    assert (30, "", expected) == (code, out, events(err, "event", "code", "exit_code"))
    hint = "set PET_NNODES to a number such as 2, or to a range such as 1:4 for an elastic job"
    facts = {"exit_code": 30, "code": "nnodes-invalid", "reason": f"{nnodes}; {rank}", "hint": hint}
    assert facts == json.loads(log.read_text())


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", "²", "9" * 5000, " "])
def test_a_number_of_processes_that_is_none(value):
    """--nproc is checked like its variable, and named in the message."""
    code, out, err = launch("--nproc", value, "t.py")
    message = f"--nproc={value.strip()!r} is neither auto, cpu, gpu nor a number of 1 or more"
    assert (30, "", [(message, "give a number such as 8")]) == (code, out, events(err, "event", "hint"))


@pytest.mark.parametrize(
    "words, complaint",
    [
        ((), "Missing argument 'SCRIPT...'."),
        (
            ("--grace", "nan", "t.py"),
            "Invalid value for '--grace' (env var: 'TRAINER_AGENT_LAUNCH_GRACE'): nan is not a number of seconds.",
        ),
        (("--rendezvous-timeout", "inf", "t.py"), "inf is not a number of seconds."),
        (("--rendezvous-timeout", "0", "t.py"), "0.0 is not in the range x>=1."),
        (
            ("--launcher", "mpi", "t.py"),
            "'mpi' is not one of 'auto', 'accelerate', 'tune', 'mpirun', 'torchrun', 'xgboost', 'jax', 'python'.",
        ),
        (("--nope", "t.py"), "No such option"),
    ],
)
def test_wrong_usage(words, complaint):
    """What the command line cannot mean is a usage error with exit code 2."""
    code, out, err = launch(*words)
    assert (2, "", True) == (code, out, complaint in " ".join(err.split()))


def test_wrong_usage_by_a_variable():
    """An option that a variable sets wrongly names the variable."""
    code, _, err = launch("t.py", TRAINER_AGENT_LAUNCH_GRACE="soon")
    assert (2, True) == (code, "TRAINER_AGENT_LAUNCH_GRACE" in err)


def test_exec():
    """The program is replaced, so the command's output and exit code are its own."""
    code, out, err = launch("--launcher", "python", "--", "-c", "import sys; print(sys.argv[1:]); sys.exit(42)", "a b")
    assert (42, "['a b']\n", [("launching", False)]) == (code, out, events(err, "event", "supervised"))


@pytest.fixture
def own_signals():
    """Give back what the program sets just before exec."""
    kept = {signum: signal.getsignal(signum) for signum in (signal.SIGPIPE, signal.SIGXFSZ)}
    yield
    for signum, handler in kept.items():
        signal.signal(signum, handler)


@pytest.mark.usefixtures("own_signals")
def test_what_reaches_exec(mocker, tmp_path):
    """The command and its whole environment: torch's variables are gone, OMP_NUM_THREADS is there."""
    options = LaunchOptions(
        launcher="torchrun",
        nproc="1",
        nproc_policy="fix",
        allow_cpu_fallback=False,
        rendezvous_timeout=900.0,
        supervise=False,
        grace=25.0,
        keep_pet_env=False,
        python="/no/python",
        termination_log=None,
        dry_run=False,
    )
    exec_ = mocker.spy(os, "execvpe")

    with pytest.raises(FatalError, match="cannot start '/no/python'"):
        start(options, ("train.py",), {**TORCH, "PATH": "/nowhere", "MINE": "1"}, FakeHost(tmp_path, cpus=3))

    argv = ("/no/python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", "train.py")
    env = {"PATH": "/nowhere", "MINE": "1", "OMP_NUM_THREADS": "3"}
    assert [mocker.call("/no/python", argv, env)] == exec_.call_args_list


def test_exec_hands_on_no_ignored_signals():
    """Python ignores SIGPIPE and SIGXFSZ; a shell that inherits that cannot undo it."""
    _, out, _ = launch("grep", "SigIgn", "/proc/self/status")
    ignored = int(out.split()[1], 16)
    assert [] == [s for s in (signal.SIGPIPE, signal.SIGXFSZ) if ignored & 1 << (s - 1)]


@pytest.mark.parametrize("mode", ["--exec", "--supervise"])
def test_a_command_that_cannot_start(tmp_path, mode):
    """Both ways end with the same message, also in the termination log."""
    log = tmp_path / "termination-log"
    code, _, err = launch(mode, "--termination-log", str(log), "no-such-command")
    message = "cannot start 'no-such-command': No such file or directory"
    assert (30, (message, "command-not-started")) == (code, events(err, "event", "code")[-1])
    assert message == json.loads(log.read_text())["reason"]


def test_supervise_passes_success(tmp_path):
    """A run that succeeds leaves no termination message."""
    log = tmp_path / "termination-log"
    code, out, err = launch("--supervise", "--termination-log", str(log), "echo", "hello")
    assert (0, "hello\n", ("training ended", 0, "finished")) == (
        code,
        out,
        events(err, "event", "exit_code", "reason")[-1],
    )
    assert not log.exists()


def test_supervise_tells_why(tmp_path):
    """The termination message has code, reason, host and the last words, without secrets."""
    log = tmp_path / "termination-log"
    script = "raise SystemExit('no access with s3cr3t-value')"
    environ = {"HF_TOKEN": "s3cr3t-value", "HOSTNAME": "pod-1"}
    words = ("--supervise", "--termination-log", str(log), "--", "-c", script)
    code, _, err = launch(*words, **environ)
    expected = {
        "exit_code": 1,
        "reason": "the command exited with code 1 on pod-1",
        "host": "pod-1",
        "error": "no access with ***",
    }
    assert (1, expected) == (code, json.loads(log.read_text()))
    assert "no access with s3cr3t-value\n" in err  # the script's own output is its own


def test_supervise_stops_in_time(tmp_path):
    """SIGTERM reaches the command, and the exit code is that of the signal although the command said 1."""
    log = tmp_path / "termination-log"
    script = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(1)); print(flush=True); "
    script += STAY
    words = [*AGENT, "launch", "--supervise", "--termination-log", str(log), "--", "-c", script]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, env={"PATH": "/bin", "HOSTNAME": "pod-1"}, **pipes) as agent:
        agent.stdout.readline()
        agent.send_signal(signal.SIGTERM)
        agent.communicate(timeout=60)
    expected = {"exit_code": 143, "reason": "stopped by SIGTERM", "host": "pod-1"}
    assert (143, expected) == (agent.returncode, json.loads(log.read_text()))


def test_a_secret_that_a_shell_would_quote():
    """The command is shown as one could type it; quotes would hide a secret from who looks for it."""
    secret = "it's-s3cr3t"
    code, out, err = launch("--exec", "--", "echo", secret, HF_TOKEN=secret)
    assert (0, f"{secret}\n", [("echo '***'",)]) == (code, out, events(err, "command"))


TORCHRUN = """#!/bin/sh
echo "$TMPDIR" > tmpdir
echo '{"message": "boom"}' > "$TORCHELASTIC_ERROR_FILE"
exit 1
"""


@pytest.fixture
def failing_torchrun(tmp_path, monkeypatch):
    """Return the options for a torchrun whose rank writes an error file."""
    (tmp_path / "torchrun").write_text(TORCHRUN)
    (tmp_path / "torchrun").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    return ("--supervise", "--launcher", "torchrun", "--nproc", "1", "--python", str(tmp_path / "python"), "t.py")


def test_the_error_file_of_the_user(failing_torchrun, tmp_path):
    """Whoever names one finds there what the rank wrote."""
    path = tmp_path / "error.json"
    code, _, _ = launch(*failing_torchrun, TORCHELASTIC_ERROR_FILE=str(path))
    assert (1, {"message": "boom"}) == (code, json.loads(path.read_text()))


def test_an_error_file_that_cannot_be_written(failing_torchrun):
    """The run's own result counts, the log only warns."""
    code, _, err = launch(*failing_torchrun, TORCHELASTIC_ERROR_FILE="/no/such/file")
    message = "cannot write a rank's error to TORCHELASTIC_ERROR_FILE=/no/such/file: No such file or directory"
    assert (1, True) == (code, ("warning", message) in events(err, "level", "event"))


def test_a_termination_log_that_cannot_be_written(tmp_path):
    """The run's own result counts, the log only warns."""
    path = tmp_path / "no/such/folder"
    code, _, err = launch("--supervise", "--termination-log", str(path), "false")
    message = f"cannot write the termination message to {path}: No such file or directory"
    assert (1, ("warning", message)) == (code, events(err, "level", "event")[-1])


def test_a_master_that_never_comes():
    """The wait is bounded and ends with the code for `retry`."""
    code, _, err = launch("--rendezvous-timeout", "1", "t.py", **{**TORCH, "PET_NNODES": "2"})
    assert (20, ("master-name-missing", 20)) == (code, events(err, "code", "exit_code")[-1])


def test_a_signal_while_waiting():
    """SIGTERM ends our own code with 143, also before anything was launched."""
    environ = {"PATH": "/bin", **TORCH, "PET_NNODES": "2"}
    with subprocess.Popen([*AGENT, "launch", "t.py"], env=environ, stderr=subprocess.PIPE) as agent:
        agent.stderr.readline()  # the number of processes is logged just before the wait
        agent.send_signal(signal.SIGTERM)
        assert (143, b"") == (agent.wait(timeout=60), agent.stderr.read())


def test_find_torchrun(tmp_path):
    """torchrun beside the chosen Python comes first, then PATH, then the module."""
    (tmp_path / "venv").mkdir()
    (tmp_path / "path").mkdir()
    python = str(tmp_path / "venv/python")
    environ = {"PATH": f":/no/such:{tmp_path / 'path'}"}
    assert (python, "-m", "torch.distributed.run") == find_torchrun(python, environ)
    (tmp_path / "path/torchrun").touch(mode=0o755)
    assert (str(tmp_path / "path/torchrun"),) == find_torchrun(python, environ)
    (tmp_path / "venv/torchrun").touch(mode=0o755)
    assert (str(tmp_path / "venv/torchrun"),) == find_torchrun(python, environ)


def test_a_command_that_ends_well_when_it_is_told_to_has_not_finished():
    """A job that was preempted must not look as if it were done."""
    script = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.05 & wait $!; done"
    words = (*AGENT, "launch", "--supervise", "--", "sh", "-c", script)
    with subprocess.Popen(words, env={"PATH": "/usr/bin:/bin"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout.readline() == b"ready\n"
        run.terminate()
        _, err = run.communicate(timeout=60)
    assert 143 == run.returncode
    assert ("training ended", "stopped by SIGTERM") in events(err.decode(), "event", "reason")
