"""
What the checks of GPUs make of every fault of the stand-in. Run it for the table; a test compares its rows.

    .venv/bin/python tests/nvml/fault_table.py
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from nvml_checks import HurriedHost, run_on
from nvml_faults import FAULTS
from nvml_machines import h100_sxm, memory, mig
from nvml_standin import Standin

from preflight_checks.driver_cuda import driver_cuda
from preflight_checks.gpu_clocks import gpu_clocks
from preflight_checks.gpu_count import gpu_count
from preflight_checks.gpu_health import gpu_health
from preflight_checks.gpu_link import gpu_link
from preflight_checks.gpu_memory import gpu_memory
from trainer_agent.accelerators import Accelerators
from trainer_agent.check import Outcome
from trainer_agent.testing import FakeHost

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nvml_scenario import Scenario

CHECKS = (gpu_count, gpu_health, gpu_memory, gpu_link, gpu_clocks)
GPU, ALL, NONE = 3, list(range(8)), []

# What becomes of each fault of GPU 3 of eight H100, in all checks together.
EXPECTED = {
    "not-loaded": [("gpu-count", "error", "gpu-driver-not-loaded", NONE)],
    "driver-mismatch": [("gpu-count", "error", "gpu-driver-mismatch", NONE)],
    "hung-driver": [("gpu-count", "error", "nvml-hung", NONE)],
    "hung-gpu": [("gpu-clocks", "error", "nvml-hung", [3])],
    "one-less": [("gpu-count", "error", "gpu-missing", NONE)],
    "lost": [("gpu-health", "error", "gpu-lost", [3])],
    "lost-meanwhile": [("gpu-health", "error", "gpu-lost", [3])],
    "reset-required": [("gpu-health", "error", "gpu-lost", [3])],
    **{f"recovery-action-{n}": [("gpu-health", "error", "gpu-recovery-wanted", [3])] for n in range(1, 8)},
    "remap-failed": [("gpu-health", "error", "row-remap-failed", [3])],
    "remap-pending": [("gpu-health", "warning", "row-remap-pending", [3])],
    "remapped-rows-many": [("gpu-health", "warning", "rows-remapped-many", [3])],
    "no-spare-rows": [("gpu-health", "warning", "row-banks-used-up", [3])],
    "sram-uncorrected": [("gpu-health", "error", "ecc-sram-uncorrected", [3])],
    "dram-uncorrected": [("gpu-health", "warning", "ecc-dram-uncorrected", [3])],
    "dram-uncorrected-rising": [("gpu-health", "error", "ecc-dram-rising", [3])],
    "dram-corrected": [("gpu-health", "warning", "ecc-corrected-many", [3])],
    "ecc-off": [("gpu-health", "warning", "ecc-off", [3])],
    "sram-threshold": [("gpu-health", "error", "ecc-sram-threshold", [3])],
    "sram-status-forbidden": [],
    "repair-pending": [("gpu-health", "warning", "gpu-repair-pending", [3])],
    "xid-79": [("gpu-health", "error", "gpu-xid", [3])],
    "xid-31": [("gpu-health", "warning", "gpu-xid-application", [3])],
    "link-down": [("gpu-link", "error", "nvlink-down", [3])],
    "all-links-down": [("gpu-link", "error", "nvlink-down", ALL)],
    "link-errors": [("gpu-link", "warning", "nvlink-errors", [3])],
    "link-lost": [("gpu-link", "error", "nvlink-recovery-failed", [3])],
    "one-way-p2p": [("gpu-link", "error", "p2p-one-way", [3])],
    "fabric-not-started": [("gpu-link", "error", "fabric-not-ready", [3])],
    "fabric-in-progress": [("gpu-link", "error", "fabric-not-ready", [3])],
    "fabric-late": [],
    "fabric-failed": [("gpu-link", "error", "fabric-failed", [3])],
    "fabric-degraded-bandwidth": [("gpu-link", "error", "fabric-degraded", [3])],
    "fabric-route-unhealthy": [("gpu-link", "error", "fabric-route-unhealthy", [3])],
    "fabric-unhealthy": [("gpu-link", "error", "fabric-unhealthy", [3])],
    "fabric-limited-capacity": [("gpu-link", "warning", "fabric-limited", [3])],
    "narrow-pcie": [("gpu-link", "error", "pcie-narrow", [3])],
    "slow-pcie": [("gpu-link", "warning", "pcie-slow", [3])],
    "pcie-errors": [("gpu-link", "warning", "pcie-errors", [3])],
    "hw-thermal-slowdown": [("gpu-clocks", "error", "gpu-thermal-slowdown", [3])],
    "power-brake": [("gpu-clocks", "error", "gpu-power-brake", [3])],
    "sw-thermal-slowdown": [("gpu-clocks", "warning", "gpu-sw-thermal-slowdown", [3])],
    "throttled-later": [("gpu-clocks", "warning", "gpu-thermal-slowdown", [3])],
    "capped-power": [("gpu-clocks", "warning", "power-limit-low", [3])],
    "hot": [("gpu-clocks", "warning", "gpu-warm", [3])],
    "too-hot": [("gpu-clocks", "error", "gpu-too-hot", [3])],
    "no-persistence": [("gpu-health", "info", "persistence-off", [3])],
    "compute-prohibited": [("gpu-health", "error", "compute-prohibited", [3])],
    "compute-exclusive": [("gpu-health", "warning", "compute-exclusive", [3])],
    "leftover-memory": [("gpu-memory", "warning", "gpu-memory-used", [3])],
    "leftover-memory-much": [("gpu-memory", "error", "gpu-memory-occupied", [3])],
    "leftover-memory-freed": [],
    "other-vbios": [("gpu-health", "warning", "vbios-differs", [3])],
}
# What passes with time: the machine's must pass, too.
WAITS = {"fabric-late", "leftover-memory-freed"}
# A torch that is no more than what the check asks it.
TORCH = """
class version: cuda = {cuda!r}
class _C: _cuda_getArchFlags = staticmethod(lambda: {archs!r})
__version__ = "2.9.0"
"""


@dataclass(frozen=True)
class Case:
    """A machine, what its checks should find, and for driver-cuda the torch that they should find there."""

    machine: Scenario
    expected: list[tuple[str, str, str, list[int]]]
    checks: tuple = CHECKS
    torch: dict[str, str | None] = field(default_factory=dict)
    nodes: int = 8


def torch_case(driver: int, *codes: tuple[str, str, list[int]], cuda: str | None = "12.8", archs: str = "") -> Case:
    """Return a machine with a driver and a torch; `codes` are severity, code and GPUs of what driver-cuda finds."""
    expected = [("driver-cuda", *row) for row in codes]
    return Case(h100_sxm().on_driver(driver), expected, (driver_cuda,), {"cuda": cuda, "archs": archs})


def mig_leftover(used_mib: int) -> Scenario:
    """Return a GPU of two MIG instances, the second with memory of somebody before us."""
    return memory(mig(), 10194, 0, used_mib, gpu="0/1")


CASES = {
    **{name: Case(fault(h100_sxm(), GPU), EXPECTED[name]) for name, fault in FAULTS.items()},
    "torch-fits": torch_case(580, archs="sm_80 sm_90"),
    "torch-without-cuda": torch_case(580, ("warning", "torch-without-cuda", NONE), cuda=None),
    "driver-too-old": torch_case(470, ("error", "driver-too-old", NONE), archs="sm_90"),
    "torch-without-kernels": torch_case(580, ("error", "torch-without-architecture", ALL), archs="sm_100 compute_100"),
    "mig-free": Case(mig(), [], nodes=1),
    "mig-leftover": Case(mig_leftover(300), [], nodes=1),
    "mig-leftover-much": Case(mig_leftover(5000), [("gpu-memory", "error", "gpu-memory-occupied", [0])], nodes=1),
    "mig-links-down": Case(FAULTS["all-links-down"](mig(), 0), [], nodes=1),
}


def outcomes(standin: Standin, name: str, root: Path) -> dict[str, Outcome | str]:
    """Return what the checks say on the machine of a case."""
    case = CASES[name]
    hung = name == "hung-driver"  # it was asked once before the checks, as the program does
    problem = "NVML gave no answer within 20 s" if hung else ""
    given = Accelerators("nvidia", 0 if hung else case.nodes, "NVML", problem=problem, hung=hung)
    environ = {}
    if case.torch:
        (root / "torch").mkdir(parents=True)
        (root / "torch" / "__init__.py").write_text(TORCH.format(**case.torch))
        environ = {"PYTHONPATH": str(root)}
    host = (HurriedHost if name in WAITS else FakeHost)(root)
    how = {"host": host, "accelerators": given, "nodes": case.nodes, "environ": environ}
    return run_on(standin, case.machine, case.checks, root, **how)


def rows(standin: Standin, name: str, root: Path) -> Iterator[tuple[str, str, str, list[int], str]]:
    """Yield check, severity, code, GPUs and action of all that is found."""
    for check, outcome in outcomes(standin, name, root).items():
        for found in outcome.findings if isinstance(outcome, Outcome) else ():
            gpus = [gpu["index"] for gpu in found.evidence.get("gpus", [])]
            yield check, str(found.severity), found.code, gpus, str(found.action)


def line(name: str, found: list[tuple[str, str, str, list[int], str]]) -> str:
    """Return a row of the table: what should be found, and what is."""
    wanted = ", ".join(f"`{row[2]}`" for row in CASES[name].expected) or "nothing"
    rows = [f"{check}: {severity} `{code}`, GPU {gpus or '-'}, {act}" for check, severity, code, gpus, act in found]
    return f"| {name} | {wanted} | {'; '.join(rows) or 'nothing'} |"


def main() -> int:
    """Print the table; 1 when a fault is not found as it should be."""
    wrong = []
    sys.stdout.write("| scenario | expected | found |\n| --- | --- | --- |\n")
    with tempfile.TemporaryDirectory() as folder:
        standin = Standin(Path(folder))
        for name, case in CASES.items():
            found = list(rows(standin, name, Path(folder) / name))
            sys.stdout.write(f"{line(name, found)}\n")
            wrong += [name] if case.expected != [row[:4] for row in found] else []
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
