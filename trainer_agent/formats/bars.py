"""Bars of what was measured against what was expected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer_agent.formats.markup import Markup, element

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

EXPECTED = ("expected_", "wanted_")
MARK = 80  # where the expected value stands in a bar of 100, so that all bars can be compared


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


def bars_table(bars: Iterable[Bar]) -> Markup | None:
    """Return all bars as a table, nothing where there are none."""
    rows = [_row(bar) for bar in sorted(bars, key=lambda bar: min(100, bar.percent))]  # what falls short comes first
    if not rows:
        return None
    table = element("table", element("caption", "Measured against expected"), *rows, class_="bars")
    return element("div", table, class_="wide")


def _row(bar: Bar) -> Markup:
    return element("tr", element("th", bar.label, scope="row"), *(element("td", c) for c in bar_cells(bar)))


def bar_cells(bar: Bar) -> tuple[str, str, str]:
    """Return the picture, whose mark is the expected value, and words that say the same."""
    drawn = picture(stretch(0, bar.percent * MARK / 100), stretch(MARK, 1, kind="mark"))
    return drawn, f"{bar.measured:g} of {bar.expected:g} expected", f"{bar.percent:.0f} %"


def picture(*parts: Markup) -> Markup:
    """Return a track from 0 to 100 with stretches on it; words beside it must say the same."""
    track = element("rect", class_="track", width="100", height="10")
    return element("svg", track, *parts, viewBox="0 0 100 10", preserveAspectRatio="none", aria_hidden="true")


def stretch(start: float, length: float, *, kind: str = "value") -> Markup:
    """Return a part of a track, no longer than the track is."""
    begin = min(100.0, max(0.0, start))
    width = min(100 - begin, max(0.0, length))
    return element("rect", class_=kind, x=f"{begin:.2f}", width=f"{width:.2f}", height="10")
