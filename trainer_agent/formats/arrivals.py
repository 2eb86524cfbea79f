"""When each node arrived: one row for each, from the first arrival on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer_agent.formats.badges import badge
from trainer_agent.formats.bars import picture, stretch
from trainer_agent.formats.gang_section import State
from trainer_agent.formats.gang_words import ranks
from trainer_agent.formats.markup import Markup, element

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer_agent.formats.gang_section import Gang, Node

MOST_WHOLE = 64  # of so many nodes each has its row
SLOWEST = 32  # of more, those that are ready but came last
MOST_NOT_READY = 128  # as many as a reader will look at; the others are named by their ranks
TONES = {
    State.MISSING: "fail",
    State.LOST: "fail",
    State.FAILED: "fail",
    State.SUPERSEDED: "skip",
    State.READY: "pass",
}


def arrivals(gang: Gang) -> Markup:
    """Return the table: who is not ready first, then who came last."""
    ready = sorted((n for n in gang.nodes if n.state == State.READY), key=lambda n: (-(n.arrived_s or 0), n.rank))
    last = len(ready) if len(gang.nodes) <= MOST_WHOLE else SLOWEST
    end = _end(gang)
    rows = [
        *(_row(node, end) for node in gang.not_ready[:MOST_NOT_READY]),
        _rest(gang.not_ready[MOST_NOT_READY:], end),
        *(_row(node, end) for node in ready[:last]),
        _rest(ready[last:], end),
    ]
    said = f"Who is not ready first, then who came last. The bars are {end:.2f} s long from the first arrival on."
    table = element("table", element("caption", said), *(r for r in rows if r), class_="bars arrivals")
    return element("div", table, class_="wide", tabindex="0", role="region", aria_label="Arrival of each node")


def _end(gang: Gang) -> float:
    """Return until when they are drawn: the last arrival, and where somebody is missing as long as was waited."""
    last = max((n.arrived_s or 0 for n in gang.nodes), default=0)
    waited = gang.phases[0].seconds if gang.phases and gang.states[State.MISSING] else 0
    return max(last, waited)


def _row(node: Node, end: float) -> Markup:
    names = element("code", " ".join(name for name in (node.node, node.address) if name))
    head = element("th", f"{node.rank} ", element("strong", node.hostname or "no name"), " ", names, scope="row")
    return _cells(head, _picture(node, end), _when(node.arrived_s), badge(TONES[node.state], node.state), _note(node))


def _cells(head: Markup, *cells: str) -> Markup:
    return element("tr", head, *(element("td", cell) for cell in cells))


def _when(arrived_s: float | None) -> str:
    return "never" if arrived_s is None else f"{arrived_s:.2f} s"


def _note(node: Node) -> str:
    offset = node.clock_offset_s
    clock = [f"clock {offset:+.3f} s"] if offset is not None else []
    return "; ".join([*([node.note] if node.note else []), *clock])


def _picture(node: Node, end: float) -> Markup:
    """Return the time until a node came; red from there on where it is not there."""
    came = 100 * node.arrived_s / end if node.arrived_s is not None and end else 0
    gone = node.state in (State.MISSING, State.LOST)
    return picture(
        stretch(0, came),
        *([stretch(came, 100, kind="value bad")] if gone else []),
        *([stretch(min(came, 99), 1, kind="mark")] if node.arrived_s is not None else []),
    )


def _rest(nodes: Sequence[Node], end: float) -> Markup | None:
    """Return one row for all nodes that have none."""
    if not nodes:
        return None
    came = sorted(n.arrived_s for n in nodes if n.arrived_s is not None)
    head = element("th", f"{len(nodes)} more ", element("code", f"ranks {ranks(n.rank for n in nodes)}"), scope="row")
    drawn = picture(stretch(0, 100 * came[-1] / end if came and end else 0))
    state = badge(TONES[nodes[-1].state], " or ".join(dict.fromkeys(n.state for n in nodes)))
    return _cells(head, drawn, f"{came[0]:.2f} to {came[-1]:.2f} s" if came else "never", state, "")
