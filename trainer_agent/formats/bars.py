"""Bars of what was measured against what was expected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

EXPECTED = ("expected_", "wanted_")


@dataclass(frozen=True)
class Bar:
    """One number and what it should be; `label` says which."""

    label: str
    measured: float
    expected: float

    @property
    def percent(self) -> float:
        """Return the measured part of the expected value."""
        return 100 * self.measured / self.expected


def bars_in(value: Any, *, label: str = "") -> Iterator[Bar]:
    """Yield a bar for each number NAME that has an `expected_NAME` or `wanted_NAME` beside it, however deep."""
    if isinstance(value, list):
        for number, below in enumerate(value):
            yield from bars_in(below, label=f"{label} {number}".strip())
    elif isinstance(value, dict):
        own = f"GPU {value['index']}" if "index" in value else label
        for name, below in value.items():
            expected = next((value[p + name] for p in EXPECTED if p + name in value), None)
            if _is_amount(below) and _is_amount(expected) and expected:
                yield Bar(f"{own} {name}".strip(), below, expected)
            yield from bars_in(below, label=f"{own} {name}".strip())


def _is_amount(value: Any) -> bool:
    """Whether it can be drawn: neither endless nor below zero."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e15
