"""Hostfiles of MPI: which hosts take part, in which order, with how many processes each."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from ipaddress import AddressValueError, IPv6Address
from pathlib import Path
from typing import TYPE_CHECKING

from trainer_agent.env import whole_number
from trainer_agent.errors import ConfigurationError, FatalError, Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

IMPLEMENTATIONS = ("openmpi", "intel", "mpich")
# Open MPI and hydra keep the number of slots in an int.
MOST_SLOTS = 2**31 - 1
# What Open MPI's lexer takes for a host (hostfile_lex.l of ORTE and PRRTE), without its user@ and ^.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
BRACKETS = re.compile(r"\[(?P<address>[^\]]*)\](:(?P<slots>.*))?")
# Neither a zone nor dotted digits at the end: Open MPI's lexer knows neither.
IPV6 = re.compile(r"[0-9A-Fa-f:]+")
# The words of Open MPI's lexer. Without the first, the second is the number of slots (hostfile.c of ORTE and PRRTE).
SLOTS = ("slots", "cpu", "count")
MAX_SLOTS = tuple(f"{a}{between}{b}" for word in SLOTS for between in "_-" for a, b in ((word, "max"), ("max", word)))


@dataclass(frozen=True)
class Entry:
    """One host and its number of slots; `line` is where it was written, 0 when nowhere."""

    name: str
    slots: int = 1
    line: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Hostfile:
    """The hosts in their order, which is that of the ranks."""

    entries: tuple[Entry, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names in their order."""
        return tuple(entry.name for entry in self.entries)

    def with_slots(self, slots: int) -> Hostfile:
        """Return the same hosts with another number of slots each."""
        return Hostfile(tuple(replace(entry, slots=slots) for entry in self.entries))

    def with_addresses(self, addresses: Mapping[str, str]) -> Hostfile:
        """
        Return the same hosts by their addresses.

        Raises:
            ConfigurationError: two names have one address.
        """
        if findings := _same_addresses(addresses):
            raise ConfigurationError(findings)
        return Hostfile(tuple(replace(entry, name=addresses[entry.name]) for entry in self.entries))


