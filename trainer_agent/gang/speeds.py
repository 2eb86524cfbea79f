"""Which pairs and nodes are too slow, and what a collective should reach; pure functions, all rates are GB/s."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, median_high
from typing import TYPE_CHECKING, Any

from trainer_agent.errors import Severity
from trainer_agent.gang.pairs import Meeting

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

# Parts of the reference. A meeting passes, and a node is no straggler, from the first on; below the second the node
# is an error. Heuristic: links negotiate half or a quarter of their speed or lanes, and noise is less than that.
PASS, BAD = 0.5, 0.25
# Robust standard deviations below the reference, too: among nodes whose rates vary widely nobody stands out.
# Heuristic; 1.4826 x MAD is the standard deviation where rates are normally distributed.
DEVIATIONS, NORMAL = 5, 1.4826
# Other nodes that a straggler was slow with: with one alone it may be that one.
PARTNERS = 2
# Parts of what others measured on healthy nodes. Heuristic, the same as within a node (check nccl-loopback).
WARN, FAIL = 0.8, 0.6
# A part of what the same job measured before, and how often at least it must have. Heuristic: runs of one collective
# differ by less, and the median of fewer is not one.
AS_BEFORE, ENOUGH = 0.6, 3
# What a line of a history must be made of; no link of this world carries so much, in GB/s.
KINDS: dict[str, set[type]] = {
    "backend": {str},
    "nodes": {int},
    "ranks": {int},
    "of": {str},
    "size": {int},
    "busbw_gbps": {int, float},
}
MOST_GBPS = 1e6
MIB, GIB = 1 << 20, 1 << 30
# Size of an all-reduce in bytes, and the part of a node's network that it fills: 157, 327 and 382 of 400 GB/s, on 4
# nodes of 8 B200 with 8 x 50 GB/s of EFA. 164 to 169 of 200 GB/s were measured on 2 and 3 nodes of 8 A100 (NDv4).
FILLED = ((64 * MIB, 157 / 400), (512 * MIB, 327 / 400), (16 * GIB, 382 / 400))
# Nodes as those: 8 GPUs that are faster among themselves than the network. Others may be limited by PCIe or by the
# few network cards that their few GPUs use.
ALIKE = re.compile(r"8 x NVIDIA (A100-SXM4-\d+GB|H100 80GB HBM3|H200|B200)")
GPUS = 8


@dataclass(frozen=True)
class Rate:
    """What one direction carried, in GB/s, when two nodes met in a round."""

    a: int
    b: int
    round: int
    gbps: float


@dataclass(frozen=True)
class Judged:
    """
    What rates tell of the pairs.

    Args:
        meetings: one for each rate, in the same order.
        reference_gbps: what a usual node reaches with its best partner; None where nothing can be compared.
    """

    meetings: tuple[Meeting, ...]
    reference_gbps: float | None


@dataclass(frozen=True)
class Straggler:
    """A node whose best rate is a small part, `ratio`, of the reference."""

    node: int
    best_gbps: float
    ratio: float
    severity: Severity


@dataclass(frozen=True)
class Row:
    """The bus bandwidth of a collective in GB/s, of `size` bytes, and all that another must share to compare."""

    backend: str
    nodes: int
    ranks: int
    of: str
    size: int
    busbw_gbps: float

    @property
    def kind(self) -> tuple[str, int, int, str, int]:
        """Return what comparable rows have in common."""
        return self.backend, self.nodes, self.ranks, self.of, self.size

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form, a line of a history."""
        return {"bytes" if name == "size" else name: getattr(self, name) for name in KINDS}


@dataclass(frozen=True)
class Compared:
    """
    A row beside what the job measured earlier.

    Args:
        usual_gbps: the median of comparable rows in GB/s; None where they are too few.
        ratio: the row's part of it.
        severity: a warning when it is much slower, else None.
    """

    row: Row
    usual_gbps: float | None = None
    ratio: float | None = None
    severity: Severity | None = None


def judge(rates: Collection[Rate], hosts: Mapping[int, str]) -> Judged:
    """
    Return which meetings were fast enough; `hosts` are boot ids by rank, as far as known.

    A meeting passes from PASS of the reference on: the median over nodes of the best rate of each, as one slow node of
    three makes two of three pairs slow; the upper one, as one of four that have met once makes two nodes slow. What
    stays within a host passes, and counts only when everything does. Fewer than three nodes are not compared.
    """
    counted = _counted(rates, hosts)
    best = _best(counted)
    reference = median_high(best.values()) if len(best) > 2 else None
    slow = {rate for rate in counted if reference is not None and rate.gbps < PASS * reference}
    return Judged(tuple(Meeting(rate.a, rate.b, rate.round, rate not in slow) for rate in rates), reference)


