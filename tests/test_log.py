"""log: one line for each event on standard error, without secrets, without rich."""

import io
import json
import os
import select
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from trainer_agent import log

SECRET = "s3cr3t-value"


class Terminal(io.StringIO):
    """A standard error that is a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def logged(capsys):
    """Return what went to standard error; standard output carries only what was asked for."""

    def read():
        captured = capsys.readouterr()
        assert captured.out == ""
        return captured.err

    yield read
    log.structlog.reset_defaults()


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def test_json_lines(logged):
    """Where nobody watches, each event is one JSON object with its level and a UTC time."""
    log.configure({})
    log.get_logger().info("hello", number=1, path=None)
    log.get_logger().warning("über")
    found = lines(logged())
    assert all(line.pop("timestamp").endswith("Z") for line in found)
    expected = [
        {"event": "hello", "level": "info", "number": 1, "path": None},
        {"event": "über", "level": "warning"},
    ]
    assert expected == found


def test_console(logged):
    """`console` is readable without colours where there is no terminal."""
    log.configure({}, form="console")
    log.get_logger().info("hello", number=1)
    assert "[info     ] hello number=1\n" == logged()[9:]


@pytest.mark.parametrize("form, coloured", [("auto", True), ("console", True), ("json", False)])
def test_a_terminal_has_colours(monkeypatch, logged, form, coloured):
    """On a terminal `auto` is the coloured console."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    log.configure({}, form=form)
    log.get_logger().info("hello")
    assert coloured == ("\x1b[" in sys.stderr.getvalue())


def test_a_terminal_without_colours(monkeypatch, logged):
    """NO_COLOR leaves the console readable and takes its colours."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    log.configure({"NO_COLOR": "1"})
    log.get_logger().info("hello")
    assert "[info     ] hello\n" == sys.stderr.getvalue()[9:]


def refuse():
    raise ValueError(f"no access with {SECRET}")


class Odd:
    """Something that only has a repr."""

    def __repr__(self):
        return f"<odd {SECRET}>"


@pytest.mark.parametrize("form", ["json", "console"])
def test_secrets_are_masked(logged, form):
    """No value of a secret variable appears: not in the event, not in nested values, not in what only has a repr."""
    log.configure({"HF_TOKEN": SECRET}, form=form)
    values = {"text": f"a {SECRET}", "nested": [{"k": SECRET}, (SECRET,)], "odd": Odd(), "error": ValueError(SECRET)}
    log.get_logger().info(f"got {SECRET}", **values)
    text = logged()
    assert (0, 6) == (text.count(SECRET), text.count("***"))


@pytest.mark.parametrize("form", ["json", "console"])
def test_tracebacks_are_masked(logged, form):
    """A traceback shows messages and source lines, which may hold secrets too."""
    log.configure({"HF_TOKEN": SECRET}, form=form)
    try:
        refuse()
    except ValueError:
        log.get_logger().exception("broke")
    text = logged()
    assert "ValueError: no access with ***" in text
    assert SECRET not in text


def test_what_is_no_secret_stays_as_it_is(logged):
    """Numbers stay numbers and lists stay lists."""
    log.configure({"HF_TOKEN": SECRET})
    log.get_logger().info("x", number=1.5, flag=True, items=[1, "a"], table={"a": None})
    found = lines(logged())[0]
    assert {"number": 1.5, "flag": True, "items": [1, "a"], "table": {"a": None}}.items() <= found.items()


def test_bytes_that_are_no_text(logged):
    """A variable with invalid UTF-8 can be logged."""
    log.configure({})
    log.get_logger().info("got \udcff")
    assert "got \udcff" == lines(logged())[0]["event"]


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_line_that_cannot_be_written(form):
    """A full disk is nobody's end, neither now nor when the program ends."""
    code = "import sys; from trainer_agent import log; log.configure({}, form=sys.argv[1]); "
    code += "[log.get_logger().info('x' * 5000) for _ in range(9)]; print('goes on')"
    with Path("/dev/full").open("w") as full:
        words = [sys.executable, "-c", code, form]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=full, text=True, check=False)
    assert (0, "goes on\n") == (done.returncode, done.stdout)


def test_a_file_that_wants_no_waiting():
    """Somebody else has made the pipe so; no line is torn because its reader is slow."""
    code = "import os; os.set_blocking(2, False); from trainer_agent import log; log.configure({}); "
    code += "[log.get_logger().info('x' * 9000) for _ in range(20)]; print('done', flush=True)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as slow:
        time.sleep(0.5)
        assert ["x" * 9000] * 20 == [line["event"] for line in lines(slow.stderr.read().decode())]
    assert 0 == slow.returncode


@contextmanager
def unread(code, *, blocking):
    """Run a program whose standard error has a pipe that nobody reads; yield it, and the pipe's other end."""
    read, write = os.pipe()
    os.set_blocking(write, blocking)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": write}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as program, os.fdopen(read) as stderr:
        os.close(write)
        try:
            yield program, stderr
        finally:
            program.kill()


@pytest.mark.parametrize("blocking", [True, False])
def test_a_reader_who_does_not_read(blocking):
    """He is waited for once, whatever else there is to say, and again after he has read."""
    code = "import time; from trainer_agent import log; log.configure({}); line = log.get_logger().info; "
    code += "[line('x' * 4000) for _ in range(30)]; print(end='x', flush=True); input(); line('read'); print(end='y')"
    with unread(code, blocking=blocking) as (program, stderr):
        assert [program.stdout] == select.select([program.stdout], [], [], 10)[0]
        held = os.read(stderr.fileno(), 1 << 20)
        program.stdin.write(b"\n")
        program.stdin.close()
        assert b"xy" == program.stdout.read()
        assert {"x" * 4000} == {line["event"] for line in lines(held.decode())}
        assert ["read"] == [line["event"] for line in lines(stderr.read())]


@pytest.mark.parametrize("blocking", [True, False])
def test_a_line_that_is_given_up_halfway(blocking):
    """The next one is a line of its own; where nothing was torn, there is no empty line."""
    code = "from trainer_agent import log; log.PATIENCE_S = 0.1; log.configure({}); line = log.get_logger().info; "
    code += "[line(c * 20000) for c in 'abcde']; print(end='x', flush=True); input(); line('read'); line('on')"
    with unread(code, blocking=blocking) as (program, stderr):
        assert b"x" == program.stdout.read(1)
        held = os.read(stderr.fileno(), 1 << 20).decode()
        program.communicate(b"\n", timeout=10)
        *whole, torn, read_, on = (held + stderr.read()).split("\n")[:-1]
    assert ["a" * 20000, "b" * 20000, "c" * 20000, "read", "on"] == [
        json.loads(line)["event"] for line in (*whole, read_, on)
    ]
    assert '"event": "ddd' in torn


def test_rich_is_never_imported(tmp_path):
    """structlog imports rich where it is installed; that costs 40 ms for tracebacks that we do not print."""
    (tmp_path / "rich.py").write_text("raise SystemExit('rich was imported')")
    code = "import sys, trainer_agent.log; print('rich' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert ("False\n", "", 0) == (done.stdout, done.stderr, done.returncode)
