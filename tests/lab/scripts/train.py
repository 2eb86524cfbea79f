"""Trains until SIGTERM, then does what the first argument says: end, checkpoint for 2 s, or ignore it."""

import os
import signal
import sys
import time
from pathlib import Path

SHARDS = 40
rank = os.environ.get("RANK", "0")


def checkpoint(_signum: int, _frame: object) -> None:
    with Path(f"checkpoint-{rank}").open("w") as file:
        for shard in range(SHARDS):
            file.write(f"{shard}\n")
            file.flush()
            time.sleep(0.05)
    sys.exit(0)


if sys.argv[1:] == ["checkpoint"]:
    signal.signal(signal.SIGTERM, checkpoint)
if sys.argv[1:] == ["ignore"]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(f"rank {rank} trains", flush=True)
while True:
    time.sleep(0.1)  # Python runs no handler before the end of a call that the signal came just before