def read(path: str) -> Hostfile:
    """
    Return what a file of a controller says.

    Raises:
        FatalError: it cannot be read, or is no hostfile.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig", errors="replace")  # with or without the mark of Windows
    except OSError as error:
        raise FatalError(
            "hostfile-unreadable",
            f"cannot read {path}: {error.strerror}",
            hint="mount the hostfile there, name another with --hostfile, or give --job or the hosts themselves",
        ) from error
    return parse(text, path=path)


def parse(text: str, *, path: str) -> Hostfile:
    """
    Return what the text says in Open MPI's format (`host slots=4`) or that of Intel MPI and MPICH (`host:4`).

    Raises:
        ConfigurationError: lines that are wrong, all of them at once, with their numbers.
    """
    lines = enumerate((line.partition("#")[0] for line in text.split("\n")), 1)
    return _hostfile(lines, source=path, unit="line")


def from_arguments(hosts: Sequence[str]) -> Hostfile:
    """
    Return a list of hosts, each written as in a file.

    Raises:
        ConfigurationError: hosts that are wrong, all of them at once.
    """
    return _hostfile(enumerate(hosts, 1), source="the command line", unit="argument")


def of_job(job: str, *, nnodes: int, subdomain: str | None = None, launcher: bool = False) -> Hostfile:
    """
    Return the pods of a TrainJob by the names that JobSet gives them.

    Args:
        subdomain: of the pods; the job's name by default.
        launcher: whether the launcher is one of the nodes, as with `runLauncherAsNode`; one worker there is at least.
    """
    workers = [f"{job}-node-0-{index}" for index in range(max(nnodes - 1, 1) if launcher else nnodes)]
    pods = [f"{job}-launcher-0-0", *workers] if launcher else workers
    return Hostfile(tuple(Entry(f"{pod}.{subdomain or job}") for pod in pods))


def render(hostfile: Hostfile, implementation: str) -> str:
    """
    Return the text that an implementation reads.

    Raises:
        ConfigurationError: there are IPv6 addresses, which it cannot read.
    """
    if implementation == "openmpi":  # an IPv6 address stands there as it is: a bracket ends Open MPI's parser
        return "".join(f"{entry.name} slots={entry.slots}\n" for entry in hostfile.entries)
    if addresses := [name for name in hostfile.names if ":" in name]:
        raise ConfigurationError([_unreadable_for_hydra(addresses, implementation)])
    return "".join(f"{entry.name}:{entry.slots}\n" for entry in hostfile.entries)


def is_ipv6(text: str) -> bool:
    """Return whether the text is an IPv6 address that a hostfile can hold."""
    try:
        return IPV6.fullmatch(text) is not None and IPv6Address(text) is not None
    except AddressValueError:
        return False


class _WrongError(ValueError):
    """What was found in a line, and what was wanted."""


def _hostfile(lines: Iterable[tuple[int, str]], *, source: str, unit: str) -> Hostfile:
    entries, findings = [], []
    for number, line in lines:
        try:
            entries += _entries(line, number)
        except _WrongError as error:
            findings.append(_invalid(f"{source}, {unit} {number}: {error}"))
    findings += _duplicates(entries, source=source, unit=unit)
    if findings:
        raise ConfigurationError(findings)
    if not entries:
        raise ConfigurationError([_empty(source)])
    return Hostfile(tuple(entries))


def _entries(line: str, number: int) -> list[Entry]:
    """Return the entry of a line, none of an empty one; Open MPI allows spaces around `=`."""
    first, *words = re.sub(r"\s*=\s*", "=", line).split() or [""]
    if not first:
        return []
    name, slots = _host(first)
    counts = [] if slots is None else [("slots", _number(slots))]
    counts += [_count(word) for word in words]
    return [Entry(name, _slots(counts), number)]


def _host(word: str) -> tuple[str, str | None]:
    """Return a host and what stands for its slots after the colon."""
    if is_ipv6(word):
        return word, None
    match = BRACKETS.fullmatch(word)
    if match and is_ipv6(match["address"]):
        return match["address"], match["slots"]
    name, colon, slots = word.partition(":")
    if not NAME.fullmatch(name) or ":" in slots:
        raise _WrongError(f"found {word!r}, wanted a host such as node-0.job, node-0.job:4, fd00::1 or [fd00::1]:4")
    return name, slots if colon else None


def _count(word: str) -> tuple[str, int]:
    key, _, text = word.partition("=")
    if key in SLOTS:
        return "slots", _number(text)
    if key in MAX_SLOTS:
        return "max_slots", _number(text)
    raise _WrongError(f"found {word!r} after the host, wanted slots=N or max_slots=N")


def _number(text: str) -> int:
    number = whole_number(text)
    if number is None or not 1 <= number <= MOST_SLOTS:
        raise _WrongError(f"found {text!r} as the number of slots, wanted a whole number in 1..{MOST_SLOTS}")
    return number


def _slots(counts: Sequence[tuple[str, int]]) -> int:
    """Return the number of slots from all that a line says."""
    said = dict(counts)
    if len(said) < len(counts):
        raise _WrongError("found the number of slots twice, wanted it once")
    slots = said.get("slots", said.get("max_slots", 1))
    if said.get("max_slots", slots) < slots:
        raise _WrongError(f"found max_slots={said['max_slots']} with {slots} slots, wanted at least as many")
    return slots


def _invalid(message: str) -> Finding:
    return Finding("hostfile-line-invalid", message, hint="write each host as `host slots=4` or as `host:4`")


def _empty(source: str) -> Finding:
    hint = "look at what wrote it, and write one host per line, as `host slots=4` or as `host:4`"
    return Finding("hostfile-empty", f"{source} names no host, wanted one or more", hint=hint)


def _duplicates(entries: Sequence[Entry], *, source: str, unit: str) -> list[Finding]:
    """
    Return the hosts that are named twice, on which no two implementations agree.

    Open MPI refuses a second `slots=` for a host and takes a bare second line for one slot more (hostfile.c of ORTE
    and PRRTE); MPICH adds up lines that follow each other and takes others for two hosts (HYDU_add_to_node_list);
    Intel MPI uses the name once (Developer Reference, -hostfile).
    """
    hint = "write each host once, with all its slots: MPI implementations differ in what a second line means"
    return [
        Finding(
            "hostfile-duplicate",
            f"{source}: {same[0].name} stands in {unit}s {_joined(str(e.line) for e in same)}, wanted each host once",
            hint=hint,
        )
        for same in _groups(entries)
    ]


def _groups(entries: Sequence[Entry]) -> list[list[Entry]]:
    hosts: dict[str, list[Entry]] = {}
    for entry in entries:
        hosts.setdefault(_identity(entry.name), []).append(entry)
    return [same for same in hosts.values() if len(same) > 1]


def _identity(name: str) -> str:
    """Return what all spellings of a name or address have in common."""
    return str(IPv6Address(name)) if is_ipv6(name) else name.lower().rstrip(".")


def _same_addresses(addresses: Mapping[str, str]) -> list[Finding]:
    names: dict[str, list[str]] = {}
    for name, address in addresses.items():
        names.setdefault(address, []).append(name)
    hint = "name each host once; where a pod was just replaced, its old address is gone from the name server after 30 s"
    return [
        Finding("hostfile-same-address", f"{_joined(same)} have one address, {address}, wanted one each", hint=hint)
        for address, same in names.items()
        if len(same) > 1
    ]


def _unreadable_for_hydra(addresses: Sequence[str], implementation: str) -> Finding:
    """Hydra cuts a host at its first colon and has no brackets (HYDU_process_mfile_token of MPICH, as in Intel's)."""
    return Finding(
        "hostfile-ipv6",
        f"{_joined(addresses)}: a hostfile for {implementation} cannot hold IPv6, wanted names or IPv4 addresses",
        hint="leave out --resolve and give names, or use --implementation openmpi",
    )


def _joined(words: Iterable[str]) -> str:
    return " and ".join(", ".join(words).rsplit(", ", 1))
