"""bars: numbers that have something to be compared with."""

import pytest

from trainer_agent.formats.bars import Bar, bars_in


@pytest.mark.parametrize("word", ["expected", "wanted"])
def test_a_number_with_its_expected_value_beside_it(word):
    assert [Bar("rate_gbps", 5, 10)] == list(bars_in({"rate_gbps": 5, f"{word}_rate_gbps": 10, "other": 1}))


def test_labels_say_where_it_stands():
    rates = {"x": 1, "expected_x": 2}

    labels = [b.label for b in bars_in({"nics": [rates], "gpus": [{"index": 3, **rates}], "y": {"z": rates}})]

    assert ["nics 0 x", "GPU 3 x", "y z x"] == labels


@pytest.mark.parametrize("value", ["5", None, True, -1, float("nan"), float("inf"), 10**400])
def test_what_cannot_be_drawn_is_left_out(value):
    assert [] == [*bars_in({"x": value, "expected_x": 1}), *bars_in({"x": 1, "expected_x": value})]


def test_nothing_is_no_part_of_nothing():
    """Zero of ten is a bar, ten of zero is none."""
    assert [0.0] == [b.percent for b in bars_in({"a": 0, "expected_a": 10, "b": 10, "expected_b": 0})]
