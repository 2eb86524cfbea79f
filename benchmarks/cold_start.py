"""
From `podman run` to the init container's first log line, beside `podman run … true`: medians, taken in turn.

    sudo python benchmarks/cold_start.py IMAGE [--repeats 11]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time

LIMIT_MS = 500.0  # over `true`


def main() -> int:
    """Measure both, and print a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("image")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--engine", default="podman")
    options = parser.parse_args()
    start = [options.engine, "run", "--rm", "--read-only", "--tmpfs", "/tmp", "--network", "none"]
    plain, agent = [], []
    for _ in range(options.repeats):
        plain.append(until_it_ends([*start, "--entrypoint", "true", options.image]))
        agent.append(until_it_speaks([*start, options.image, "preflight"]))
    over = [ours - theirs for ours, theirs in zip(agent, plain, strict=True)]
    facts = {"true_ms": plain, "first_line_ms": agent, "over_ms": over}
    medians = {name: round(statistics.median(values), 1) for name, values in facts.items()}
    print(json.dumps({**medians, "repeats": options.repeats, "wanted_over_ms": LIMIT_MS}))
    return 0 if medians["over_ms"] < LIMIT_MS else 1


def until_it_ends(argv: list[str]) -> float:
    """Return the milliseconds that a command takes."""
    started = time.perf_counter()
    subprocess.run(argv, check=True, capture_output=True)
    return (time.perf_counter() - started) * 1e3


def until_it_speaks(argv: list[str]) -> float:
    """Return the milliseconds until a command's first line on either output."""
    started = time.perf_counter()
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None  # noqa: S101  # it is a pipe
        process.stdout.readline()
        spoke = time.perf_counter()
        process.stdout.read()
    return (spoke - started) * 1e3


if __name__ == "__main__":
    raise SystemExit(main())
