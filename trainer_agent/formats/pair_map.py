"""Which pairs of nodes did well: a map of nodes against nodes, and a list of those that failed."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from trainer_agent.formats.gang_words import listed
from trainer_agent.formats.markup import Markup, element, join

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trainer_agent.formats.gang_section import Gang, Pair

MOST_WHOLE = 128  # of so many nodes all are drawn
OTHERS = 32  # of more, so many of those that failed with nobody
MOST_WORDS = 16  # of so many nodes there is room for host names, and for numbers in the cells
MOST_LISTED = 20  # failed pairs that are told in words
STEPS = 6  # shades of a rate, from pale to dark
# Width and height of a cell in pixels, by the most nodes that it is for.
SIZES = {MOST_WORDS: (44, 24), 32: (20, 20), 64: (14, 14), MOST_WHOLE: (7, 7)}
LETTER = 7  # the width of a letter of the labels, in pixels
LONGEST = 34  # letters of a host name
NARROW = 12  # pixels that a label needs across; where cells are smaller some have none
SIGN = 12  # pixels for the sign of a suspect


@dataclass(frozen=True)
class Cell:
    """What two nodes did together in all rounds; `why` is the reason of the last failure."""

    passed: int
    failed: int
    best: float | None
    why: str

    @property
    def words(self) -> str:
        """Return it in words."""
        rate = f", best {self.best:g} GB/s" if self.best is not None else ""
        times = f"failed {self.failed} of {self.passed + self.failed}" if self.failed else "passed"
        return f"{times}{rate}{': ' if self.why else ''}{self.why}"


def cells_of(pairs: Iterable[Pair]) -> dict[tuple[int, int], Cell]:
    """Return what became of each pair, the lower rank first."""
    met: dict[tuple[int, int], list[Pair]] = defaultdict(list)
    for pair in pairs:
        met[min(pair.a, pair.b), max(pair.a, pair.b)].append(pair)
    return {who: _cell(tests) for who, tests in met.items()}


def _cell(tests: Sequence[Pair]) -> Cell:
    failed = [t for t in tests if not t.passed]
    rates = [t.gbps for t in tests if t.gbps is not None]
    return Cell(
        len(tests) - len(failed),
        len(failed),
        max(rates, default=None),
        next((t.why for t in failed[::-1] if t.why), ""),
    )


def pair_map(gang: Gang) -> Markup:
    """Return the map with its legend, and the failed pairs in words."""
    cells = cells_of(gang.pairs)
    shown = chosen(gang, cells)
    most = max((c.best or 0 for c in cells.values()), default=0)
    drawing = _Drawing(gang, shown, cells, most)
    box = element("div", drawing.svg(), class_="wide", tabindex="0", role="region", aria_label="Nodes against nodes")
    return join(element("p", _selection(gang, cells, shown), class_="soft"), box, _legend(most), _failed(gang, cells))


def chosen(gang: Gang, cells: dict[tuple[int, int], Cell]) -> list[int]:
    """Return the ranks to be drawn: all, or those that failed most and those that met them."""
    everybody = sorted(gang.hostnames.keys() | {rank for who in cells for rank in who})
    if len(everybody) <= MOST_WHOLE:
        return everybody
    failures = _failures(cells)
    failing = sorted(failures, key=lambda rank: (-failures[rank], rank))
    if len(failing) > MOST_WHOLE - OTHERS:
        met = _met(cells, failing[:OTHERS])
        rest = sorted(failing[OTHERS:], key=lambda rank: -met[rank])
        failing = [*failing[:OTHERS], *rest[: MOST_WHOLE - 2 * OTHERS]]
    met, slowest = _met(cells, failing), _slowest(cells)
    others = sorted((r for r in slowest if r not in failures), key=lambda rank: (-met[rank], slowest[rank], rank))
    return sorted([*failing, *others[:OTHERS]])


def _met(cells: Iterable[tuple[int, int]], some: Sequence[int]) -> Counter[int]:
    """Return how many of some nodes each node has met."""
    wanted = set(some)
    return Counter(rank for who in cells for rank, other in (who, who[::-1]) if other in wanted)


def _slowest(cells: dict[tuple[int, int], Cell]) -> dict[int, float]:
    """Return the least of each node's best rates."""
    least: dict[int, float] = {}
    for who, cell in cells.items():
        least |= {rank: min(least.get(rank, math.inf), cell.best or 0) for rank in who}
    return least


