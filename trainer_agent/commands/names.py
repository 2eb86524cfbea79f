"""Comma-separated names on the command line."""

from __future__ import annotations

from typing import Any

import click


class Names(click.ParamType[tuple[str, ...]]):
    """Comma-separated names."""

    name = "name,name…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Split at commas."""
        return value if isinstance(value, tuple) else tuple(n.strip() for n in value.split(",") if n.strip())
