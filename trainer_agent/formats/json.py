"""The report as JSON, schema `trainer-agent.preflight/v1`."""

from __future__ import annotations

import json
from typing import Any


def write(data: dict[str, Any], *, colour: bool = False) -> str:
    """Return the report itself; what is no text, as variables may hold any bytes, becomes question marks."""
    return json.dumps(data, indent=2, ensure_ascii=False).encode(errors="replace").decode() + "\n"
