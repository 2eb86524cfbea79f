"""Whether every GPU copies as fast as it should: inside its memory, from the host and to it, to its neighbours."""

from __future__ import annotations

import statistics
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from preflight_checks import _gpu_pairs, _gpu_work
from preflight_checks._gpu_models import UNKNOWN, Thresholds, in_force, is_virtual, thresholds
from trainer_agent.check import Context, Outcome, Rule, check
from trainer_agent.errors import Action, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from preflight_checks._gpu_work import Row, Target, Work
    from preflight_checks._gpus import Gpu

MIB = 1 << 20
REQUEST = {"memory_bytes": 1024 * MIB, "host_bytes": 256 * MIB, "box_s": 1.0, "host_box_s": 0.25, "turn_s": 12.0}
# GB/s of a lane in one direction by the generation of PCIe: its rate, less the encoding.
LANE_GBPS = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.97, 5: 3.94, 6: 7.56}
LEAST_SAMPLES = 2
WIDTH, GENERATION = "pcie_width", "pcie_generation"  # of the link, as `Gpu` has them
NEIGHBOURS = 0.9  # heuristic, for models without numbers of their own

MEMORY = Rule(
    "gpu-memory-slow",
    when="copies inside a GPU's memory reach less than 65 % of its model's peak; a warning below 80 %, and below 90 % "
    "of the median of the others for models without a number",
    hint="look for other processes on the GPU and at `nvidia-smi -q -d CLOCK,ECC`; cordon the node when it goes on",
    action=Action.RESCHEDULE,
    source="NVIDIA's data sheets; IBM autopilot wants 1300 of an A100's 2000 GB/s",
)
HOST = Rule(
    "host-link-slow",
    when="copies between the host's pinned memory and a GPU reach less than 40 % of the PCIe link's peak, which is "
    "half of its lanes; a warning below 65 %, for unknown models, in virtual machines, and where "
    "pcie-narrow-under-load is one",
    hint="look at `nvidia-smi -q | grep -A9 'GPU Link Info'` and `dmesg | grep -i aer` on this node; reseat the board",
    action=Action.RESCHEDULE,
    source="azurehpc-health-checks wants 21 of 31.5 and 48 of 63 GB/s",
)
NARROW = Rule(
    "pcie-narrow-under-load",
    when="PCIe has fewer lanes than NVML's maximum while data goes over it: a GPU on a board of SXM that is not in a "
    "virtual machine, or one beside another of its name that has them all, in a virtual machine only on such a board; "
    "a warning for all others, info for cards in a virtual machine none of which has them all",
    hint="look at `dmesg | grep -i aer` on this node; reseat the board, or replace its riser",
    action=Action.RESCHEDULE,
    source="NVML's current and maximal width of the link; the maximum may be the card's alone",
)
OLD = Rule(
    "pcie-slow-under-load",
    when="PCIe runs at a lower generation than board and slot can while data goes over it: a GPU on a board of SXM, "
    "or one beside another of its name that reaches it; a warning for all others, and in virtual machines",
    hint="look at `dmesg | grep -i aer` on this node; reseat the board, or replace its riser",
    action=Action.RESCHEDULE,
    source="NVML's current and maximal generation of the link; an idle one goes down to save power, a busy one not",
)
REPLAYS = Rule(
    "pcie-replays-under-load",
    when="packets had to be sent again over PCIe while data went over it",
    hint="look at `dmesg | grep -i aer` on this node; reseat the board when it goes on",
    severity=Severity.WARNING,
    source="NVML's replay counter before and after",
)


