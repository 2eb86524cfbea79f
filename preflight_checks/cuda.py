"""Whether CUDA works on every GPU: the least that training needs of it."""

from __future__ import annotations

from preflight_checks import _gpu_work
from trainer_agent.check import Context, Outcome, Rule, check
from trainer_agent.errors import Action

NUMBERS = 1 << 22  # of 8 bytes: 32 MiB

WRONG = Rule(
    "cuda-wrong",
    when="integers that a GPU computed are wrong when they are read back",
    hint="cordon this node and replace the board: it computes or stores wrong numbers without any error",
    action=Action.RESCHEDULE,
    source="integers have one right value",
)


@check(
    "cuda",
    rules=(*_gpu_work.RULES, WRONG),
    timeout_s=_gpu_work.check_s(),
    profile="standard",
    alone_s=15,
)
def cuda(context: Context) -> Outcome:
    """Does CUDA work on every GPU: a context, memory, a kernel, and its result read back?"""
    work = _gpu_work.run(context, "cuda", {"numbers": NUMBERS})
    rows = []
    for target, answer in work.answers:
        if wrong := answer["wrong"]:
            text = (
                f"{wrong['count']} of {answer['numbers']} integers are wrong, number {wrong['index']} "
                f"is {wrong['got']}, wanted {wrong['expected']}"
            )
            rows.append((WRONG, (target.gpu, text, {"wrong": wrong})))
    findings = (*work.findings, *_gpu_work.spoken(rows))
    measured = [target.measured | {"name": answer["name"]} for target, answer in work.answers]
    versions = sorted({answer["torch"] for _, answer in work.answers})
    return Outcome(
        f"CUDA works on {len(work.answers) - len(rows)} GPUs{f', torch {versions[0]}' if versions else ''}",
        findings,
        {"gpus": measured, "torch": versions, **work.notes},
    )
