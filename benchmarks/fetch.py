"""
How fast and how small `trainer-agent init` is, beside what people use today: side by side, against the same servers.

Every run is a whole process and begins with an empty directory. The candidates take turns, so that noise hits all
alike. What they have fetched is compared by size after every run, by SHA-256 after the first.
What a run wrote is emptied afterwards and removed only in the end: where many files were deleted within the last
minutes, ext4 takes far longer to create one (recently_deleted() in fs/ext4/ialloc.c), and the next run would pay.
All rounds take about half an hour and 12 GB of disk; `--quick --only 'small*'` a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from cells import CELLS, Cell, differences
from data import MANIFEST
from measure import FailedError, Run, run, settle
from nginx import find_nginx
from servers import Servers
from tables import Verdict, table, verdicts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from peers import Peer

ROUNDS = 5
CACHE = Path("~/.cache/trainer-agent-bench")
# Besides what is fetched: what a program needs of its own.
PROGRAM_BYTES = 256 << 20


@dataclass(frozen=True)
class Bench:
    """Where everything happens, and how often."""

    servers: Servers
    rounds: int

    def measure(self, cell: Cell, peers: Sequence[Peer]) -> dict[str, list[Run]]:
        """Return the runs of each candidate."""
        results: dict[str, list[Run]] = {peer.name: [] for peer in peers}
        with cell.serve(self.servers) as endpoint:
            for number in range(self.rounds):
                for peer in peers:
                    took = self._run(cell, peer, endpoint, first=number == 0)
                    results[peer.name].append(took)
                    say(f"{cell.name}, round {number + 1} of {self.rounds}: {peer.name} {took.seconds:.2f} s")
        return results

    def _run(self, cell: Cell, peer: Peer, endpoint: str, *, first: bool) -> Run:
        """Run a candidate once; everything but the run itself is outside the time."""
        expected = cell.expected(self.servers)
        room = Path(tempfile.mkdtemp(prefix="room-", dir=self.servers.directory))
        destination, home = room / "fetched", room / "home"
        destination.mkdir()
        home.mkdir()
        job = cell.job(self.servers, endpoint, peer, destination)
        environ = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", **peer.environ(job)}
        try:
            if cell.again:
                run(peer.command(job), environ, log=room / "log")
            # A client may hold a whole file in memory twice before it is in the page cache.
            settle(PROGRAM_BYTES + size_of(expected) * 5 // 2)
            took = run(peer.command(job), environ, log=room / "log")
            if wrong := differences(destination, expected, hashes=first):
                raise FailedError(f"{peer.name} fetched {len(wrong)} files wrong, such as {wrong[0]}")
            return took
        finally:
            empty(room)


def empty(directory: Path) -> None:
    """Give back the space of all files, but not their inodes."""
    for path in directory.rglob("*"):
        # What has another name is somebody else's, too: perf, for one, links the libraries that it saw into HOME.
        if path.is_file() and not path.is_symlink() and path.stat().st_nlink == 1:
            os.truncate(path, 0)


def size_of(expected: Mapping[str, tuple[int, str]]) -> int:
    """Return the bytes of all files."""
    return sum(size for size, _ in expected.values())


def say(text: str) -> None:
    """Report progress."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def options() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="runs behind each median (%(default)s)")
    parser.add_argument("--quick", action="store_const", dest="rounds", const=1, help="one round")
    names = " ".join(cell.name for cell in CELLS)
    parser.add_argument("--only", default="*", help=f"cells to run, as patterns with commas: {names}")
    parser.add_argument("--candidates", default="*", help="who takes part, as patterns with commas: trainer-agent,s5*")
    parser.add_argument("--workdir", type=Path, help="where to fetch to; data is kept there for the next time")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where nginx is unpacked when it is not installed")
    parser.add_argument("--divide", type=int, default=1, help="make files and their numbers smaller, to try this out")
    parser.add_argument("--json", type=Path, help="write every run to this file")
    return parser.parse_args()


def chosen(name: str, patterns: str) -> bool:
    """Return whether a cell or a candidate was asked for."""
    return any(fnmatch(name, pattern) for pattern in patterns.split(","))


def bench(given: argparse.Namespace, directory: Path) -> int:
    """Run the chosen cells; return 1 when the agent misses something."""
    nginx = find_nginx(given.cache.expanduser())
    results: dict[str, dict[str, list[Run]]] = {}
    found: list[Verdict] = []
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        todo = Bench(Servers(made_data(directory, given.divide), Path(scratch), nginx), given.rounds)
        for cell in (cell for cell in CELLS if chosen(cell.name, given.only)):
            peers = [peer for peer in cell.peers if chosen(peer.name, given.candidates)]
            if not peers:
                continue
            try:
                results[cell.name] = todo.measure(cell, peers)
            except FailedError as error:
                found.append(Verdict(cell.name, str(error), ok=False))
                continue
            found += verdicts(cell, results[cell.name])
            size = size_of(cell.expected(todo.servers))
            print(table(cell, size, results[cell.name]), end="\n\n", flush=True)
    print(*found, sep="\n")
    if given.json:
        given.json.write_text(as_json(given.rounds, results, found))
    return int(not all(verdict.ok for verdict in found))


def made_data(directory: Path, divide: int) -> Path:
    """Return the directory with what is fetched; it is written when it is not there."""
    data = directory / f"data-{divide}"
    if not (data / MANIFEST).exists():
        say("writing what will be fetched")
        script = Path(__file__).with_name("data.py")
        subprocess.run([sys.executable, script, data, "--divide", str(divide)], check=True)
    return data


def as_json(rounds: int, results: Mapping[str, Mapping[str, Sequence[Run]]], found: Sequence[Verdict]) -> str:
    """Return every run and every verdict."""
    runs = {c: {name: [asdict(run) for run in runs] for name, runs in peers.items()} for c, peers in results.items()}
    machine = {"processors": os.cpu_count(), "system": " ".join(os.uname()[::2]), "python": sys.version.split()[0]}
    return json.dumps(
        {"machine": machine, "rounds": rounds, "runs": runs, "verdicts": [asdict(v) for v in found]}, indent=1
    )


def main() -> int:
    """Run the benchmark below a directory that is removed in the end, or below `--workdir`, where the data stays."""
    # So that servers and files go even when this is terminated.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    given = options()
    if given.workdir:
        given.workdir.mkdir(parents=True, exist_ok=True)
        return bench(given, given.workdir.resolve())
    with tempfile.TemporaryDirectory(prefix="trainer-agent-bench-") as directory:
        return bench(given, Path(directory))


if __name__ == "__main__":
    sys.exit(main())
