"""torchrun: whether the smallest job starts here, meets over loopback, computes and ends."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from preflight_checks._blame import blame, rules
from preflight_checks._probes import FOLDER, NoTorchError, ProbeError
from preflight_checks._ranks import run_ranks, visible_gpus
from trainer_agent.accelerators import WORKS_ON_CUDA
from trainer_agent.check import Context, Outcome, Rule, Skip, check
from trainer_agent.errors import Action
from trainer_agent.guarded import END_S, run_guarded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight_checks._gpus import Gpu
    from preflight_checks._ranks import Rank, Run
    from trainer_agent.errors import Finding

WAIT_S, ASK_S = 45.0, 30.0
CPU_RANKS = 2
USAGE = 2
KNOWN = rules("torchrun", what="torchrun")
FAILED = Rule(
    "torchrun-failed",
    when="torchrun ends with an error before it has started any rank",
    hint="the message has its last words; run `python -m torch.distributed.run --standalone --no-python true` here",
    action=Action.RESCHEDULE,
    source="KEP-3416: minimal torchrun works",
)
# Where torchrun says at its end how each rank that failed has ended.
FAILURE = re.compile(r"^ +rank +: (\d+) \(local_rank: \d+\)\n +exitcode +: (-?\d+)", re.MULTILINE)
WHY = """
import importlib.util, json
why = {"torch": importlib.util.find_spec("torch") is not None}
try:
    why["torchrun"] = importlib.util.find_spec("torch.distributed.run") is not None
except BaseException as error:
    why["error"] = f"{type(error).__name__}: {error}"
print(json.dumps(why))
"""


def wait_s(context: Context) -> float:
    """Return how long torchrun may take: some of what is left of the budget, as its end takes time, too."""
    return min(WAIT_S, 0.7 * context.options.budget_s)


def deadline_s(context: Context) -> float:
    """Return the time for torchrun, for its end and for the question why it did not start."""
    return wait_s(context) + END_S + 12


@check("torchrun-smoke", rules=(FAILED, *KNOWN.all), timeout_s=deadline_s, profile="standard", alone_s=20)
def torchrun_smoke(context: Context) -> Outcome:
    """Does the smallest torchrun job start, meet over loopback, compute right and end on this node?"""
    backend, count, gpus = plan(context)
    run = start(context, backend, count=count, gpus=gpus)
    findings = judge(context, run)
    torch = run.ranks[0].facts.get("torch", "unknown")
    seconds = max(rank.at for rank in run.ranks) - run.began
    done = sum(rank.stage == "done" for rank in run.ranks)
    place = "a GPU each" if backend == "nccl" else "the CPU, however many the job wants"
    message = f"torchrun of torch {torch}: {done} of {count} ranks with {backend} on {place} done"
    measured: dict[str, Any] = {"ranks": count, "backend": backend, "torch": torch}
    if done == count:
        measured["duration_s"] = round(seconds, 2)
        message += f" in {seconds:.1f} s"
    return Outcome(message, tuple(findings), measured)


def plan(context: Context) -> tuple[str, int, Sequence[Gpu]]:
    """Return backend, number of ranks and their GPUs: those of the job on GPUs, else two on the CPU."""
    found = context.accelerators
    if found.kind not in WORKS_ON_CUDA or not found.count:
        return "gloo", CPU_RANKS, ()
    count = min(context.nproc, found.count)
    return "nccl", count, visible_gpus(context)[:count] if found.kind == "nvidia" else ()


def start(context: Context, backend: str, *, count: int, gpus: Sequence[Gpu] = ()) -> Run:
    """Return what becomes of the smallest job; its ranks wait for each other longer than we wait for them."""
    request = {"backend": backend, "timeout_s": wait_s(context) + 60}
    argv = [
        *(context.python, "-m", "torch.distributed.run"),
        # As --standalone, with an address instead of a name that has to be resolved.
        *("--rdzv_backend=c10d", "--rdzv_endpoint=127.0.0.1:0", "--rdzv_id=preflight", "--local_addr=127.0.0.1"),
        *(f"--nproc_per_node={count}", "--monitor_interval=0.1", "--log_dir={folder}/log"),
        *(str(FOLDER / "torchrun_smoke_probe.py"), json.dumps(request)),
    ]
    run = run_ranks(context, argv, count=count, environ={}, wait_s=wait_s(context), gpus=gpus)
    return replace(run, ranks=with_codes(run.ranks, run.stderr))


def with_codes(ranks: Sequence[Rank], stderr: str) -> tuple[Rank, ...]:
    """Return the ranks with the exit codes that torchrun tells of those that failed."""
    codes = {int(rank): int(code) for rank, code in FAILURE.findall(stderr)}
    return tuple(replace(rank, code=codes.get(rank.number)) for rank in ranks)


def judge(context: Context, run: Run) -> list[Finding]:
    """Return what torchrun's end proves against this node."""
    silent = all(rank.stage == "start" for rank in run.ranks)
    if run.code and not run.problem and silent and all(rank.code is None for rank in run.ranks):
        return [refused(context, run)]
    findings = blame(run, KNOWN)
    if run.code and not findings:
        raise ProbeError(f"torchrun ended with exit code {run.code} and all ranks were done: {run.words}")
    return findings


def refused(context: Context, run: Run) -> Finding:
    """
    Return what torchrun says that started no rank.

    Raises:
        Skip, ProbeError: that is a matter of the image, not of the node.
    """
    python = context.python
    if run.code == USAGE:
        raise ProbeError(f"torchrun does not know our options, wanted torch 2.0 or newer: {run.words}")
    ended = run_guarded([python, "-c", WHY], environ=context.environ, timeout_s=ASK_S)
    try:
        why = json.loads(ended.last_line)
    except ValueError as error:
        raise ProbeError(f"{python} does not say whether it has torch: {ended.stderr[-200:]}") from error
    if not why["torch"]:
        raise Skip(str(NoTorchError(f"{python} has no torch")))
    if not why.get("torchrun"):
        raise ProbeError(f"{python} cannot import torchrun: {why.get('error', 'this torch has none')}")
    return FAILED.found(f"torchrun ended with exit code {run.code} and started no rank: {run.words}", code=run.code)
