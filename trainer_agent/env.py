"""Read settings from a mapping and remember where each came from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import TextIO

# Names whose values must never be shown, by their last words; after GitHub's and Kubernetes' own conventions.
SECRET_NAME = re.compile(
    r"(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|ACCESS_KEY|ACCESS_KEY_ID|API_KEY|PRIVATE_KEY|CREDENTIALS)$",
    re.IGNORECASE,
)
MASK = "***"
# Shorter values ("1", "none") would mask ordinary words wherever they occur.
SHORTEST_SECRET = 6


@dataclass(frozen=True)
class Setting:
    """One value that was read: its name, value, origin (`environment`, `default`, `pod name`…) and effect."""

    name: str
    value: str
    origin: str
    effect: str = ""


class Reader:
    """Look variables up in `environ` and keep a record of every value used."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.settings: list[Setting] = []

    def get(self, name: str, *, effect: str, default: str | None = None) -> str | None:
        """Return the stripped value of `name`, or `default`; both are recorded, an absent value without default too."""
        raw = self.environ.get(name)
        if raw is not None:
            self.note(name, raw.strip(), origin="environment", effect=effect)
            return raw.strip()
        self.note(name, "" if default is None else default, origin="default" if default else "not set", effect=effect)
        return default

    def note(self, name: str, value: str, *, origin: str, effect: str = "") -> None:
        """Record a value, replacing what was recorded for the same name."""
        shown = MASK if value and SECRET_NAME.search(name) else value
        kept = [s for s in self.settings if s.name != name]
        self.settings = [*kept, Setting(name, shown, origin, effect)]


def secrets_in(environ: Mapping[str, str]) -> list[str]:
    """Return the values that must never be shown, longest first so that no part of one survives."""
    found = {v.strip() for k, v in environ.items() if SECRET_NAME.search(k) and len(v.strip()) >= SHORTEST_SECRET}
    return sorted(found, key=len, reverse=True)


def redact(text: str, secrets: Collection[str]) -> str:
    """Return `text` with every secret masked."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text


def redact_all(value: Any, secrets: Collection[str]) -> Any:
    """Return a JSON value with every secret masked in its texts; keys stay, whatever somebody's password is."""
    if isinstance(value, str):
        return redact(value, secrets)
    if isinstance(value, dict):
        return {k: redact_all(v, secrets) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [redact_all(v, secrets) for v in value]
    return value


def whole_number(text: str) -> int | None:
    """Return the number that ASCII digits write, else None; int() takes `\u0663` and breaks on 5,000 digits."""
    return int(text) if re.fullmatch(r"[0-9]{1,20}", text) else None


def wants_colour(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Only a terminal gets colours, and none where NO_COLOR is set or the terminal is dumb (no-color.org)."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
