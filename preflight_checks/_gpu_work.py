"""Let every visible GPU work, in a probe of its own, while NVML is read; and what all such checks can find."""

from __future__ import annotations

import mmap
import re
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from preflight_checks import _recovery, _xids
from preflight_checks._gpu_reading import listen, read_all
from preflight_checks._gpus import Gpu, NvmlHungError, Said, found_by_rule, present, read
from preflight_checks._probes import NoTorchError, ProbeError, ask_side_by_side
from trainer_agent.accelerators import parse_cuda_visible
from trainer_agent.check import Context, Rule, Skip
from trainer_agent.errors import Action, Severity
from trainer_agent.guarded import END_S
from trainer_agent.isolation import run_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trainer_agent.errors import Finding
    from trainer_agent.guarded import Ended

# An import of torch takes 2 to 10 s, from a cold disk more: START_S.
PROBE_S, START_S = 42.0, 12.0
LEAST_PROBE_S = 10.0
# How long is too long, as far as the probe has so much time after its start. Heuristic; a context takes about a second.
HUNG_S, LEAST_HUNG_S = 30.0, 10.0
SAMPLE_S = 0.1
MOST_SAMPLES = 500  # as time goes on every other one is let go, and half as many are taken
# These stages have nothing to wait for.
HANGS = ("context", "allocation", "synchronize", "copy", "product", "copies", "host copies")
# What these need may be compiled, or read from a slow image: on all GPUs alike. So they hang only where another GPU
# is past them, and in less than a third of the time (heuristic).
COMPARED, TIMES = ("kernel", "first product", "first copy", "pinned memory"), 3

FAILED = Rule(
    "cuda-failed",
    when="CUDA gives an error on a GPU",
    hint="cordon this node, look at `dmesg | grep -i xid`, and reset the GPU or reboot",
    action=Action.RESCHEDULE,
    source="the error that CUDA returns; NVSentinel's CUDA validation",
)
NOT_READY = Rule(
    "cuda-fabric-not-ready",
    when="CUDA says `system not yet initialized` (802)",
    hint="look at `systemctl status nvidia-fabricmanager` and `nvidia-smi -q | grep -A5 Fabric` on this node: the "
    "switches are not set up; the pod can run elsewhere",
    action=Action.RESCHEDULE,
    source="cudaErrorSystemNotReady",
)
MISMATCH = Rule(
    "cuda-mismatch",
    when="CUDA says that the driver is too old, or torch has no kernel for this GPU",
    hint="take an image whose torch and CUDA fit the driver and the GPUs, or upgrade the driver; driver-cuda says more",
    source="cudaErrorInsufficientDriver, cudaErrorNoKernelImageForDevice and their like",
)
MEMORY = Rule(
    "cuda-out-of-memory",
    when="a GPU has not the 32 MiB that the check cuda asks for; a warning where gemm or bandwidth wants more",
    hint="end the process that holds the GPU's memory, which gpu-memory shows; the pod can run elsewhere",
    action=Action.RESCHEDULE,
    source="cudaErrorMemoryAllocation",
)
HUNG = Rule(
    "cuda-hung",
    when=f"a GPU does not finish what it began for {HUNG_S:g} s or more ({LEAST_HUNG_S:g} s where little of the budget "
    "is left): a context, an allocation, a copy, a product; or a first kernel, product or copy, for which another GPU "
    "took less than a third of that",
    hint="cordon this node, look at `dmesg | grep -i xid` and `ps axo stat,pid,wchan:32,args | grep ^D`, and reboot it",
    action=Action.RESCHEDULE,
    source="heuristic; a context takes about a second",
)
NOT_JUDGED = Rule(
    "gpu-not-judged",
    when="the probe of a GPU crashes, or runs out of time where nothing tells that it hangs",
    hint="run the check again; when it is the same GPU each time, look at `dmesg | grep -i xid` and cordon this node",
    severity=Severity.WARNING,
    source="a check that broke or ran out of time is never a pass",
)
Row = tuple[Rule, Said]  # what was said of a GPU, by the rule that says it
Sample = tuple[float, dict[int, Gpu]]  # when, and what NVML said of each GPU by its index
RULES = (FAILED, NOT_READY, MISMATCH, MEMORY, HUNG, NOT_JUDGED, *_xids.XIDS, _recovery.RECOVERY)
BY_KIND = {"failed": FAILED, "not-ready": NOT_READY, "mismatch": MISMATCH, "memory": MEMORY}