def _failures(cells: dict[tuple[int, int], Cell]) -> Counter[int]:
    return Counter(rank for who, cell in cells.items() if cell.failed for rank in who)


def _selection(gang: Gang, cells: dict[tuple[int, int], Cell], shown: Sequence[int]) -> str:
    """Return who is drawn, and who is not."""
    count = len(gang.hostnames)
    if len(shown) >= count:
        return "Every node against every node: the best rate of each pair in GB/s, one direction."
    failures = _failures(cells)
    failed = sum(rank in failures for rank in shown)
    few = "" if failed == len(failures) else " (those that failed most, and whom they met)"
    return (
        f"{len(shown)} of {count} nodes: {failed} of {len(failures)} that failed with somebody{few}, and "
        f"{len(shown) - failed} others (whom they met, and the slowest). "
        "The best rate of each pair in GB/s, one direction."
    )


@dataclass(frozen=True)
class _Drawing:
    """The map; places are counted in cells from the upper left corner."""

    gang: Gang
    shown: list[int]
    cells: dict[tuple[int, int], Cell]
    most: float

    def svg(self) -> Markup:
        """Return the whole picture."""
        (wide, high), (left, above) = self.size, self.corner
        width, height = len(self.shown) * wide, len(self.shown) * high
        ground = element("rect", class_="track", x=left, y=above, width=width, height=height)
        return element(
            "svg",
            ground,
            *(part for place, rank in enumerate(self.shown) for part in self._labels(place, rank)),
            *(part for row, column in self._drawn() for part in self._cell(row, column)),
            class_="map",
            width=left + width + 2,
            height=above + height + 2,
            role="img",
            aria_label="Rates of all pairs; those that failed are listed below.",
        )

    @cached_property
    def size(self) -> tuple[int, int]:
        """Return the width and the height of a cell."""
        return next(size for most, size in SIZES.items() if len(self.shown) <= most)

    @cached_property
    def corner(self) -> tuple[int, int]:
        """Return where the cells begin, right of and below their labels."""
        left = max((len(self._label(r)) for r in self.shown), default=0) * LETTER + SIGN + 6
        above = max((len(str(r)) for r in self.shown), default=0) * LETTER + SIGN + 6
        return left, SIGN + 20 if self.words else above

    @cached_property
    def labelled(self) -> set[int]:
        """Return the places whose labels have room, those of suspects before others."""
        places: list[int] = []
        for place in sorted(range(len(self.shown)), key=lambda n: self.shown[n] not in self.signs):
            if all(abs(place - other) * self.size[1] >= NARROW for other in places):
                places.append(place)
        return set(places)

    @cached_property
    def words(self) -> bool:
        """Whether there is room for words."""
        return len(self.shown) <= MOST_WORDS

    @cached_property
    def signs(self) -> dict[int, str]:
        """Return the sign of every rank under suspicion."""
        unknown = {rank: "?" for u in self.gang.undetermined for rank in u.ranks}
        return unknown | {s.node_rank: "▶" for s in self.gang.suspects if s.kind != "link"}

    def _label(self, rank: int) -> str:
        host = self.gang.hostnames.get(rank, "") if self.words else ""
        half = LONGEST // 2
        return f"{rank} {host if len(host) <= LONGEST else f'{host[: half - 1]}…{host[-half:]}'}".strip()

    def _labels(self, place: int, rank: int) -> Iterator[Markup]:
        """Yield the names of a row and of its column, and the signs of who is under suspicion."""
        (wide, high), (left, above) = self.size, self.corner
        x, y = left + (place + 0.5) * wide, above + (place + 0.5) * high
        sign = self.signs.get(rank, "")
        kind = "name bad" if sign else "name"
        if sign:
            yield element("text", sign, class_=kind, x=left - 3, y=y, text_anchor="end")
            yield element("text", sign.replace("▶", "▼"), class_=kind, x=x, y=above - 6, text_anchor="middle")
        if place not in self.labelled:
            return
        title = element("title", self.gang.name(rank))
        yield element("text", title, self._label(rank), class_=kind, x=left - SIGN - 3, y=y, text_anchor="end")
        y = above - SIGN - (8 if self.words else 2)
        turned = {} if self.words else {"transform": f"rotate(-90 {x} {y})"}
        anchor = "middle" if self.words else "start"
        yield element("text", title, str(rank), class_=kind, x=x, y=y, text_anchor=anchor, **turned)

    def _drawn(self) -> Iterator[tuple[int, int]]:
        """Yield the places of all cells that are drawn: of those that met, and of nodes with themselves."""
        places = {rank: place for place, rank in enumerate(self.shown)}
        yield from ((place, place) for place in places.values())
        for a, b in self.cells:
            if a in places and b in places:
                yield from ((places[a], places[b]), (places[b], places[a]))

    def _cell(self, row: int, column: int) -> Iterator[Markup]:
        (wide, high), (left, above) = self.size, self.corner
        x, y = left + column * wide, above + row * high
        box = {"x": x + 0.5, "y": y + 0.5, "width": wide - 1, "height": high - 1}
        if row == column:
            yield element("rect", class_="itself", **box)
            return
        a, b = sorted((self.shown[row], self.shown[column]))
        cell = self.cells[a, b]
        title = element("title", f"{self.gang.name(a)} and {self.gang.name(b)}: {cell.words}")
        yield element("rect", title, class_="bad" if cell.failed else f"rate-{self._shade(cell)}", **box)
        if self.words:
            text = f"{'✗ ' if cell.failed else ''}{_short(cell.best)}".strip()
            yield element("text", text, x=x + wide / 2, y=y + high / 2, text_anchor="middle")
        elif cell.failed:
            yield element("path", class_="cross small" if wide < NARROW else "cross", d=_cross(x + 2, y + 2, wide - 4))

    def _shade(self, cell: Cell) -> int:
        if cell.best is None or not self.most:
            return 0
        return 1 + max(0, min(STEPS - 1, int(STEPS * cell.best / self.most)))


