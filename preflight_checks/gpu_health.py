"""The health of each GPU: what the driver asks for, memory that failed, errors, and settings that keep others out."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from preflight_checks import _gpu_health_rules as known
from preflight_checks import _recovery, _xids
from preflight_checks._gpu_models import Thresholds, in_force, thresholds
from preflight_checks._gpus import READ_S, found_by_rule, found_on, gpu_check, models, read_gpus, unread
from trainer_agent.check import Context, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from preflight_checks._gpus import Gpu, Reading
    from trainer_agent.check import Rule
    from trainer_agent.errors import Finding

GROUPS = ("recovery", "state", "rows", "ecc", "sram", "capability", "xid")
DRIVER_FILES = "/proc/driver/nvidia/gpus"  # a directory for each GPU of this container, by PCI address
PAUSE_S = 0.3
LISTEN_S = 0.1
PROHIBITED, EXCLUSIVE = 2, 3  # NVML_COMPUTEMODE_*
REPORTED = (
    "recovery_action",
    "ecc_uncorrected_sram",
    "ecc_uncorrected_dram",
    "sram_exceeded",
    "remapped",
    "banks_without_rows",
    "retired",
    "repair_pending",
)


@gpu_check(
    "gpu-health",
    rules=known.RULES,
    thresholds=partial(in_force, ("ecc_corrected", "sram_aggregate", "remapped_uncorrected", "retired_pages")),
    timeout_s=READ_S + PAUSE_S + LISTEN_S + 3,
)
def gpu_health(context: Context) -> Outcome:
    """Is every GPU healthy: does it answer, is its memory sound, does the driver ask for nothing?"""
    limits = thresholds(context)
    reading = read_gpus(context, *GROUPS, again=("recovery", "ecc"), times=2, pause_s=PAUSE_S)
    findings = [
        *_gone(context, reading),
        *_xids.judge(reading.xids, {gpu.index: gpu for gpu in reading.gpus}),
        *_differing(reading.gpus),
    ]
    gone = {gpu.index for sample in reading.samples for gpu in sample if gpu.gone}
    pairs = [
        (replace(first, recovery_action=later.recovery_action), later)  # what is wanted in the end
        for first, later in zip(*reading.samples, strict=True)
        if first.index not in gone
    ]
    findings += found_by_rule(
        (rule, (gpu, text, evidence))
        for gpu, later in pairs
        for judge in (_driver, _rows, partial(_ecc, later=later), _settings)
        for rule, text, evidence in judge(gpu, limits=limits)
    )
    answering = f"{len(pairs)} of {len(reading.gpus)} GPUs answer"
    measured = {
        "gpus": [{"index": gpu.index} | {name: getattr(gpu, name) for name in REPORTED} for gpu, _ in pairs],
        "not_read": unread(reading.gpus, REPORTED) | dict(reading.unread),
    }
    return Outcome(f"{models([gpu for gpu, _ in pairs])}: {answering}", tuple(findings), measured)


def _gone(context: Context, reading: Reading) -> list[Finding]:
    """A GPU that went while we asked is known by its earlier answers."""
    words: dict[int, str] = {}
    for sample in reading.samples:
        for gpu in sample:
            if gpu.gone:
                words.setdefault(gpu.index, gpu.gone)
    gone = [gpu for gpu in _placed(context, reading.gpus) if gpu.index in words]
    said = [(gpu, f"NVML says `{words[gpu.index]}`, wanted answers", {"nvml": words[gpu.index]}) for gpu in gone]
    return found_on(known.GONE, said)


def _placed(context: Context, gpus: Sequence[Gpu]) -> list[Gpu]:
    """Give a GPU that never answered its PCI address and UUID, where the driver's files leave only one choice."""
    answered = {gpu.pci[-len("0000:56:00.0") :].lower() for gpu in gpus if gpu.pci}
    left = [name for name in context.host.names(DRIVER_FILES) if name.lower() not in answered]
    if len(left) != 1 or sum(not gpu.pci for gpu in gpus) != 1:
        return list(gpus)
    facts = context.host.read(f"{DRIVER_FILES}/{left[0]}/information") or ""
    uuid = re.search(r"^GPU UUID:\s*(GPU-[0-9a-f-]+)$", facts, re.MULTILINE)
    return [gpu if gpu.pci else replace(gpu, pci=left[0], uuid=uuid[1] if uuid else "") for gpu in gpus]


def _differing(gpus: Sequence[Gpu]) -> list[Finding]:
    """Compare boards of one name; without a majority nobody is wrong."""
    rows = []
    for name in {gpu.name for gpu in gpus}:
        versions = Counter(gpu.vbios for gpu in gpus if gpu.name == name and gpu.vbios)
        usual, seen = versions.most_common(1)[0] if versions else ("", 0)
        if seen * 2 > versions.total():
            others = [g for g in gpus if g.name == name and g.vbios and g.vbios != usual]
            evidence = {"wanted": usual}
            rows += [(g, f"VBIOS {g.vbios}, wanted {usual} as its neighbours have", evidence) for g in others]
    return found_on(known.VBIOS, rows)


