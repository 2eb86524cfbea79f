"""NCCL inside the node: whether the GPUs exchange exact numbers, and as fast as they should."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from preflight_checks._blame import blame, rules
from preflight_checks._busbw import MIB, SIZES, busbw_gbps, expected
from preflight_checks._gpu_link_rules import NVLINK_LOST, of_rises
from preflight_checks._gpu_models import Thresholds, in_force, thresholds
from preflight_checks._gpus import found_by_rule, rises
from preflight_checks._probes import FOLDER, NO_TORCH, ProbeError
from preflight_checks._ranks import run_ranks, visible_gpus
from trainer_agent.check import Context, Outcome, Rule, Skip, check
from trainer_agent.errors import Action, Severity
from trainer_agent.guarded import END_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from preflight_checks._blame import Rules
    from preflight_checks._gpus import Gpu
    from preflight_checks._ranks import Run
    from trainer_agent.errors import Finding

WAIT_S, NVML_S = 60.0, 10.0
EXACT_COUNT = 16 << 20  # numbers, 64 MiB: enough for NCCL to use all its channels
EACH_S = 1.0  # for one collective of one size
# Without these two, NCCL takes the way of the network between the GPUs of one node, through every NIC.
OVER_NICS = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
NIC_SIZES = (256 * MIB,)
NVLS_LINE = re.compile(r"(\d+) nvls channels")  # NCCL's init.cc since 2.18

INSIDE = rules("nccl", what="NCCL between the GPUs of this node")
NICS = rules("nccl-nic", what="NCCL through the NICs of this node (a warning when the job has one node)")
SLOW = Rule(
    "nccl-slow",
    when="the bus bandwidth is below 80 % of what this model, number of GPUs, size and NVLS reach",
    hint="run gpu-link and bandwidth, and nccl-tests with the same size; see whether others use the GPUs",
    severity=Severity.WARNING,
    source="measured on healthy nodes, see _busbw.py; 80 % is a heuristic",
)
VERY_SLOW = Rule(
    "nccl-very-slow",
    when="the same is below 60 %",
    hint="look at NVLink and the fabric manager of this node; the pod can run elsewhere",
    action=Action.RESCHEDULE,
    source="measured on healthy nodes, see _busbw.py; 60 % is a heuristic",
)
LINK_ERRORS = Rule(
    "nccl-link-errors",
    when="an NVLink error counter of a GPU rose while its GPUs exchanged data",
    hint="run again; if it rises each time, have the GPU's NVLink looked at",
    severity=Severity.WARNING,
    source="NVML's counters; totals since the last reset prove nothing, a rise under load does",
)


def wait_s(context: Context) -> float:
    """Return how long one run may take: half of what is left of the budget, as there may be two, and NVML is asked."""
    return min(WAIT_S, context.options.budget_s / 2)


def deadline_s(context: Context) -> float:
    """Return the time for one run, two where the NICs are tried, and for NVML before and after."""
    runs = 2 if context.options.profile == "deep" else 1
    return runs * (wait_s(context) + END_S) + 2 * NVML_S


@check(
    "nccl-loopback",
    rules=(*INSIDE.all, *NICS.all, SLOW, VERY_SLOW, LINK_ERRORS, NVLINK_LOST),
    timeout_s=deadline_s,
    profile="standard",
    alone_s=25,
    thresholds=partial(in_force, ("busbw_usual", "busbw_least")),
)
def nccl_loopback(context: Context) -> Outcome:
    """Do the GPUs of this node exchange exact numbers over NCCL, as fast as their model can?"""
    count = gpus_to_join(context)
    before = visible_gpus(context, "errors")
    gpus = before if len(before) == count else []
    run = start(context, "nccl", count=count, gpus=gpus, sizes=SIZES, exact=EXACT_COUNT)
    findings = blame(run, INSIDE)
    free = not {"NCCL_ALGO", "NCCL_PROTO"} & context.environ.keys()
    rows = measured(run, free=free)
    findings += [*slow(rows, thresholds(context)), *risen(gpus, visible_gpus(context, "errors"))]
    numbers: dict[str, Any] = {"ranks": count, "nvls": nvls(run, free=free), "busbw": rows}
    over = ""
    if not findings and (reason := why_no_nics(context)):
        over = f"; the NICs not tried: {reason}"
    elif not findings:
        through, found = try_nics(context, count, gpus)
        numbers["nic_busbw"] = through
        findings += found
        over = f"; through the NICs {best(through)}"
    return Outcome(f"{count} x {model(run)}: {best(rows)}{over}", tuple(findings), numbers)


def gpus_to_join(context: Context) -> int:
    """
    Return how many GPUs there are to exchange between.

    Raises:
        Skip: it takes two of NVIDIA's, and NCCL does not connect the parts of one.
    """
    found = context.accelerators
    if found.kind == "mig":
        raise Skip("the GPUs are in MIG mode: their parts do not exchange over NVLink")
    count = found.count if found.kind == "nvidia" else 0
    if count < 2:
        raise Skip(f"{count} NVIDIA GPUs are visible, and it takes 2 to exchange")
    return count


def start(
    context: Context,
    backend: str,
    *,
    count: int,
    sizes: Sequence[int],
    exact: int,
    gpus: Sequence[Gpu] = (),
    environ: Mapping[str, str] | None = None,
) -> Run:
    """
    Return what becomes of one rank for each GPU; they wait for each other longer than we wait for them.

    Raises:
        Skip: there is no torch.
    """
    request = {
        "backend": backend,
        "ranks": count,
        "count": exact,
        "sizes": sizes,
        "seconds": EACH_S,
        "timeout_s": wait_s(context) + 60,
        "store": "{folder}/store",
    }
    python = context.python
    argv = [python, str(FOLDER / "nccl_loopback_probe.py"), json.dumps(request)]
    run = run_ranks(context, argv, count=count, environ=environ or {}, wait_s=wait_s(context), gpus=gpus)
    if run.code == NO_TORCH and not run.problem:
        raise Skip(f"{python} has no torch")
    if run.code and not run.problem:
        raise ProbeError(f"it ended with exit code {run.code}: {run.words}")
    return run


def measured(run: Run, *, free: bool = True) -> list[dict[str, Any]]:
    """
    Return the best bus bandwidth of each collective by size, where the slowest rank counts.

    Args:
        free: whether NCCL chooses algorithm and protocol by itself.
    """
    told = [rank.facts.get("timings") for rank in run.ranks]
    if not all(told):
        return []
    rows = []
    for same in zip(*(timings or () for timings in told), strict=True):
        of, size = same[0]["of"], same[0]["bytes"]
        seconds = min(max(each) for each in zip(*(row["seconds"] for row in same), strict=True))
        row = {"of": of, "size_bytes": size, "busbw_gbps": round(busbw_gbps(of, len(told), size, seconds), 2)}
        wanted = expected(model(run), of, len(told), size, nvls=nvls(run, free=free))
        rows.append(row if wanted is None else row | {"expected_busbw_gbps": wanted})
    return rows


def model(run: Run) -> str:
    """Return the name of the GPUs, nothing where they differ."""
    names = {rank.facts.get("gpu", "") for rank in run.ranks}
    return names.pop() if len(names) == 1 else ""


def nvls(run: Run, *, free: bool = True) -> bool | None:
    """Return whether NCCL reduces in the NVSwitch, None when it does not say."""
    if not free:
        return None  # it may not use what it has
    channels = [int(number) for line in run.log or () for number in NVLS_LINE.findall(line)]
    return any(channels) if channels else None


def slow(rows: Sequence[Mapping[str, Any]], limits: Thresholds) -> Iterator[Finding]:
    """Yield what is slower than on a healthy node."""
    for row in rows:
        wanted, got = row.get("expected_busbw_gbps"), row["busbw_gbps"]
        if wanted is None or got >= limits.busbw_usual * wanted:
            continue
        least = got < limits.busbw_least * wanted
        rule, part = (VERY_SLOW, limits.busbw_least) if least else (SLOW, limits.busbw_usual)
        message = (
            f"{row['of']} of {row['size_bytes'] // MIB} MiB: {got:.0f} GB/s of bus bandwidth, wanted {part:.0%} of "
            f"{wanted:.0f}"
        )
        yield rule.found(message, **row)


def risen(before: Sequence[Gpu], after: Sequence[Gpu]) -> list[Finding]:
    """Return the NVLink error counters that rose under load."""
    later = {gpu.uuid: gpu.link_errors for gpu in after}
    said = []
    for gpu in before:
        if rose := rises(gpu.link_errors, later.get(gpu.uuid)):
            text = ", ".join(f"{name} rose by {rise}" for name, rise in rose.items())
            row = (gpu, f"{text} while the GPUs exchanged data, wanted 0", {"rises": rose})
            said.append((of_rises(rose, LINK_ERRORS), row))
    return found_by_rule(said)


def why_no_nics(context: Context) -> str:
    """Return why NCCL shall not go through the NICs here, nothing when it shall."""
    if context.options.profile != "deep":
        return "that runs from --profile deep on"
    if context.environ.get("NCCL_IB_DISABLE") == "1":
        return "NCCL_IB_DISABLE=1"
    return "" if context.host.names("/sys/class/infiniband") else "there is no RDMA device"


def try_nics(context: Context, count: int, gpus: Sequence[Gpu]) -> tuple[list[dict[str, Any]], list[Finding]]:
    """Return the bandwidth of the same exchange through the NICs, and what is wrong with it."""
    run = start(context, "nccl", count=count, gpus=gpus, environ=OVER_NICS, sizes=NIC_SIZES, exact=EXACT_COUNT)
    rows = [{key: value for key, value in row.items() if key != "expected_busbw_gbps"} for row in measured(run)]
    return rows, blame(run, for_job(NICS, context))


def for_job(known: Rules, context: Context) -> Rules:
    """Return the rules as they count for this job: one node needs no network."""
    if context.topology.max_nodes > 1:
        return known
    return replace(known, **{name: replace(rule, severity=Severity.WARNING) for name, rule in vars(known).items()})


def best(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the largest sizes in words."""
    words = {row["of"]: f"{row['of']} {row['busbw_gbps']:.0f} GB/s at {row['size_bytes'] // MIB} MiB" for row in rows}
    return ", ".join(words.values()) or "not measured"