def stragglers(rates: Collection[Rate], hosts: Mapping[int, str]) -> list[Straggler]:
    """
    Return the nodes that are slow with each of at least PARTNERS others, the slowest first.

    Below PASS of the reference of `judge`, and more than DEVIATIONS robust standard deviations below it; an error below
    BAD of it, else a warning.
    """
    counted = _counted(rates, hosts)
    best, partners = _best(counted), _partners(counted)
    if len(best) < 3 or not (reference := median_high(best.values())):
        return []
    noise = DEVIATIONS * NORMAL * median(abs(gbps - reference) for gbps in best.values())
    most = min(PASS * reference, reference - noise)
    found = [
        Straggler(node, gbps, gbps / reference, Severity.ERROR if gbps < BAD * reference else Severity.WARNING)
        for node, gbps in best.items()
        if gbps < most and len(partners[node]) >= PARTNERS
    ]
    return sorted(found, key=lambda each: (each.ratio, each.node))


def busbw_gbps(of: str, ranks: int, size: int, seconds: float) -> float:
    """Return the bus bandwidth as nccl-tests counts it: what each link carries, whatever the number of ranks."""
    factor = {"all-reduce": 2 * (ranks - 1) / ranks, "all-gather": (ranks - 1) / ranks}[of]
    return factor * size / seconds / 1e9


def expected_busbw_gbps(
    of: str, size: int, *, nodes: int, ranks: int, gpus: str, rdma_gbits: float | None
) -> float | None:
    """
    Return what NCCL reaches between healthy nodes, in GB/s; None where nobody has published it.

    Args:
        size: in bytes.
        gpus: those of a node as the check `consistency` has them, `8 x NVIDIA H200`.
        rdma_gbits: all active RDMA ports of a node together, in Gb/s; None for none or for another backend.
    """
    alike = nodes > 1 and ranks == nodes * GPUS and ALIKE.fullmatch(gpus)
    if of != "all-reduce" or size < FILLED[0][0] or not alike or not rdma_gbits:
        return None
    return rdma_gbits / 8 * _filled(size)


def against_expected(measured_gbps: float, expected_gbps: float) -> Severity | None:
    """Return how bad a bus bandwidth is: an error below FAIL of what is expected, a warning below WARN."""
    part = measured_gbps / expected_gbps
    return Severity.ERROR if part < FAIL else Severity.WARNING if part < WARN else None


def read_history(lines: Iterable[str]) -> list[Row]:
    """Return the rows of a history, one JSON object a line; other lines are left out."""
    return [row for row in map(_row, lines) if row]


def against_history(rows: Iterable[Row], history: Iterable[Row]) -> list[Compared]:
    """Return each row beside the median of earlier ones; a warning below AS_BEFORE of it, with ENOUGH of them."""
    earlier: dict[tuple[str, int, int, str, int], list[float]] = defaultdict(list)
    for row in history:
        earlier[row.kind].append(row.busbw_gbps)
    return [_compared(row, earlier.get(row.kind, [])) for row in rows]


def _counted(rates: Collection[Rate], hosts: Mapping[int, str]) -> list[Rate]:
    """Return the rates between hosts, or all when there is one host: a loopback is faster than any network."""
    nodes = {node for rate in rates for node in (rate.a, rate.b)}
    if len({hosts.get(node, node) for node in nodes}) == 1:
        return list(rates)
    return [rate for rate in rates if hosts.get(rate.a, rate.a) != hosts.get(rate.b, rate.b)]


def _best(rates: Iterable[Rate]) -> dict[int, float]:
    best: dict[int, float] = defaultdict(float)
    for rate in rates:
        for node in (rate.a, rate.b):
            best[node] = max(best[node], rate.gbps)
    return best


def _partners(rates: Iterable[Rate]) -> dict[int, set[int]]:
    partners: dict[int, set[int]] = defaultdict(set)
    for rate in rates:
        partners[rate.a].add(rate.b)
        partners[rate.b].add(rate.a)
    return partners


def _filled(size: int) -> float:
    """Return the part of the network that a size fills, straight between the measured ones in its logarithm."""
    for (low, part), (high, more) in pairwise(FILLED):
        if size <= high:
            return part + (more - part) * math.log(size / low) / math.log(high / low)
    return FILLED[-1][1]


def _row(line: str) -> Row | None:
    try:
        told = json.loads(line)
        row = Row(**{name: told["bytes" if name == "size" else name] for name in KINDS})
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    fits = all(type(getattr(row, name)) in kinds for name, kinds in KINDS.items())
    return row if fits and 0 < row.busbw_gbps < MOST_GBPS else None


def _compared(row: Row, earlier: list[float]) -> Compared:
    if len(earlier) < ENOUGH:
        return Compared(row)
    usual = median(earlier)
    ratio = row.busbw_gbps / usual
    return Compared(row, usual, ratio, Severity.WARNING if ratio < AS_BEFORE else None)
