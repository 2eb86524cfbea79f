"""What came out: a table per cell, and whether the agent is as fast and as small as it has to be."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from peers import CP, KUBEFLOW, LATER, OURS, SYNCED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cells import Cell
    from measure import Run

HEADER = f"{'':<20}{'median s':>9}{'min-max s':>15}{'MB/s':>7}{'CPU s':>7}{'peak MB':>9}{'times ours':>12}"
NOT_COMPARED = frozenset({OURS, LATER, CP, KUBEFLOW, CP + SYNCED, KUBEFLOW + SYNCED})


@dataclass(frozen=True)
class Verdict:
    """Something that the agent has to reach, and whether it does."""

    cell: str
    text: str
    ok: bool

    def __str__(self) -> str:
        return f"{'ok' if self.ok else 'MISSED':<7} {self.cell}: {self.text}"


def seconds(runs: Sequence[Run]) -> float:
    """Return the median."""
    return statistics.median(run.seconds for run in runs)


def peak_mb(runs: Sequence[Run]) -> float:
    """Return the largest."""
    return max(run.peak_mb for run in runs)


def table(cell: Cell, size: int, results: Mapping[str, Sequence[Run]]) -> str:
    """Return the table of a cell; `size` is what each candidate had to fetch."""
    lines = [f"{cell.name}: {cell.title}", HEADER]
    for name, runs in results.items():
        median, every = seconds(runs), [run.seconds for run in runs]
        times = f"{median / seconds(results[OURS]):.1f}" if OURS in results else ""
        cpu = statistics.median(run.cpu_s for run in runs)
        lines.append(
            f"{name:<20}{median:9.2f}{f'{min(every):.2f}-{max(every):.2f}':>15}{size / median / 1e6:7.0f}"
            f"{cpu:7.2f}{peak_mb(runs):9.0f}{times:>12}"
        )
    return "\n".join(lines)


def verdicts(cell: Cell, results: Mapping[str, Sequence[Run]]) -> list[Verdict]:
    """Return what is to be said about those who took part."""
    if OURS not in results:
        return []
    pairs = ((OURS, ""), (LATER, ""), (OURS, SYNCED))
    found = [verdict for name, way in pairs if name in results for verdict in _faster(cell, name, results, way)]
    ours, peak = seconds(results[OURS]), peak_mb(results[OURS])
    found.append(Verdict(cell.name, f"{peak:.0f} MB at its largest, {cell.most_mb:.0f} at most", peak <= cell.most_mb))
    if cell.most_s < float("inf"):
        found.append(Verdict(cell.name, f"{ours:.2f} s, {cell.most_s:.0f} at most", ours <= cell.most_s))
    return found


def _faster(cell: Cell, name: str, results: Mapping[str, Sequence[Run]], way: str) -> list[Verdict]:
    """Compare one of the agent's ways with all others, or with those whose names end in `way`."""
    ours, beside = seconds(results[name]), f"beside {name}, " * (name != OURS)
    found = [
        _at_least(cell, f"{beside}{peer}{way} takes", seconds(results[peer + way]) / ours, least)
        for peer, least in cell.times.items()
        if peer + way in results
    ]
    others = {o: seconds(runs) for o, runs in results.items() if o not in NOT_COMPARED and o.endswith(way)}
    if cell.best and others:
        best = min(others, key=others.__getitem__)
        that = " that waits" * (way == SYNCED)
        found.append(_at_least(cell, f"{beside}the fastest other{that}, {best}, takes", others[best] / ours, cell.best))
    return found


def _at_least(cell: Cell, who: str, times: float, least: float) -> Verdict:
    # Judged as it is printed: 0.996 is 1.00.
    return Verdict(cell.name, f"{who} {times:.2f} times as long, {least:g} at least", round(times, 2) >= least)
