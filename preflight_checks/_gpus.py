"""What NVML says of each GPU, read once for a check, in one child with a deadline."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from functools import partial, wraps
from itertools import groupby
from typing import TYPE_CHECKING, Any

from preflight_checks._gpu_models import UNKNOWN, Model, model_of, thresholds
from preflight_checks._gpu_reading import read_all
from trainer_agent.check import Check, Context, Outcome, Rule, Skip, check
from trainer_agent.errors import Action
from trainer_agent.isolation import TimedOutError, isolated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from trainer_agent.errors import Finding

# NVML calls take 0.2 ms when healthy, but the first one loads the driver where no daemon keeps it loaded, which takes
# seconds with eight GPUs. Other monitors give up after 10 to 20 s; the quick profile has 15 s in all.
READ_S = 12.0
PLACE_BYTES = 128
INIT_HINT = "gpu-count says more"

HUNG = Rule(
    "nvml-hung",
    when="NVML gives no answer within 20 s when it is first asked, or 12 s later",
    hint="cordon this node and reboot it; `dmesg | grep -i nvrm` and `ps axo stat,pid,args | grep ^D` show more",
    action=Action.RESCHEDULE,
    source="other monitors give up after 10 to 20 s; a healthy driver answers within a millisecond",
)


class NvmlHungError(Exception):
    """NVML gave no answer in time; `gpu` is what it was asked about, where that is a GPU."""

    def __init__(self, message: str, gpu: Gpu | None = None) -> None:
        super().__init__(message)
        self.gpu = gpu


@dataclass(frozen=True)
class Gpu:
    """
    One GPU. What the driver does not say is None, and `unread` has the reason by the name of the field.

    Args:
        gone: NVML's words when the GPU is lost or wants a reset; nothing more is read of it then.
        ecc_on, ecc_uncorrected_sram, ecc_uncorrected_dram, ecc_corrected: since the driver was loaded.
        sram_aggregate: uncorrected errors of the SRAM in the GPU's life.
        remapped: rows remapped for corrected and uncorrected errors, 1 when one is pending, 1 when one failed.
        banks_without_rows: banks of memory that have no spare row left.
        retired: pages retired in the GPU's life, and `retired_pending` whether one waits for a reset.
        memory_used: bytes without what the driver reserves for itself.
        instances: bytes used and total of each MIG instance, by its UUID.
        numa_node: where the kernel manages the GPU's memory, as on Grace.
        links: NVLink links by number, True when active.
        link_errors: counters by their name in nvml.h, of all links together or of each.
        p2p: NVML's status towards each other GPU, over NVLink and for reading.
        fabric: `state`, `status`, `mask` and `summary` of its registration with the fabric manager.
        model: what is wanted of it.
        tlimit_c: degrees until the GPU slows down, and `tlimit_slowdown_c` at how many of these it does.
    """

    index: int
    uuid: str = ""
    pci: str = ""
    name: str = ""
    gone: str = ""
    unread: Mapping[str, str] = field(default_factory=dict)
    mig: bool | None = None
    recovery_action: int | None = None
    persistence: bool | None = None
    compute_mode: int | None = None
    vbios: str | None = None
    capability: tuple[int, int] | None = None
    ecc_on: bool | None = None
    ecc_uncorrected_sram: int | None = None
    ecc_uncorrected_dram: int | None = None
    ecc_corrected: int | None = None
    sram_exceeded: bool | None = None
    sram_aggregate: int | None = None
    remapped: tuple[int, int, int, int] | None = None
    banks_without_rows: int | None = None
    retired: int | None = None
    retired_pending: bool | None = None
    repair_pending: bool | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    processes: tuple[int, ...] | None = None
    instances: Mapping[str, tuple[int, int]] | None = None
    numa_node: int | None = None
    links: Mapping[int, bool] | None = None
    link_errors: Mapping[str, int] | None = None
    p2p: Mapping[int, tuple[int, int]] | None = None
    fabric: Mapping[str, int] | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_replays: int | None = None
    performance_state: int | None = None
    busy_percent: int | None = None
    clock_reasons: int | None = None
    sm_mhz: int | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    temperature_c: int | None = None
    slowdown_c: int | None = None
    tlimit_c: int | None = None
    tlimit_slowdown_c: int | None = None
    model: Model = UNKNOWN

    @property
    def label(self) -> str:
        """Return what tells this GPU from all others: index, UUID, PCI address."""
        known = ", ".join(part for part in (self.uuid, self.pci) if part)
        return f"GPU {self.index} ({known})" if known else f"GPU {self.index}"

    @property
    def id(self) -> dict[str, Any]:
        """Return the same for the evidence of a finding."""
        return {"index": self.index, "uuid": self.uuid, "pci": self.pci}


Said = tuple[Gpu, str, dict[str, Any]]  # a GPU, what is said of it, and the evidence


@dataclass(frozen=True)
class Reading:
    """
    What NVML answered.

    Args:
        state: `ok`, `missing` (no library), `broken` (it does not start).
        reason, code: NVML's words and number when it does not start.
        driver, cuda: versions of the driver, and of the newest CUDA that it runs (13000 for 13.0).
        gpus: all GPUs that are ours to use, in NVML's order; `later` holds what was read again, `times - 1` times.
        others: how many more NVML counts, which are not ours.
        xids: (index of the GPU, XID) of what happened in the meantime.
        unread: why `driver`, `cuda` or `xids` could not be read, by its name.
    """

    state: str
    reason: str = ""
    code: int = 0
    driver: str = ""
    cuda: int = 0
    gpus: tuple[Gpu, ...] = ()
    later: tuple[tuple[Gpu, ...], ...] = ()
    others: int = 0
    xids: tuple[tuple[int, int], ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict)

    @property
    def samples(self) -> tuple[tuple[Gpu, ...], ...]:
        """Return all readings of the GPUs, the first one too."""
        return (self.gpus, *self.later)

    def of(self, gpu: Gpu) -> list[Gpu]:
        """Return all readings of one GPU."""
        return [each for sample in self.samples for each in sample if each.index == gpu.index]


def read(
    context: Context,
    *groups: str,
    again: Sequence[str] = (),
    times: int = 1,
    pause_s: float = 0.0,
    timeout_s: float = READ_S,
) -> Reading:
    """
    Return what NVML says of some groups of facts, those of `again` `times` times.

    Raises:
        NvmlHungError: no answer within `timeout_s` seconds; what asked was killed.
    """
    if context.accelerators.hung:  # it was asked before the checks, and will not answer now
        raise NvmlHungError(context.accelerators.problem)
    place = mmap.mmap(-1, PLACE_BYTES)  # shared with the child, which says there whom it asks
    ask = partial(read_all, groups, again=again, times=times, pause=partial(context.host.sleep, pause_s), place=place)
    try:
        plain = isolated(ask, timeout_s=timeout_s + pause_s * (times - 1))
    except TimedOutError as error:
        raise _hung(place, error) from error
    models = thresholds(context).models
    samples = [
        tuple(Gpu(**gpu, model=model_of(gpu.get("name", ""), models)) for gpu in sample)
        for sample in plain.pop("samples", [])
    ]
    gpus, later = (samples[0], tuple(samples[1:])) if samples else ((), ())
    return Reading(**plain, gpus=gpus, later=later)


def _hung(place: mmap.mmap, error: TimedOutError) -> NvmlHungError:
    about = place[:].rstrip(b"\0").decode().split("\t")
    if not about[0].isdigit():
        return NvmlHungError(f"NVML gave {error}, asked about {about[0]}")
    index, uuid, pci = (*about, "", "")[:3]
    gpu = Gpu(int(index), uuid=uuid, pci=pci)
    return NvmlHungError(f"{gpu.label}: NVML gave {error}", gpu)


def read_gpus(context: Context, *groups: str, **how: Any) -> Reading:
    """
    Return a reading of a machine that has GPUs.

    Raises:
        Skip: there are none, or they may be others', or NVML hung before, or does not start, which gpu-count says.
        NvmlHungError: no answer in time, now or before.
    """
    if context.accelerators.others:
        raise Skip(context.accelerators.source)
    running = context.options.running
    if context.accelerators.hung and (not running or "gpu-count" in running):
        raise Skip(f"NVML hangs; {INIT_HINT}")
    reading = read(context, *groups, **how)
    if reading.state == "missing":
        raise Skip(f"NVML is not here: {reading.reason}")
    if reading.state == "broken":
        raise Skip(f"NVML does not start: {reading.reason}; {INIT_HINT}")
    if not reading.gpus:
        raise Skip("NVML lists no GPU")
    return reading


def gpu_check(
    name: str,
    *,
    rules: tuple[Rule, ...],
    timeout_s: float | Callable[[Context], float],
    profile: str = "quick",
    thresholds: Callable[[Context], Mapping[str, Mapping[str, Any]]] | None = None,
) -> Callable[[Callable[[Context], Outcome]], Check]:
    """Make a check that asks NVML; where that gives no answer, it finds `nvml-hung`."""

    def make(function: Callable[[Context], Outcome]) -> Check:
        @wraps(function)
        def answered(context: Context) -> Outcome:
            try:
                return function(context)
            except NvmlHungError as error:
                evidence = {"gpus": [error.gpu.id]} if error.gpu else {}
                return Outcome("NVML hangs", (HUNG.found(f"{error}, wanted one within a second", **evidence),))

        how: dict[str, Any] = {"timeout_s": timeout_s, "profile": profile, "thresholds": thresholds}
        return check(name, rules=(HUNG, *rules), **how)(answered)

    return make


def present(reading: Reading) -> list[Gpu]:
    """
    Return the GPUs that answered to the end.

    Raises:
        Skip: none did, which is for gpu-health to say.
    """
    gone = {gpu.index for sample in reading.samples for gpu in sample if gpu.gone}
    gpus = [gpu for gpu in reading.gpus if gpu.index not in gone]
    if not gpus:
        raise Skip("no GPU answers; gpu-health says more")
    return gpus


def found_on(rule: Rule, said: Iterable[Said]) -> list[Finding]:
    """Return a finding for each thing said, with all GPUs that it is said of, in their order."""
    ordered = sorted(said, key=lambda it: (it[1], it[0].index))
    findings = []
    for text, group in groupby(ordered, key=lambda it: it[1]):
        rows = list(group)
        labels = ", ".join(gpu.label for gpu, _, _ in rows)
        evidence = rows[0][2] | {"gpus": [gpu.id for gpu, _, _ in rows]}
        findings.append((rows[0][0].index, rule.found(f"{labels}: {text}", **evidence)))
    return [finding for _, finding in sorted(findings, key=lambda it: it[0])]


def found_by_rule(rows: Iterable[tuple[Rule, Said]]) -> list[Finding]:
    """Return the findings of what was said by rule, in the order in which the rules come."""
    said: dict[Rule, list[Said]] = {}
    for rule, row in rows:
        said.setdefault(rule, []).append(row)
    return [finding for rule, of_rule in said.items() for finding in found_on(rule, of_rule)]


def rises(before: Mapping[str, int] | None, after: Mapping[str, int] | None) -> dict[str, int]:
    """Return the counters that rose, and by how much."""
    now = after or {}
    return {name: now[name] - count for name, count in (before or {}).items() if now.get(name, 0) > count}


def unread(gpus: Sequence[Gpu], fields: Iterable[str]) -> dict[str, str]:
    """Return the reasons why some fields could not be read on any GPU, for the report."""
    wanted = set(fields)
    return {name: reason for gpu in gpus for name, reason in gpu.unread.items() if name in wanted}


def models(gpus: Sequence[Gpu]) -> str:
    """Return `8 x NVIDIA H200`, in words for a message."""
    names = sorted({gpu.name or "unknown" for gpu in gpus})
    return ", ".join(f"{sum((g.name or 'unknown') == name for g in gpus)} x {name}" for name in names)
