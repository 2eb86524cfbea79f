"""
What a preflight costs on this machine, with all of its checks that find something to look at.

The aim: `--profile standard` on two cores without a GPU takes less than 25 s, a whole torchrun job included.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import time

from startup import AGENT

RUNS = {"quick": 5, "standard": 3}
AIM_S = 25


def preflight(profile: str) -> tuple[float, dict[str, float]]:
    """Return the seconds of one run, and those of each check in it."""
    started = time.perf_counter()
    done = subprocess.run(
        [AGENT, "preflight", "--profile", profile, "--output", "json"], stdout=subprocess.PIPE, check=False
    )
    seconds = time.perf_counter() - started
    return seconds, {check["name"]: check["duration_s"] for check in json.loads(done.stdout)["checks"]}


def main() -> None:
    """Print the table."""
    medians = {}
    print(f"{'median s':>8}  {'fastest':>7}  {'slowest':>7}  slowest check")
    for profile, runs in RUNS.items():
        preflight(profile)  # fills the page cache and is dropped
        measured = [preflight(profile) for _ in range(runs)]
        times = [seconds for seconds, _ in measured]
        medians[profile] = statistics.median(times)
        name, longest = max(measured[-1][1].items(), key=lambda item: item[1])
        row = f"{medians[profile]:8.2f}  {min(times):7.2f}  {max(times):7.2f}  {name} {longest:.2f}"
        print(f"{row}  trainer-agent preflight --profile {profile}")
    print(f"standard takes {medians['standard']:.1f} s of its {AIM_S}")


if __name__ == "__main__":
    main()