@check(
    "bandwidth",
    rules=(*_gpu_work.RULES, MEMORY, HOST, NARROW, OLD, REPLAYS, _gpu_pairs.PAIR),
    timeout_s=lambda context: _gpu_work.check_s() + (_gpu_pairs.CHECK_S if context.options.profile == "deep" else 0),
    profile="standard",
    alone_s=15,
    thresholds=partial(
        in_force, ("memory_usual", "memory_least", "host_usual", "host_least", "pair_usual"), of_models="memory_gbps"
    ),
)
def bandwidth(context: Context) -> Outcome:
    """Does every GPU copy as fast as its model can: in its memory, over PCIe, to its neighbours?"""
    work = _gpu_work.run(context, "bandwidth", REQUEST, again=("pcie",))
    limits, virtual = thresholds(context), is_virtual(context)
    rows: list[Row] = []
    for target, answer in work.answers:
        if not target.instance:  # an instance has a part of everything
            rows += _memory(work, target, answer, limits)
            rows += _links(work, target, answer, limits=limits, virtual=virtual)
    measured = [_measured(work, target, answer, virtual=virtual) for target, answer in work.answers]
    findings = [*work.findings, *_gpu_work.spoken(rows)]
    notes = dict(work.notes)
    if context.options.profile == "deep" and len(work.answers) > 1 and not work.answers[0][0].instance:
        slow, notes["pairs"] = _gpu_pairs.look(context, [target for target, _ in work.answers], limits)
        findings += slow
    speeds = " ".join(f"{m['memory_gbps']:.0f}" for m in measured)
    return Outcome(
        f"{len(measured)} GPUs copy {speeds} GB/s in their memory", tuple(findings), {"gpus": measured} | notes
    )


def _measured(work: Work, target: Target, answer: Mapping[str, Any], *, virtual: bool) -> dict[str, Any]:
    names = ("memory_gbps", "h2d_gbps", "d2h_gbps")
    measured = target.measured | {name: answer[name] for name in names if name in answer}
    if target.instance:
        return measured
    if peak := target.gpu.model.memory_gbps:
        measured["expected_memory_gbps"] = peak
    if peak := _peak(work, target, answer, virtual=virtual):
        measured |= {f"expected_{name}": peak for name in names[1:] if name in answer}
    if answer["not_done"]:
        measured["not_done"] = answer["not_done"]
    return measured


def _memory(work: Work, target: Target, answer: Mapping[str, Any], limits: Thresholds) -> Iterator[Row]:
    speed, peak = answer["memory_gbps"], target.gpu.model.memory_gbps
    said = f"it copies {speed:.0f} GB/s in its memory"
    if peak:
        if speed < limits.memory_usual * peak:
            rule = MEMORY if speed < limits.memory_least * peak else replace(MEMORY, severity=Severity.WARNING)
            text = f"{said}, wanted {limits.memory_usual * peak:.0f}: {limits.memory_usual:.0%} of its model's {peak:g}"
            yield rule, (target.gpu, text, {"memory_gbps": speed, "peak_gbps": peak})
        return
    others = [
        other["memory_gbps"]
        for place, other in work.answers
        if place is not target and (other["name"], other["memory_bytes"]) == (answer["name"], answer["memory_bytes"])
    ]
    usual = statistics.median(others) if others else 0.0
    if speed < NEIGHBOURS * usual:
        text = f"{said}, wanted {NEIGHBOURS * usual:.0f}: {NEIGHBOURS:.0%} of the median of the others"
        yield (
            replace(MEMORY, severity=Severity.WARNING),
            (target.gpu, text, {"memory_gbps": speed, "usual_gbps": usual}),
        )


def _over_pcie(target: Target, answer: Mapping[str, Any]) -> bool:
    """Return whether data went over PCIe, which is not how a Grace reaches its GPUs."""
    return "host_window" in answer and target.gpu.model.pcie


def _link(work: Work, target: Target, answer: Mapping[str, Any]) -> list[Gpu]:
    """Return what NVML said of PCIe while data went over it."""
    return work.during(target, answer["host_window"]) if _over_pcie(target, answer) else []


def _of_lanes(work: Work, target: Target, *, virtual: bool) -> Severity:
    """Return how much it weighs that a GPU has fewer lanes than it could have."""
    whole = any(0 < wanted <= best for best, wanted in _beside(work, target, WIDTH))
    return target.gpu.model.lanes_severity(virtual=virtual, beside_whole=whole)


