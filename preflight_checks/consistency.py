"""What this node is made of, for a comparison with the others, and what of it contradicts itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from preflight_checks import _fingerprint
from preflight_checks._fingerprint import PROBE_S
from preflight_checks._gpus import READ_S
from trainer_agent.check import Context, Outcome, Rule, check
from trainer_agent.errors import Severity
from trainer_agent.gang.compare import RULES
from trainer_agent.guarded import END_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from preflight_checks._gpus import Gpu
    from trainer_agent.errors import Finding

MIXED = Rule(
    "gpus-mixed",
    when="the GPUs of this node are of different models",
    hint="let CUDA_VISIBLE_DEVICES, or the device plugin, choose one model: the slowest sets the pace of all",
    severity=Severity.WARNING,
    source="collectives wait for the slowest, and memory is as large as the smallest",
)
TOPOLOGY = Rule(
    "topology-file-missing",
    when="NCCL_TOPO_FILE names a file that does not exist",
    hint="unset the variable, or mount the file: NCCL goes on with what it finds out by itself",
    severity=Severity.WARNING,
)
OTHER_NCCL = Rule(
    "nccl-differs",
    when="LD_PRELOAD holds a libnccl of another version than the nvidia-nccl wheel of torch; info when it is in "
    "LD_LIBRARY_PATH, which torch's own search path mostly precedes (from --profile standard on)",
    hint="take the library out of the variable, or make sure that all nodes have it",
    severity=Severity.WARNING,
    source="torch is tested with the version that its wheel requires; two versions in one job do not connect",
)


@check("consistency", rules=(MIXED, TOPOLOGY, OTHER_NCCL, *RULES), timeout_s=2 * READ_S + PROBE_S + END_S + 2)
def consistency(context: Context) -> Outcome:
    """
    What is this node made of, and does any of it contradict the rest?

    The measurements are a fingerprint: plain values and lists of them, to be compared between nodes key by key.
    `hostname` and `boot_id` tell nodes apart; two pods with one `boot_id` share a machine. `python`, `torch`,
    `torch_cuda`, `nccl`, `cudnn` and the `nccl_*` beside them are those of the training environment's Python and are
    there from the profile `standard` on. `settings_sha256` stands for `settings`; `not_read` says, by topic, why
    something is None or absent.
    """
    facts, gpus, no_gpus = _fingerprint.gpus(context)
    software, no_software = ({}, "") if context.options.profile == "quick" else _fingerprint.software(context)
    marks = _fingerprint.machine(context) | facts | _fingerprint.rdma(context) | software
    marks |= _fingerprint.settings(context.environ)
    reasons = {"gpus": no_gpus, "software": no_software}
    findings = (*_mixed(gpus), *_topology(context), *_nccl(software))
    return Outcome(_summary(marks), findings, marks | {"not_read": {k: v for k, v in reasons.items() if v}})


def _summary(marks: Mapping[str, Any]) -> str:
    parts = [marks["gpus"] and f"{marks['gpus']}, driver {marks['driver']}"]
    parts += [marks.get(name) and f"{label} {marks[name]}" for name, label in (("torch", "torch"), ("nccl", "NCCL"))]
    parts += [", ".join(marks["rdma_ports"]), f"{len(marks['settings'])} settings of NCCL and Gloo"]
    return "; ".join(part for part in parts if part)


def _mixed(gpus: Sequence[Gpu]) -> Iterator[Finding]:
    names = sorted({gpu.name for gpu in gpus if gpu.name})
    if len(names) > 1:
        text = f"the GPUs are of {len(names)} models, {', '.join(names)}, wanted one"
        yield MIXED.found(text, models=names, gpus=[gpu.id for gpu in gpus])


def _topology(context: Context) -> Iterator[Finding]:
    path = context.environ.get("NCCL_TOPO_FILE", "").strip()
    if path.startswith("/") and not context.host.exists(path):
        yield TOPOLOGY.found(f"NCCL_TOPO_FILE={path} does not exist, wanted a file", path=path)


def _nccl(software: Mapping[str, Any]) -> Iterator[Finding]:
    wheel = software.get("nccl")
    for where, variable, severity in (
        ("preloaded", "LD_PRELOAD", Severity.WARNING),
        ("on_the_way", "LD_LIBRARY_PATH", Severity.INFO),
    ):
        other, path = software.get(f"nccl_{where}"), software.get(f"nccl_{where}_path")
        if wheel and other and wheel.split(".")[:3] != other.split(".")[:3]:
            text = f"{variable} has NCCL {other} ({path}), wanted {wheel} as the nvidia-nccl wheel of torch"
            yield replace(OTHER_NCCL, severity=severity).found(text, path=path, nccl=other, wanted_nccl=wheel)
