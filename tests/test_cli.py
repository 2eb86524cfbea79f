"""The command line: its table, its help, and an exit code for everything that can happen."""

import json
import os
import signal
import subprocess
import sys
import types
from pathlib import Path

import click
import pytest
import structlog

from trainer_agent import __version__, cli
from trainer_agent.errors import ConfigurationError, FatalError, Finding, RetryError, Terminated

AGENT = (sys.executable, "-m", "trainer_agent")


@pytest.fixture(autouse=True)
def _own_log():
    """Take the log back that the command line made for a standard error of a test."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def command(monkeypatch):
    """Put a command `stand-in` into the table that does what the test says."""

    def install(function):
        module = types.ModuleType("stand_in")
        module.stand_in = click.command()(function)
        monkeypatch.setitem(sys.modules, "stand_in", module)
        monkeypatch.setitem(cli.COMMANDS, "stand-in", ("stand_in:stand_in", "Stand in."))
        return lambda: cli.run(["stand-in"])

    return install


def raising(error):
    def function():
        raise error

    return function


def run(*words, stdout=subprocess.PIPE, **environ):
    environ = {"PATH": os.environ["PATH"], **environ}
    return subprocess.run([*AGENT, *words], env=environ, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)


def test_help_lists_all_commands():
    """The table is shown in its order, with what each command does."""
    done = run("--help")
    listed = done.stdout.partition("Commands:\n")[2]
    names = [line.split()[0] for line in listed.splitlines() if line.startswith("  ") and line[2] != " "]
    assert (0, "", list(cli.COMMANDS)) == (done.returncode, done.stderr, names)
    assert [True] * len(cli.COMMANDS) == [s in " ".join(listed.split()) for _, s in cli.COMMANDS.values()]


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_has_help(name, capsys):
    """Each entry of the table can be imported and explains itself."""
    assert 0 == cli.run([name, "--help"])
    out, err = capsys.readouterr()
    assert (f"Usage: trainer-agent {name}", "") == (out[: len(f"Usage: trainer-agent {name}")], err)


def test_version():
    """The version goes to standard output."""
    done = run("--version")
    assert (0, f"trainer-agent, version {__version__}\n", "") == (done.returncode, done.stdout, done.stderr)


def test_nothing_asked_for():
    """Without a command the help is shown, and the exit code is that of wrong usage."""
    done = run()
    assert (2, "", True) == (done.returncode, done.stdout, "Commands:" in done.stderr)


@pytest.mark.parametrize(
    "word, more",
    [
        ("lunch", " Did you mean 'launch'?"),
        ("prefligth", " Did you mean 'preflight'?"),
        ("xyz", f" There are: {', '.join(cli.COMMANDS)}."),
        ("", f" There are: {', '.join(cli.COMMANDS)}."),
    ],
)
def test_a_misspelt_command(word, more, capsys):
    """The nearest command is suggested, or all are named."""
    assert 2 == cli.run([word])
    out, err = capsys.readouterr()
    assert ("", f"Error: There is no command {word!r}.{more}\n") == (out, err[err.index("Error:") :])


@pytest.mark.parametrize("words", [["--nope"], ["--log-format", "xml", "checks"], ["checks", "a", "b"]])
def test_wrong_usage(words, capsys):
    """click's own complaints end with 2 and standard output stays empty."""
    assert (2, "") == (cli.run(words), capsys.readouterr().out)


@pytest.mark.parametrize("result, code", [(None, 0), (0, 0), (10, 10), (42, 42)])
def test_results_of_commands(command, result, code):
    """A command's number is the exit code, nothing is success."""
    assert code == command(lambda: result)()


@pytest.mark.parametrize(
    "error, code",
    [
        (click.UsageError("no"), 2),
        (click.exceptions.Exit(5), 5),
        (click.Abort(), 130),
        (KeyboardInterrupt(), 130),
        (Terminated(15), 143),
        (Terminated(2), 130),
        (RetryError("x", "y"), 20),
        (FatalError("x", "y"), 30),
        (RuntimeError("a bug"), 70),
        (OSError("a disk"), 70),
        (BrokenPipeError(32, "Broken pipe"), 141),
    ],
)
def test_exit_codes_of_errors(command, error, code, monkeypatch):
    """Everything that can be raised has its exit code."""
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # click replaces both after a broken pipe
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    assert code == command(raising(error))()


def test_an_error_is_one_line(command, capsys):
    """Message, code, hint and exit code, and no traceback."""
    command(raising(RetryError("some-code", "it is 1, wanted 2", hint="do this")))()
    out, err = capsys.readouterr()
    line = json.loads(err)
    line.pop("timestamp")
    expected = {"event": "it is 1, wanted 2", "code": "some-code", "hint": "do this", "exit_code": 20, "level": "error"}
    assert ("", expected) == (out, line)


