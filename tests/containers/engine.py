"""Real containers: podman and buildah, set up so that they also run where a container may not raise limits."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
STATE = ROOT / "build" / "containers"
SDK = STATE / "sdk"
TOOLS = ("podman", "buildah", "runc", "debootstrap")
PREFIX = "localhost/trainer-agent-test"
# crun and raised limits are refused inside some containers, which CI machines may be. Networks of Pods are written as
# CNI's are, which podman takes for none where it finds netavark.
SETTINGS = """\
[containers]
default_ulimits = ["nofile=1024:1024","nproc=1000:1000"]
[engine]
runtime = "runc"
[network]
network_backend = "cni"
"""
RUN_S = 90.0


def missing_tools() -> list[str]:
    """Return what keeps containers from running here."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    return missing if os.geteuid() == 0 else [*missing, "root"]


def environment() -> dict[str, str]:
    """Return the environment for podman and buildah."""
    STATE.mkdir(parents=True, exist_ok=True)
    settings = STATE / "containers.conf"
    if not settings.exists():  # whole at once: another test's podman may be reading it
        part = STATE / f"containers.conf.{os.getpid()}"
        part.write_text(SETTINGS)
        part.rename(settings)
    return {**os.environ, "CONTAINERS_CONF": str(settings), "BUILDAH_ISOLATION": "chroot"}


def image(name: str) -> str:
    """Return the full name of one of our images."""
    return f"{PREFIX}/{name}"


@dataclass
class Result:
    """How a command ended."""

    code: int
    out: str
    err: str
    logs: list[dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        lines = (line for line in self.err.splitlines() if line.startswith("{"))
        self.logs = [json.loads(line) for line in lines]

    def log(self, event: str) -> dict[str, Any]:
        """Return the last line of the agent's log with this event."""
        found = [line for line in self.logs if line["event"] == event]
        assert found, f"no {event!r} in: {self.said}"
        return found[-1]

    @property
    def said(self) -> str:
        """Return both outputs, for messages."""
        return f"exit {self.code}\n{self.out}\n{self.err}"


def podman(*words: str, timeout_s: float = RUN_S, check: bool = True) -> Result:
    """
    Run podman.

    Raises:
        AssertionError: it failed, with all that it said; not with `check=False`.
    """
    done = subprocess.run(
        ["podman", *words],
        env=environment(),
        cwd=STATE,  # conmon leaves a file `oom` where it was started
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        errors="replace",
    )
    result = Result(done.returncode, done.stdout, done.stderr)
    assert result.code == 0 or not check, f"podman {' '.join(words)}: {result.said}"
    return result


def exists(name: str) -> bool:
    """Whether an image is here."""
    return podman("image", "exists", name, check=False).code == 0
