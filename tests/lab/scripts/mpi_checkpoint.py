"""
Train until SIGTERM or SIGUSR1, then write a checkpoint for two seconds: `mpi_checkpoint.py FOLDER [CODE]`.

`<rank>.begin` names the signal, `<rank>.end` says that it is whole; then the rank exits, with CODE or 0.
"""

import signal
import sys
import time
from pathlib import Path

from mpi_rank import rank_and_size

WRITES_S = 2.0

rank, size = rank_and_size()
folder = Path(sys.argv[1])
asked = []
for signum in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(signum, lambda signum, _frame: asked.append(signal.Signals(signum).name))
print(f"rank {rank} of {size} trains", flush=True)
deadline = time.monotonic() + 60
while not asked and time.monotonic() < deadline:
    time.sleep(0.02)
(folder / f"{rank}.begin").write_text(asked[0] if asked else "nobody asked")
finish = time.monotonic() + WRITES_S
while time.monotonic() < finish:
    time.sleep(0.02)
(folder / f"{rank}.end").write_text("whole")
print(f"rank {rank} has saved", flush=True)
sys.exit(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
