"""Which files are wanted: shell patterns on the path below what the URI names, in which `*` crosses `/`."""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainer_agent.initializers import Entry

# What Kubeflow's initializer fetches of a model of the Hub.
HUB_MODEL = ("*.json", "*.safetensors", "*.model", "*.txt", "*.gguf")
# That list holds no weights for a repository without safetensors or GGUF; the first of these that it has comes too.
WEIGHTS = ("*.safetensors", "*.gguf")
OTHER_WEIGHTS = (("*.bin",), ("*.pt", "*.pth"), ("*.msgpack",), ("*.h5",))


def select(
    entries: Sequence[Entry], *, allow: Sequence[str] | None, ignore: Sequence[str], kind: str, scheme: str
) -> tuple[list[Entry], str]:
    """
    Return what is wanted, and a sentence about a choice that the user did not make.

    Args:
        allow: None for the defaults: all, but of a model of the Hub what Kubeflow takes, and its weights.
    """
    ignored = matcher(ignore)
    left = [entry for entry in entries if not ignored(entry.path)]
    if allow is not None:
        allowed = matcher(allow)
        return [entry for entry in left if allowed(entry.path)], ""
    if (kind, scheme) != ("model", "hf"):
        return left, ""
    return _hub_model(left)


def _hub_model(entries: Sequence[Entry]) -> tuple[list[Entry], str]:
    patterns: tuple[str, ...] = HUB_MODEL
    why = ""
    has_weights = matcher(WEIGHTS)
    if not any(has_weights(entry.path) for entry in entries):
        for others in OTHER_WEIGHTS:
            matches = matcher(others)
            if count := sum(matches(entry.path) for entry in entries):
                patterns += others
                why = f"no safetensors or GGUF here, so the weights are the {count} files of {', '.join(others)}"
                break
    allowed = matcher(patterns)
    return [entry for entry in entries if allowed(entry.path)], why


def matcher(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Return a function that says whether any pattern matches; one that ends in `/` means everything below."""
    translated = [fnmatch.translate(f"{p}*" if p.endswith("/") else p) for p in patterns]
    if not translated:
        return lambda _: False
    match = re.compile("|".join(translated)).match
    return lambda name: match(name) is not None
