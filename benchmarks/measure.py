"""What one run of a program took."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LAUNCHER = str(Path(__file__).with_name("launcher.py"))
LIMIT_S = 900.0


@dataclass(frozen=True)
class Run:
    """
    One run.

    Args:
        cpu_s: of the process and of all that it waited for.
        peak_mb: of the largest of these at its largest, 9 MB at least.
    """

    seconds: float
    cpu_s: float
    peak_mb: float


class FailedError(Exception):
    """A program ended with an error."""


def run(command: Sequence[str], environ: Mapping[str, str], *, log: Path) -> Run:
    """
    Run a program to its end; what it says goes to `log`.

    Raises:
        FailedError: it failed; with the end of what it said.
    """
    report = log.with_suffix(".report")
    launcher = [sys.executable, "-I", "-S", LAUNCHER, str(report), *command]
    with log.open("wb") as output:
        child = subprocess.Popen(
            launcher,
            env=environ,
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            code = child.wait(LIMIT_S)
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            raise
    if code:
        raise FailedError(f"{Path(command[0]).name} ended with {code}: {log.read_text()[-2000:]}")
    seconds, cpu_s, peak_kib = (float(word) for word in report.read_text().split())
    return Run(seconds, cpu_s, peak_kib * 1024 / 1e6)


def settle(size: int) -> None:
    """
    Write back what is dirty, and touch and free as much memory as a run will use.

    A virtual machine may have given its free pages back to the host: the first to touch them again would pay for that.
    """
    os.sync()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    touch = f"import mmap; mmap.mmap(-1, {min(size, memory // 3)}).madvise(23)"  # MADV_POPULATE_WRITE
    subprocess.run([sys.executable, "-I", "-S", "-c", touch], check=False)
