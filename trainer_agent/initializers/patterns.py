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
# The forms of weights, best first: a model comes with the first that it has.
WEIGHTS = (("*.safetensors", "*.gguf"), ("*.bin",), ("*.pt", "*.pth"), ("*.msgpack",), ("*.h5",))
# What is named like weights and is none: the state from which transformers, accelerate and DeepSpeed go on training,
# and half of a model in OpenVINO's form.
NO_WEIGHTS = (
    "training_args.bin",
    "optimizer*.bin",
    "optimizer*.pt",
    "*_optim_states.pt",
    "scheduler*.bin",
    "scheduler*.pt",
    "scaler.pt",
    "sampler*.bin",
    "dl_state_dict*.bin",
    "rng_state*.pth",
    "openvino_*.bin",
)


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
    if kind != "model":
        return left, ""
    form, weights = _weights(left)
    if scheme != "hf":
        return left, "" if form else _left_out(entries)
    wanted = matcher(HUB_MODEL)
    found = [entry for entry in left if wanted(entry.path) or entry.path in weights]
    if not form:
        known = ", ".join(pattern for form in WEIGHTS for pattern in form)
        return found, _left_out(entries) or f"no weights here ({known}); --allow-patterns brings others"
    if form != WEIGHTS[0]:
        return found, f"no safetensors or GGUF here: the weights are {', '.join(form)} ({len(weights)})"
    return found, ""


def _left_out(entries: Sequence[Entry]) -> str:
    """Return which weights are ignored: Kubeflow's SDK ignores most forms of them where the user chooses nothing."""
    form, weights = _weights(entries)
    return f"no weights come: IGNORE_PATTERNS leave out {', '.join(form)} ({len(weights)})" if form else ""


def _weights(entries: Sequence[Entry]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the best form of weights that is there, and the paths of the files; both empty where there are none."""
    weightless = matcher(NO_WEIGHTS)
    paths = [entry.path for entry in entries if not weightless(entry.path.rpartition("/")[2])]
    for form in WEIGHTS:
        if found := frozenset(filter(matcher(form), paths)):
            return form, found
    return (), frozenset()


def leaves_out(path: str, *, allow: Sequence[str] | None, ignore: Sequence[str]) -> bool:
    """
    Return whether a file, or surely all below a directory, is not wanted.

    Args:
        path: of a directory, its path and `/`; nothing for all.
        allow: as for `select`.
    """
    if path and not path.endswith("/"):
        return matcher(ignore)(path) or (allow is not None and not matcher(allow)(path))
    # What matches the directory with its `/` matches whatever follows, too, if it ends in `*`.
    if matcher([pattern for pattern in ignore if pattern.endswith(("*", "/"))])(path):
        return True
    plain = [re.split(r"[*?[]", pattern, maxsplit=1)[0] for pattern in allow or ()]
    return allow is not None and not any(p.startswith(path) or path.startswith(p) for p in plain)


def matcher(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Return a function that says whether any pattern matches; one that ends in `/` means everything below."""
    translated = [fnmatch.translate(f"{p}*" if p.endswith("/") else p) for p in patterns]
    if not translated:
        return lambda _: False
    match = re.compile("|".join(translated)).match
    return lambda name: match(name) is not None
