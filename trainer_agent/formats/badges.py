"""A word with a sign and a colour, so that none of the three alone has to be understood."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer_agent.formats.markup import element

if TYPE_CHECKING:
    from trainer_agent.formats.markup import Markup

SIGNS = {
    "pass": "✓",
    "warn": "!",
    "fail": "✗",
    "error": "?",
    "skip": "-",
    "none": "·",
    "retry": "✗",
    "fatal": "✗",
}
WORDS = {"none": "not named"}


def badge(status: str, word: str = "") -> Markup:
    """Return a status with its sign, under another word where one is given."""
    sign = element("span", SIGNS[status], aria_hidden="true")
    return element("span", sign, f" {word or WORDS.get(status, status)}", class_=f"badge {status}")
