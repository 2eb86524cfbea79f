"""`trainer-agent init dataset` as a pod runs it: a real process, whose whole output and death can be waited for."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from trainer_agent.initializers import HIDDEN

KEY_ID, SECRET = "AKIAFAULTS7EXAMPLE", "fAuLt5/neverInAnyLog+EXAMPLEKEY"
# A retry that waits for nothing but the server's recovery is done by then, also on a busy machine.
PATIENCE_S = 50.0


class Agent:
    """
    One run of the agent.

    Args:
        args: options of `init dataset`.
        env: variables beside those of the source and the credentials.

    Attributes:
        code: its exit code, after `finish`.
    """

    def __init__(self, endpoint, destination, *args, uri="s3://bucket/data", output, **env):
        self.destination = destination
        self.output_path = output
        self.code = None
        self.started = time.monotonic()
        self._alive, inherited = os.pipe()
        # A copy of the agent may be tried with PYTHONPATH.
        passed = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        keys = {"ACCESS_KEY_ID": KEY_ID, "SECRET_ACCESS_KEY": SECRET}
        source = {"STORAGE_URI": uri, "OUTPUT_PATH": str(destination), "ENDPOINT": endpoint, "REGION": "us-east-1"}
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "trainer_agent", "init", "dataset", *args],
                env={**passed, **keys, **source, **env},
                cwd="/",
                stdout=file,
                stderr=subprocess.STDOUT,
                pass_fds=[inherited],
            )
        os.close(inherited)

    def finish(self, within=PATIENCE_S):
        """Wait until the agent and all that it forked have ended; return its exit code, as a shell would see it."""
        code = self.process.wait(within)
        ended, _, _ = select.select([self._alive], [], [], within)
        assert ended, "a child of the agent lives on"
        os.close(self._alive)
        self._alive = -1
        self.seconds = time.monotonic() - self.started
        self.code = 128 - code if code < 0 else code
        return self.code

    def kill(self, signum=signal.SIGKILL):
        """Send a signal to the agent itself; what it forked must end by itself."""
        self.process.send_signal(signum)

    def end(self):
        """Clean up whatever the test left."""
        self.process.kill()
        self.process.wait()
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1

    @property
    def running(self):
        """Whether it has not ended."""
        return self.process.poll() is None

    @property
    def output(self):
        """What it wrote, on standard output and error."""
        return self.output_path.read_text()

    @property
    def log(self):
        """Its log."""
        return [json.loads(line) for line in self.output.splitlines()]

    @property
    def error(self):
        """The code of the last line of the log, empty when it tells of no error."""
        return self.log[-1].get("code", "") if self.log[-1]["level"] == "error" else ""


class Data:
    """
    What the source holds.

    Args:
        directory: the files, as the server has them.
    """

    def __init__(self, directory):
        self.directory = directory
        self.sizes = {
            p.relative_to(directory).as_posix(): p.stat().st_size for p in directory.rglob("*") if p.is_file()
        }
        self.size = sum(self.sizes.values())

    def wrong(self, destination):
        """Return the names of files in a destination that are not byte for byte those of the source."""
        return sorted(
            name for name in present(destination) if name not in self.sizes or not self._same(destination, name)
        )

    def lacking(self, destination):
        """Return the names of files that a destination has not, or not as they are at the source."""
        there = present(destination)
        return sorted(name for name in self.sizes if name not in there or not self._same(destination, name))

    def _same(self, destination, name):
        mine, theirs = destination / name, self.directory / name
        return mine.stat().st_size == self.sizes[name] and mine.read_bytes() == theirs.read_bytes()


def present(destination):
    """Return the final names of a destination, also while an agent is at work there."""
    names = set()
    for folder, folders, files in os.walk(destination):
        if Path(folder) == destination and HIDDEN in folders:
            folders.remove(HIDDEN)  # what is in there comes and goes
        names |= {(Path(folder) / name).relative_to(destination).as_posix() for name in files}
    return names