@dataclass(frozen=True)
class Target:
    """A GPU, or an instance of one, and the variables that leave only this one to a probe."""

    gpu: Gpu
    environ: Mapping[str, str]
    instance: str = ""

    @property
    def measured(self) -> dict[str, Any]:
        """Return its name for the report."""
        return {"index": self.gpu.index} | ({"instance": self.instance} if self.instance else {})


@dataclass(frozen=True)
class Work:
    """
    What came of it.

    Args:
        answers: what each GPU's probe answered.
        broken: why a probe gave no answer, by the GPU's label.
        findings: CUDA errors, hangs, and who gave no answer.
        samples: NVML's facts by the host's clock: (seconds, GPUs by index).
    """

    answers: Sequence[tuple[Target, Mapping[str, Any]]]
    broken: Mapping[str, str]
    findings: Sequence[Finding] = ()
    samples: Sequence[tuple[float, Mapping[int, Gpu]]] = field(default_factory=tuple)

    def during(self, target: Target, window: Sequence[float]) -> list[Gpu]:
        """Return what NVML said of a GPU between two moments."""
        index = target.gpu.index
        return [gpus[index] for when, gpus in self.samples if window[0] <= when <= window[1] and index in gpus]

    def ends(self, target: Target) -> tuple[Gpu, Gpu] | None:
        """Return what NVML said of a GPU first and last."""
        seen = [gpus[target.gpu.index] for _, gpus in self.samples if target.gpu.index in gpus]
        return (seen[0], seen[-1]) if len(seen) > 1 else None

    @property
    def notes(self) -> dict[str, Any]:
        """Return for the report what could not be asked."""
        return {"broken": dict(self.broken)} if self.broken else {}


def targets(context: Context) -> list[Target]:
    """
    Return the GPUs that a training process here would see.

    Raises:
        Skip: there is none that torch.cuda can use.
    """
    found = context.accelerators
    if found.hung:
        raise Skip("NVML hangs; gpu-count says more")
    if found.kind == "amd" and found.count:
        return _by_order(context, "HIP_VISIBLE_DEVICES")
    if found.kind not in ("nvidia", "mig") or not found.count:
        raise Skip(f"no NVIDIA or AMD GPU is visible here: {found.source}")
    try:
        reading = read(context, "memory")
    except NvmlHungError as error:
        raise Skip("NVML hangs; gpu-count says more") from error
    if reading.state == "missing":  # as in gVisor, which has the device nodes and CUDA
        return _by_order(context, "CUDA_VISIBLE_DEVICES")
    if reading.state != "ok":
        raise Skip(f"NVML does not start: {reading.reason}; gpu-count says more")
    visible = context.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = {gpu.uuid: gpu for gpu in present(reading) if gpu.uuid}
    if found.kind == "mig":
        # An instance is named by its own UUID; index and address are the GPU's. Of a GPU that is named, CUDA takes one.
        named = gpus | {uuid: replace(gpu, uuid=uuid) for gpu in gpus.values() for uuid in gpu.instances or {}}
        instances = [uuid for uuid in named if uuid not in gpus]
        entries = found.visible or parse_cuda_visible(visible, [gpu.uuid for gpu in reading.gpus], instances)
        shown = entries[: found.count]
        return _demand([Target(named[e], {"CUDA_VISIBLE_DEVICES": e}, e) for e in shown if e in named])
    entries = parse_cuda_visible(visible, [gpu.uuid for gpu in reading.gpus], [])
    return _demand([Target(gpus[e], {"CUDA_VISIBLE_DEVICES": e}) for e in entries if e in gpus])


