"""Judge what ranks said: which failed, hangs or got wrong numbers, and whether that says anything of the node."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from preflight_checks._probes import ProbeError
from preflight_checks._ranks import TORCH_IS_HERE
from trainer_agent.check import Rule, Skip
from trainer_agent.errors import Action
from trainer_agent.gang.meetings import AFTERMATH, CONFIGURATION, SHM_PER_RANK, short_of_shm
from trainer_agent.gang.rules import MISCONFIGURED, SHM_SMALL
from trainer_agent.process import signal_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from preflight_checks._ranks import Rank, Run
    from trainer_agent.errors import Finding

# Heuristic: cold, on a slow disk, a rank may take so long for its libraries, its GPU and its connections.
QUIET_S = 10.0


@dataclass(frozen=True)
class Rules:
    """What a check that runs ranks can find of them."""

    failed: Rule
    hung: Rule
    wrong: Rule
    misconfigured: Rule
    shm_small: Rule

    @property
    def all(self) -> tuple[Rule, ...]:
        """Return them as a check declares them."""
        return self.failed, self.hung, self.wrong, self.misconfigured, self.shm_small


def rules(prefix: str, *, what: str) -> Rules:
    """Return the rules of a check, whose codes begin with `prefix`."""
    return Rules(
        failed=Rule(
            f"{prefix}-rank-failed",
            when=f"a rank of {what} ends with an error or by a signal",
            hint="the evidence has its last words; look at `dmesg` on this node; the pod can run elsewhere",
            action=Action.RESCHEDULE,
            source="KEP-3416",
        ),
        hung=Rule(
            f"{prefix}-rank-hung",
            when=f"a rank of {what} says nothing for half of the time that all of it may take, at least 10 s, and not "
            "all are done",
            hint="look at the ranks and GPUs named here, at `dmesg` and `nvidia-smi` on this node; the pod can run "
            "elsewhere",
            action=Action.RESCHEDULE,
            source="heuristic: on a healthy node all of it takes a few seconds",
        ),
        wrong=Rule(
            f"{prefix}-wrong-result",
            when="an all-reduce or all-gather of whole numbers gives any other number than the one right one",
            hint="take this node out of service and test its GPUs, NVLink and memory; the pod can run elsewhere",
            action=Action.RESCHEDULE,
            source="exact: float32 holds every sum of these numbers in whatever order they are added",
        ),
        misconfigured=replace(MISCONFIGURED, code=f"{prefix}-misconfigured"),
        shm_small=replace(SHM_SMALL, code=f"{prefix}-shm-small"),
    )


def blame(run: Run, known: Rules) -> list[Finding]:
    """
    Return what the ranks' words prove against this node.

    Raises:
        Skip: this torch cannot do such a thing anywhere.
        ProbeError: the ranks did not come far enough to prove anything.
    """
    for rank in run.ranks:
        if "unfit" in rank.facts:
            raise Skip(rank.facts["unfit"])
    findings = list(_wrong(run.ranks, known.wrong))
    if run.hung:
        return [*findings, _hang(run, known.hung)]
    if run.problem:
        raise ProbeError(run.problem)
    return [*findings, *_failure(run, known)]


def _wrong(ranks: Sequence[Rank], rule: Rule) -> Iterator[Finding]:
    """Yield each wrong result once, with all ranks that have it."""
    seen: dict[tuple[str, int | None], list[tuple[Rank, dict[str, Any]]]] = {}
    for rank in ranks:
        for wrong in rank.facts.get("wrong", ()):
            seen.setdefault((wrong["of"], wrong.get("source")), []).append((rank, wrong))
    for (of, source), rows in seen.items():
        had, first = [rank for rank, _ in rows], rows[0][1]
        sender = [] if source is None else [ranks[source]]
        message = (
            f"{_names(had)}: {of} gave {first['differ']} wrong numbers of {first['of_numbers']}"
            f"{f' in the part of {_names(sender)}' if sender else ''}, the first {first['got']} at {first['index']}, "
            f"wanted {first['wanted']}"
        )
        # What is wrong at several receivers was wrong when it was sent.
        blamed = sender if sender and len(had) > 1 else [*had, *sender]
        yield rule.found(message, ranks=[rank.number for rank in had], **first, **_gpus(blamed))


def _hang(run: Run, rule: Rule) -> Finding:
    """Return who came least far; the others wait for it."""
    least = min(rank.height for rank in run.ranks)
    late = [rank for rank in run.ranks if rank.height == least]
    others = [rank for rank in run.ranks if rank.height > least]
    if max(rank.height for rank in run.ranks) < TORCH_IS_HERE:
        raise ProbeError(f"{run.problem}: no rank has imported torch by then; {_words(run)}")
    quiet = run.end - max(rank.at or run.began for rank in late)
    if quiet < max(run.wait_s / 2, QUIET_S):
        raise ProbeError(f"{run.problem}: {_names(late)} reached `{late[0].stage}` only {quiet:.0f} s before")
    if late[0].stage == "all-reduce" and run.log is not None and not any("Init START" in line for line in run.log):
        raise ProbeError(f"{run.problem}: NCCL was still loading its kernels, or compiling them for this GPU")
    stages = {str(rank.number): rank.stage for rank in run.ranks}
    evidence = {"stages": stages, "nccl": run.nccl, "stderr": run.words, **_gpus(late)}
    if late[0].stage == "done":
        return rule.found(f"all ranks are done, and what started them did not end in {run.wait_s:g} s", **evidence)
    message = f"{_names(late)}: nothing came after stage `{late[0].stage}` for {quiet:.0f} s, wanted all done in a few"
    if others:
        waits = ", ".join(f"rank {rank.number} in `{rank.stage}`" for rank in others)
        message += f"; further are {waits}"
    return rule.found(message, ranks=[rank.number for rank in late], **evidence)


def _failure(run: Run, known: Rules) -> Iterator[Finding]:
    """Yield the failure that came first: the others only lost their peer."""
    killed = [rank for rank in run.ranks if (rank.code or 0) < 0 and rank.code not in AFTERMATH]
    raised = sorted((rank for rank in run.ranks if rank.error), key=lambda rank: rank.at)
    ended = sorted((rank for rank in run.ranks if rank.code), key=lambda rank: rank.code == -signal.SIGTERM)
    first = next(iter([*killed, *raised, *ended]), None)
    if first is None:
        return
    if first.error and first.height < TORCH_IS_HERE:
        raise ProbeError(f"{first.label} cannot import torch: {first.error}: {first.text}")
    short = [rank for rank in raised if short_of_shm(rank.facts, ranks=len(run.ranks))]
    if short and not killed and not any(rank.facts.get("wrong") for rank in run.ranks):
        yield _short_of_shm(run, short, known.shm_small)
        return
    rule = known.misconfigured if any(name in rank.text for rank in raised for name in CONFIGURATION) else known.failed
    evidence: dict[str, Any] = {"rank": first.number, "stage": first.stage, "nccl": run.nccl, **_gpus([first])}
    others = {str(rank.number): f"{rank.error}: {rank.text}" for rank in raised if rank is not first}
    message = f"{first.label} {_end(first)} in stage `{first.stage}`, wanted to come to the end"
    yield rule.found(message, **evidence, others=others)


def _short_of_shm(run: Run, short: Sequence[Rank], rule: Rule) -> Finding:
    """Return what no GPU is to blame for."""
    first, free = short[0], min(rank.facts["shm_free"] for rank in short)
    message = (
        f"rank {first.number} {_end(first)} in stage `{first.stage}`; /dev/shm has {free >> 20} MiB free, "
        f"wanted {SHM_PER_RANK >> 20} MiB for each of {len(run.ranks)} ranks"
    )
    return rule.found(message, rank=first.number, stage=first.stage, shm_free_bytes=free, nccl=run.nccl)


def _end(rank: Rank) -> str:
    if rank.error:
        return f"failed with {rank.error}: {rank.text}"
    code = rank.code or 0
    return f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"


def _names(ranks: Sequence[Rank]) -> str:
    return ", ".join(rank.label for rank in ranks)


def _words(run: Run) -> str:
    return f"last words: {run.words}" if run.words else "nothing was said"


def _gpus(ranks: Sequence[Rank]) -> dict[str, Any]:
    """Return the evidence that names GPUs, nothing where there are none."""
    named = [rank.gpu.id for rank in ranks if rank.gpu]
    return {"gpus": named} if named else {}
