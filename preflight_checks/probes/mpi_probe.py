"""
One rank of a small all-reduce through the real MPI: sent as text to every host, so that it needs Python alone.

    python -IS -c <this text> KIND [LIBRARY...]

Without a compiler and without mpi4py. Open MPI's handles are the addresses of what its library exports; those of MPICH
and Intel MPI are numbers, which the ABI that they share fixes.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
import time
from typing import Any

SETTLE_S = 0.2
COUNT = 1 << 15  # integers of 4 bytes: 128 KiB, more than fits into a message that is sent at once


def library(names: list[str]) -> ctypes.CDLL:
    """Return MPI, the first of these names that can be loaded; end where there is none."""
    problem = "no library is named"
    for name in names:
        try:
            return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:  # noqa: PERF203  # three names
            problem = str(error)
    sys.exit(f"MPI cannot be loaded: {problem}")


def handle(mpi: ctypes.CDLL, kind: str, name: str, number: int) -> Any:
    """Return MPI_COMM_WORLD or the like."""
    if kind == "openmpi":
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, name)))
    return ctypes.c_int(number)


def number(*names: str) -> int:
    """Return the first of these variables that is a number, -1 without."""
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), -1)


def say(**facts: object) -> None:
    """Print a line in one piece: ranks share the launcher's standard output."""
    os.write(1, (json.dumps(facts) + "\n").encode())


def main(kind: str, names: list[str]) -> None:
    """Add up the ranks, many times over, and say whether the sum is right."""
    who = {"rank": number("OMPI_COMM_WORLD_RANK", "PMI_RANK"), "host": socket.gethostname()}
    say(stage="start", size=number("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"), **who)
    mpi = library(names)
    world = handle(mpi, kind, "ompi_mpi_comm_world", 0x44000000)
    integer = handle(mpi, kind, "ompi_mpi_int", 0x4C000405)
    add = handle(mpi, kind, "ompi_mpi_op_sum", 0x58000003)
    mpi.MPI_Init(None, None)
    rank, size = ctypes.c_int(), ctypes.c_int()
    mpi.MPI_Comm_rank(world, ctypes.byref(rank))
    mpi.MPI_Comm_size(world, ctypes.byref(size))
    say(stage="init", size=size.value, **who)
    mine = (ctypes.c_int * COUNT)(*[rank.value + 1] * COUNT)
    found = (ctypes.c_int * COUNT)()
    mpi.MPI_Allreduce(mine, found, COUNT, integer, add, world)
    wanted = size.value * (size.value + 1) // 2
    say(stage="done", right=all(value == wanted for value in found), **who)
    # Debian's MPICH 4.0.2 hangs in MPI_Finalize in 8 of 20 runs while connections between hosts are still being made.
    mpi.MPI_Barrier(world)
    time.sleep(SETTLE_S)
    mpi.MPI_Finalize()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
