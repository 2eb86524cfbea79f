"""Say who this rank is, in one line: `mpi_who.py [VARIABLE…]`."""

import json
import os
import socket
import sys

from mpi_rank import rank_and_size

rank, size = rank_and_size()
print(
    json.dumps(
        {
            "mpi_rank": rank,
            "size": size,
            "host": socket.gethostname(),
            "cpus": sorted(os.sched_getaffinity(0)),
            "env": {name: os.environ.get(name) for name in sys.argv[1:]},
        }
    ),
    flush=True,
)
