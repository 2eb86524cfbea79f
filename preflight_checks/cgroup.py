"""CPU and memory of this container: too little of either makes training slow or ends it without a word."""

from trainer_agent.check import Context, Outcome, Rule, check
from trainer_agent.errors import Finding, Severity

MIB = 1 << 20
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
    when="memory limit minus memory in use is less than 300 MiB for each process of this node",
    hint="raise resources.limits.memory of the container, or start fewer processes (spec.trainer.numProcPerNode)",
    severity=Severity.WARNING,
    source="measured: `import torch` alone takes 225 MB in each process",
)
OOM_KILLED = Rule(
    "oom-killed",
    when="the kernel has already killed a process of this container for memory",
    hint="raise resources.limits.memory of the container, and see `dmesg` on the node for what was killed",
    severity=Severity.WARNING,
    source="oom_kill in memory.events (cgroup v2) or memory.oom_control (v1)",
)


@check("cgroup", rules=(CPU_SCARCE, CPU_STARVED, MEMORY_SCARCE, OOM_KILLED))
def cgroup(context: Context) -> Outcome:
    """May this container use enough CPU and memory for its processes?"""
    limits = context.limits
    measured = {
        "cgroup_version": limits.version,
        "cpus": limits.cpus,
        "cpu_quota": limits.cpu_quota,
        "memory_limit_bytes": limits.memory_limit,
        "memory_used_bytes": limits.memory_used,
        "oom_kills": limits.oom_kills,
        "processes": context.nproc,
    }
    memory = "no memory limit" if limits.memory_limit is None else f"memory limit {limits.memory_limit / MIB:.0f} MiB"
    message = f"cgroup v{limits.version}, {limits.cpus:g} CPUs, {memory}"
    return Outcome(message if limits.version else "no cgroup is mounted", (*_cpu(context), *_memory(context)), measured)


def _cpu(context: Context) -> tuple[Finding, ...]:
    each = context.limits.cpus / context.nproc
    if each >= WANTED_CPUS:
        return ()
    starved = each < LEAST_CPUS and context.accelerators.count > 0
    message = (
        f"{context.limits.cpus:g} CPUs, {each:.2f} for each process ({context.nproc}), wanted {WANTED_CPUS:g} or more"
    )
    return ((CPU_STARVED if starved else CPU_SCARCE).found(message, cpus_per_process=each),)


def _memory(context: Context) -> tuple[Finding, ...]:
    limits, findings = context.limits, []
    if limits.memory_limit is not None:
        each = (limits.memory_limit - (limits.memory_used or 0)) / context.nproc
        if each < WANTED_MEMORY:
            message = (
                f"{each / MIB:.0f} MiB of memory are left for each process ({context.nproc}, "
                f"limit {limits.memory_limit / MIB:.0f} MiB), wanted {WANTED_MEMORY / MIB:.0f} MiB or more"
            )
            findings.append(MEMORY_SCARCE.found(message, bytes_per_process=each))
    if limits.oom_kills:
        message = f"{limits.oom_kills} processes of this container were killed for memory, wanted 0"
        findings.append(OOM_KILLED.found(message, oom_kills=limits.oom_kills))
    return tuple(findings)
