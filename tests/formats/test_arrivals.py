"""arrivals: a row for each node, as long as there are not too many."""

import re

import pytest

from trainer_agent.formats.arrivals import arrivals
from trainer_agent.formats.gang_section import gang_of


def rows(gang):
    """Return the words of each row."""
    table = re.findall(r"<tr>.*?</tr>", arrivals(gang_of({"gang": gang})))
    return [" ".join(re.sub(r"<[^>]*>", " ", row).split()) for row in table]


def stretches(gang):
    """Return for each row the parts of its picture: what it is, where it begins, how long it is."""
    drawn = r'<rect class="([^"]*)" x="([^"]*)" width="([^"]*)"'
    table = re.findall(r"<tr>.*?</tr>", arrivals(gang_of({"gang": gang})))
    return [[(kind, float(x), float(width)) for kind, x, width in re.findall(drawn, row)] for row in table]


def test_who_is_missing_first_then_who_came_last(gang):
    assert [
        "2 job1-node-0-2 never ✗ missing its name does not resolve",
        "3 job1-node-0-3 gpu-20 10.77.0.3 1.50 s ✓ ready",
        "1 job1-node-0-1 gpu-18 10.77.0.1 0.50 s ✓ ready clock -0.012 s",
        "0 job1-node-0-0 gpu-17 10.77.0.0 0.00 s ✓ ready",
    ] == rows(gang)


def test_a_node_without_a_name_says_so(gang):
    gang["nodes"][2]["hostname"] = ""

    assert "2 no name never ✗ missing its name does not resolve" == rows(gang)[0]


def test_the_missing_are_red_until_nobody_waited_any_longer(gang):
    """Roll-call took 30 s, in which the last of the others came after 1.5 s."""
    assert [
        [("value", 0, 0), ("value bad", 0, 100)],
        [("value", 0, 5), ("mark", 5, 1)],
        [("value", 0, 1.67), ("mark", 1.67, 1)],
        [("value", 0, 0), ("mark", 0, 1)],
    ] == stretches(gang)


def test_when_all_arrived_the_last_one_fills_the_width(well):
    assert [("value", 0, 100), ("mark", 99, 1)] == stretches(well)[0]


def test_who_was_lost_is_red_from_its_arrival_on(well):
    """And who failed was there."""
    well["nodes"][1] |= {"state": "lost", "arrived_s": 0.75}
    well["nodes"][2] |= {"state": "failed", "arrived_s": 0.75}

    lost, failed, *_ = stretches(well)

    assert [("value", 0, 50), ("value bad", 50, 50), ("mark", 50, 1)] == lost
    assert [("value", 0, 50), ("mark", 50, 1)] == failed


def test_all_at_the_same_time(well):
    """A length of nothing divides nothing."""
    for node in well["nodes"]:
        node["arrived_s"] = 0

    assert [[("value", 0, 0), ("mark", 0, 1)]] * 4 == stretches(well)


@pytest.mark.parametrize("count, shown", [(64, 64), (65, 33), (4096, 33)])
def test_of_many_the_slowest_and_the_rest_in_one_row(well, count, shown):
    well["nodes"] = [{**well["nodes"][0], "rank": n, "hostname": f"n{n}", "arrived_s": n / 100} for n in range(count)]

    told = rows(well)

    assert shown == len(told)
    assert f"{count - 1} n{count - 1} gpu-17 10.77.0.0 {(count - 1) / 100:.2f} s ✓ ready" == told[0]
    if shown < count:
        rest = count - 33
        assert f"{rest + 1} more ranks 0-{rest} 0.00 to {rest / 100:.2f} s ✓ ready" == told[-1]


def test_all_who_are_not_ready_are_drawn_up_to_a_bound(well):
    """A whole switch may be dark; its ranks are told all the same."""
    missing = {**well["nodes"][0], "state": "missing", "arrived_s": None}
    well["nodes"] += [{**missing, "rank": n, "hostname": f"n{n}"} for n in range(4, 304)]

    told = rows(well)

    assert 128 == len([row for row in told if "never ✗ missing" in row and "more" not in row])
    assert "172 more ranks 132-303 never ✗ missing" == told[128]
    assert 4 == len(told[129:])
