"""Whether every host of the hostfile has its ranks: the pure part."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer_agent.errors import Finding

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from trainer_agent.hostfile import Hostfile

SHOWN = 8  # hosts in a message; the log has them all


@dataclass(frozen=True)
class Arrival:
    """
    What a rank says of itself when it comes.

    Args:
        rank, size: as mpirun told it, -1 where it did not.
        hostname: its own.
        address: where its connection comes from.
    """

    rank: int
    size: int
    hostname: str
    address: str


@dataclass(frozen=True)
class Expected:
    """
    Who has to come.

    Args:
        hosts: ranks on each host of the hostfile by its name, empty where the user places the ranks himself.
        addresses: the address of each.
        total: ranks in all, None where only mpirun knows.
    """

    hosts: Mapping[str, int]
    addresses: Mapping[str, str]
    total: int | None


def expected(hosts: Hostfile, addresses: Mapping[str, str], *, count: int | None, placed: bool) -> Expected:
    """
    Return who has to come.

    Args:
        count: the number of ranks that the user gives, None without.
        placed: whether the user says himself which hosts get how many.
    """
    slots = {entry.name: entry.slots for entry in hosts.entries}
    total = sum(slots.values())
    if placed or (count is not None and count != total):
        return Expected({}, addresses, None if placed and count is None else count)
    return Expected(slots, addresses, total)


class Census:
    """
    Who has come so far.

    Args:
        gone: ranks that have come and gone again, before all were here.
        size: how many ranks there are to be, as the ranks themselves say; 0 before the first one.
    """

    def __init__(self, wanted: Expected) -> None:
        self.wanted = wanted
        self.come: dict[int, Arrival] = {}
        self.gone: set[int] = set()
        self.size = 0
        self.strange: list[Arrival] = []
        self.host_of = {address: name for name, address in wanted.addresses.items()}
        self.short = _unique(wanted.addresses)

    def add(self, arrival: Arrival) -> None:
        """Count a rank in."""
        if arrival.rank < 0 or arrival.size < 1 or arrival.rank in self.come:
            self.strange.append(arrival)
        else:
            self.come[arrival.rank] = arrival
            self.size = max(self.size, arrival.size)

    @property
    def full(self) -> bool:
        """Whether all that mpirun started are here."""
        return bool(self.strange) or 0 < self.size <= len(self.come) - len(self.gone)

    def host(self, rank: int) -> str:
        """Return the host of a rank, by the name that the hostfile gives it."""
        arrival = self.come[rank]
        known = self.short.get(arrival.hostname.partition(".")[0]) or self.host_of.get(arrival.address)
        return known or arrival.hostname

    def count(self) -> dict[str, int]:
        """Return how many ranks each host has, those of the hostfile first."""
        found = Counter(self.host(rank) for rank in sorted(self.come))
        return {name: found.get(name, 0) for name in self.wanted.addresses} | found

    def missing(self) -> dict[str, int]:
        """Return the hosts that have too few ranks, and how many they have."""
        found = self.count()
        return {name: found[name] for name, slots in self.wanted.hosts.items() if found[name] < slots}

    def wrong(self) -> Finding | None:
        """Return what is wrong with a world whose ranks have all come."""
        if self.strange:
            return _strange(self.strange, self.come)
        if self.missing():
            return _missing(self)
        if self.wanted.total is not None and self.size != self.wanted.total:
            message = f"the world has {self.size} ranks, wanted {self.wanted.total}"
            return Finding("mpi-world-wrong", f"{message}: {placed(self.count())}", hint=WRONG_HINT)
        return None


def _unique(names: Iterable[str]) -> dict[str, str]:
    """Return names by their first words, as pods know themselves, but for those whose first word is shared."""
    short = [name.partition(".")[0] for name in names]
    times = Counter(short)
    return {first: name for first, name in zip(short, names, strict=True) if times[first] == 1}


WRONG_HINT = "look at the options of mpirun and at OMPI_MCA_, PRTE_MCA_, HYDRA_ and I_MPI_ variables that place ranks"


def placed(count: Mapping[str, int]) -> str:
    """Return how many ranks are on each host, in words."""
    return listed([f"{ranks} on {name}" for name, ranks in count.items()])


def listed(words: Collection[str]) -> str:
    """Return some words, and how many more there are."""
    more = len(words) - SHOWN
    return ", ".join(list(words)[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _missing(census: Census) -> Finding:
    missing = census.missing()
    message = f"mpirun put {census.size} ranks on the wrong hosts: {placed(census.count())}; wanted "
    return Finding("mpi-hosts-unused", message + placed({n: census.wanted.hosts[n] for n in missing}), hint=WRONG_HINT)


def _strange(strange: Sequence[Arrival], come: Mapping[int, Arrival]) -> Finding:
    hosts: Iterable[str] = sorted({arrival.hostname for arrival in strange})
    if any(arrival.rank in come for arrival in strange):
        first = next(arrival for arrival in strange if arrival.rank in come)
        message = f"rank {first.rank} came twice, from {come[first.rank].hostname} and {first.hostname}"
    else:
        message = (
            f"processes on {listed(list(hosts))} have no rank: mpirun set neither OMPI_COMM_WORLD_RANK nor PMI_RANK"
        )
    hint = "use the mpirun of the MPI that is on all hosts; `mpirun --version` must say the same everywhere"
    return Finding("mpi-ranks-strange", message, hint=hint)
