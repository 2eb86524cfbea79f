"""The benchmark of pair tests runs, and what it says of ours holds."""

import subprocess
import sys
from pathlib import Path

import pytest
from localise import SCHEDULES, measure

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "localise.py"
# How often ours is exact in benchmarks/results/localise.md.
EXACT = {
    (0.7, 4, 1): 1.0,
    (0.7, 8, 1): 1.0,
    (0.7, 8, 2): 0.95,
    (0.7, 64, 2): 0.98,
    (0.4, 4, 1): 1.0,
    (0.4, 8, 1): 1.0,
    (0.4, 8, 2): 0.92,
    (0.4, 64, 1): 0.99,
    (0.4, 64, 2): 0.96,
}


@pytest.mark.parametrize("cell", EXACT, ids=str)
def test_faults_that_show_sometimes_are_named(cell):
    """As often as the results say, but for what chance does in 100 trials; by no other schedule as often."""
    shows, nodes, faults = cell
    found = {name: measure(each, nodes, faults, shows=shows, trials=100) for name, each in SCHEDULES.items()}

    ours = found.pop("ours")
    assert ours.exact >= EXACT[cell] - 0.06
    assert ours.wrong <= 0.02
    assert all(ours.exact > other.exact for other in found.values())


@pytest.mark.parametrize("nodes,faults", [(3, 1), (4, 1), (4, 2), (8, 1), (8, 2), (64, 1), (64, 8)])
def test_faults_that_always_show_are_always_named(nodes, faults):
    found = {name: measure(each, nodes, faults, shows=1.0, trials=100) for name, each in SCHEDULES.items()}

    assert found["ours"].exact == 1
    assert found["ours"].wrong == 0


@pytest.mark.parametrize(
    "name,cell,exact",
    [
        ("DLRover", (0.7, 64, 1), 0.7**2),  # the fault must show in both rounds
        ("CHS", (0.7, 64, 1), 0.7**2),
        ("3+3", (0.7, 64, 1), (1 - 0.3**3) ** 2),  # in one of three, and again
        ("DLRover", (1.0, 4, 2), 2 / 3),  # both fail in one pair, or those of two pairs are paired well again
        ("DLRover", (1.0, 3, 1), 0),
        ("CHS", (1.0, 4, 2), 1 / 3),  # both in one pair, or nobody passes
        ("CHS", (1.0, 3, 1), 2 / 3),  # the two that are well meet, unless the third meets the one at fault
    ],
)
def test_the_others_do_as_they_must(name, cell, exact):
    """What their rounds come to is easily calculated."""
    shows, nodes, faults = cell

    assert measure(SCHEDULES[name], nodes, faults, shows=shows, trials=400).exact == pytest.approx(exact, abs=0.07)


def test_it_prints_two_tables():
    """One line for each cell, in which every share is one."""
    command = [sys.executable, str(SCRIPT), "--trials", "2", "--largest", "8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)

    tables = [[row.strip("| ").split(" | ") for row in text.splitlines()] for text in done.stdout.split("\n\n")[:2]]
    for (header, rule, *lines), first, count in zip(tables, (3, 2), (18, 4), strict=True):
        assert header[first : first + 4] == [*SCHEDULES]
        assert {len(header)} == {len(line) for line in [rule, *lines]}
        assert len(lines) == count
        assert all(0 <= float(share) <= 1 for line in lines for share in line[first : first + 4])
