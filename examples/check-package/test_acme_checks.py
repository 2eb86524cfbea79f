"""Tests of Acme's checks, on machines that are folders."""

from pathlib import Path

from acme_checks import LOW, widgets

from trainer_agent.check import Outcome
from trainer_agent.testing import FakeHost, run_check


def test_too_few_are_found(tmp_path: Path) -> None:
    """Two of three."""
    host = FakeHost(tmp_path)
    host.put("/dev/widgets/0")
    host.put("/dev/widgets/1")

    expected = Outcome("2 widgets", (LOW.found("2 widgets, wanted 3", found=2),), {"widgets": 2, "expected_widgets": 3})
    assert expected == run_check(widgets, host)


def test_other_machines_are_skipped(tmp_path: Path) -> None:
    """A skip comes back as its reason."""
    assert run_check(widgets, FakeHost(tmp_path)) == "this machine has no widgets"
