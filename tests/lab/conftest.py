"""The lab for tests: on a developer's machine it may be missing, in CI it may not."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import faults
import mpilab
import pytest
from mpi_programs import IMPLEMENTATIONS, MissingError
from podlab import Lab, LabError, eventually, missing_tools, without

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mpi_programs import Implementation

GROUPS = Path("/sys/fs/cgroup")


@pytest.fixture
def lab_of(tmp_path: Path) -> Iterator[Callable[[int], Lab]]:
    """Return what builds a lab with so many nodes, in a quarter of a second for three."""
    tools = missing_tools()
    if tools:
        without(f"the lab needs {', '.join(tools)}")
    with ExitStack() as stack:

        def build(nodes: int) -> Lab:
            try:
                return stack.enter_context(Lab(tmp_path, rootless=os.geteuid() != 0, nodes=nodes))
            except LabError as error:
                without(str(error))

        yield build


@pytest.fixture
def lab(lab_of: Callable[[int], Lab]) -> Lab:
    """Return a fresh lab with three nodes."""
    return lab_of(3)


@pytest.fixture
def lab_of_faults(lab_of: Callable[[int], Lab]) -> Callable[[int], Lab]:
    """Return what builds a lab in which something can be broken, as `faults` does."""
    tools = faults.missing_tools()
    if tools:
        without(f"faults need {', '.join(tools)}")
    return lab_of


@pytest.fixture
def lab_of_mpi(lab_of: Callable[[int], Lab]) -> Callable[[int], Lab]:
    """Return what builds a lab in which sshd opens sessions."""
    if os.geteuid() != 0:
        without("in a user namespace sshd cannot open sessions")
    if tools := mpilab.missing_tools():
        without(f"MPI needs {', '.join(tools)}")
    return lab_of


@pytest.fixture
def implementation() -> Callable[[str], Implementation]:
    """Return what makes an implementation of MPI ready by its name."""

    def make(name: str) -> Implementation:
        try:
            IMPLEMENTATIONS[name].make()
        except MissingError as error:
            without(str(error))
        return IMPLEMENTATIONS[name]

    return make


@pytest.fixture
def memory_cgroup() -> Iterator[Path]:
    """Return a cgroup of our own that may use 512 MiB; ask for it before `lab`, whose processes must be gone first."""
    path = memory_parent() / f"podlab-{os.getpid()}"
    try:
        path.mkdir()
    except OSError as error:
        without(f"no memory cgroup can be made here: {error}")
    try:
        limit(path, 512 << 20)
        yield path
    except OSError as error:
        without(f"no memory limit can be set here: {error}")
    finally:
        eventually(lambda: removed(path), what="the cgroup is empty")


def memory_parent() -> Path:
    """Return the directory of our own memory cgroup; with v2 the root, as only it may hold processes and groups."""
    if (GROUPS / "cgroup.controllers").exists():
        return GROUPS
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((line.split(":", 2)[2] for line in lines if ":memory:" in line), "/")
    return GROUPS / "memory" / own.lstrip("/")


def limit(path: Path, size: int) -> None:
    """Set a limit that swap does not soften."""
    if (path / "cgroup.controllers").exists():
        (path / "memory.max").write_text(str(size))
        (path / "memory.swap.max").write_text("0")
    else:
        (path / "memory.limit_in_bytes").write_text(str(size))
        (path / "memory.swappiness").write_text("0")


def removed(path: Path) -> bool:
    """Remove a cgroup; False while it still holds a process."""
    try:
        path.rmdir()
    except OSError:
        return False
    return True
