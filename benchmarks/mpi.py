"""
What `trainer-agent launch` costs over plain mpirun, on three hosts that are ready, for each implementation of MPI.

Both start two ranks on each host, in turn, in real pods of namespaces; the ranks sleep for half a second. The agent
looks for the workers, makes a key that ssh accepts, and starts the program when all ranks have reported.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "lab"))

from mpi_programs import IMPLEMENTATIONS, MissingError
from mpilab import MpiJob, missing_tools
from podlab import Lab, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpi_programs import Implementation
    from podlab import Container

# With ranks that end at once, as `true`, Open MPI 5.0.11 hangs in 9 of 40 runs on a busy machine.
PROGRAM = ("sleep", "0.5")
RUNS = 10
WITHIN_S = 60.0


def once(start: Callable[..., Container]) -> float:
    """Return the seconds of one job."""
    began = time.monotonic()
    container = start(*PROGRAM)
    if code := container.wait(within=WITHIN_S):
        raise SystemExit(f"ended with {code}: {container.story()}")
    return time.monotonic() - began


def measure(implementation: Implementation, runs: int) -> dict[str, list[float]]:
    """Return the seconds of plain mpirun and of the agent, in turn; the first of each is dropped."""
    with tempfile.TemporaryDirectory() as folder, Lab(Path(folder), rootless=False) as lab:
        # As plain mpirun needs it: a key that ssh accepts for root, and bare names that hydra finds.
        job = MpiJob(lab, implementation, key_mode=0o600, searches=True)
        lab.publish()
        workers = job.workers_ready()
        idle = [len(worker.processes()) for worker in workers]
        seconds: dict[str, list[float]] = {"plain": [], "agent": []}
        for _ in range(runs + 1):
            for name, start in (("plain", job.sdk), ("agent", job.launch)):
                seconds[name].append(once(start))
                eventually(
                    lambda: idle == [len(worker.processes()) for worker in workers], within=30, what="sessions end"
                )
    return {name: each[1:] for name, each in seconds.items()}


def row(name: str, seconds: dict[str, list[float]]) -> str:
    """Return the line of an implementation."""
    plain, agent = (statistics.median(seconds[how]) for how in ("plain", "agent"))
    spread = f"{min(seconds['agent']):.2f}-{max(seconds['agent']):.2f}"
    return f"{name:<12}{plain:>8.2f}{agent:>8.2f}{spread:>12}{agent - plain:>8.2f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--implementation", choices=IMPLEMENTATIONS)
    options = parser.parse_args()
    if os.geteuid() != 0 or missing_tools():
        print(f"skipped: this needs root and {', '.join(missing_tools()) or 'nothing else'}")
        return
    print(f"medians of {options.runs} in seconds, three hosts, two ranks on each")
    print(f"{'':<12}{'mpirun':>8}{'agent':>8}{'min-max':>12}{'more':>8}")
    for name in [options.implementation] if options.implementation else IMPLEMENTATIONS:
        try:
            IMPLEMENTATIONS[name].make()
        except MissingError as error:
            print(f"{name:<12}skipped: {error}")
            continue
        print(row(name, measure(IMPLEMENTATIONS[name], options.runs)), flush=True)


if __name__ == "__main__":
    main()