def test_a_configuration_error_is_a_line_for_each_finding(command, capsys):
    """All findings are logged, the first one last, where it is read."""
    findings = [Finding("one", "1 is wrong", hint="set 2"), Finding("two", "3 is wrong", hint="set 4")]
    assert 30 == command(raising(ConfigurationError(findings)))()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    expected = [("3 is wrong", "two", "set 4", None), ("1 is wrong", "one", "set 2", 30)]
    assert expected == [(x["event"], x["code"], x["hint"], x.get("exit_code")) for x in lines]


def test_a_bug_has_its_traceback_in_the_log(command, capsys):
    """A bug of ours is one JSON line with the traceback, the version and what to do."""
    assert 70 == command(raising(ZeroDivisionError("a bug")))()
    line = json.loads(capsys.readouterr().err)
    assert ("bug", __version__, 70) == (line["code"], line["version"], line["exit_code"])
    assert line["exception"].endswith("ZeroDivisionError: a bug")


def test_the_last_door_needs_a_command_that_imports(monkeypatch, capsys):
    """A command whose module is broken is a bug, not a missing command."""
    monkeypatch.setitem(cli.COMMANDS, "stand-in", ("no_such_module:x", "Stand in."))
    assert 70 == cli.run(["stand-in"])
    assert "no_such_module" in "".join(capsys.readouterr())


@pytest.mark.parametrize("words", [("--help",), ("explain",)])
def test_a_broken_pipe(words):
    """`| head` ends us quietly with the shell's code for SIGPIPE."""
    read, write = os.pipe()
    os.close(read)
    done = run(*words, stdout=write)
    os.close(write)
    assert (141, "") == (done.returncode, done.stderr)


@pytest.mark.parametrize("signum, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_in_our_own_code(tmp_path, signum, code):
    """Ctrl-C and SIGTERM end our own work with 128 + n and without a traceback."""
    fifo = tmp_path / "report.json"
    os.mkfifo(fifo)  # reading the report waits until somebody writes one
    # Opening the other end returns when the agent has opened its own.
    with subprocess.Popen([*AGENT, "report", str(fifo)], stderr=subprocess.PIPE) as agent, fifo.open("w"):
        agent.send_signal(signum)
        assert (code, b"") == (agent.wait(timeout=60), agent.stderr.read())


def test_a_signal_before_the_command_line_is_there(tmp_path):
    """While click is imported, too, SIGTERM ends us with 143 and without a traceback."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "click.py").write_text("import os; open(os.environ['FIFO']).read()")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "FIFO": str(fifo)}
    # Opening the other end returns when the import has opened its own.
    with subprocess.Popen([*AGENT, "checks"], env=environ, stderr=subprocess.PIPE) as agent, fifo.open("w"):
        agent.send_signal(signal.SIGTERM)
        assert (143, b"") == (agent.wait(timeout=60), agent.stderr.read())


@pytest.mark.parametrize("words", [("preflight",), ("run", "--", "true")])
def test_a_bad_value_names_its_variable(words):
    """It may be set in a runtime far away; the command line needs no such word."""
    by_variable = run(*words, TRAINER_AGENT_PREFLIGHT_TIMEOUT="60s")
    by_option = run("preflight", "--timeout", "60s")

    message = "Error: Invalid value for '--timeout': '60s' is not a valid seconds"
    assert (2, f"{message} (from TRAINER_AGENT_PREFLIGHT_TIMEOUT).") == (
        by_variable.returncode,
        by_variable.stderr.splitlines()[-1],
    )
    assert f"{message}." == by_option.stderr.splitlines()[-1]


def test_output_that_the_terminal_cannot_show():
    """An argument with bytes that are no UTF-8 is shown, not an error."""
    done = run("explain", "--", "/x/\udcff.sh", PYTHONIOENCODING="utf-8:strict")
    assert (0, "") == (done.returncode, done.stderr)
    assert r"runs: '/x/\udcff.sh'" == done.stdout.splitlines()[-1]


def test_the_log_format_of_a_variable(tmp_path):
    """TRAINER_AGENT_LOG_FORMAT chooses, the command line wins."""
    path = str(tmp_path / "no.json")
    console = run("report", path, TRAINER_AGENT_LOG_FORMAT="console")
    lines = run("--log-format", "json", "report", path, TRAINER_AGENT_LOG_FORMAT="console")
    assert (30, 30) == (console.returncode, lines.returncode)
    assert (" [error    ]", "report-unreadable") == (console.stderr[8:20], json.loads(lines.stderr)["code"])


@pytest.mark.parametrize("word", ["checks", "--help", "--version"])
def test_a_full_disk_is_no_bug_of_ours(word):
    """Nobody can write to /dev/full: exit 20 and a message, not 70 and a traceback."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*AGENT, word], stdout=full, stderr=subprocess.PIPE, timeout=30, check=False)

    (line,) = done.stderr.splitlines()
    assert (20, "system-exhausted") == (done.returncode, json.loads(line)["code"])
