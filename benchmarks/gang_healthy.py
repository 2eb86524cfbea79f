"""
How long a healthy gang takes from its last arrival to the verdict, in real pods of namespaces, and where the time goes.

Three of four nodes wait; then the fourth starts. What counts begins with the start of its program, and ends when the
last node has the verdict and has ended. `import torch` is what the fourth needs before it can say anything.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "lab"))

from ganglab import results, start_gang
from podlab import Lab, eventually

OPTIONS = ("--checks", "roll-call,consistency,collective", "--gang-timeout", "60")


def once(nodes: int) -> dict[str, float]:
    """Return the seconds of one gang, by phase."""
    with tempfile.TemporaryDirectory() as folder, Lab(Path(folder), rootless=os.geteuid() != 0, nodes=nodes) as lab:
        lab.publish()
        members = start_gang(lab, nodes, options=OPTIONS, ranks=range(nodes - 1))
        for member in members:
            said = member.container
            eventually(lambda said=said: '"joined the gang"' in said.stderr, within=60, what="it has joined")
        began = time.monotonic()
        members += start_gang(lab, nodes, options=OPTIONS, ranks=[nodes - 1])
        ended = results(members, within=60)
        seconds = time.monotonic() - began
        report = ended[0].report
        if any(each.code for each in ended) or report is None:
            raise SystemExit(f"the gang is not well: {[each.code for each in ended]}")
        phases = {phase["name"]: phase["seconds"] for phase in report["gang"]["phases"]}
    after = phases.get("collective", 0.0) + phases.get("consistency", 0.0)
    return {"all": seconds, "until it says hello": seconds - after, "collective": phases.get("collective", 0.0)}


def import_torch() -> float:
    """Return the seconds that an import of torch takes here now."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch, torch.distributed"], check=True)
    return time.monotonic() - began


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    runs = [once(options.nodes) | {"import torch, by itself": import_torch()} for _ in range(options.runs)]
    print(f"{options.nodes} nodes, {options.runs} runs, medians in seconds")
    for name in runs[0]:
        print(f"{name:<26}{statistics.median(run[name] for run in runs):>6.2f}")


if __name__ == "__main__":
    main()
