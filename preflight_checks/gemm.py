"""Whether every GPU multiplies matrices exactly, as fast as its neighbours, and without errors of its memory."""

from __future__ import annotations

import statistics
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from preflight_checks import _gpu_work
from preflight_checks._gpu_models import Thresholds, in_force, thresholds
from preflight_checks.gpu_clocks import BRAKE, REASONS, SLOWDOWN, SOFTWARE, THERMAL
from trainer_agent.check import Context, Outcome, Rule, check
from trainer_agent.errors import Action, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from preflight_checks._gpu_work import Row, Target, Work

SIZE, LEAST, BOX_S = 8192, 20, 2.0
LEAST_SAMPLES = 5
# (kind, rows, columns, inner): a full left matrix, and a long inner side, which kernels split.
SHAPES = {
    "standard": (
        *(("bf16", 2048, 4096, 256), ("bf16", 1024, 1024, 8192)),
        *(("fp16", 2048, 2048, 2048), ("tf32", 2048, 2048, 1024), ("fp32", 1024, 1024, 1024)),
    ),
    # Besides, what no tile fits, and types that only some GPUs and versions of torch have.
    "deep": (
        *(("bf16", 8192, 8192, 8192), ("bf16", 1000, 1111, 777), ("bf16", 5120, 13824, 5120)),
        *(("fp16", 8192, 8192, 8192), ("fp16", 1000, 1111, 777), ("tf32", 4096, 4096, 4096)),
        *(("fp32", 1000, 1111, 777), ("fp8", 4096, 4096, 4096), ("int8", 4096, 4096, 4096)),
    ),
}
REPEAT = {"standard": 20, "deep": 50}
DEEP_S = 120.0

WRONG = Rule(
    "gemm-wrong",
    when="a product of integer matrices, which has one right result, is not that result on a GPU",
    hint="cordon this node and replace the board: it computes wrong numbers without any error",
    action=Action.RESCHEDULE,
    source="no sum on the way is rounded, whatever its order; verified by checksums in integers and on the CPU",
)
SLOW = Rule(
    "gemm-slow",
    when="less than 75 % of the median speed of the other GPUs of its model here, or less than 60 % of the best that "
    "was measured on its model; a warning below 90 % of the others, for unknown models, and where the power is limited",
    hint="run `nvidia-smi -q -d PERFORMANCE,CLOCK,POWER` on this node, look for other processes on the GPU, and cordon "
    "the node when it goes on",
    action=Action.RESCHEDULE,
    source="ml-engineering's table of achievable TFLOPS; heuristic for the parts of it",
)
ECC = Rule(
    "ecc-uncorrected-rising",
    when="uncorrected errors of a GPU's memory while it works",
    hint="cordon this node and reset the GPU; replace the board when it happens again",
    action=Action.RESCHEDULE,
    source="NVML's volatile counters before and after",
)
CORRECTED = Rule(
    "ecc-corrected-rising",
    when="more than 1000 corrected errors of a GPU's memory in a second while it works",
    hint="replace the board when the node is free",
    severity=Severity.WARNING,
    source="heuristic",
)
MOST_CORRECTED = 1000  # in a second
LOADED = "in more than half of the samples under load; a warning in fewer"
HELD = {
    rule.code: replace(rule, when=f"{words} {LOADED}")
    for rule, words in (
        (THERMAL, "the hardware slows a GPU down for its heat"),
        (BRAKE, "the power supply slows a GPU down"),
        (SLOWDOWN, "the hardware slows a GPU down, and says neither heat nor power"),
        (SOFTWARE, "the driver slows a GPU down for its heat"),
    )
} | {SOFTWARE.code: replace(SOFTWARE, when="the driver slows a GPU down for its heat, in any sample under load")}


def probe_s(context: Context) -> float:
    """Return how long a probe may take."""
    return DEEP_S if context.options.profile == "deep" else _gpu_work.PROBE_S


@check(
    "gemm",
    rules=(*_gpu_work.RULES, WRONG, SLOW, ECC, CORRECTED, *HELD.values()),
    timeout_s=lambda context: _gpu_work.check_s(probe_s(context)),
    profile="standard",
    alone_s=15,
    thresholds=partial(
        in_force,
        ("matmul_usual", "matmul_least", "matmul_model", "throttled_fraction", "power_fraction"),
        of_models="matmul_tflops",
    ),
)
def gemm(context: Context) -> Outcome:
    """Does every GPU multiply matrices exactly, and as fast as its model and its neighbours?"""
    deep = context.options.profile == "deep"
    cases = SHAPES["standard"] + (SHAPES["deep"] if deep else ())
    request: dict[str, Any] = {
        "cases": cases,
        "repeat": REPEAT["deep" if deep else "standard"],
        "size": SIZE,
        "least": LEAST,
    }
    request["box_s"] = 3 * BOX_S if deep else BOX_S
    work = _gpu_work.run(context, "gemm", request, again=("clocks",), probe_s=probe_s(context))
    limits = thresholds(context)
    rows: list[Row] = []
    for target, answer in work.answers:
        rows += _wrong(target, answer["wrong"])
        rows += _slow(work, target, answer, limits)
        rows += _memory_errors(work, target)
        rows += _held(work, target, answer, limits)
    measured = [_measured(work, target, answer) for target, answer in work.answers]
    speeds = [f"{m['matmul_tflops']:.0f}" for m in measured]
    products = sum(answer["verified"] for _, answer in work.answers)
    message = f"{products} exact products on {len(measured)} GPUs; {' '.join(speeds)} TFLOP/s"
    return Outcome(message, (*work.findings, *_gpu_work.spoken(rows)), {"gpus": measured, **work.notes})


