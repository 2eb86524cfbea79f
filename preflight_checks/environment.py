"""The environment that the controller injected, and settings of NCCL and Gloo that cannot work here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trainer_agent.check import Context, Outcome, Rule, check
from trainer_agent.errors import Action, Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trainer_agent.topology import Topology

READER = "what torchrun accepts and Kubeflow Trainer injects"
# The messages and hints of these are written where the environment is read.
TOPOLOGY = (
    Rule("not-an-integer", "a number is not a whole number", "set the variable to a number", source=READER),
    Rule("out-of-range", "a number is outside its range", "set the variable to a number in its range", source=READER),
    Rule("nnodes-invalid", "PET_NNODES is neither N nor MIN:MAX", "set it to 2, or 1:4 when elastic", source=READER),
    Rule(
        "nproc-invalid",
        "PET_NPROC_PER_NODE is neither auto, cpu, gpu nor a number of 1 or more",
        "set spec.trainer.numProcPerNode of the TrainJob",
        source=READER,
    ),
    Rule(
        "master-addr-missing",
        "there are several nodes and the address of rank 0 is not set",
        "give the TrainJob a spec.trainer (an empty one is enough)",
        source=READER,
    ),
    Rule("endpoint-invalid", "PET_RDZV_ENDPOINT has no valid port", "write it as host:port", source=READER),
    Rule(
        "elastic-needs-c10d",
        "PET_RDZV_BACKEND is static although PET_NNODES is a range",
        "set PET_RDZV_BACKEND=c10d, or leave it unset",
        source="a static rendezvous waits for the largest number of nodes",
    ),
    Rule(
        "rank-outside-nnodes",
        "this node's rank is not below the number of nodes",
        "set PET_NNODES to the number of pods",
        source=READER,
    ),
    Rule(
        "pet-missing",
        "this is a pod of a TrainJob and no PET_* variable is set; a warning for the pod with index 0 and with "
        "--launcher python, nothing with --scope node",
        "list the container in mlPolicy.torch.envInjection of the runtime",
        source=READER,
    ),
    Rule(
        "rank-differs-from-pod",
        "PET_NODE_RANK is not the index in the pod's name",
        "make sure that another pod does not have this rank too",
        severity=Severity.WARNING,
        source="two pods with one rank cannot rendezvous",
    ),
)
INIT_CONTAINER = "what launch would do; a warning, as an init container may have no devices of its own"
REFUSALS = (
    Rule(
        "no-accelerator",
        "accelerators are asked for and none is visible in this container",
        "check that the trainer's container requests nvidia.com/gpu",
        severity=Severity.WARNING,
        source=INIT_CONTAINER,
    ),
    Rule(
        "gpu-driver-broken",
        "accelerators are asked for and the NVIDIA driver does not answer",
        "cordon this node and look at `nvidia-smi` and `dmesg` on it",
        severity=Severity.WARNING,
        source=INIT_CONTAINER,
    ),
)
INTERFACE = Rule(
    "interface-missing",
    when="NCCL_SOCKET_IFNAME leaves no network interface, or one that GLOO_SOCKET_IFNAME names does not exist; "
    "an error for NCCL where several processes use GPUs",
    hint="compare the variable with `ls /sys/class/net` in this pod, or leave it unset",
    severity=Severity.WARNING,
    source="NCCL ends with `no socket interface found`, Gloo with `Unable to find address for`",
)
ADAPTER = Rule(
    "adapter-missing",
    when="NCCL_IB_HCA leaves no device of /sys/class/infiniband",
    hint="compare the variable with `ls /sys/class/infiniband` in this pod, or leave it unset",
    severity=Severity.WARNING,
    source="NCCL falls back to TCP without a word, many times slower",
)
DISABLED = Rule(
    "transport-disabled",
    when="NCCL_P2P_DISABLE, NCCL_SHM_DISABLE, or with RDMA devices NCCL_IB_DISABLE, is 1",
    hint="unset the variable, unless this hardware needs it",
    severity=Severity.WARNING,
    source="left over from debugging: NCCL then takes a path that is many times slower",
)


@check("environment", rules=(*TOPOLOGY, *REFUSALS, INTERFACE, ADAPTER, DISABLED))
def environment(context: Context) -> Outcome:
    """Does the environment describe a job that can work, and do NCCL's settings fit this machine?"""
    findings = [*_of_the_job(context), *_refusal(context)]
    findings += [*_nccl_interface(context), *_gloo_interface(context), *_adapter(context), *_disabled(context)]
    return Outcome(_summary(context.topology, context.nproc), tuple(findings), {"processes": context.nproc})