def _driver(gpu: Gpu, *, limits: Thresholds) -> Iterator[tuple[Rule, str, dict[str, Any]]]:
    yield from _recovery.wanted(gpu)
    if gpu.repair_pending:
        yield _in_time(known.REPAIR, gpu), "a repair of a memory channel or TPC waits for a reset, wanted none", {}


def _in_time(rule: Rule, gpu: Gpu) -> Rule:
    """Return the rule of what the next reset does, with a hint that does not say "nothing now" against the driver."""
    return replace(rule, hint=known.WITH_RECOVERY) if gpu.recovery_action else rule


def _rows(gpu: Gpu, *, limits: Thresholds) -> Iterator[tuple[Rule, str, dict[str, Any]]]:
    if gpu.remapped is not None:
        corrected, uncorrected, pending, failed = gpu.remapped
        evidence = {"remapped_corrected": corrected, "remapped_uncorrected": uncorrected}
        if failed:
            yield known.REMAP_FAILED, "a row of memory could not be remapped, wanted no such failure", evidence
        if pending:
            used = gpu.capability in known.NOT_OFFLINED and gpu.ecc_uncorrected_dram
            rule = known.REMAP_FIRST if used else _in_time(known.REMAP_PENDING, gpu)
            yield rule, "a row of memory waits to be remapped, wanted none", evidence
        if uncorrected > limits.remapped_uncorrected:
            text = f"{uncorrected} rows were remapped for uncorrected errors, wanted {limits.remapped_uncorrected:g}"
            yield known.REMAPPED, f"{text} or fewer", evidence
    if gpu.banks_without_rows:
        evidence = {"banks_without_rows": gpu.banks_without_rows}
        yield known.BANKS, f"{gpu.banks_without_rows} banks of memory have no spare row left, wanted 0", evidence
    if gpu.retired is not None and gpu.retired >= limits.retired_pages:
        text = f"{gpu.retired} pages of memory are retired, wanted fewer than {limits.retired_pages:g}"
        yield known.RETIRED, text, {"retired": gpu.retired}
    if gpu.retired_pending and not _blocked(gpu, gpu.ecc_uncorrected_dram):
        rule = _in_time(known.RETIRED_PENDING, gpu)
        yield rule, "a page of memory waits to be retired, wanted none", {"retired": gpu.retired}


def _blocked(gpu: Gpu, dram: int | None) -> bool:
    """Whether a double-bit error waits to be mapped out on a GPU that has pages to retire, and no rows to remap."""
    return bool(gpu.remapped is None and gpu.retired_pending and dram)


def _ecc(gpu: Gpu, *, later: Gpu, limits: Thresholds) -> Iterator[tuple[Rule, str, dict[str, Any]]]:
    if gpu.ecc_on is False and gpu.model.ecc:
        yield known.ECC_OFF, "ECC is off, wanted on", {}
    rising = _rise(gpu.ecc_uncorrected_dram, later.ecc_uncorrected_dram)
    sram, dram = later.ecc_uncorrected_sram or 0, later.ecc_uncorrected_dram or 0
    evidence = {"sram": sram, "dram": dram}
    if sram:
        yield known.SRAM, f"{sram} uncorrected errors of SRAM since the driver was loaded, wanted 0", evidence
    if _blocked(gpu, dram):
        text = f"{dram} uncorrected errors of DRAM wait for the page to be retired, wanted 0"
        yield known.DOUBLE_BIT, text, evidence | {"retired": gpu.retired}
    elif rising:
        yield known.ECC_RISING, f"{rising} uncorrected errors of DRAM while this check ran, wanted 0", evidence
    elif dram and not (gpu.remapped and gpu.remapped[2]):  # what waits to be remapped is found there
        yield known.DRAM, f"{dram} uncorrected errors of DRAM since the driver was loaded, wanted 0", evidence
    if (gpu.ecc_corrected or 0) > limits.ecc_corrected:
        text = f"{gpu.ecc_corrected} corrected errors of DRAM, wanted {limits.ecc_corrected:.0f} or fewer"
        yield known.ECC_CORRECTED, text, {"corrected": gpu.ecc_corrected}
    if gpu.sram_exceeded:
        yield (
            known.SRAM_EXCEEDED,
            "the driver says that SRAM had more errors than a sound board has, wanted fewer",
            {},
        )
    elif gpu.sram_exceeded is None and (gpu.sram_aggregate or 0) > limits.sram_aggregate:
        text = f"{gpu.sram_aggregate} uncorrected errors of SRAM in its life, wanted {limits.sram_aggregate:g} or fewer"
        yield known.SRAM_EXCEEDED, text, {"aggregate": gpu.sram_aggregate}


def _rise(before: int | None, after: int | None) -> int:
    return 0 if before is None or after is None else max(0, after - before)


def _settings(gpu: Gpu, *, limits: Thresholds) -> Iterator[tuple[Rule, str, dict[str, Any]]]:
    if gpu.persistence is False:
        yield known.PERSISTENCE, "persistence mode is off, wanted on", {}
    if gpu.compute_mode == PROHIBITED:
        yield known.COMPUTE_PROHIBITED, "compute mode is `prohibited`, wanted `default`", {}
    if gpu.compute_mode == EXCLUSIVE:
        yield known.COMPUTE_EXCLUSIVE, "compute mode is `exclusive process`, wanted `default`", {}