def _measured(work: Work, target: Target, answer: Mapping[str, Any]) -> dict[str, Any]:
    measured = target.measured | {n: answer[n] for n in ("matmul_tflops", "kind", "size", "products", "verified")}
    if wanted := _wanted(work, target, answer):
        measured["expected_matmul_tflops"] = wanted
    if answer["not_done"]:
        measured["not_done"] = answer["not_done"]
    return measured


def _wrong(target: Target, wrong: Sequence[dict[str, Any]]) -> Iterator[Row]:
    """One finding for a GPU, of its first wrong product."""
    if not wrong:
        return
    first = wrong[0]
    shape = "x".join(map(str, first["shape"]))
    text = f"{len(wrong)} products are wrong, the first one {first['kind']} {shape}: "
    if first["what"] == "product":
        text += (
            f"{first['count']} numbers in {first['rows']} rows, at {first['index']} "
            f"is {first['got']}, wanted {first['expected']}"
        )
    else:
        text += f"its {first['what']} differs and its numbers are right as the CPU reads them, wanted both right"
    yield WRONG, (target.gpu, text, {"wrong": list(wrong)})


def _neighbours(work: Work, target: Target, answer: Mapping[str, Any]) -> list[float]:
    """Return the speeds of the other GPUs of the same model that did the same work."""
    like = (answer["name"], answer["kind"], answer["size"])
    return [
        other["matmul_tflops"]
        for place, other in work.answers
        if place is not target and not place.instance and like == (other["name"], other["kind"], other["size"])
    ]


def _best(target: Target, answer: Mapping[str, Any]) -> float | None:
    """Return what the model can do, where the same was measured on it."""
    whole = not target.instance and (answer["kind"], answer["size"]) == ("bf16", SIZE)
    return target.gpu.model.matmul_tflops if whole else None


def _wanted(work: Work, target: Target, answer: Mapping[str, Any]) -> float | None:
    others = _neighbours(work, target, answer)
    return _best(target, answer) or (statistics.median(others) if others and not target.instance else None)


def _slow(work: Work, target: Target, answer: Mapping[str, Any], limits: Thresholds) -> Iterator[Row]:
    if target.instance:
        return
    speed, best = answer["matmul_tflops"], _best(target, answer)
    others = _neighbours(work, target, answer)
    usual = statistics.median(others) if others else None
    evidence = {"matmul_tflops": speed, "neighbours_tflops": usual, "model_tflops": best}
    fails = replace(SLOW, severity=Severity.ERROR if best and not _limited(work, target, limits) else Severity.WARNING)
    warns = replace(SLOW, severity=Severity.WARNING)
    said = f"{speed:.1f} TFLOP/s with {answer['kind']}"
    if best and speed < limits.matmul_model * best:
        wanted = limits.matmul_model * best
        yield (
            fails,
            (target.gpu, f"{said}, wanted {wanted:.0f}: {limits.matmul_model:.0%} of its model's best", evidence),
        )
    elif usual and speed < limits.matmul_usual * usual:
        rule = fails if speed < limits.matmul_least * usual else warns
        wanted = limits.matmul_usual * usual
        text = f"{said}, wanted {wanted:.1f}: {limits.matmul_usual:.0%} of the median of the others"
        yield rule, (target.gpu, text, evidence)


def _limited(work: Work, target: Target, limits: Thresholds) -> bool:
    """Whether somebody limited its power, which makes it slower on purpose."""
    ends = work.ends(target)
    if ends is None or ends[0].power_limit_w is None or ends[0].power_default_w is None:
        return False
    return ends[0].power_limit_w < limits.power_fraction * ends[0].power_default_w


def _memory_errors(work: Work, target: Target) -> Iterator[Row]:
    ends = work.ends(target)
    if ends is None:
        return
    first, last = ends
    pairs = [(getattr(first, n), getattr(last, n)) for n in ("ecc_uncorrected_sram", "ecc_uncorrected_dram")]
    rise = sum(max(0, after - before) for before, after in pairs if None not in (before, after))
    if rise:
        yield ECC, (target.gpu, f"{rise} uncorrected memory errors while it worked, wanted 0", {"errors": rise})
    seconds = max(1.0, work.samples[-1][0] - work.samples[0][0])
    more = (last.ecc_corrected or 0) - (first.ecc_corrected or 0) if first.ecc_corrected is not None else 0
    if more > MOST_CORRECTED * seconds:
        text = f"{more / seconds:.0f} corrected memory errors in a second, wanted {MOST_CORRECTED} at most"
        yield CORRECTED, (target.gpu, text, {"errors": more, "seconds": round(seconds, 1)})


def _held(work: Work, target: Target, answer: Mapping[str, Any], limits: Thresholds) -> Iterator[Row]:
    """Say what slowed the clocks down while the products ran, as gpu-clocks does for an idle GPU."""
    reasons = [g.clock_reasons for g in work.during(target, answer["window"]) if g.clock_reasons is not None]
    if len(reasons) < LEAST_SAMPLES:
        return
    for bit, mask, rule in REASONS:
        count = sum(seen & mask == bit for seen in reasons)
        if count:
            rare = count <= limits.throttled_fraction * len(reasons)
            held = replace(HELD[rule.code], severity=Severity.WARNING) if rare else HELD[rule.code]
            text = f"slowed down in {count} of {len(reasons)} samples under load, wanted 0"
            yield held, (target.gpu, text, {"reasons": reasons})