def _peak(work: Work, target: Target, answer: Mapping[str, Any], *, virtual: bool) -> float | None:
    """Return what the link can do at most, by board and slot; by the lanes that it has where they are few by design."""
    ends = work.ends(target)
    if not ends or not _over_pcie(target, answer):
        return None
    lane, width = LANE_GBPS.get(ends[1].pcie_generation_max or 0), ends[1].pcie_width_max
    if _of_lanes(work, target, virtual=virtual) is Severity.INFO:
        width = _seen(_link(work, target, answer), WIDTH)[0] or width
    return lane * width if lane and width else None


def _seen(samples: Sequence[Gpu], what: str) -> tuple[int, int]:
    """Return the most that was seen of width or generation, and what there can be; zeroes where too little was seen."""
    if len(samples) < LEAST_SAMPLES:
        return 0, 0
    return max(getattr(gpu, what) or 0 for gpu in samples), getattr(samples[-1], f"{what}_max") or 0


def _beside(work: Work, target: Target, what: str) -> list[tuple[int, int]]:
    """Return the same of all other GPUs of the same name."""
    others = [(t, a) for t, a in work.answers if t is not target and t.gpu.name == target.gpu.name]
    return [_seen(_link(work, other, answer), what) for other, answer in others]


def _links(
    work: Work, target: Target, answer: Mapping[str, Any], *, limits: Thresholds, virtual: bool
) -> Iterator[Row]:
    samples = _link(work, target, answer)
    certain = not virtual and target.gpu.model is not UNKNOWN
    severity = Severity.ERROR if certain else Severity.WARNING
    lanes, all_lanes = _seen(samples, WIDTH)
    narrow, whole = 0 < lanes < all_lanes, 0 < all_lanes <= lanes
    of_lanes = _of_lanes(work, target, virtual=virtual)
    if peak := _peak(work, target, answer, virtual=virtual):
        fails = of_lanes is Severity.ERROR
        known = severity if whole or fails else Severity.WARNING
        of_speed = of_lanes if fails and narrow else known
        yield from _host(target, answer, peak=peak, severity=of_speed, limits=limits)
    if narrow:
        text = f"PCIe has {lanes} lanes while data goes over it, wanted {all_lanes}"
        yield (
            replace(NARROW, severity=of_lanes),
            (target.gpu, text, {"pcie_width": lanes, "pcie_width_max": all_lanes}),
        )
    yield from _old(work, target, samples, virtual=virtual)
    ends = work.ends(target)
    if ends and None not in (ends[0].pcie_replays, ends[1].pcie_replays) and target.gpu.model.pcie:
        rise = (ends[1].pcie_replays or 0) - (ends[0].pcie_replays or 0)
        if rise > 0:
            yield REPLAYS, (target.gpu, f"{rise} PCIe replays while it copied, wanted 0", {"replays": rise})


def _old(work: Work, target: Target, samples: Sequence[Gpu], *, virtual: bool) -> Iterator[Row]:
    """A riser, or what was set in the BIOS, may hold a slot's generation down, which NVML's maximum does not show."""
    best, wanted = _seen(samples, GENERATION)
    if 0 < best < wanted:
        reached = any(other >= wanted for other, _ in _beside(work, target, GENERATION))
        certain = not virtual and (target.gpu.model.sxm or (target.gpu.model.ecc and reached))
        text = f"PCIe has {best} as its generation while data goes over it, wanted {wanted}"
        evidence = {"pcie_generation": best, "pcie_generation_max": wanted}
        yield replace(OLD, severity=Severity.ERROR if certain else Severity.WARNING), (target.gpu, text, evidence)


def _host(
    target: Target, answer: Mapping[str, Any], *, peak: float, severity: Severity, limits: Thresholds
) -> Iterator[Row]:
    for name, words in (("h2d_gbps", "from the host"), ("d2h_gbps", "to the host")):
        speed = answer[name]
        if speed < limits.host_usual * peak:
            least = speed < limits.host_least * peak
            rule = replace(HOST, severity=severity if least else Severity.WARNING)
            wanted = limits.host_usual * peak
            text = f"it copies {speed:.1f} GB/s {words}, wanted {wanted:.1f}: {limits.host_usual:.0%} of its PCIe link"
            yield rule, (target.gpu, text, {name: speed, "peak_gbps": peak})
