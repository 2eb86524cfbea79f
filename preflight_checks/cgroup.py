"""CPU and memory of this container: too little of either makes training slow or ends it without a word."""

from trainer_agent.cgroup import Pressure, read_pressure
from trainer_agent.check import Context, Outcome, Rule, check
from trainer_agent.errors import Finding, Severity

MIB = 1 << 20
THROTTLED_SHARE = 0.25
LEAST_PERIODS = 100  # of 0.1 s each, mostly
WANTED_CPUS = 1.0
LEAST_CPUS = 0.5
WANTED_MEMORY = 300 * MIB

CPU_SCARCE = Rule(
    "cpu-scarce",
    when="this container may use less than 1 CPU for each process of this node",
    hint="raise resources.limits.cpu of the container, or start fewer processes (spec.trainer.numProcPerNode)",
    severity=Severity.WARNING,
    source="heuristic: a process that feeds a GPU keeps one CPU busy",
)
CPU_STARVED = Rule(
    "cpu-starved",
    when="this container sees accelerators and may use less than 0.5 CPU for each process of this node",
    hint="raise resources.limits.cpu of the container, or start fewer processes (spec.trainer.numProcPerNode)",
    source="heuristic: throttled processes miss the deadlines of rendezvous and NCCL; "
    "only `cpu-scarce` without accelerators, as an init container may have limits of its own",
)
MEMORY_SCARCE = Rule(
    "memory-scarce",
    when="memory limit, or memory.high where that is lower, minus memory in use is less than 300 MiB for each process",
    hint="raise resources.limits.memory of the container, or start fewer processes (spec.trainer.numProcPerNode)",
    severity=Severity.WARNING,
    source="measured: `import torch` alone takes 225 MB in each process; above memory.high the kernel does not kill, "
    "it makes every allocation wait",
)
CPUS_PINNED = Rule(
    "cpu-quota-unreachable",
    when="the quota allows at least 1 CPU more than this process may run on",
    hint="look at `taskset -p 1` in the container, the kubelet's CPU manager and cpuset.cpus: the limit cannot be used",
    severity=Severity.WARNING,
    source="the smaller of both counts, so that one of them is a mistake",
)
THROTTLED = Rule(
    "cpu-throttled",
    when="the quota has held this container back in more than 25 % of at least 100 periods since it was made",
    hint="raise resources.limits.cpu of the container, or remove it",
    severity=Severity.INFO,
    source="heuristic; cpu.stat of the cgroup. What was running then is not known, so that it only informs",
)
OOM_KILLED = Rule(
    "oom-killed",
    when="the kernel has already killed a process of this container for memory",
    hint="raise resources.limits.memory of the container, and see `dmesg` on the node for what was killed",
    severity=Severity.WARNING,
    source="oom_kill in memory.events (cgroup v2) or memory.oom_control (v1)",
)


@check("cgroup", rules=(CPU_SCARCE, CPU_STARVED, CPUS_PINNED, THROTTLED, MEMORY_SCARCE, OOM_KILLED))
def cgroup(context: Context) -> Outcome:
    """May this container use enough CPU and memory for its processes?"""
    limits, pressure = context.limits, read_pressure(context.host)
    measured = {
        "cgroup_version": limits.version,
        "cpus": limits.cpus,
        "cpu_quota": limits.cpu_quota,
        "memory_limit_bytes": limits.memory_limit,
        "memory_used_bytes": limits.memory_used,
        "memory_high_bytes": pressure.memory_high,
        "memory_max_hits": pressure.memory_max_hits,
        "memory_high_hits": pressure.memory_high_hits,
        "oom_kills": limits.oom_kills,
        "throttled_periods": pressure.throttled_periods,
        "throttled_s": pressure.throttled_s,
        "processes": context.nproc,
    }
    memory = "no memory limit" if limits.memory_limit is None else f"memory limit {limits.memory_limit / MIB:.0f} MiB"
    message = f"cgroup v{limits.version}, {limits.cpus:g} CPUs, {memory}"
    findings = (*_cpu(context), *_pinned(context), *_throttled(pressure), *_memory(context, pressure.memory_high))
    return Outcome(message if limits.version else "no cgroup is mounted", findings, measured)


def _cpu(context: Context) -> tuple[Finding, ...]:
    each = context.limits.cpus / context.nproc
    if each >= WANTED_CPUS:
        return ()
    starved = each < LEAST_CPUS and context.accelerators.count > 0
    message = (
        f"{context.limits.cpus:g} CPUs, {each:.2f} for each process ({context.nproc}), wanted {WANTED_CPUS:g} or more"
    )
    return ((CPU_STARVED if starved else CPU_SCARCE).found(message, cpus_per_process=each),)


def _pinned(context: Context) -> tuple[Finding, ...]:
    limits = context.limits
    if limits.cpu_quota is None or limits.cpu_quota < limits.cpus_allowed + 1:
        return ()
    message = (
        f"the quota is {limits.cpu_quota:g} CPUs, and this process may run on {limits.cpus_allowed}, wanted as many"
    )
    return (CPUS_PINNED.found(message, cpu_quota=limits.cpu_quota, cpus_allowed=limits.cpus_allowed),)


def _throttled(pressure: Pressure) -> tuple[Finding, ...]:
    periods, throttled = pressure.periods or 0, pressure.throttled_periods or 0
    if periods < LEAST_PERIODS or throttled <= THROTTLED_SHARE * periods:
        return ()
    message = (
        f"the quota held this container back in {throttled} of {periods} periods, wanted {THROTTLED_SHARE:.0%} or less"
    )
    return (THROTTLED.found(message, periods=periods, throttled_periods=throttled),)


def _memory(context: Context, high: int | None) -> tuple[Finding, ...]:
    limits, findings = context.limits, []
    marks = [mark for mark in (limits.memory_limit, high) if mark is not None]
    if marks:
        limit, what = min(marks), "limit" if min(marks) == limits.memory_limit else "memory.high"
        each = (limit - (limits.memory_used or 0)) / context.nproc
        if each < WANTED_MEMORY:
            message = (
                f"{each / MIB:.0f} MiB of memory are left for each process ({context.nproc}, "
                f"{what} {limit / MIB:.0f} MiB), wanted {WANTED_MEMORY / MIB:.0f} MiB or more"
            )
            findings.append(MEMORY_SCARCE.found(message, bytes_per_process=each))
    if limits.oom_kills:
        message = f"{limits.oom_kills} processes of this container were killed for memory, wanted 0"
        findings.append(OOM_KILLED.found(message, oom_kills=limits.oom_kills))
    return tuple(findings)