def _summary(topology: Topology, nproc: int) -> str:
    processes = "1 process" if nproc == 1 else f"{nproc} processes"
    if topology.runtime == "plain":
        return f"no job: this machine alone, {processes}"
    if topology.runtime == "mpi":
        return f"mpi: {processes} here; the hostfile has the hosts"
    nodes = f"{topology.min_nodes} to {topology.max_nodes}" if topology.elastic else str(topology.max_nodes)
    return f"{topology.runtime}: nodes {nodes}, this one has rank {topology.node_rank}, {processes} here"


def _of_the_job(context: Context) -> Iterator[Finding]:
    """Yield what is wrong with the job; whoever checks a machine by itself, as a Job for all of them does, has none."""
    for finding in context.topology.findings:
        if finding.code != "pet-missing":
            yield finding
        elif context.options.scope != "node":
            yield replace(finding, hint=f"{finding.hint}; to check this machine by itself: --scope node")


def _refusal(context: Context) -> list[Finding]:
    refusal = context.refusal
    if refusal is None:
        return []
    return [Finding(refusal.code, refusal.message, Severity.WARNING, refusal.hint, Action.CONTINUE)]


def chosen(setting: str, names: Iterable[str]) -> list[str]:
    """Return which of `names` NCCL would use: `setting` lists prefixes, or after `=` names, or after `^` exclusions."""
    text = setting.removeprefix("^")
    exact = text.startswith("=")
    entries = [e.strip() for e in text.removeprefix("=").split(",") if e.strip()]
    return [n for n in names if any(_fits(e, n, exact=exact) for e in entries) is not setting.startswith("^")]


def _fits(entry: str, name: str, *, exact: bool) -> bool:
    wanted, _, wanted_port = entry.partition(":")
    given, _, port = name.partition(":")
    if wanted_port and port and wanted_port != port:
        return False
    return given == wanted if exact else given.startswith(wanted)


def _nccl_interface(context: Context) -> list[Finding]:
    setting = context.environ.get("NCCL_SOCKET_IFNAME", "").strip()
    names = context.host.names("/sys/class/net")
    if not setting or not names or chosen(setting, names):
        return []
    devices = context.accelerators.kind in ("nvidia", "mig", "amd") and context.accelerators.count > 0
    certain = devices and context.topology.max_nodes * context.nproc > 1
    rule = replace(INTERFACE, severity=Severity.ERROR) if certain else INTERFACE
    return [_unmatched(rule, "NCCL_SOCKET_IFNAME", setting, names)]


def _gloo_interface(context: Context) -> list[Finding]:
    setting = context.environ.get("GLOO_SOCKET_IFNAME", "").strip()
    names = context.host.names("/sys/class/net")
    if not names or all(entry in names for entry in setting.split(",") if entry):
        return []
    return [_unmatched(INTERFACE, "GLOO_SOCKET_IFNAME", setting, names)]


def _adapter(context: Context) -> list[Finding]:
    setting = context.environ.get("NCCL_IB_HCA", "").strip()
    root = "/sys/class/infiniband"
    devices = context.host.names(root)
    ports = [f"{d}:{p}" for d in devices for p in context.host.names(f"{root}/{d}/ports") or [""]]
    return [_unmatched(ADAPTER, "NCCL_IB_HCA", setting, devices)] if setting and not chosen(setting, ports) else []


def _unmatched(rule: Rule, variable: str, setting: str, names: Sequence[str]) -> Finding:
    message = f"{variable}={setting} names nothing that is here, wanted some of: {', '.join(names) or 'there are none'}"
    return rule.found(message, variable=variable, value=setting, present=list(names))


def _disabled(context: Context) -> list[Finding]:
    names = ["NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"]
    if context.host.names("/sys/class/infiniband"):
        names.append("NCCL_IB_DISABLE")
    left = [n for n in names if context.environ.get(n, "").strip() == "1"]
    return [DISABLED.found(f"{n}=1 is set, wanted 0 or unset", variable=n) for n in left]
