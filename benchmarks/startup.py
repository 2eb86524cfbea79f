"""
What the agent costs before the training starts: medians of alternating runs, beside python itself and torchrun.

Budgets: `--help` 120 ms, `launch --launcher python -- -c pass` 90 ms over `python -c pass`.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

RUNS = 20
HELP_MS, LAUNCH_OVER_PYTHON_MS = 120, 90
BIN = Path(sys.executable).parent
AGENT = str(BIN / "trainer-agent")
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "trainer-agent --help": [AGENT, "--help"],
    "trainer-agent launch --launcher python -- -c pass": [AGENT, "launch", "--launcher", "python", "--", "-c", "pass"],
    "trainer-agent launch --dry-run -- train.py": [AGENT, "launch", "--dry-run", "--", "train.py"],
    "trainer-agent preflight --profile quick": [AGENT, "preflight", "--profile", "quick"],
}
SLOW_PEER = {"torchrun --help": [str(BIN / "torchrun"), "--help"]}


def milliseconds(command: list[str]) -> float:
    """Return how long one run took."""
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return (time.perf_counter() - started) * 1000


def measure(commands: dict[str, list[str]], runs: int) -> dict[str, float]:
    """Return each command's median in milliseconds; one round runs all of them, so that noise hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(runs + 1):  # the first round fills the page cache and is dropped
        for name, command in commands.items():
            times[name].append(milliseconds(command))
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def main() -> None:
    """Print the table."""
    medians = {**measure(COMMANDS, RUNS), **measure(SLOW_PEER, 5)}
    bare = medians["python -c pass"]
    print(f"{'median ms':>9}  {'over python':>11}")
    for name, value in medians.items():
        print(f"{value:9.0f}  {value - bare:11.0f}  {name}")
    over = medians["trainer-agent launch --launcher python -- -c pass"] - bare
    print(f"--help takes {medians['trainer-agent --help']:.0f} ms of its {HELP_MS}")
    print(f"launch takes {over:.0f} ms of its {LAUNCH_OVER_PYTHON_MS} over python")


if __name__ == "__main__":
    main()
