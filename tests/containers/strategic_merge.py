"""The strategic merge patch of Kubernetes, as far as runtimePatches and resources need it."""

from typing import Any

Json = dict[str, Any]

# What a list of objects is merged by, as the strategic merge patch of these types says.
MERGE_KEYS = ("mountPath", "name")


def merged(base: Any, patch: Any) -> Any:
    """A strategic merge patch: objects by key, lists of named objects by name, null removes, all else is replaced."""
    if isinstance(base, dict) and isinstance(patch, dict):
        both = {key: merged(base[key], patch[key]) if key in base else patch[key] for key in patch}
        return {key: value for key, value in {**base, **both}.items() if value is not None}
    if isinstance(base, list) and isinstance(patch, list):
        for key in MERGE_KEYS:
            if patch and all(isinstance(item, dict) and key in item for item in [*base, *patch]):
                return _merged_lists(base, patch, key)
    return patch


def _merged_lists(base: list[Json], patch: list[Json], key: str) -> list[Json]:
    patches = {item[key]: item for item in patch}
    old = [merged(item, patches.pop(item[key])) if item[key] in patches else item for item in base]
    return [*old, *patches.values()]
