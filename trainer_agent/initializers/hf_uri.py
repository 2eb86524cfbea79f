"""What hf://… names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from trainer_agent.errors import FatalError

KINDS = {"dataset": "datasets", "model": "models"}
# No account of the Hub can have these names.
OTHERS = ("spaces", "buckets", "kernels", "collections")
NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,95})")
# The references with slashes that the Hub makes itself; others have to be written with %2F.
SLASHED = re.compile(r"(refs/(?:pr|convert)/[^/]+)(?:/|$)")
FORM = "write it as hf://organisation/name, hf://organisation/name@revision or hf://organisation/name@revision/path"


@dataclass(frozen=True)
class HubUri:
    """
    A part of a repository.

    Args:
        kind: `datasets` or `models`.
        name: `organisation/name`, or `name` alone for the oldest repositories.
        revision: a branch, a tag, a commit or a reference; empty where none is written.
        path: a directory or a file in it; empty for everything.
    """

    kind: str
    name: str
    revision: str = ""
    path: str = ""

    def __str__(self) -> str:
        """Return the URI that names the same whatever is being initialised."""
        revision = f"@{quote(self.revision, safe='')}" if self.revision else ""
        return f"hf://{self.kind}/{self.name}{revision}" + (f"/{self.path}" if self.path else "")


def parse(rest: str, *, kind: str) -> HubUri:
    """
    Return what the text after `hf://` names: `[datasets/|models/][organisation/]name[@revision][/path]`.

    * A first segment `datasets` or `models` says the kind, otherwise it is `kind`.
    * The next two segments are organisation and name.
    * One segment that ends the URI, or carries the revision, is the name of a repository without organisation.
    * What follows is a path, taken as it is written.
    * The revision may be percent-encoded, and must be if it has slashes, except for `refs/pr/1` and `refs/convert/x`.

    Raises:
        FatalError: it names no repository.
    """
    plural = KINDS[kind]
    text = rest.strip("/")
    first, _, after = text.partition("/")
    if first in OTHERS:
        raise _invalid(rest, f"names one of the {first}, and only datasets and models are read")
    if first in KINDS.values():
        plural, text = first, after
    name, revision, path = _split(text)
    if not all(NAME.fullmatch(part) for part in name.split("/")):
        raise _invalid(rest, f"has {name!r} where the name of a repository should be")
    if revision is not None and not revision:
        raise _invalid(rest, "has an empty revision")
    return HubUri(plural, name, revision or "", path)


def _split(text: str) -> tuple[str, str | None, str]:
    """Return name, revision (None without @) and path."""
    segments = text.split("/")
    length = 1 if "@" in segments[0] or len(segments) == 1 else 2
    name, at, beginning = "/".join(segments[:length]).partition("@")
    path = "/".join(segments[length:])
    if not at:
        return name, None, path
    if slashed := SLASHED.match(f"{beginning}/{path}"):
        return name, unquote(slashed[1]), f"{beginning}/{path}"[slashed.end() :]
    return name, unquote(beginning), path


def _invalid(rest: str, what: str) -> FatalError:
    return FatalError("storage-uri-invalid", f"STORAGE_URI='hf://{rest}' {what}", hint=FORM)
