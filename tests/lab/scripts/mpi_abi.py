"""
MPI itself by ctypes, without a compiler and without mpi4py.

Open MPI's handles are addresses of what its library exports, those of MPICH and Intel MPI are numbers of their ABI.
"""

import ctypes

NUMBERS = {"ompi_mpi_comm_world": 0x44000000, "ompi_mpi_int": 0x4C000405, "ompi_mpi_op_sum": 0x58000003}


class Mpi:
    """A library of one kind: openmpi, mpich or intel."""

    def __init__(self, kind, library):
        self.kind = kind
        self.library = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        self.call("MPI_Init", None, None)

    def handle(self, name):
        """Return the communicator, type or operation that Open MPI calls so."""
        if self.kind == "openmpi":
            return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(self.library, name)))
        return ctypes.c_int(NUMBERS[name])

    def call(self, name, *arguments):
        """Call a function that answers with an error code."""
        if code := getattr(self.library, name)(*arguments):
            raise OSError(f"{name} failed with {code}")
