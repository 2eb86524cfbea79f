"""Limits of the operating system: open files, locked memory, processes."""

from trainer_agent.check import Context, Outcome, Rule, check
from trainer_agent.errors import Finding, Severity

WANTED_FILES = 65536
WANTED_TASKS = 4096
CAP_IPC_LOCK = 14  # its bit in CapEff, capability.h

FILES = Rule(
    "open-files-low",
    when="the soft limit of open files (RLIMIT_NOFILE) is below 65536",
    hint="raise LimitNOFILE of the container runtime's systemd unit, or run `ulimit -n 65536` before training",
    severity=Severity.WARNING,
    source="heuristic: each DataLoader worker and each NCCL connection holds descriptors, and 1024 is soon used up",
)
MEMLOCK = Rule(
    "locked-memory-low",
    when="there are RDMA devices, RLIMIT_MEMLOCK is limited and the container lacks CAP_IPC_LOCK",
    hint="add IPC_LOCK to securityContext.capabilities.add, or set LimitMEMLOCK=infinity for the container runtime",
    severity=Severity.WARNING,
    source="RDMA registers (locks) its buffers: NCCL fails with `Call to ibv_reg_mr failed` or falls back to TCP",
)
TASKS = Rule(
    "processes-low",
    when="the pids cgroup or RLIMIT_NPROC allows fewer than 4096 processes and threads",
    hint="raise podPidsLimit of the kubelet, or the limit of the container runtime",
    severity=Severity.WARNING,
    source="heuristic: a rank of NCCL, OpenBLAS and DataLoader workers starts hundreds of threads",
)


@check("limits", rules=(FILES, MEMLOCK, TASKS))
def limits(context: Context) -> Outcome:
    """Are the limits of open files, locked memory and processes high enough?"""
    host = context.host
    files, memlock = host.rlimit("NOFILE"), host.rlimit("MEMLOCK")
    allowed = [n for n in (context.limits.pids_limit, host.rlimit("NPROC")) if n is not None]
    tasks = min(allowed, default=None)
    findings = [*_low(FILES, files, WANTED_FILES, what="open files"), *_memlock(context, memlock)]
    findings += _low(TASKS, tasks, WANTED_TASKS, what="processes and threads")
    message = f"{_words(files)} open files, {_words(tasks)} processes, {_words(memlock)} bytes of locked memory"
    return Outcome(message, tuple(findings), {"open_files": files, "processes": tasks, "locked_memory_bytes": memlock})


def _words(limit: int | None) -> str:
    return "unlimited" if limit is None else str(limit)


def _low(rule: Rule, limit: int | None, wanted: int, *, what: str) -> list[Finding]:
    if limit is None or limit >= wanted:
        return []
    return [rule.found(f"{limit} {what} are allowed, wanted {wanted} or more", limit=limit, wanted=wanted)]


def _memlock(context: Context, memlock: int | None) -> list[Finding]:
    devices = context.host.names("/sys/class/infiniband")
    if memlock is None or not devices or _may_lock(context.host.read("/proc/self/status") or ""):
        return []
    message = (
        f"{memlock} bytes of memory may be locked and CAP_IPC_LOCK is absent, wanted no limit or the capability "
        f"for the RDMA devices {', '.join(devices)}"
    )
    return [MEMLOCK.found(message, limit=memlock, devices=devices)]


def _may_lock(status: str) -> bool:
    effective = next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> CAP_IPC_LOCK & 1)
