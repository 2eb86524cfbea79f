"""The forms of a report: one file each, one line in the table."""

from __future__ import annotations

import importlib
from typing import Any, Protocol

# name: module. The order is that of `--help`.
FORMATS = {
    "text": "trainer_agent.formats.text",
    "json": "trainer_agent.formats.json",
    "junit": "trainer_agent.formats.junit",
    "html": "trainer_agent.formats.html",
}


class Writer(Protocol):
    """Turns the JSON form of a report into text that ends with a newline; `colour` is for terminals."""

    def __call__(self, data: dict[str, Any], *, colour: bool = False) -> str:
        """Return the text."""


def writer(name: str) -> Writer:
    """Import and return the writer of one form."""
    write: Writer = importlib.import_module(FORMATS[name]).write
    return write
