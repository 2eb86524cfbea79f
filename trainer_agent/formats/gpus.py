"""Which GPU each finding is about, as a grid of GPUs and checks."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainer_agent.formats.reading import findings_of

if TYPE_CHECKING:
    from collections.abc import Iterator

# What evidence and measurements call a GPU; whether the name is an index, a UUID or a PCI address, its form tells.
SURE_KEYS = ("gpu", "gpu_index", "gpu_uuid", "gpu_pci")
LOOSE_KEYS = ("index", "uuid", "pci", "pci_bus_id", "bus_id")
PCI = re.compile(r"(?:[0-9a-f]{4})?([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])", re.IGNORECASE)
OF_SEVERITY = {"error": "fail", "warning": "warn", "info": "pass"}
NOT_NAMED = "none"  # the check says nothing about this GPU
MOST_GPUS = 256  # NVML lists fewer on any machine; a number out of a file must not make a page without an end


@dataclass
class Gpu:
    """One GPU by the names that the report has for it."""

    names: dict[str, str] = field(default_factory=dict)

    def is_same(self, names: dict[str, str]) -> bool:
        """Whether any name of the same kind is equal and none differs."""
        shared = [self.names[kind] == name for kind, name in names.items() if kind in self.names]
        return bool(shared) and all(shared)

    @property
    def title(self) -> str:
        """Return `GPU 3`, or another name where there is no index."""
        return f"GPU {self.names['index']}" if "index" in self.names else next(iter(self.names.values()))


@dataclass(frozen=True)
class Grid:
    """
    Rows are GPUs, columns those checks that look at GPUs.

    Args:
        columns: places of these checks in the report.
        cells: a status for each GPU and column.
        node: for each column what it found without naming a GPU, empty where there is nothing.
    """

    gpus: list[Gpu]
    columns: list[int]
    cells: list[list[str]]
    node: list[str]


def grid(checks: list[dict[str, Any]]) -> Grid | None:
    """Return the grid, or None where no check names a GPU."""
    mentioned = [list(_mentions(c)) for c in checks]
    gpus: list[Gpu] = []
    named = [names for some in mentioned for names in some]
    # Who has several names comes first, so that who is called by one of them is recognised.
    for names in sorted([*named, *_counted(checks, named)], key=len, reverse=True):
        _add(gpus, names)
    if not gpus:
        return None
    gpus.sort(key=_order)
    columns = [n for n, c in enumerate(checks) if mentioned[n] or _loose(c)]
    cells = [[_cell(checks[n], gpu) for n in columns] for gpu in gpus]
    return Grid(gpus, columns, cells, [_node_cell(checks[n]) for n in columns])


def names_in(value: Any, *, loose: bool) -> Iterator[dict[str, str]]:
    """
    Yield the names of every GPU in evidence or measurements, such as `{"index": "3", "uuid": "GPU-…"}`.

    Args:
        loose: whether `index` and `pci` alone mean a GPU, as in a check of GPUs and in lists called `gpus`;
            elsewhere they may be a NIC's.
    """
    if isinstance(value, list):
        for below in value:
            yield from names_in(below, loose=loose)
    elif isinstance(value, dict):
        yield from _own_names(value, loose=loose)
        for key, below in value.items():
            listed = key == "gpus" and isinstance(below, list)
            yield from (names for one in below if (names := _name(one))) if listed else ()
            yield from names_in(below, loose=loose or listed)


def _own_names(value: dict[str, Any], *, loose: bool) -> Iterator[dict[str, str]]:
    names: dict[str, str] = {}
    for key in (*SURE_KEYS, *LOOSE_KEYS):
        name = _name(value.get(key))
        if loose or key in SURE_KEYS or "uuid" in name:
            names |= {kind: text for kind, text in name.items() if kind not in names}
    if names:
        yield names


def _name(value: Any) -> dict[str, str]:
    """Return `{kind: name}`, or nothing for what is no name of a GPU."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return {}
    text = str(value)
    if text.isascii() and text.isdigit() and len(text) < 10:
        return {"index": text}
    if text.startswith(("GPU-", "MIG-")):
        return {"uuid": text}
    address = PCI.fullmatch(text)  # NVML writes the domain with eight digits, the kernel with four
    return {"pci": address[1].lower()} if address else {}


def _counted(checks: list[dict[str, Any]], named: list[dict[str, str]]) -> Iterator[dict[str, str]]:
    """Yield the GPUs that are counted, as 0, 1…; not where others have higher numbers, as some are other people's."""
    highest = max((int(names["index"]) for names in named if "index" in names), default=-1)
    for check in checks:
        count = check["measurements"].get("gpus")
        if _loose(check) and isinstance(count, int) and highest < count <= MOST_GPUS:
            yield from ({"index": str(index)} for index in range(count))


def _mentions(check: dict[str, Any]) -> Iterator[dict[str, str]]:
    loose = _loose(check)
    yield from names_in(check["measurements"], loose=loose)
    for finding in check["findings"]:
        yield from names_in(finding["evidence"], loose=loose)


def _loose(check: dict[str, Any]) -> bool:
    return str(check["name"]).startswith("gpu-")


def _add(gpus: list[Gpu], names: dict[str, str]) -> None:
    known = next((g for g in gpus if g.is_same(names)), None)
    if known is None:
        gpus.append(Gpu(dict(names)))
    else:
        known.names.update(names)


def _order(gpu: Gpu) -> tuple[bool, int, str]:
    return "index" not in gpu.names, int(gpu.names.get("index", 0)), gpu.title


def _cell(check: dict[str, Any], gpu: Gpu) -> str:
    """Return what a check says about one GPU; where a finding names none, nobody knows which are well."""
    if check["status"] in ("skip", "error"):
        return str(check["status"])
    loose = _loose(check)
    named = [(f, list(names_in(f["evidence"], loose=loose))) for f in findings_of(check)]
    for finding, names in named:
        if any(gpu.is_same(n) for n in names):
            return OF_SEVERITY[finding["severity"]]
    measured = list(names_in(check["measurements"], loose=loose))
    looked = not measured or any(gpu.is_same(n) for n in measured)
    return "pass" if looked and not _node_cell(check) else NOT_NAMED


def _node_cell(check: dict[str, Any]) -> str:
    """Return the status of the worst finding that names no GPU and is more than information."""
    loose = _loose(check)
    found = [f["severity"] for f in findings_of(check) if not any(names_in(f["evidence"], loose=loose))]
    return OF_SEVERITY[found[0]] if found and found[0] != "info" else ""
