"""How long a collective takes, as a rank measures it."""

import json
import subprocess
import sys
from pathlib import Path

import preflight_checks

PROBES = Path(preflight_checks.__file__).parent / "probes"
# By itself: as the only rank of a real group; what it calls takes as long as is said, one after the other.
ALONE = """
import json, sys, time, torch, torch.distributed as dist
from datetime import timedelta
sys.path.insert(0, sys.argv[1])
from probe_timing import repeated
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=timedelta(seconds=10))
takes = iter(json.loads(sys.argv[2]))
print(json.dumps(repeated(torch, lambda: time.sleep(next(takes)), torch.device("cpu"), limit_s=0.03)))
"""


def measured(*takes):
    command = [sys.executable, "-c", ALONE, str(PROBES), json.dumps(takes)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout)


def test_every_call_but_the_one_that_connects_counts():
    """A packet that was lost in one of two makes nobody slow."""
    taken = measured(4, 0.02, 1)

    assert 2 == len(taken)
    assert 0.02 <= min(taken) < 1 <= max(taken) < 4
