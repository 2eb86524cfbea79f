"""What is compared: each cell is a workload, a server, who takes part and what the agent must reach."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from peers import CP, CP_PEERS, HUB_PEERS, KUBEFLOW, NEAR_PEERS, OURS, S3_PEERS, Job, Peer
from servers import REPOSITORY, XET_REPOSITORY, Servers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

HIDDEN = frozenset({".trainer-agent", ".cache"})
XET_KEY = "hub/weights/00000.bin"


@dataclass(frozen=True)
class Cell:
    """
    One comparison.

    Args:
        keys: what the fetched files are called in the data, without their names in the destination.
        source: what the candidates ask the server for.
        times: how many times the agent's time each candidate's must be at least.
        best: how many times the agent's time that of the fastest candidate must be at least, without Kubeflow and cp.
        most_mb, most_s: what the agent may take at most.
        again: measure fetching what is there already.
    """

    name: str
    title: str
    keys: str
    source: str
    serve: Callable[[Servers], AbstractContextManager[str]]
    peers: tuple[Peer, ...]
    times: Mapping[str, float] = field(default_factory=dict)
    best: float = 0.0
    most_mb: float = 150.0
    most_s: float = float("inf")
    again: bool = False

    def job(self, servers: Servers, endpoint: str, peer: Peer, destination: Path) -> Job:
        """Return what a candidate is to do."""
        return Job(str(servers.objects) if peer in CP_PEERS else endpoint, self.source, destination)

    def expected(self, servers: Servers) -> dict[str, tuple[int, str]]:
        """Return size and SHA-256 of each file."""
        found = {
            key.removeprefix(self.keys): facts for key, facts in servers.manifest().items() if key.startswith(self.keys)
        }
        return {path: (facts["size"], facts["sha256"]) for path, facts in found.items()}


def differences(destination: Path, expected: Mapping[str, tuple[int, str]], *, hashes: bool) -> list[str]:
    """Return the files that are not as expected: missing, too many, of another size or with other bytes."""
    paths = (path for path in destination.rglob("*") if path.is_file())
    found = {path.relative_to(destination).as_posix(): path for path in paths}
    found = {name: path for name, path in found.items() if name.partition("/")[0] not in HIDDEN}
    wrong = list(found.keys() ^ expected.keys())
    for name in found.keys() & expected.keys():
        size, sha256 = expected[name]
        if found[name].stat().st_size != size or (hashes and _sha256(found[name]) != sha256):
            wrong.append(name)
    return sorted(wrong)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _xet(servers: Servers) -> Iterator[str]:
    """Put a file into Xet's own store, in a process of its own, and serve it."""
    cas = f"local://{servers.directory / 'xet'}"
    command: list[str | Path] = [sys.executable, Path(__file__).parent / "xet.py", cas, servers.objects / XET_KEY]
    xet = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    with servers.xet(cas, XET_KEY, xet) as endpoint:
        yield endpoint


def _near(name: str, title: str, times: Mapping[str, float]) -> Cell:
    title = f"{title}, nginx on loopback"
    return Cell(f"{name}-near", title, f"{name}/", name, Servers.near, NEAR_PEERS, times, best=1.0)


def _far(name: str, title: str, times: Mapping[str, float]) -> Cell:
    title = f"{title}, 30 ms to the first byte, 80 MB/s a connection"
    return Cell(f"{name}-far", title, f"{name}/", name, Servers.far, S3_PEERS, times, best=1.0)


LARGE, MEDIUM, SMALL = "1 x 2 GiB", "20 x 64 MiB", "2,000 x 256 KiB"
HUB = "Hub: 1 GiB and 500 x 32 KiB"
CELLS = (
    _near("large", LARGE, {KUBEFLOW: 5, CP: 0.5}),
    _near("medium", MEDIUM, {KUBEFLOW: 5}),
    _near("small", SMALL, {KUBEFLOW: 2}),
    _far("large", LARGE, {KUBEFLOW: 20}),
    _far("medium", MEDIUM, {KUBEFLOW: 20}),
    _far("small", SMALL, {KUBEFLOW: 35}),
    Cell("hub-near", f"{HUB}, nginx", "hub/", REPOSITORY, Servers.hub, HUB_PEERS, {"snapshot_download": 4}),
    Cell(
        "hub-capped",
        f"{HUB}, 80 MB/s a connection to the CDN",
        "hub/",
        REPOSITORY,
        lambda servers: servers.hub(capped=True),
        HUB_PEERS,
        {"snapshot_download": 8},
    ),
    Cell("xet", "Hub: 1 GiB in Xet, local CAS", "hub/weights/", XET_REPOSITORY, _xet, HUB_PEERS, most_mb=400.0),
    Cell(
        "again",
        "10,000 files that are there already",
        "many/",
        "many",
        Servers.near,
        tuple(peer for peer in S3_PEERS if peer.name == OURS),
        most_s=1.0,
        again=True,
    ),
)