def _by_order(context: Context, name: str) -> list[Target]:
    """Return GPUs that nobody can name, by the entries of a variable or by their numbers."""
    listed = context.environ.get(name, context.environ.get("CUDA_VISIBLE_DEVICES", ""))
    entries = [e.strip() for e in listed.split(",") if e.strip()] or [str(n) for n in range(context.accelerators.count)]
    return [Target(Gpu(n), {name: entry}) for n, entry in enumerate(entries[: context.accelerators.count])]


def _demand(found: list[Target]) -> list[Target]:
    if not found:
        raise Skip("NVML shows none of the GPUs that are visible here; gpu-count and gpu-health say more")
    return found


def check_s(probe_s: float = PROBE_S) -> float:
    """Return the deadline of a check whose probes have so long."""
    return probe_s + 3 * END_S


def allowed_s(context: Context, wanted_s: float) -> float:
    """Return how long a probe may take: what the budget leaves, less the time to end it and to say what it was."""
    return min(wanted_s, max(LEAST_PROBE_S, context.options.budget_s - 3 * END_S))


def run(
    context: Context, probe: str, request: Mapping[str, Any], *, again: Sequence[str] = (), probe_s: float = PROBE_S
) -> Work:
    """
    Run a probe on every visible GPU side by side, and read NVML until the last one has ended.

    Raises:
        Skip: there is no GPU, or no torch that can use it.
        ProbeError: every probe broke, so that nothing is known.
    """
    wanted, probe_s = targets(context), allowed_s(context, probe_s)
    stop = mmap.mmap(-1, 1)  # shared with the children
    calls: list[tuple[Callable[[], Any], float]] = [
        (partial(_asked, context, probe, request, wanted, stop=stop, probe_s=probe_s), probe_s + 2 * END_S)
    ]
    if wanted[0].gpu.uuid:
        calls.append((partial(_sampled, context, again, stop), probe_s + 2 * END_S))
    probes, *sampled = run_all(calls)
    if probes.error:
        raise probes.error
    work = _sorted(wanted, probes.value, probe_s, little=probe == "cuda")
    samples, xids = sampled[0].value if sampled and not sampled[0].error else ([], [])
    gpus = _whole(wanted, samples)
    findings = [*work.findings, *_xids.judge(xids, gpus, working=True), *found_by_rule(_recoveries(gpus, samples))]
    return Work(work.answers, work.broken, findings, samples)


def _whole(wanted: Sequence[Target], samples: Sequence[Sample]) -> dict[int, Gpu]:
    """Return the GPUs of the targets by index: where that is an instance, NVML names the GPU that it is a part of."""
    told = samples[0][1] if samples else {}
    return {target.gpu.index: told.get(target.gpu.index, target.gpu) for target in wanted}


def _recoveries(gpus: Mapping[int, Gpu], samples: Sequence[Sample]) -> Iterator[Row]:
    """What the driver asks for since the GPUs worked; what it asked for before is for gpu-health to say."""
    first, last = (samples[0][1], samples[-1][1]) if samples else ({}, {})
    for index, gpu in gpus.items():
        if index in first and index in last and last[index].recovery_action != first[index].recovery_action:
            for rule, text, evidence in _recovery.wanted(last[index]):
                yield rule, (gpu, text, evidence)


def _asked(
    context: Context,
    probe: str,
    request: Mapping[str, Any],
    wanted: Sequence[Target],
    *,
    stop: mmap.mmap,
    probe_s: float,
) -> Any:
    try:
        requests = [({"device": "cuda", **request}, target.environ) for target in wanted]
        return ask_side_by_side(context, probe, requests, timeout_s=probe_s)
    finally:
        stop[0] = 1


