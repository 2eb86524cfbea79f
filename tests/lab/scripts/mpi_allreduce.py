"""Add up the ranks by MPI: `mpi_allreduce.py KIND LIBRARY`."""

import ctypes
import json
import socket
import sys
import time

from mpi_abi import Mpi

mpi = Mpi(*sys.argv[1:])
world = mpi.handle("ompi_mpi_comm_world")
rank, size, answer = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
mpi.call("MPI_Comm_rank", world, ctypes.byref(rank))
mpi.call("MPI_Comm_size", world, ctypes.byref(size))
mine = ctypes.c_int(rank.value + 1)
an_int, total = mpi.handle("ompi_mpi_int"), mpi.handle("ompi_mpi_op_sum")
mpi.call("MPI_Allreduce", ctypes.byref(mine), ctypes.byref(answer), 1, an_int, total, world)
found = {"mpi_rank": rank.value, "size": size.value, "host": socket.gethostname(), "sum": answer.value}
print(json.dumps(found), flush=True)
# Debian's MPICH 4.0.2 hangs in MPI_Finalize in 8 of 20 runs, when connections between hosts are still being made.
mpi.call("MPI_Barrier", world)
time.sleep(0.2)
mpi.call("MPI_Finalize")
