"""Which MPI an `mpirun` belongs to: each wants other words for the same thing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer_agent.errors import FatalError
from trainer_agent.guarded import run_guarded

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION_S = 20.0  # Intel's is a shell script; a cold network file system may take its time
# The first line that each prints for --version, Debian's Open MPI 4 calling itself OpenRTE.
PATTERNS = (
    ("openmpi", re.compile(r"\((?:Open MPI|OpenRTE|PRRTE|PRTE)\) v?(\d+(?:\.\d+)*)")),
    ("intel", re.compile(r"Intel\(R\) MPI Library .*?Version (\d+(?:\.\d+)*)")),
    ("mpich", re.compile(r"HYDRA build details:\s+Version:\s+(\d+(?:\.\d+)*)")),
)


@dataclass(frozen=True)
class Implementation:
    """
    An MPI.

    Args:
        kind: `openmpi`, `mpich` or `intel`, as in `hostfile.IMPLEMENTATIONS`.
    """

    kind: str
    version: str

    @property
    def major(self) -> int:
        """The first number of the version."""
        return int(self.version.partition(".")[0])


def detect(program: str, environ: Mapping[str, str], *, timeout_s: float = VERSION_S) -> Implementation:
    """
    Return which MPI a program belongs to.

    Raises:
        FatalError: it cannot be started, or is none that we know.
    """
    hint = "install Open MPI, MPICH or Intel MPI in the image, or put the right mpirun first on PATH"
    try:
        ended = run_guarded([program, "--version"], environ=environ, timeout_s=timeout_s)
    except OSError as error:
        raise FatalError("mpirun-missing", f"cannot start {program!r}: {error.strerror}", hint=hint) from error
    said = ended.stdout + ended.stderr
    if found := recognise(said):
        return found
    first = said.strip().partition("\n")[0][:200]
    message = f"`{program} --version` says {first!r} and {ended.problem or ended.end or 'ended'}"
    raise FatalError("mpirun-unknown", f"{message}, wanted Open MPI, MPICH or Intel MPI", hint=hint)


def recognise(said: str) -> Implementation | None:
    """Return what answers `--version` like this, None for a stranger."""
    for kind, pattern in PATTERNS:
        if match := pattern.search(said):
            return Implementation(kind, match[1])
    return None
