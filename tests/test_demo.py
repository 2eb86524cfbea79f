"""The demo of the README, from the S3 server to the trained network."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trainer_agent.report import SCHEMA

DEMO = Path(__file__).parents[1] / "examples" / "demo.py"


@pytest.mark.lab
def test_the_demo_trains(tmp_path):
    """Exit 0, an accuracy of at least 0.90, a report of each node, and no secret in anything it leaves behind."""
    done = subprocess.run(
        [sys.executable, str(DEMO), "--workdir", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"^test accuracy ([\d.]+)", done.stdout, re.MULTILINE)
    assert float(found[1]) >= 0.90
    reports = [json.loads((tmp_path / f"node-{rank}" / "preflight.json").read_text()) for rank in (0, 1)]
    assert [(r["schema"], r["node"]["rank"], r["node"]["nnodes"]) for r in reports] == [(SCHEMA, 0, 2), (SCHEMA, 1, 2)]
    assert {r["exit_code"] for r in reports} <= {0, 10}
    for rank in (0, 1):
        steps = [json.loads(line) for line in (tmp_path / f"node-{rank}" / "timeline.jsonl").read_text().splitlines()]
        assert [s["step"] for s in steps] == ["preflight", "initialize", "launch"]
        assert (tmp_path / f"node-{rank}" / "workspace" / "dataset" / "digits.npz").stat().st_size > 10_000
