"""Shared memory: data-loader workers and NCCL's transport inside a node need it."""

from trainer_agent.check import Context, Outcome, Rule, check
from trainer_agent.errors import Finding, Severity

GIB = 1 << 30
# Heuristic: containers get 64 MiB by default, and that is the classic failure of DataLoader and NCCL.
WANTED_PER_PROCESS = GIB

SMALL = Rule(
    "shm-small",
    when="/dev/shm has less than 1 GiB for each process of this node",
    hint="mount an emptyDir with medium: Memory at /dev/shm in the runtime's pod template",
    severity=Severity.WARNING,
    source="heuristic: the container default of 64 MiB breaks DataLoader workers and NCCL's SHM transport",
)
NOT_WRITABLE = Rule(
    "shm-not-writable",
    when="/dev/shm is missing or read-only",
    hint="mount an emptyDir with medium: Memory at /dev/shm in the runtime's pod template",
    source="DataLoader workers pass tensors through files there",
)


@check("shm", rules=(SMALL, NOT_WRITABLE))
def shm(context: Context) -> Outcome:
    """Is /dev/shm large enough for the processes of this node?"""
    space = context.host.space("/dev/shm")
    if space is None:
        return Outcome(
            "there is no /dev/shm", (NOT_WRITABLE.found("/dev/shm does not exist, wanted a writable tmpfs"),)
        )
    measured = {"size_bytes": space.size, "free_bytes": space.free, "processes": context.nproc}
    if not space.writable:
        return Outcome(
            "read-only", (NOT_WRITABLE.found("/dev/shm is read-only, wanted a writable tmpfs", **measured),), measured
        )
    wanted = context.nproc * WANTED_PER_PROCESS
    findings: tuple[Finding, ...] = ()
    if space.size < wanted:
        message = f"/dev/shm has {space.size / GIB:.2f} GiB, wanted {wanted / GIB:g} GiB ({context.nproc} processes)"
        findings = (SMALL.found(message, **measured),)
    return Outcome(f"{space.size / GIB:.1f} GiB, {space.free / GIB:.1f} GiB free", findings, measured)
