"""pair_map: who did well with whom, in words, in shades and in crosses."""

import re
from itertools import pairwise

import pytest

from trainer_agent.formats.gang_section import Pair, gang_of
from trainer_agent.formats.pair_map import Cell, cells_of, chosen, pair_map

FAILED = "node 1 (job1-node-0-1) and node 3 (job1-node-0-3): failed 1 of 1, best 0.1 GB/s: 0.1 GB/s, wanted 0.6 GB/s"


def pair(a, b, *, failed=False, gbps=1.0, number=0):
    return {"a": a, "b": b, "round": number, "passed": not failed, "gbps": gbps, "why": "slow" if failed else ""}


def made(gang, count, pairs, **changes):
    """Return a gang of so many nodes, of which nothing is known but their pairs."""
    nodes = [{**gang["nodes"][0], "rank": n, "hostname": f"n{n}"} for n in range(count)]
    nothing = {"suspects": [], "undetermined": []}
    return gang_of({"gang": {**gang, **nothing, "nodes": nodes, "pairs": pairs, **changes}})


def rectangles(drawing):
    """Return class, place and size of every rectangle of the map."""
    map_ = drawing[drawing.index('class="map"') - 10 : drawing.index("</svg>")]
    drawn = r'<rect class="([^"]*)" x="([^"]*)" y="([^"]*)" width="([^"]*)" height="([^"]*)">'
    return [(kind, *map(float, numbers)) for kind, *numbers in re.findall(drawn, map_)]


def words(drawing):
    return " ".join(re.sub(r"<[^>]*>", " ", drawing).split())


def test_a_cell_has_the_best_rate_and_the_last_reason():
    tests = [
        Pair(0, 1, 0, passed=True, gbps=1.0, why=""),
        Pair(1, 0, 1, passed=False, gbps=0.5, why="first"),
        Pair(0, 1, 2, passed=False, gbps=None, why="last"),
        Pair(0, 1, 3, passed=True, gbps=1.5, why=""),
        Pair(2, 3, 0, passed=True, gbps=None, why=""),
        Pair(4, 5, 0, passed=False, gbps=0.1, why=""),
    ]
    cells = cells_of(tests)

    assert {(0, 1): Cell(2, 2, 1.5, "last"), (2, 3): Cell(1, 0, None, ""), (4, 5): Cell(0, 1, 0.1, "")} == cells
    assert ["failed 2 of 4, best 1.5 GB/s: last", "passed", "failed 1 of 1, best 0.1 GB/s"] == [
        c.words for c in cells.values()
    ]


def test_the_whole_map_in_words(gang):
    """Titles, numbers in the cells, names with signs, and the failed pairs once more below."""
    told = words(pair_map(gang_of({"gang": gang})))

    assert (
        "Every node against every node: the best rate of each pair in GB/s, one direction. "
        "node 0 (job1-node-0-0) 0 job1-node-0-0 node 0 (job1-node-0-0) 0 "
        "▶ ▼ node 1 (job1-node-0-1) 1 job1-node-0-1 node 1 (job1-node-0-1) 1 "
        "▶ ▼ node 2 (job1-node-0-2) 2 job1-node-0-2 node 2 (job1-node-0-2) 2 "
        "? ? node 3 (job1-node-0-3) 3 job1-node-0-3 node 3 (job1-node-0-3) 3 "
        "node 0 (job1-node-0-0) and node 1 (job1-node-0-1): passed, best 1.5 GB/s 1.50 "
        "node 0 (job1-node-0-0) and node 1 (job1-node-0-1): passed, best 1.5 GB/s 1.50 "
        f"{FAILED} ✗ 0.10 "
        f"{FAILED} ✗ 0.10 "
        "0 to 1.5 GB/s · passed, no rate · ✗ failed · did not meet · ▶ suspect · ? undetermined "
        f"{FAILED}"
    ) == told


def test_where_the_cells_stand(gang):
    """Row and column of both nodes, under one ground for all that did not meet."""
    ground, *cells = rectangles(pair_map(made(gang, 3, [pair(0, 2, failed=True), pair(1, 2, gbps=0.1)])))
    kind, left, above, width, height = ground

    assert ("track", 44 * 3, 24 * 3) == (kind, width, height)
    assert [
        ("itself", 0, 0),
        ("itself", 1, 1),
        ("itself", 2, 2),
        ("bad", 2, 0),
        ("bad", 0, 2),
        ("rate-1", 2, 1),
        ("rate-1", 1, 2),
    ] == [(kind, (x - left - 0.5) / 44, (y - above - 0.5) / 24) for kind, x, y, *_ in cells]


@pytest.mark.parametrize("rate, shade", [(None, 0), (0, 1), (0.1, 1), (0.5, 4), (0.99, 6), (1.0, 6)])
def test_shades_go_from_nothing_to_the_best(gang, rate, shade):
    pairs = [pair(0, 1), pair(2, 3, gbps=rate)]

    assert f"rate-{shade}" == rectangles(pair_map(made(gang, 4, pairs)))[-1][0]


def test_when_no_rate_is_known_no_shade_is_told(gang):
    drawing = pair_map(made(gang, 2, [pair(0, 1, gbps=None)]))

    assert {"track", "itself", "rate-0"} == {kind for kind, *_ in rectangles(drawing)}
    assert "one direction. node 0 (n0) 0 n0" in words(drawing)
    assert "passed passed, no rate" in words(drawing)