def _cross(x: int, y: int, size: int) -> str:
    """Return the lines of a cross from its upper left corner on."""
    return f"M{x} {y}l{size} {size}m0 -{size}l-{size} {size}"


def _short(rate: float | None) -> str:
    """Return a rate that fits into a cell."""
    if rate is None:
        return ""
    return f"{rate:.2f}" if rate < 10 else f"{rate:.1f}" if rate < 100 else f"{rate:.0f}"


def _legend(most: float) -> Markup:
    shades = [_swatch(f"rate-{step}") for step in range(1, STEPS + 1)]
    rates = [*shades, f" 0 to {most:g} GB/s · "] if most else []
    squares = (_swatch("rate-0"), " passed, no rate · ", _swatch("bad"), " ✗ failed · ", _swatch("track"))
    return element("p", *rates, *squares, " did not meet · ▶ suspect · ? undetermined", class_="soft")


def _swatch(kind: str) -> Markup:
    square = element("rect", class_=kind, width="12", height="12")
    return element("svg", square, class_="swatch", width="12", height="12", aria_hidden="true")


def _failed(gang: Gang, cells: dict[tuple[int, int], Cell]) -> Markup | None:
    """Return the pairs that failed in words: first those that no suspect explains, then those that failed most."""
    failed = [who for who, cell in cells.items() if cell.failed]
    if not failed:
        return None
    suspects = {s.node_rank for s in gang.suspects if s.kind != "link"}
    failed.sort(key=lambda who: (not suspects.isdisjoint(who), -cells[who].failed, who))
    told = [f"{gang.name(a)} and {gang.name(b)}: {cells[a, b].words}" for a, b in failed]
    return element("ul", *(element("li", line) for line in listed(told, most=MOST_LISTED)), class_="told")
