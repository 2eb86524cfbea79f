"""What holds a GPU's clocks down: heat, the power supply, a limit that somebody left behind."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from preflight_checks._gpu_models import Thresholds, in_force, thresholds
from preflight_checks._gpus import READ_S, found_by_rule, gpu_check, models, present, read_gpus, unread
from trainer_agent.check import Context, Outcome, Rule
from trainer_agent.errors import Action, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from preflight_checks._gpus import Gpu, Reading, Said

SAMPLES, PAUSE_S = 10, 0.1
REPORTED = ("clock_reasons", "sm_mhz", "temperature_c", "slowdown_c", "power_limit_w")
OFTEN = "in more than half of 10 samples over a second; a warning in fewer"

THERMAL = Rule(
    "gpu-thermal-slowdown",
    when=f"the hardware slows a GPU down for its heat {OFTEN}",
    hint="cordon this node and look at its fans, air flow or coolant",
    action=Action.RESCHEDULE,
    source="clocks event reason 0x40; gpud: 6 of 10 minutes",
)
BRAKE = Rule(
    "gpu-power-brake",
    when=f"the power supply slows a GPU down {OFTEN}",
    hint="cordon this node and look at its power supplies and the power cap of the rack",
    action=Action.RESCHEDULE,
    source="clocks event reason 0x80; gpud: 6 of 10 minutes",
)
SLOWDOWN = Rule(
    "gpu-hw-slowdown",
    when=f"the hardware slows a GPU down, and says neither heat nor power {OFTEN}",
    hint="cordon this node and look at `nvidia-smi -q -d PERFORMANCE`, its power supplies and its cooling",
    action=Action.RESCHEDULE,
    source="clocks event reason 0x8; gpud: 6 of 10 minutes",
)
SOFTWARE = Rule(
    "gpu-sw-thermal-slowdown",
    when="the driver slows a GPU down for its heat, in any of 10 samples over a second",
    hint="look at the cooling of this node: training will be slower than on others",
    severity=Severity.WARNING,
    source="clocks event reason 0x20",
)
POWER = Rule(
    "power-limit-low",
    when="a GPU may use less than 90 % of the power that its model has by default",
    hint="run `nvidia-smi --power-limit` with the default of the message on this node, unless the limit is meant",
    severity=Severity.WARNING,
    source="heuristic",
)
WARM = Rule(
    "gpu-warm",
    when="a GPU that does nothing is warmer than 75 degrees",
    hint="look at the cooling of this node: training will make it warmer",
    severity=Severity.WARNING,
    source="heuristic; idle GPUs of healthy nodes had 27 to 39 degrees",
)
HOT = Rule(
    "gpu-too-hot",
    when="a GPU is as warm as its slowdown temperature",
    hint="cordon this node and look at its fans, air flow or coolant",
    action=Action.RESCHEDULE,
    source="NVML's threshold of the GPU itself; where it has none, its margin to slowing down (T.Limit)",
)
# NVML's nvmlClocksEventReason*: 0x8 comes along with its two causes.
REASONS = ((0x40, 0x40, THERMAL), (0x80, 0x80, BRAKE), (0x8, 0xC8, SLOWDOWN), (0x20, 0x20, SOFTWARE))


@gpu_check(
    "gpu-clocks",
    rules=(THERMAL, BRAKE, SLOWDOWN, SOFTWARE, POWER, WARM, HOT),
    thresholds=partial(in_force, ("throttled_fraction", "power_fraction", "idle_c")),
    timeout_s=READ_S + SAMPLES * PAUSE_S + 3,
)
def gpu_clocks(context: Context) -> Outcome:
    """May every GPU run at full speed: is it cool, well supplied with power, and not held back?"""
    limits = thresholds(context)
    reading = read_gpus(context, "clocks", "heat", again=("clocks",), times=SAMPLES, pause_s=PAUSE_S)
    gpus = present(reading)
    findings = found_by_rule(_held(reading, gpus, limits))
    findings += found_by_rule(
        (rule, (gpu, text, evidence))
        for gpu in gpus
        for rule, text, evidence in (*_power(gpu, limits), *_heat(gpu, limits))
    )
    measured = {
        "gpus": [_measured(gpu) for gpu in gpus],
        "not_read": unread(gpus, REPORTED),
    }
    warmest = max((gpu.temperature_c or 0 for gpu in gpus), default=0)
    return Outcome(f"{models(gpus)}: at most {warmest} degrees", tuple(findings), measured)


def _measured(gpu: Gpu) -> dict[str, Any]:
    measured = {"index": gpu.index} | {name: getattr(gpu, name) for name in REPORTED}
    return measured | {"expected_power_limit_w": gpu.power_default_w}


def _held(reading: Reading, gpus: Sequence[Gpu], limits: Thresholds) -> Iterator[tuple[Rule, Said]]:
    for gpu in gpus:
        samples = [each.clock_reasons or 0 for each in reading.of(gpu)]
        for rule, count in _counted(samples).items():
            rare = count <= limits.throttled_fraction * len(samples)
            row = (gpu, f"slowed down in {count} of {len(samples)} samples, wanted 0", {"reasons": samples})
            yield (replace(rule, severity=Severity.WARNING) if rare else rule), row


def _counted(samples: Sequence[int]) -> Counter[Rule]:
    """Return in how many samples each rule's bit is set, and no other of its mask."""
    return Counter(rule for reasons in samples for bit, mask, rule in REASONS if reasons & mask == bit)


def _power(gpu: Gpu, limits: Thresholds) -> Iterator[tuple[Rule, str, dict[str, Any]]]:
    now, usual = gpu.power_limit_w, gpu.power_default_w
    if now is not None and usual is not None and now < limits.power_fraction * usual:
        text = f"it may use {now:g} W, wanted its default of {usual:g} W, or {limits.power_fraction:.0%} of it"
        yield POWER, text, {"limit_w": now, "default_w": usual}


def _heat(gpu: Gpu, limits: Thresholds) -> Iterator[tuple[Rule, str, dict[str, Any]]]:
    degrees = gpu.temperature_c
    if degrees is None:
        return
    evidence = {"temperature_c": degrees, "slowdown_c": gpu.slowdown_c, "tlimit_c": gpu.tlimit_c}
    # Margins of 0 and below were unreliable, so that they count only for a GPU that is warm by its temperature, too.
    near = None not in (gpu.tlimit_c, gpu.tlimit_slowdown_c) and (gpu.tlimit_c or 0) <= (gpu.tlimit_slowdown_c or 0)
    if degrees >= gpu.slowdown_c if gpu.slowdown_c else near and degrees > limits.idle_c:
        limit = f"{gpu.slowdown_c} degrees" if gpu.slowdown_c else f"a margin above {gpu.tlimit_slowdown_c} degrees"
        yield HOT, f"it has {degrees} degrees, wanted less than it slows down at: {limit}", evidence
    elif degrees > limits.idle_c and gpu.busy_percent == 0:
        yield WARM, f"it has {degrees} degrees and does nothing, wanted {limits.idle_c:g} or less", evidence
