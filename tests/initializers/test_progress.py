"""Whoever looks sees how far a fetch is, and nothing that was logged gets lost over it."""

import contextlib
import io
import os
import pty
import re
import sys
import threading

import pytest
from structlog.testing import capture_logs

from trainer_agent.initializers.progress import EVERY_S, Progress
from trainer_agent.log import configure, get_logger, structlog

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
TOKEN = re.compile(r"\x1b\[(?P<number>[0-9;?]*)(?P<letter>[A-Za-z])|(?P<control>[\r\n])|(?P<text>[^\x1b\r\n]+)")


class Terminal:
    """A pseudo-terminal that remembers what was written to it."""

    def __init__(self):
        self.master, slave = pty.openpty()
        self.file = os.fdopen(slave, "w", buffering=1)
        self.raw = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        with contextlib.suppress(OSError):  # EIO is how Linux says that a terminal was closed
            while data := os.read(self.master, 65536):
                self.raw += data

    def close(self):
        """Return all that was written."""
        self.file.close()
        self._reader.join()
        os.close(self.master)
        return self.raw.decode()


def screen(raw):
    """Return the lines that stand on a terminal after all that was written."""
    rows, row, column = [""], 0, 0
    for token in TOKEN.finditer(raw):
        if token["control"] == "\n":
            row += 1
            rows += [""] * (row + 1 - len(rows))
        elif token["control"] == "\r":
            column = 0
        elif token["letter"] == "A":
            row -= int(token["number"] or 1)
        elif token["letter"] == "K":
            rows[row] = ""
        elif token["text"]:
            rows[row] = rows[row][:column].ljust(column) + token["text"] + rows[row][column + len(token["text"]) :]
            column += len(token["text"])
    return [text.rstrip() for text in rows]


@pytest.fixture
def on_terminal(monkeypatch):
    """Return a function that runs another with standard error on a terminal, and returns what came there."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    before = structlog.get_config()

    def run(function, *, form="console"):
        terminal = Terminal()
        try:
            with contextlib.redirect_stderr(terminal.file):
                configure({}, form=form)
                function()
        finally:
            raw = terminal.close()
        return raw

    yield run
    structlog.configure(**before)


def fetch(*, log=()):
    """Pretend to fetch ten megabytes in seven files, with a few lines in the log."""
    pause = threading.Event()
    with Progress(size=10_000_000, files=7) as progress:
        for step in range(8):
            progress.update(moved=step * 1_400_000, files=step, streams=4)
            for line in log:
                get_logger().warning(line, step=step)
            pause.wait(0.02)
        progress.update(moved=10_000_000, files=7, streams=4)


def test_a_terminal_gets_a_bar(on_terminal):
    """With bytes, rate, time left and files; it is gone at the end."""
    raw = on_terminal(fetch)

    last = raw.rpartition("10.0/10.0 MB")[2]
    assert re.search(r"\d+(\.\d+)? (kB|MB|GB)/s", last)
    assert "0:00:00" in last
    assert "7/7 files" in last
    assert [] == [line for line in screen(raw) if line]


def test_the_log_stands_above_the_bar(on_terminal):
    """Every line is whole, in its order, and on a line of its own, as without a bar."""
    raw = on_terminal(lambda: fetch(log=["a range failed"]))

    assert "7/7 files" in raw
    wanted = [f"[warning  ] a range failed step={step}" for step in range(8)]
    assert wanted == [line.partition(" ")[2] for line in screen(raw) if line]


def test_json_stays_on_its_line(on_terminal):
    """However long it is, and whatever looks like a form of the terminal's."""
    text = "x" * 300 + " [bold] :smile: "
    raw = on_terminal(lambda: fetch(log=[text]), form="json")

    assert 8 == raw.count(f'"event": "{text}", "step": ')


def test_what_others_write_is_kept_too(on_terminal):
    """Such as Python's warnings."""

    def work():
        with Progress(size=10, files=1) as progress:
            sys.stderr.write("from a library\n")
            progress.update(moved=10, files=1, streams=1)

    assert ["from a library"] == [line for line in screen(on_terminal(work)) if line]


def test_after_an_error_the_cursor_and_the_log_are_as_before(on_terminal):
    def work():
        factory = structlog.get_config()["logger_factory"]
        with pytest.raises(KeyError), Progress(size=10, files=1) as progress:
            raise KeyError(progress)
        assert factory is structlog.get_config()["logger_factory"]
        get_logger().info("after")

    raw = on_terminal(work)

    assert raw.index(HIDE) < raw.rindex(SHOW)
    assert raw.rindex(HIDE) < raw.rindex(SHOW)
    assert ["[info     ] after"] == [line.partition(" ")[2] for line in screen(raw) if line]


def test_nothing_to_come_is_no_obstacle(on_terminal):
    """Seven empty files."""

    def work():
        with Progress(size=0, files=7) as progress:
            progress.update(moved=0, files=7, streams=1)

    assert "7/7 files" in on_terminal(work)


def test_a_terminal_without_a_cursor_gets_lines(on_terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")

    def work():
        with Progress(size=10, files=1, every_s=0.0) as progress:
            progress.update(moved=5, files=0, streams=1)

    raw = on_terminal(work)
    assert HIDE not in raw
    assert 1 == raw.count("fetching")


def test_elsewhere_there_are_lines_every_ten_seconds():
    assert (10.0, 10.0) == (EVERY_S, Progress(size=1, files=1).every_s)


def test_lines_come_not_more_often_than_asked_for():
    pause = threading.Event()
    with capture_logs() as logs, Progress(size=100, files=2, every_s=0.1) as progress:
        for _ in range(50):
            progress.update(moved=0, files=1, streams=3)
        assert [] == logs
        pause.wait(0.11)
        for _ in range(50):
            progress.update(moved=0, files=1, streams=3)

    line = {"bytes": 0, "of": 100, "files": 1, "of_files": 2, "mb_per_s": 0.0, "left_s": None, "streams": 3}
    assert [{"event": "fetching", "log_level": "info", **line}] == logs


def test_the_rate_is_that_since_the_last_line():
    """Not since the beginning: a fetch that stands still must not look as if it moved."""
    size = 10_000_000_000
    pause = threading.Event()
    with capture_logs() as logs, Progress(size=size, files=1, every_s=0.05) as progress:
        for moved in (1_000_000_000, 1_000_000_000, size + 1):
            pause.wait(0.06)
            progress.update(moved=moved, files=0, streams=1)

    rates = [line["mb_per_s"] for line in logs]
    assert 0 < rates[0] <= 1_000 / 0.06
    assert 0 == rates[1]
    assert [round(9_000 / rates[0]), None, 0] == pytest.approx([line["left_s"] for line in logs], abs=1)


def test_a_file_is_no_terminal():
    with contextlib.redirect_stderr(io.StringIO()) as text, capture_logs() as logs:
        fetch()

    assert ("", []) == (text.getvalue(), logs)
