"""Give the real nvidia-ml-py a driver of our choice, in a child of this process or in a program that a test starts."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from nvml_scenario import SOURCES, Scenario

from trainer_agent.isolation import isolated

LIBRARY = "libnvidia-ml.so.1"
FLAGS = ("-std=gnu11", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{LIBRARY}")


@dataclass(frozen=True)
class Standin:
    """Libraries and scenarios in a directory of their own. The library is compiled for each set of hidden functions."""

    directory: Path
    _numbers: count = field(default_factory=count)

    def environ(self, scenario: Scenario) -> dict[str, str]:
        """Return the variables for a program; every call begins the scenario anew."""
        path = self.directory / f"scenario-{next(self._numbers)}.txt"
        path.write_text(scenario.written())
        return {"LD_LIBRARY_PATH": str(self._library(scenario.hidden())), "FAKE_NVML_SCENARIO": str(path)}

    def call(self, scenario: Scenario, function, *, timeout_s: float = 20.0):
        """
        Return what a function returns in a forked child on that machine.

        Raises:
            IsolatedError: as `trainer_agent.process.isolated` raises them.
        """
        environ = self.environ(scenario)

        def on_the_machine():
            if LIBRARY in Path("/proc/self/maps").read_text():
                raise RuntimeError(f"this process has loaded {LIBRARY} already, so its children cannot have another")
            os.environ.update(environ)
            # The loader takes a library that is there already by its soname; LD_LIBRARY_PATH is only read at a start.
            ctypes.CDLL(f"{environ['LD_LIBRARY_PATH']}/{LIBRARY}")
            return function()

        return isolated(on_the_machine, timeout_s=timeout_s)

    def _library(self, hidden: frozenset[str]) -> Path:
        names = "".join(f"{name}; " for name in sorted(hidden))
        directory = self.directory / hashlib.sha256(names.encode()).hexdigest()[:16]
        if not directory.exists():
            directory.mkdir(parents=True)
            script = directory / "exports.map"
            script.write_text(f"{{ global: nvml*; standin_layouts; local: {names}*; }};\n")
            sources = [str(s) for s in SOURCES]
            command = ["gcc", *FLAGS, f"-Wl,--version-script={script}", "-o", str(directory / LIBRARY), *sources]
            subprocess.run(command, check=True, timeout=60)
        return directory
