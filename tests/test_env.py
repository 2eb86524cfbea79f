"""env: settings with their origin, and secrets that are never shown."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_agent.env import Reader, Setting, redact, redact_all, secrets_in, wants_colour, whole_number


def test_reader_keeps_a_record():
    """Every value that was asked for is recorded with its origin, an absent one too."""
    reader = Reader({"A": " 1 ", "EMPTY": ""})
    values = [reader.get("A", effect="a"), reader.get("EMPTY", effect="e", default="x")]
    values += [reader.get("B", effect="b", default="2"), reader.get("C", effect="c")]
    assert ["1", "", "2", None] == values
    expected = [
        Setting("A", "1", "environment", "a"),
        Setting("EMPTY", "", "environment", "e"),
        Setting("B", "2", "default", "b"),
        Setting("C", "", "not set", "c"),
    ]
    assert expected == reader.settings


def test_a_later_note_replaces_an_earlier_one():
    """One value is in force for one name."""
    reader = Reader({"A": "1"})
    reader.get("A", effect="old")
    reader.note("A", "2", origin="pod name", effect="new")
    assert [Setting("A", "2", "pod name", "new")] == reader.settings


def test_reader_masks_secrets():
    """A record may be printed, so it holds no secret; an empty one shows that it is empty."""
    reader = Reader({"HF_TOKEN": "abc", "ACCESS_TOKEN": ""})
    assert ("abc", "") == (reader.get("HF_TOKEN", effect=""), reader.get("ACCESS_TOKEN", effect=""))
    assert ["***", ""] == [s.value for s in reader.settings]


@pytest.mark.parametrize(
    "name, secret",
    [
        ("ACCESS_TOKEN", True),
        ("HF_TOKEN", True),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("SECRET_ACCESS_KEY", True),
        ("ACCESS_KEY_ID", True),
        ("DB_PASSWORD", True),
        ("WANDB_API_KEY", True),
        ("SSH_PRIVATE_KEY", True),
        ("GOOGLE_APPLICATION_CREDENTIALS", True),
        ("my_password", True),
        ("TOKENIZERS_PARALLELISM", False),
        ("SORT_KEY", False),
        ("PET_NNODES", False),
    ],
)
def test_what_is_secret(name, secret):
    """The last words of a name tell a secret from a setting."""
    assert (["value-of-it"] if secret else []) == secrets_in({name: " value-of-it\n"})


def test_short_values_are_no_secrets():
    """`none` or `12345` would be masked in ordinary words; longer secrets come first so that no part survives."""
    environ = {"A_TOKEN": "12345", "B_TOKEN": "123456", "C_TOKEN": "1234567", "D_TOKEN": "1234567"}
    assert ["1234567", "123456"] == secrets_in(environ)


def test_redact():
    """Every occurrence is masked."""
    assert "a=***, b=***!" == redact("a=1234567, b=123456!", ["1234567", "123456"])


def test_redact_all():
    """Texts anywhere in a JSON value are masked; keys and numbers are not."""
    value = {"status": ["status!", {"a": ("x", "a status")}], "n": 1, "none": None, "yes": True}
    expected = {"status": ["***!", {"a": ["x", "a ***"]}], "n": 1, "none": None, "yes": True}
    assert expected == redact_all(value, ["status"])


@pytest.mark.parametrize(
    "text, number",
    [("0", 0), ("007", 7), ("9" * 20, 10**20 - 1), ("", None), ("-1", None), ("+1", None), (" 1", None), ("1_0", None)],
)
def test_whole_number(text, number):
    """Only ASCII digits are a number."""
    assert number == whole_number(text)


@given(st.text() | st.sampled_from(["²", "٣", "1\n", "9" * 5000]))
def test_whole_number_of_anything(text):
    """Any text is a number that prints the same digits again, or none."""
    number = whole_number(text)
    assert number is None or str(number) == (text.lstrip("0") or "0")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    "stream, environ, expected",
    [
        (Terminal(), {}, True),
        (Terminal(), {"NO_COLOR": ""}, True),
        (Terminal(), {"NO_COLOR": "0"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
    ],
)
def test_colours_are_for_terminals_that_want_them(stream, environ, expected):
    """NO_COLOR counts whatever its value, unless it is empty (no-color.org)."""
    assert expected == wants_colour(stream, environ)
