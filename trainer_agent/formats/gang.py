"""The gang on the page: who is to blame and what to do without, then what was seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainer_agent.formats.arrivals import arrivals
from trainer_agent.formats.badges import badge
from trainer_agent.formats.bars import Bar, bar_cells, picture, stretch
from trainer_agent.formats.gang_section import Blamed, gang_of
from trainer_agent.formats.gang_words import affinity, avoided, collective, nodes, phases, ranks, states, suspect_name
from trainer_agent.formats.gang_words import well as well_words
from trainer_agent.formats.markup import Markup, element, join
from trainer_agent.formats.pair_map import pair_map
from trainer_agent.policy import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer_agent.formats.gang_section import Collective, Difference, Gang, Phase, Row

WHO = {
    Blamed.NONE: "nobody",
    Blamed.SELF: "this node",
    Blamed.PEER: "another node",
    Blamed.UNDETERMINED: "somebody, and it cannot be told who",
}
TONES = {"error": "fail", "warning": "warn", "info": "skip"}
MOST_VALUES = 16  # of one difference; a key that differs everywhere would fill pages
MOST_SUSPECTS = 64


def gang_section(data: dict[str, Any]) -> Markup | None:
    """Return the section of a report about its gang, nothing where it looked at one node only."""
    gang = gang_of(data)
    if gang is None:
        return None
    wrong = gang.verdict != Verdict.PASS
    return element(
        "section",
        element("h2", f"Gang of {gang.nnodes}"),
        _blame(gang),
        _part("Arrivals", states(gang), arrivals(gang), wrong=wrong),
        _part("Pairs", _pairs_words(gang), pair_map(gang), wrong=wrong) if gang.pairs else None,
        _part("Collective", collective(gang.collective), _collective(gang.collective), wrong=wrong)
        if gang.collective
        else None,
        _part("Differences", _keys(gang.differences), _differences(gang.differences), wrong=wrong)
        if gang.differences
        else None,
        _part("Phases", phases(gang), _phases(gang.phases), wrong=wrong) if gang.phases else None,
        class_="gang",
    )


def _part(title: str, words: str, inside: Markup, *, wrong: bool) -> Markup:
    """Return a part that can be opened; it is when something is wrong."""
    summary = element("summary", element("h3", title), f" {words}")
    return element("details", summary, element("div", inside, class_="inside"), class_="check info", open=wrong)


def _blame(gang: Gang) -> Markup:
    """Return what came of it, who did it, and what the next attempt should do without."""
    wrong = gang.verdict != Verdict.PASS
    who = element("p", "To blame: ", element("strong", WHO[gang.blame]), f". Action of the gang: {gang.action}.")
    attempt = f"attempt {gang.attempt}, " if gang.attempt else ""
    written = f"{attempt}epoch {gang.epoch}, verdict written by {gang.name(gang.written_by)}"
    return element(
        "div",
        element("p", badge(gang.verdict), " ", element("strong", gang.summary if wrong else well_words(gang))),
        who if wrong else None,
        _suspects(gang),
        *(element("p", f"One of {nodes(u.ranks)}: {u.reason}") for u in gang.undetermined[:MOST_SUSPECTS]),
        _more(len(gang.undetermined)),
        _avoid(gang),
        element("p", written, class_="soft"),
        class_=f"card top {gang.verdict}",
    )


def _suspects(gang: Gang) -> Markup | None:
    shown = [
        element("li", "Suspect: ", element("strong", suspect_name(gang, s)), f": {s.reason}")
        for s in gang.suspects[:MOST_SUSPECTS]
    ]
    more = _more(len(gang.suspects))
    return join(element("ul", *shown, class_="suspects"), more) if shown else None


def _more(count: int) -> Markup | None:
    return element("p", f"and {count - MOST_SUSPECTS} more", class_="soft") if count > MOST_SUSPECTS else None


def _avoid(gang: Gang) -> Markup | None:
    """Return the names to be copied, and for nodes the words that Kubernetes understands."""
    listed = [
        join(element("p", f"Avoid these {what}:", class_="soft"), element("pre", "\n".join(names)))
        for what, names in avoided(gang)
        if names
    ]
    machines = {node.node for node in gang.nodes}
    known = [name for name in gang.avoid.hostnames if name in machines]  # what else is there is the name of a pod
    if known:
        said = "For the pod template, so that Kubernetes keeps off these nodes:"
        listed += [element("p", said, class_="soft"), element("pre", affinity(known))]
    if len(known) < len(gang.avoid.hostnames):
        count = len(gang.avoid.hostnames) - len(known)
        listed.append(
            element("p", f"{count} of these hosts are pods; their nodes of Kubernetes are not known.", class_="soft")
        )
    return element("div", *listed, class_="avoid") if listed else None


def _pairs_words(gang: Gang) -> str:
    rounds = len({p.round for p in gang.pairs})
    failed = sum(not p.passed for p in gang.pairs)
    return f"tests {len(gang.pairs)}, rounds {rounds}, failed {failed}"


def _collective(found: Collective) -> Markup:
    heads = ("operation", "bytes", "seconds", "bus bandwidth", "GB/s", "part")
    return join(
        element(
            "p", badge("pass" if found.passed else "fail", "passed" if found.passed else "failed"), " ", found.message
        ),
        _table(heads, [element("tr", *_row(row)) for row in found.rows]) if found.rows else None,
    )


def _row(row: Row) -> list[Markup]:
    plain = (row.of, f"{row.bytes:,}", f"{row.seconds:.4g}")
    rate = ("", f"{row.busbw_gbps:g}", "")
    if row.expected_busbw_gbps:
        rate = bar_cells(Bar("", row.busbw_gbps, row.expected_busbw_gbps))
    return [element("th", plain[0], scope="row"), *(element("td", cell) for cell in (*plain[1:], *rate))]


def _table(heads: Sequence[str], rows: Sequence[Markup]) -> Markup:
    head = element("thead", element("tr", *(element("th", text, scope="col") for text in heads)))
    return element("div", element("table", head, element("tbody", *rows), class_="bars"), class_="wide")


def _keys(differences: Sequence[Difference]) -> str:
    return ", ".join(d.key for d in differences)


def _differences(differences: Sequence[Difference]) -> Markup:
    return _table(("key", "value", "nodes"), [row for d in differences for row in _values(d)])


def _values(difference: Difference) -> list[Markup]:
    """Return a row for each value, the key before the first."""
    shown, left = difference.values[:MOST_VALUES], difference.values[MOST_VALUES:]
    cells = [(element("code", str(v.value)), join(ranks(v.ranks), _mark(v.ranks, difference))) for v in shown]
    if left:
        cells.append((join(f"{len(left)} more values"), join(ranks(r for v in left for r in v.ranks))))
    of = badge(TONES[difference.severity], difference.severity)
    key = element("th", difference.key, " ", of, scope="rowgroup", rowspan=len(cells))
    return [element("tr", None if n else key, *(element("td", c) for c in row)) for n, row in enumerate(cells)]


def _mark(some_ranks: Sequence[int], difference: Difference) -> Markup | None:
    """Return a mark for those that the others should not have to follow."""
    minority = some_ranks and set(some_ranks) <= set(difference.minority)
    return join(" ", badge("warn", "minority")) if minority else None


def _phases(all_phases: Sequence[Phase]) -> Markup:
    """Return when each phase was: it begins where the one before ends."""
    whole = sum(p.seconds for p in all_phases) or 1
    rows, begin = [], 0.0
    for phase in all_phases:
        drawn = picture(stretch(100 * begin / whole, max(0.5, 100 * phase.seconds / whole)))
        cells = (element("td", drawn), element("td", f"{phase.seconds:.2f} s"))
        rows.append(element("tr", element("th", phase.name, scope="row"), *cells))
        begin += phase.seconds
    return element("div", element("table", *rows, class_="bars"), class_="wide")
