"""What differs between the nodes of a job, told before a collective waits for ever because of it; pure functions."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from trainer_agent.check import Rule
from trainer_agent.errors import Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from trainer_agent.errors import Finding

SHAPE_DIFFERS = Rule(
    "shape-differs",
    when="the nodes do not agree on how many they are, or start different numbers of processes",
    hint="give all nodes the same number of nodes, of processes and of GPUs",
    source="NVIDIA/nccl#2385: ranks that are spread unevenly, 7 and 8, wait for each other for ever",
)
NODES_DIFFER = Rule(
    "nodes-differ",
    when="the nodes have other GPUs (model, number, MIG), another torch, CUDA of torch or NCCL, or another value of "
    "a setting that all ranks must share, such as NCCL_ALGO",
    hint="give all nodes the same image, environment and kind of GPU",
    source="what NCCL or torch refuse, or hang with; the reason for each key is in the evidence",
)
NODES_DIFFER_SLIGHTLY = Rule(
    "nodes-differ-slightly",
    when="the nodes differ in something that may cost speed or reproducibility, such as the driver; info where nodes "
    "may well differ, such as the name of an interface",
    hint="compare the image and the setup of the nodes that are named with the others",
    severity=Severity.WARNING,
    source="see the reason for each key in the evidence",
)
NODES_SHARE_HOST = Rule(
    "nodes-share-host",
    when="several nodes of the job run on one machine; info when they have no GPUs",
    hint="spread the pods with a topologySpreadConstraint or podAntiAffinity, unless this is meant",
    severity=Severity.WARNING,
    source="pods on one machine share its network and its failures",
)
RULES = (SHAPE_DIFFERS, NODES_DIFFER, NODES_DIFFER_SLIGHTLY, NODES_SHARE_HOST)

# A message lists so many names; the report has all of them.
MOST = 8
UNSET = "not set"
Value = str | int


class Mark(NamedTuple):
    """How a difference of one key is told, how bad it is, and why."""

    label: str
    severity: Severity
    why: str


E, W, I = Severity.ERROR, Severity.WARNING, Severity.INFO  # noqa: E741 - columns of a table
IMAGE = "the nodes run different images"
TABLE = {
    "nnodes": Mark("nnodes", E, "everybody waits for as many as it was told"),
    "nproc": Mark("processes", E, "NVIDIA/nccl#2385: 7 and 8 ranks deadlock"),
    "gpus": Mark(
        "GPUs", E, "NVIDIA/nccl#794, #1184: collectives hang when models are mixed; the slowest sets the pace"
    ),
    "gpu_count": Mark("GPU count", E, "NVIDIA/nccl#2385: 7 and 8 ranks deadlock"),
    "mig": Mark("MIG on", E, "a slice has a fraction of a GPU, and no NVLink"),
    "torch": Mark("torch", E, "pytorch/pytorch#175023: all processes of a job are expected to run the same version"),
    "torch_cuda": Mark("torch's CUDA", E, "it is another build of torch, with another NCCL"),
    "nccl": Mark("NCCL", E, "ncclCommInitRank refuses it: Mismatched NCCL version detected (src/init.cc)"),
    "nccl_on_the_way": Mark("NCCL in LD_LIBRARY_PATH", I, "torch mostly loads its own first"),
    "agent": Mark("trainer-agent", W, IMAGE),
    "python": Mark("Python", W, IMAGE),
    "cudnn": Mark("cuDNN", W, IMAGE),
    "checks": Mark("checks", W, "a node that ran fewer checks passes more easily"),
    "driver": Mark("driver", W, "one image runs on several drivers, but bugs and speed may differ"),
    "cuda_driver": Mark("CUDA of the driver", I, "it follows the driver, which is compared itself"),
    "vbios": Mark("VBIOS", W, "power limits and clocks may differ"),
    "ecc": Mark("ECC on", W, "memory errors go unnoticed where it is off"),
    "gpu_memory_bytes": Mark("GPU memory", W, "the smallest decides what fits"),
    "arch": Mark("CPU architecture", W, "NCCL's src/init.cc: mixed CPUs have caused locks in some collectives"),
    "rdma_ports": Mark("RDMA ports", W, "NVIDIA/nccl#2428, #234: may hang, or the node with fewer sets the pace"),
    "rdma_mtu_bytes": Mark("RDMA MTU", W, "large packets may vanish on the way, as only small ones fit"),
    "rdma_devices": Mark("RDMA devices", I, "names may differ where the hardware does not"),
    "rdma_firmware": Mark("RDMA firmware", I, "clusters are updated node by node"),
    "kernel": Mark("kernel", I, "clusters are updated node by node"),
    "os": Mark("OS", I, "it is that of the image, and the versions in it are compared themselves"),
    "cluster_uuid": Mark("NVLink domain", I, "a job may span several racks"),
    "clique": Mark("NVLink clique", I, "a job may span several racks"),
}
# NCCL reads these on each rank by itself, after or without the exchange that aligns what the ranks found of their
# machines (src/init.cc, src/graph/tuning.cc, src/graph/connect.cc, 2.30), and decides the algorithm, the protocol, the
# number of channels or the size of a message with them. A rank that decides otherwise waits for ever, as in
# NVIDIA/nccl#1136, or fails, as in #1328; one communicator has one kind of network (#878).
ALIKE = Mark("", E, "all ranks must decide alike; NVIDIA/nccl#1136, #1328, #878")
ALIKE_NAMES = re.compile(
    r"NCCL_(ALGO|PROTO|NET|IB_DISABLE|SOCKET_MAGIC|COLLNET_ENABLE|COLLNET_NODE_THRESHOLD|PAT_ENABLE|NET_OVERHEAD"
    r"|(LL_|LL128_)?BUFFSIZE|CHUNK_SIZE|P2P_NET_CHUNKSIZE|P2P_LL_THRESHOLD"
    r"|(LL128_)?NTHREADS|THREAD_THRESHOLDS|(MIN|MAX)_(NCHANNELS|NRINGS|CTAS))|GLOO_DEVICE_TRANSPORT"
)
DEFAULTS = {"NCCL_IB_DISABLE": "0", "NCCL_COLLNET_ENABLE": "0"}  # as NCCL's user guide has them
# System configuration in NCCL's user guide that names something of the machine, and what only prints or records.
LOCAL = Mark("", I, "names of devices, files and logs belong to the machine")
LOCAL_NAMES = re.compile(
    r"(NCCL_(OOB_NET|SOCKET)|GLOO_SOCKET)_IFNAME|NCCL_IB_(HCA|GID_INDEX|ADDR_RANGE)|NCCL_TOPO_\w+|NCCL_\w*FILE"
    r"|NCCL_(RAS|PROFILER?)_\w+|(TORCH_)?NCCL_DEBUG\w*|GLOO_LOG_LEVEL|GLOO_DEVICE_TRANSPORT_TCP_TLS_\w+"
    r"|NCCL_(IGNORE_CPU_AFFINITY|SET_THREAD_NAME|MNNVL_CLIQUE_ID)"
)
OTHER = Mark("", W, "a setting of the job is the same on all nodes; NVIDIA/nccl#260")
MEANT_TO_DIFFER = {"NCCL_HOSTID"}


@dataclass(frozen=True)
class Difference:
    """
    A key that has several values.

    Args:
        values: each with the ranks that have it, the most frequent first, then that of the lowest rank.
        minority: the ranks that have another than the most frequent; none where two are equally frequent.
    """

    key: str
    severity: Severity
    values: tuple[tuple[Value, tuple[int, ...]], ...]
    minority: tuple[int, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        values = [{"value": value, "ranks": list(ranks)} for value, ranks in self.values]
        return {"key": self.key, "severity": str(self.severity), "values": values, "minority": list(self.minority)}


@dataclass(frozen=True)
class SharedHost:
    """Ranks whose nodes are one machine; a warning when one of them has GPUs."""

    ranks: tuple[int, ...]
    severity: Severity


def differences(marks: Mapping[int, Mapping[str, Any]]) -> list[Difference]:
    """Return what differs between the fingerprints, by rank, of the nodes; what is not known differs from nothing."""
    columns = {key: {rank: _read(key, mark) for rank, mark in marks.items()} for key in TABLE}
    columns["checks"] = _checks(marks)
    found = (_difference(key, column) for key, column in (columns | _settings(marks)).items())
    return [difference for difference in found if difference]


def hosts(marks: Mapping[int, Mapping[str, Any]]) -> dict[int, str]:
    """Return the boot id of the machine of each rank, as far as it is known."""
    return {rank: str(mark["boot_id"]) for rank, mark in sorted(marks.items()) if mark.get("boot_id")}


def shared_hosts(marks: Mapping[int, Mapping[str, Any]]) -> list[SharedHost]:
    """Return the machines that run several nodes."""
    by_host: dict[str, list[int]] = defaultdict(list)
    for rank, boot_id in hosts(marks).items():
        by_host[boot_id].append(rank)
    return [
        SharedHost(tuple(ranks), Severity.WARNING if any(marks[r].get("gpu_count") for r in ranks) else Severity.INFO)
        for ranks in by_host.values()
        if len(ranks) > 1
    ]


def findings(
    different: Iterable[Difference], shared: Sequence[SharedHost], names: Mapping[int, str]
) -> tuple[Finding, ...]:
    """Return all of it as findings, the worst first; `names` are the hostnames by rank."""
    found = [_finding(each, names) for each in different] + ([_sharing(shared, names)] if shared else [])
    return tuple(sorted(found, key=lambda finding: (E, W, I).index(finding.severity)))


def mark_of(key: str) -> Mark:
    """Return how a difference of a key, or of `settings.NAME`, is told."""
    name = key.removeprefix("settings.")
    if name == key:
        return TABLE[key]
    mark = ALIKE if ALIKE_NAMES.fullmatch(name) else LOCAL if LOCAL_NAMES.fullmatch(name) else OTHER
    return mark._replace(label=name)


def _difference(key: str, column: Mapping[int, Value | None]) -> Difference | None:
    ranks_of: dict[Value, list[int]] = defaultdict(list)
    for rank, value in sorted(column.items()):
        if value is not None:
            ranks_of[value].append(rank)
    if len(ranks_of) < 2:
        return None
    values = sorted(ranks_of.items(), key=lambda each: (-len(each[1]), each[1][0]))
    tie = len(values[0][1]) == len(values[1][1])
    minority = () if tie else tuple(sorted(rank for _, ranks in values[1:] for rank in ranks))
    return Difference(key, mark_of(key).severity, tuple((value, tuple(ranks)) for value, ranks in values), minority)


def _settings(marks: Mapping[int, Mapping[str, Any]]) -> dict[str, dict[int, Value | None]]:
    told = {rank: mark["settings"] for rank, mark in marks.items() if isinstance(mark.get("settings"), dict)}
    names = sorted({str(name) for settings in told.values() for name in settings} - MEANT_TO_DIFFER)
    return {
        f"settings.{name}": {rank: _setting(name, settings.get(name)) for rank, settings in told.items()}
        for name in names
    }


def _setting(name: str, value: Any) -> str:
    """Return a setting as NCCL reads it: an empty one is not set, and the case of what must be alike says nothing."""
    text = str(value or "").strip() or DEFAULTS.get(name, UNSET)
    return text.lower() if ALIKE_NAMES.fullmatch(name) else text


def _checks(marks: Mapping[int, Mapping[str, Any]]) -> dict[int, Value | None]:
    told = {rank: set(map(str, mark["checks"])) for rank, mark in marks.items() if isinstance(mark.get("checks"), list)}
    every: set[str] = set().union(*told.values())
    absent = {rank: ", ".join(sorted(every - ran)) for rank, ran in told.items()}
    return {rank: f"all but {names}" if names else "all" for rank, names in absent.items()}


def _read(key: str, mark: Mapping[str, Any]) -> Value | None:
    return _text(READERS[key](mark) if key in READERS else mark.get(key))


def _text(value: Any) -> Value | None:
    """Return what a message can say; nothing where nothing is known."""
    if isinstance(value, list):
        value = ", ".join(dict.fromkeys(str(each) for each in value))
    return value if isinstance(value, int) else str(value or "").strip() or None


def _part(mark: Mapping[str, Any], key: str) -> str | None:
    """Return how many of the GPUs have something, so that nodes of different sizes compare."""
    some, everything = mark.get(key), mark.get("gpu_count")
    if some is None or not everything:
        return None
    return {0: "no GPU", everything: "all GPUs"}.get(some, f"{some} of {everything} GPUs")


def _nccl(mark: Mapping[str, Any]) -> str:
    """Return the version that will be loaded, in the three numbers that NCCL compares."""
    version = mark.get("nccl_preloaded") if mark.get("nccl_preloaded_path") else mark.get("nccl")
    return ".".join(str(version or "").split(".")[:3])


READERS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "nproc": lambda mark: mark.get("nproc") or mark.get("processes"),
    # The models only; their numbers are compared by themselves.
    "gpus": lambda mark: re.sub(r"(^|, )\d+ x ", r"\1", str(mark.get("gpus") or "")),
    "mig": lambda mark: _part(mark, "mig"),
    "ecc": lambda mark: _part(mark, "ecc"),
    "nccl": _nccl,
    # A driver keeps some MiB more for itself than another.
    "gpu_memory_bytes": lambda mark: [f"{round(size / 2**30)} GiB" for size in mark.get("gpu_memory_bytes") or ()],
    "rdma_ports": lambda mark: "none" if mark.get("rdma_ports") == [] else mark.get("rdma_ports"),
}


def _finding(difference: Difference, names: Mapping[int, str]) -> Finding:
    mark = mark_of(difference.key)
    rule = NODES_DIFFER if difference.severity is E else NODES_DIFFER_SLIGHTLY
    rule = SHAPE_DIFFERS if difference.key in ("nnodes", "nproc") else replace(rule, severity=difference.severity)
    values = [{"value": value, "nodes": len(ranks)} for value, ranks in difference.values]
    evidence = {"key": difference.key, "values": values, "ranks": list(difference.minority), "why": mark.why}
    return rule.found(_message(difference, mark.label, names), **evidence)


def _message(difference: Difference, label: str, names: Mapping[int, str]) -> str:
    """Return who has what, and what is wanted; of what may well differ nothing is."""
    values, may_differ = difference.values, difference.severity is I
    if not difference.minority:
        told = _each(values, names, lambda who, value, _: f"{value} on {who}")
        return f"{label} differs: {told}" + ("" if may_differ else "; wanted the same everywhere")
    told = _each(values[1:], names, lambda who, value, n: f"{who} {'have' if n > 1 else 'has'} {label} {value}")
    return f"{told}, {'not' if may_differ else 'wanted'} {values[0][0]} as the {len(values[0][1])} others"


def _each(
    values: Sequence[tuple[Value, tuple[int, ...]]],
    names: Mapping[int, str],
    words: Callable[[str, Value, int], str],
) -> str:
    """Return some words on each value, with as many names in all as a message may have."""
    room = max(1, MOST // len(values))
    parts = [words(_who(ranks, names, room), value, len(ranks)) for value, ranks in values[:MOST]]
    return ", ".join(parts) + (f" and {len(values) - MOST} more values" if len(values) > MOST else "")


def _who(ranks: Sequence[int], names: Mapping[int, str], room: int) -> str:
    shown = [f"node {rank} ({names[rank]})" if names.get(rank) else f"node {rank}" for rank in ranks[:room]]
    return ", ".join(shown) + (f" and {len(ranks) - room} more" if len(ranks) > room else "")


def _sharing(shared: Sequence[SharedHost], names: Mapping[int, str]) -> Finding:
    """Return one finding, however many hosts there are, as bad as the worst."""
    severity = W if any(each.severity is W for each in shared) else I
    room = max(2, MOST // len(shared))
    told = [f"{_who(each.ranks, names, room)} are one machine" for each in shared[: MOST // 2]]
    more = f" and {len(shared) - len(told)} more" if len(shared) > len(told) else ""
    text = f"{', '.join(told)}{more}, wanted a machine for each node"
    hosts_of = [list(each.ranks) for each in shared]
    return replace(NODES_SHARE_HOST, severity=severity).found(text, key="boot_id", hosts=hosts_of)
