"""How fast the GPUs of a node copy to each other, all ordered pairs of them."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from preflight_checks._gpu_work import NOT_JUDGED
from preflight_checks._probes import ProbeError, ask
from trainer_agent.check import Context, Rule
from trainer_agent.errors import Action, Severity
from trainer_agent.guarded import END_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight_checks._gpu_models import Thresholds
    from preflight_checks._gpu_work import Target
    from trainer_agent.errors import Finding

PROBE_S = 60.0
CHECK_S = PROBE_S + END_S
PAIR_BYTES = 256 << 20
LEAST = 0.5  # of the median; heuristic

PAIR = Rule(
    "gpu-pair-slow",
    when="copies from one GPU to another reach less than half of the median of all pairs, on a board where every GPU "
    "reaches every other one alike; a warning below 80 %, and on all other boards",
    hint="run `nvidia-smi topo -m` and `nvidia-smi nvlink --errorcounters` on this node; of two GPUs that are slow "
    "with each other, the one that is slow with a third one, too, is the cause",
    action=Action.RESCHEDULE,
    source="heuristic; azurehpc-health-checks wants 235 of 300 GB/s on an A100",
)


def look(context: Context, targets: Sequence[Target], limits: Thresholds) -> tuple[list[Finding], Any]:
    """Return what is slow, and all speeds, or the reason why there are none."""
    visible = {name: ",".join(t.environ[name] for t in targets) for name in targets[0].environ}
    request = {"device": "cuda", "pairs": True, "pair_bytes": PAIR_BYTES}
    try:
        answer = ask(context, "bandwidth", request, environ=visible, timeout_s=PROBE_S)
    except ProbeError as error:  # what the single GPUs can do is known, and no less worth
        return _not_judged(targets, str(error))
    if "error" in answer:
        return _not_judged(targets, answer["error"]["text"])
    indices = {place: target.gpu.index for place, target in enumerate(targets)}
    rows = [{"from": indices[p["from"]], "to": indices[p["to"]], "gbps": p["gbps"]} for p in answer["pairs"]]
    usual = statistics.median(p["gbps"] for p in answer["pairs"])
    return judge(targets, answer["pairs"], limits), {"usual_gbps": usual, "speeds": rows}


def _not_judged(targets: Sequence[Target], reason: str) -> tuple[list[Finding], Any]:
    text = f"the copies between the GPUs broke: {reason}; wanted an answer"
    return [NOT_JUDGED.found(text, gpus=[target.gpu.id for target in targets])], {"not_done": reason}


def judge(targets: Sequence[Target], pairs: Sequence[dict[str, Any]], limits: Thresholds) -> list[Finding]:
    """Return a finding for each pair that is slower than the others."""
    usual = statistics.median(p["gbps"] for p in pairs)
    alike = all(len(links := t.gpu.model.links or ()) == 1 and links[0] for t in targets)
    findings = []
    for pair in pairs:
        if pair["gbps"] < limits.pair_usual * usual:
            source, target = targets[pair["from"]].gpu, targets[pair["to"]].gpu
            fails = alike and pair["gbps"] < LEAST * usual
            rule = PAIR if fails else replace(PAIR, severity=Severity.WARNING)
            text = (
                f"{source.label} to {target.label}: {pair['gbps']:.0f} GB/s, wanted "
                f"{limits.pair_usual * usual:.0f}: {limits.pair_usual:.0%} of the median of all pairs"
            )
            findings.append(rule.found(text, gpus=[source.id, target.id], gbps=pair["gbps"], usual_gbps=usual))
    return findings