@pytest.mark.parametrize("rate, shown", [(0.046, "0.05"), (9.99, "9.99"), (45.32, "45.3"), (123.4, "123")])
def test_numbers_fit_into_their_cells(gang, rate, shown):
    assert f">{shown}</text>" in pair_map(made(gang, 2, [pair(0, 1, gbps=rate)]))


def test_a_link_marks_no_node(gang):
    """Its ends are well."""
    link = {"kind": "link", "id": "n0 - n1", "node_rank": 0, "reason": "cut"}

    assert "▶" not in pair_map(made(gang, 4, [pair(0, 1, failed=True)], suspects=[link])).replace("▶ suspect", "")


def test_long_names_lose_their_middle(gang):
    gang["nodes"][0]["hostname"] = "a" * 40 + "0.example"

    assert ">0 aaaaaaaaaaaaaaaa…aaaaaaaa0.example</text>" in pair_map(gang_of({"gang": gang}))


@pytest.mark.parametrize("count", [2, 16, 17, 32, 33, 64, 65, 128, 129, 1024])
def test_nothing_is_outside_of_the_picture_and_no_label_over_another(gang, count):
    pairs = [pair(n, (n + 1) % count, failed=n < 5) for n in range(count)]
    suspects = [{"kind": "node", "id": f"n{n}", "node_rank": n, "reason": "slow"} for n in (1, 2, 3)]
    drawing = pair_map(made(gang, count, pairs, suspects=suspects))

    width, height = map(int, re.search(r'class="map" width="(\d+)" height="(\d+)"', drawing).groups())
    assert [] == [r for r in rectangles(drawing) if r[1] < 0 or r[2] < 0 or r[1] + r[3] > width or r[2] + r[4] > height]
    assert width < 1004  # what the page has room for
    labels = r'<text class="name[^"]*" x="[^"]*" y="([^"]*)" text-anchor="end"><title>'
    rows = sorted(float(y) for y in re.findall(labels, drawing))
    assert [] == [pair for pair in pairwise(rows) if pair[1] - pair[0] < 12]
    assert ">1</text>" in drawing  # a suspect, whose label takes the room of its neighbours


@pytest.mark.parametrize("count, kind", [(16, None), (17, "cross"), (64, "cross"), (65, "cross small")])
def test_failures_are_crossed_where_there_is_no_room_for_a_sign(gang, count, kind):
    """So that nobody has to see red."""
    drawing = pair_map(made(gang, count, [pair(0, 1, failed=True)]))

    assert ([kind] * 2 if kind else []) == re.findall(r'<path class="([^"]*)"', drawing)
    assert (2 if kind is None else 0) == drawing.count(">✗ 1.00</text>")


def test_of_many_those_that_failed_and_some_of_whom_they_met(gang):
    """Node 500 failed with three; the others that it met come before the slowest, and these before the rest."""
    failed = [pair(500, n, failed=True) for n in (1, 2, 3)]
    met = [pair(500, n) for n in (700, 701)]
    rest = [pair(2 * n, 2 * n + 1, gbps=n / 1000) for n in range(300, 512) if n != 350]
    found = made(gang, 1024, [*failed, *met, *rest])

    shown = chosen(found, cells_of(found.pairs))

    assert [1, 2, 3, 500, *range(600, 630), 700, 701] == shown
    assert "36 of 1024 nodes: 4 of 4 that failed with somebody, and 32 others (whom they met, and" in pair_map(found)


def test_of_very_many_failures_those_that_failed_most_and_whom_they_met(gang):
    """Of 40 that failed five times the first 32, as many of their partners as there is room for, and those who met."""
    pairs = [pair(n, 1000 + 5 * n + k, failed=True) for n in range(40) for k in range(5)]
    others = [pair(2 * n, 2 * n + 1, failed=True) for n in range(1000, 2000)]
    found = made(gang, 4096, [*pairs, *others, pair(4000, 4001)])

    shown = chosen(found, cells_of(found.pairs))

    assert [*range(32), *range(1000, 1064), 4000, 4001] == shown
    assert "98 of 4096 nodes: 96 of 2240 that failed with somebody (those that failed most, and" in pair_map(found)


def test_failures_in_words_begin_with_those_that_no_suspect_explains(gang):
    suspects = [{"kind": "node", "id": "n0", "node_rank": 0, "reason": "slow"}]
    pairs = [*(pair(0, n, failed=True) for n in range(1, 40)), pair(0, 7, failed=True), pair(50, 51, failed=True)]

    told = re.findall("<li>(.*?)</li>", pair_map(made(gang, 60, pairs, suspects=suspects)))

    assert [
        "node 50 (n50) and node 51 (n51): failed 1 of 1, best 1 GB/s: slow",
        "node 0 (n0) and node 7 (n7): failed 2 of 2, best 1 GB/s: slow",
        "node 0 (n0) and node 1 (n1): failed 1 of 1, best 1 GB/s: slow",
    ] == told[:3]
    assert (21, "  and 20 more") == (len(told), told[-1])


def test_a_rank_of_which_nothing_is_known_has_its_row(gang):
    """A report may name a pair whose node it does not list."""
    assert "node 0 (n0) and node 9: passed, best 1 GB/s" in pair_map(made(gang, 2, [pair(0, 9)]))
