"""
End a rank badly: `mpi_end.py RANK HOW [KIND LIBRARY]`, with an exit code or SIGKILL for HOW.

The others wait for a minute, unless they are ended; who sees SIGTERM says so. With a library they are MPI processes.
"""

import os
import signal
import sys
import time

from mpi_abi import Mpi
from mpi_rank import rank_and_size


def stop(signum, _frame):
    """Say it, and go."""
    print(f"rank {rank} got {signal.Signals(signum).name}", flush=True)
    os._exit(0)  # without MPI_Finalize, which would wait for the lost rank


rank, size = rank_and_size()
chosen, how = int(sys.argv[1]), sys.argv[2]
if sys.argv[3:]:
    mpi = Mpi(*sys.argv[3:])
signal.signal(signal.SIGTERM, stop)
print(f"rank {rank} of {size} runs", flush=True)
if rank == chosen:
    time.sleep(0.5)
    print("the last words of this rank", file=sys.stderr, flush=True)
    if how == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(int(how))
for _ in range(600):
    time.sleep(0.1)  # Python runs no handler before the end of a call that the signal came just before
