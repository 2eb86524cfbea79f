"""What is wanted of each model of GPU, and the thresholds that hold for all; every number has its source."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from trainer_agent.errors import FatalError, Severity
from trainer_agent.isolation import IsolatedError, isolated

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainer_agent.check import Context
    from trainer_agent.host import Host

VARIABLE = "TRAINER_AGENT_GPU_THRESHOLDS"
FILE_S = 3.0  # seconds for its file, which may lie on a dead file server
MAKER = "NVIDIA "  # drivers before 470 leave it out of a name
MIB = 1 << 20
LOOK_S = 4.0  # what a check that waits needs for its readings before and after
# Heuristic: the checks that let the GPUs work want 90 s (their alone_s together) of the 60 s of --profile standard.
WAIT_SHARE, LEAST_WAIT_S = 1 / 6, 5.0


@dataclass(frozen=True)
class Model:
    """
    A model of GPU.

    Args:
        pattern: the whole of the name that NVML gives it; drivers before 470 leave `NVIDIA ` out.
        sxm: whether it sits on a maker's board, whose lanes are known, and in no slot.
        links: numbers of active NVLink links that are right; None leaves that to a comparison with the other GPUs.
        ecc: whether ECC is on as it comes from the factory.
        pcie: whether PCIe is how it reaches the CPU; on Grace that is NVLink-C2C, and PCIe says nothing.
        matmul_tflops: what the best products of bfloat16 matrices reached on it, not what the data sheet says.
        memory_gbps: peak of its memory.
    """

    pattern: str
    sxm: bool = False
    links: tuple[int, ...] | None = None
    ecc: bool = True
    pcie: bool = True
    matmul_tflops: float | None = None
    memory_gbps: float | None = None

    @property
    def title(self) -> str:
        """Return the name for people: what may be left out is, and what may be anything is a star."""
        return re.sub(r"\\d\+|\.\*", "*", re.sub(r"\([^)]*\)\?", "", self.pattern)).replace("\\", "")

    def lanes_severity(self, *, virtual: bool, beside_whole: bool) -> Severity:
        """
        Return how much fewer lanes of PCIe than the maximum weigh: an error is a fault for certain, info by design.

        NVML's maximum may be the card's own and not that of its slot. Cards of one name have slots alike in a server;
        in a workstation, whose cards come without ECC, they may not, nor in a virtual machine, where only boards do.
        There, single cards come with half of their lanes by design (AWS g6: an L4 with 8; aws-k8s-tester #806).

        Args:
            beside_whole: whether another GPU of its name here has all of its lanes.
        """
        alike = self.sxm if virtual else self.ecc
        if (self.sxm and not virtual) or (alike and beside_whole):
            return Severity.ERROR
        return Severity.INFO if virtual and not (self.sxm or beside_whole) else Severity.WARNING


# Links: NVIDIA's data sheets; 12 of 18 on H100 NVL by design (azurehpc-health-checks #162);
# a card without its bridge has none, which is no fault (NVSentinel #1481). Names as NVML has them: a part of a name is
# not enough, as `GH200` holds `H200` (gpud #1206). Products: the best that ml-engineering measured (MAMF); memory:
# NVIDIA's data sheets. Without a number a model is only compared with its neighbours, which warns.
MODELS = (
    Model(r"A100-SXM4-80GB", sxm=True, links=(12,), matmul_tflops=271, memory_gbps=2000),
    Model(r"A100-SXM4-\d+GB", sxm=True, links=(12,), matmul_tflops=271),
    Model(r"A100 80GB PCIe", links=(0, 12), matmul_tflops=253, memory_gbps=1940),
    Model(r"A100-PCIE-40GB", links=(0, 12)),
    Model(r"H100 80GB HBM3", sxm=True, links=(18,), matmul_tflops=794, memory_gbps=3350),
    Model(r"H100 NVL", links=(0, 12), memory_gbps=3900),
    Model(r"H100 PCIe", links=(0, 12), memory_gbps=2000),
    Model(r"H200", sxm=True, links=(18,), matmul_tflops=794, memory_gbps=4800),
    Model(r"H200 NVL", links=(0, 18)),
    Model(r"GH200 .*", pcie=False),
    # 7680 bits at 3996 MHz, as the driver says (PyTorch ao #4002); data sheets round up.
    Model(r"B200", sxm=True, links=(18,), matmul_tflops=1745, memory_gbps=7672),
    Model(r"GB200", sxm=True, links=(18,), pcie=False, matmul_tflops=1822, memory_gbps=7672),
    Model(r"B300.*", sxm=True, links=(18,)),
    Model(r"GB300.*", sxm=True, links=(18,), pcie=False),
    Model(r"L4", links=(0,)),
    Model(r"L40S", links=(0,)),
    Model(r"(Tesla )?T4", links=(0,)),
    Model(r"(Tesla )?V100-SXM[23]-\d+GB(-LS)?", sxm=True),  # machines with four have fewer of the six
    Model(r"(Tesla )?V100-PCIE-\d+GB", links=(0,)),
    Model(r"(GeForce |Quadro |TITAN )?RTX .*", ecc=False),  # NVLink as far as there are bridges
)
UNKNOWN = Model(".*", ecc=False)


SOURCES = {
    "links": "NVIDIA's data sheets",
    "matmul_tflops": "ml-engineering (MAMF)",
    "memory_gbps": "NVIDIA's data sheets",
}


def model_of(name: str, models: Iterable[Model] = MODELS) -> Model:
    """Return what is wanted of a GPU by its name; of an unknown one little is."""
    plain = name.removeprefix(MAKER)
    return next((model for model in models if re.fullmatch(model.pattern, plain)), UNKNOWN)


@dataclass(frozen=True)
class Thresholds:
    """
    Numbers that can be set otherwise by TRAINER_AGENT_GPU_THRESHOLDS, a JSON object or the path of a file with one.

    Args:
        ecc_corrected: errors since the driver was loaded (gcm: 50 million).
        sram_aggregate: uncorrected errors in the GPU's life; more is a case for a new board (ml-engineering: 4).
        remapped_uncorrected: rows (azurehpc-health-checks: 512).
        retired_pages: in a GPU's life (NVIDIA, Dynamic Page Retirement: 60 or more is a case for a new board).
        leftover_bytes: memory in use by others, a warning (heuristic; NVRx 512 MB, gcm 15 MiB).
        leftover_fraction: the same, a failure (heuristic: what training will miss).
        drain_s: how long such memory may take to be freed, at most; see wait_s (heuristic: an orphan's end).
        fabric_s: how long a fabric may train its links after a reboot, at most; see wait_s (NVSentinel #1701).
        idle_c: degrees of a GPU that does nothing (heuristic).
        power_fraction: of the factory's power limit (heuristic).
        throttled_fraction: of the samples (heuristic).
        matmul_usual: of the median of the neighbours, a warning (MegaScale: nodes 10 % slower were worth finding).
        matmul_least: of the same, a failure (heuristic).
        matmul_model: of the model's best, a failure (heuristic: its power limit or its cooling is far off).
        memory_usual: of the peak, a warning (heuristic).
        memory_least: of the peak, a failure (IBM autopilot: 1300 of an A100's 2000 GB/s).
        host_usual: of the link's peak, a warning (azurehpc-health-checks: 21 of 31.5 and 48 of 63 GB/s).
        host_least: of the same, a failure (half of the lanes, and less).
        pair_usual: of the median of all pairs, a warning (heuristic).
        busbw_usual: of what NCCL reaches on healthy nodes, a warning (heuristic).
        busbw_least: of the same, a failure (heuristic).
        models: what is wanted of each model; those of the variable first.
    """

    ecc_corrected: float = 50_000_000
    sram_aggregate: float = 4
    remapped_uncorrected: float = 512
    retired_pages: float = 60
    leftover_bytes: float = 1024 * MIB
    leftover_fraction: float = 0.05
    drain_s: float = 50.0
    fabric_s: float = 50.0
    idle_c: float = 75
    power_fraction: float = 0.9
    throttled_fraction: float = 0.5
    matmul_usual: float = 0.9
    matmul_least: float = 0.75
    matmul_model: float = 0.6
    memory_usual: float = 0.8
    memory_least: float = 0.65
    host_usual: float = 0.65
    host_least: float = 0.4
    pair_usual: float = 0.8
    busbw_usual: float = 0.8
    busbw_least: float = 0.6
    models: tuple[Model, ...] = MODELS


NAMES = tuple(f.name for f in fields(Thresholds) if f.name != "models")


def in_force(names: tuple[str, ...], context: Context, *, of_models: str = "") -> dict[str, dict[str, Any]]:
    """Return these thresholds, and one number of all models, as `trainer-agent checks NAME` shows them."""
    here, usual = thresholds(context), Thresholds()
    values = {name: (getattr(here, name), getattr(usual, name)) for name in names}
    found = {n: {"value": v, "origin": "default" if v == u else VARIABLE} for n, (v, u) in values.items()}
    for model in here.models if of_models else ():
        value = getattr(model, of_models)
        if value is not None:
            shown = " or ".join(map(str, value)) if isinstance(value, tuple) else value
            origin = SOURCES[of_models] if model in MODELS else VARIABLE
            found.setdefault(f"{of_models} of {model.title}", {"value": shown, "origin": origin})
    return found


def thresholds(context: Context) -> Thresholds:
    """
    Return the thresholds, as far as the environment does not say otherwise.

    Raises:
        FatalError: the variable holds neither a JSON object of known names and numbers nor the path of one.
    """
    text = context.environ.get(VARIABLE, "").strip()
    if not text:
        return Thresholds()
    told = text if text.startswith("{") else _content(context.host, text)
    if told is None:
        raise _error(f"{VARIABLE}={text} cannot be read within {FILE_S:g} s, wanted a readable file or a JSON object")
    try:
        given = json.loads(told)
    except (ValueError, RecursionError) as error:
        raise _error(f'{VARIABLE} is no JSON ({error}), wanted an object such as {{"idle_c": 80}}') from error
    if not isinstance(given, dict):
        raise _error(f"{VARIABLE} holds a {type(given).__name__}, wanted a JSON object")
    models = _models(given.pop("models", {}))
    return replace(Thresholds(), **_demand_numbers(given), models=(*models, *MODELS))


@cache
def _content(host: Host, path: str) -> str | None:
    """Return the text of a file, None when it cannot be read in time; read once, before the checks that want it."""
    try:
        text: str | None = isolated(lambda: host.read(path), timeout_s=FILE_S)
    except IsolatedError:
        return None
    return text


def _demand_numbers(given: dict[str, Any]) -> dict[str, float]:
    for name, value in given.items():
        if name not in NAMES:
            raise _error(f"{VARIABLE} has {name!r}, wanted models or one of {', '.join(NAMES)}")
        if not _is_number(value):
            raise _error(f"{VARIABLE} has {name}={value!r}, wanted a number of 0 or more")
    return given


def _models(given: Any) -> list[Model]:
    """Return the models of the variable, each by its whole name, with what it says otherwise than we do."""
    if not isinstance(given, dict):
        raise _error(f"{VARIABLE} has models={given!r}, wanted an object of names and what is wanted of them")
    short = {name.removeprefix(MAKER): facts for name, facts in given.items()}
    return [replace(model_of(name), pattern=re.escape(name), **_facts(name, facts)) for name, facts in short.items()]


def _facts(name: str, facts: Any) -> dict[str, Any]:
    kinds = {"ecc": "true or false", "pcie": "true or false", "links": "an array of one number or more"}
    for key, value in facts.items() if isinstance(facts, dict) else [("", facts)]:
        if key in ("ecc", "pcie"):
            valid = isinstance(value, bool)
        elif key == "links":
            valid = isinstance(value, list) and bool(value) and all(_is_number(n) and n == int(n) for n in value)
        else:
            valid = key in SOURCES and _is_number(value)
        if not valid:
            wanted = kinds.get(key, f"a number after one of {', '.join((*SOURCES, 'ecc', 'pcie'))}")
            raise _error(f"{VARIABLE} has {key}={value!r} for the model {name!r}, wanted {wanted}")
    return {key: tuple(value) if key == "links" else value for key, value in facts.items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")


def _error(message: str) -> FatalError:
    return FatalError("gpu-thresholds-invalid", message, hint=f"correct or remove {VARIABLE}")


def wait_s(context: Context, wanted_s: float, *, share: float = WAIT_SHARE) -> float:
    """
    Return how long a check may wait for something to pass.

    The checks that let the GPUs work come after it: it has a share of the budget, but 5 s where there are so many, and
    no more with --profile quick.
    """
    budget = context.options.budget_s
    most = LEAST_WAIT_S if context.options.profile == "quick" else max(LEAST_WAIT_S, share * budget)
    return min(wanted_s, max(0.0, budget - LOOK_S), most)


def is_virtual(context: Context) -> bool:
    """Return whether this is a virtual machine, whose PCIe is what the hypervisor makes of it."""
    return "hypervisor" in (context.host.read("/proc/cpuinfo") or "")