def _sampled(context: Context, again: Sequence[str], stop: mmap.mmap) -> tuple[list[Sample], list[tuple[int, int]]]:
    """
    In a child: read NVML again and again, and hear XIDs; return both.

    Counters that rise, and the recovery that is wanted, are read only at both ends.
    """
    heard = listen()
    place = mmap.mmap(-1, 128)
    counters = ("ecc", "errors", "heat", "recovery")

    def look(*groups: str) -> Sample:
        reading = read_all(groups, again=(), times=1, pause=lambda: None, place=place)
        gpus = [Gpu(**gpu) for sample in reading.get("samples", []) for gpu in sample]
        return context.host.monotonic(), {gpu.index: gpu for gpu in gpus if not gpu.gone}

    samples, pause_s = [look(*again, *counters)], SAMPLE_S
    while not stop[0]:
        context.host.sleep(pause_s)
        samples.append(look(*again))
        if len(samples) == MOST_SAMPLES:
            samples, pause_s = samples[::2], 2 * pause_s
    return [*samples, look(*again, *counters)], heard()


def _sorted(
    wanted: Sequence[Target], told: Sequence[Mapping[str, Any] | ProbeError], probe_s: float, *, little: bool
) -> Work:
    answers, broken, said = [], {}, []
    not_judged: list[Row] = []
    took = _took(told)
    for target, answer in zip(wanted, told, strict=True):
        if isinstance(answer, NoTorchError):
            raise Skip(str(answer))
        if isinstance(answer, ProbeError):
            if row := _hung(target, answer.ended, probe_s, took):
                said.append((HUNG, row))
            else:
                broken[target.instance or target.gpu.label] = str(answer)
                not_judged.append((NOT_JUDGED, (target.gpu, f"its probe broke: {answer}; wanted an answer", {})))
        elif not (answer["cuda"] or answer["hip"]):
            raise Skip(f"torch {answer['torch']} was built without CUDA")
        elif error := answer.get("error"):
            number = f" ({error['code']})" if error["code"] else ""
            text = f"CUDA says: {error['text']}{number}, wanted no error"
            rule = BY_KIND[error["kind"]]
            if rule is MEMORY and not little:
                rule = replace(MEMORY, severity=Severity.WARNING)
            said.append((rule, (target.gpu, text, {"error": error})))
        else:
            answers.append((target, answer))
    if broken and not answers and not said:
        raise ProbeError("; ".join(sorted(set(broken.values()))))
    return Work(answers, broken, found_by_rule([*said, *not_judged]))


def _took(told: Sequence[Mapping[str, Any] | ProbeError]) -> dict[str, float]:
    """Return how many seconds each stage took on the slowest of the GPUs that are past all of them."""
    took: dict[str, float] = {}
    for answer in told:
        for stage, seconds in {} if isinstance(answer, ProbeError) else answer.get("stages", {}).items():
            took[stage] = max(seconds, took.get(stage, 0.0))
    return took


def _hung(
    target: Target, ended: Ended | None, probe_s: float, took: Mapping[str, float]
) -> tuple[Gpu, str, dict[str, Any]] | None:
    """Return what a GPU hangs in, where its probe was killed in a stage that has nothing else to wait for."""
    if ended is None or not ended.timed_out:
        return None
    told = re.search(r"^at: ([a-z ]+) after (\S+) s$", ended.last_words)
    if not told or (spent := probe_s - float(told[2])) < min(HUNG_S, max(LEAST_HUNG_S, probe_s - START_S)):
        return None
    if told[1] not in HANGS and not (told[1] in COMPARED and spent > TIMES * took.get(told[1], spent)):
        return None
    stuck = ", and the probe does not die when killed" if ended.code is None else ""
    text = f"no answer for {spent:.0f} s at `{told[1]}`{stuck}, wanted one within seconds"
    return target.gpu, text, {"stage": told[1]}


def spoken(rows: Sequence[Row]) -> list[Finding]:
    """Return the findings of what was said by rule, errors first."""
    return found_by_rule(sorted(rows, key=lambda row: row[0].severity is not Severity.ERROR))
