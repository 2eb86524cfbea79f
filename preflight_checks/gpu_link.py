"""How each GPU reaches the others and the CPU: NVLink, the fabric behind it, peer-to-peer access, PCIe."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from preflight_checks import _gpu_link_rules as known
from preflight_checks._gpu_models import in_force, is_virtual, thresholds, wait_s
from preflight_checks._gpus import READ_S, found_by_rule, found_on, gpu_check, models, present, read_gpus, rises, unread
from trainer_agent.check import Context, Outcome
from trainer_agent.errors import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from preflight_checks._gpus import Gpu, Reading, Said
    from trainer_agent.check import Rule
    from trainer_agent.errors import Finding

SAMPLES, PAUSE_S, POLL_S = 3, 0.3, 2.0
NOT_STARTED, IN_PROGRESS, COMPLETED = 1, 2, 3  # NVML_GPU_FABRIC_STATE_*
UNHEALTHY, LIMITED = 2, 3  # NVML_GPU_FABRIC_HEALTH_SUMMARY_*
REPORTED = ("links", "p2p", "fabric", "link_errors", "pcie_generation", "pcie_width", "pcie_replays")


def deadline_s(context: Context) -> float:
    """Return the longest wait for the fabric, and the time of the readings."""
    return fabric_s(context) + READ_S + SAMPLES * PAUSE_S + 3


@gpu_check(
    "gpu-link", rules=known.RULES, thresholds=partial(in_force, ("fabric_s",), of_models="links"), timeout_s=deadline_s
)
def gpu_link(context: Context) -> Outcome:
    """Does every GPU reach the others and the CPU as its model can: NVLink, fabric, PCIe?"""
    groups = ("links", "fabric", "pcie", "errors")
    reading = read_gpus(context, *groups, again=("pcie", "errors"), times=SAMPLES, pause_s=PAUSE_S)
    gpus = present(reading)
    whole = _trained(context, [gpu for gpu in gpus if not gpu.mig])  # in MIG mode there is neither NVLink nor P2P
    gpus = sorted([*whole, *(gpu for gpu in gpus if gpu.mig)], key=lambda gpu: gpu.index)
    findings = [*_nvlink(whole), *_fabric(whole), *_p2p(whole)]
    findings += [*_pcie(reading, gpus, virtual=is_virtual(context)), *_risen(reading, gpus)]
    measured = {"gpus": [_measured(reading, gpu, gpus) for gpu in gpus], "not_read": unread(gpus, REPORTED)}
    active = sorted({_active(gpu) for gpu in whole})
    links = f"{' or '.join(map(str, active))} NVLinks active" if active else "NVLink not judged in MIG mode"
    return Outcome(f"{models(gpus)}: {links}", tuple(findings), measured)


def _measured(reading: Reading, gpu: Gpu, gpus: Sequence[Gpu]) -> dict[str, Any]:
    """Return what is judged of a GPU, beside what is wanted where anything is."""
    measured = {
        "index": gpu.index,
        "links_active": _active(gpu),
        "fabric": None if gpu.fabric is None else dict(gpu.fabric),
        "pcie_generation": _best(reading, "pcie_generation")[gpu.index] or None,
        "pcie_width": _best(reading, "pcie_width")[gpu.index] or None,
    }
    if gpu.links and not gpu.mig:
        measured["expected_links_active"] = _wanted(gpu, gpus)[0]
    if gpu.model.pcie:
        measured["expected_pcie_generation"] = _generation(reading, gpu, gpus)
        measured["expected_pcie_width"] = gpu.pcie_width_max
    return measured


def _active(gpu: Gpu) -> int:
    return sum((gpu.links or {}).values())


def _nvlink(gpus: Sequence[Gpu]) -> list[Finding]:
    rows = []
    for wanted, severity, gpu in ((*_wanted(gpu, gpus), gpu) for gpu in gpus):
        if gpu.links is not None and _active(gpu) < wanted:
            down = [link for link, up in gpu.links.items() if not up]
            text = f"{_active(gpu)} NVLinks are active, wanted {wanted}"
            rows.append((replace(known.NVLINK, severity=severity), (gpu, text, {"down": down, "wanted": wanted})))
    return found_by_rule([*rows, *_all_down(gpus)])


def _all_down(gpus: Sequence[Gpu]) -> Iterator[tuple[Rule, Said]]:
    """Yield boards of models without a number, where nobody has an active link that the others could be measured by."""
    if len(gpus) < 2 or any(_active(gpu) for gpu in gpus):
        return
    for gpu in gpus:
        board = gpu.model.sxm or "SXM" in gpu.name or (gpu.fabric or {}).get("state") == COMPLETED
        if gpu.links and gpu.model.links is None and board:
            text = f"none of its {len(gpu.links)} NVLinks is active, nor one of any GPU here, wanted some"
            yield replace(known.NVLINK, severity=Severity.WARNING), (gpu, text, {"down": list(gpu.links)})


def _wanted(gpu: Gpu, gpus: Sequence[Gpu]) -> tuple[int, Severity]:
    """Return how many links this GPU should have, by its model, and where that leaves a choice by its neighbours."""
    neighbours = [other for other in gpus if other.name == gpu.name]
    usual = Counter(_active(other) for other in neighbours).most_common(1)[0][0]
    wanted = gpu.model.links
    if wanted is None:
        return usual, Severity.WARNING
    if len(wanted) > 1:
        bare = 0 in wanted and not _active(gpu)  # it may be the one card without a bridge
        return usual if usual in wanted else max(wanted), Severity.WARNING if bare else Severity.ERROR
    if len(gpus) == 1 and not _active(gpu):  # a part of a node, in a virtual machine or a pod: there is nobody to reach
        return wanted[0], Severity.INFO
    return wanted[0], Severity.ERROR


def fabric_s(context: Context) -> float:
    """Return how long to wait for links and fabric, without which no program works: up to half of the budget."""
    return wait_s(context, thresholds(context).fabric_s, share=1 / 2)


def _trained(context: Context, gpus: list[Gpu]) -> list[Gpu]:
    """Return the GPUs as they are when nothing may be training any more: after a reboot links do so for a while."""
    host = context.host
    end = host.monotonic() + fabric_s(context)
    while _may_train(gpus) and (left := end - host.monotonic()) > 0:
        host.sleep(min(POLL_S, left))
        now = {gpu.index: gpu for gpu in present(read_gpus(context, "links", "fabric"))}
        gpus = [_as_now(gpu, now.get(gpu.index, gpu)) for gpu in gpus]
    return gpus


def _may_train(gpus: Sequence[Gpu]) -> bool:
    down = any(finding.severity is Severity.ERROR for finding in (*_nvlink(gpus), *_p2p(gpus)))
    return down or any(_starting(gpu) for gpu in gpus)


def _as_now(gpu: Gpu, now: Gpu) -> Gpu:
    return replace(gpu, links=now.links, p2p=now.p2p, fabric=now.fabric)


def _fabric(gpus: Sequence[Gpu]) -> list[Finding]:
    return found_by_rule(
        (rule, (gpu, text, {"fabric": dict(gpu.fabric or {})}))
        for gpu in gpus
        for rule, text in _judge_fabric(gpu.fabric or {})
    )


def _starting(gpu: Gpu) -> bool:
    return (gpu.fabric or {}).get("state") in (NOT_STARTED, IN_PROGRESS)


def _judge_fabric(fabric: Mapping[str, int]) -> Iterator[tuple[Rule, str]]:
    state = fabric.get("state", 0)
    if state in (NOT_STARTED, IN_PROGRESS):
        words = "not started" if state == NOT_STARTED else "in progress"
        yield known.FABRIC_NOT_READY, f"its registration with the fabric is {words}, wanted completed"
    if state != COMPLETED:
        return
    if fabric["status"]:
        text = f"its registration with the fabric ended with NVML error {fabric['status']}, wanted 0"
        yield known.FABRIC_FAILED, text
        return
    mask, found = fabric["mask"], False
    for rule, shift, width, healthy, text in known.HEALTH_MASK:
        part = mask >> shift & ((1 << width) - 1)
        if part not in healthy:
            found = True
            yield rule, f"the fabric says: {text} ({part} in its health mask), wanted none of this"
    if fabric["summary"] == UNHEALTHY and not found:
        yield known.FABRIC_UNHEALTHY, "the fabric says `unhealthy` of it, wanted `healthy`"
    if fabric["summary"] == LIMITED and not found:
        yield known.FABRIC_LIMITED, "the fabric says `limited capacity` of it, wanted `healthy`"


def _p2p(gpus: Sequence[Gpu]) -> list[Finding]:
    """What one GPU can do towards another, the other can do towards it."""
    by_index = {gpu.index: gpu for gpu in gpus}
    rows = []
    for gpu in gpus:
        for index, there in (gpu.p2p or {}).items():
            other = by_index.get(index)
            back = (other.p2p or {}).get(gpu.index) if other else None
            if other and back is not None and any(a and not b for a, b in zip(there, back, strict=True)):
                text = f"it cannot reach {other.label}, which reaches it, wanted both ways"
                rows.append((gpu, text, {"to": other.id, "status_there": there, "status_back": back}))
    return found_on(known.P2P, rows)


def _pcie(reading: Reading, gpus: Sequence[Gpu], *, virtual: bool) -> list[Finding]:
    """An idle link goes down to save power, so the best of the samples counts, and only neighbours are compared."""
    judged = [gpu for gpu in gpus if gpu.model.pcie]
    width, generation = _best(reading, "pcie_width"), _best(reading, "pcie_generation")
    whole = {gpu.name for gpu in judged if 0 < (gpu.pcie_width_max or 0) <= width[gpu.index]}
    narrow: list[tuple[Rule, Said]] = []
    for gpu in judged:
        if 0 < width[gpu.index] < (gpu.pcie_width_max or 0):
            text = f"PCIe has {width[gpu.index]} lanes, wanted {gpu.pcie_width_max}"
            severity = gpu.model.lanes_severity(virtual=virtual, beside_whole=gpu.name in whole)
            rule = replace(known.PCIE_NARROW, severity=severity)
            narrow.append((rule, (gpu, text, {"lanes": width[gpu.index]})))
    findings = sorted(found_by_rule(narrow), key=lambda finding: finding.severity is not Severity.ERROR)
    slow = []
    for gpu in judged:
        wanted = _generation(reading, gpu, judged)
        if 0 < generation[gpu.index] < wanted:
            text = f"PCIe runs at generation {generation[gpu.index]}, wanted {wanted} as its neighbours"
            slow.append((gpu, text, {"generation": generation[gpu.index], "neighbours": wanted}))
    return [*findings, *found_on(known.PCIE_SLOW, slow)]


def _generation(reading: Reading, gpu: Gpu, gpus: Sequence[Gpu]) -> int:
    """Return the generation of PCIe that neighbours of the same model and state have, as far as the GPU can have it."""
    alike = [g for g in gpus if (g.name, g.performance_state) == (gpu.name, gpu.performance_state)]
    best = max(_best(reading, "pcie_generation")[g.index] for g in alike)
    return min(best, gpu.pcie_generation_max or 0)


def _best(reading: Reading, name: str) -> dict[int, int]:
    return {gpu.index: max(getattr(each, name) or 0 for each in reading.of(gpu)) for gpu in reading.gpus}


def _risen(reading: Reading, gpus: Sequence[Gpu]) -> list[Finding]:
    """Totals since the last reset prove nothing; a healthy H100 had 150 replays."""
    replays: list[Said] = []
    errors: list[tuple[Rule, Said]] = []
    for gpu in gpus:
        later = reading.of(gpu)[-1]
        if gpu.pcie_replays is not None and (later.pcie_replays or 0) > gpu.pcie_replays:
            rise = (later.pcie_replays or 0) - gpu.pcie_replays
            replays.append((gpu, f"{rise} PCIe replays while this check ran, wanted 0", {"replays": rise}))
        if rose := rises(gpu.link_errors, later.link_errors):
            rule = known.of_rises(rose, known.NVLINK_ERRORS)
            worst = max(rose, key=lambda name: (name.startswith(known.RECOVERY_FAILED), rose[name]))
            text = f"{worst} rose by {rose[worst]} while this check ran, wanted 0"
            errors.append((rule, (gpu, text, {"rises": rose})))
    return [*found_on(known.PCIE_ERRORS, replays), *found_by_rule(errors)]
