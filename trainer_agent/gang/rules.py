"""Everything that the gang can find: the rules of the checks `roll-call` and `collective`."""

from __future__ import annotations

from trainer_agent.check import Rule
from trainer_agent.errors import Action, Severity

NODE_MISSING = Rule(
    "node-missing",
    when="a node has not arrived within --gang-timeout seconds",
    hint="look at its pod: `kubectl describe pod` says whether it was scheduled, pulls its image, or failed",
    action=Action.RESCHEDULE,
)
NODE_LOST = Rule(
    "node-lost",
    when="a node that had arrived gave no sign of life for 6 s",
    hint="look at its pod and its node: it was killed, stopped, or lost its network",
    action=Action.RESCHEDULE,
    source="heuristic: a sign comes every second, and where a third of all packets is lost TCP takes some seconds",
)
NODE_FAILED = Rule(
    "node-failed",
    when="a node failed a check of its own, and withdrew",
    hint="its own report says what to do; nothing is wrong with the nodes that only waited for it",
    action=Action.RESCHEDULE,
)
LINK_LOST = Rule(
    "link-lost",
    when="two nodes do not reach each other although both reach others",
    hint="look at the network between the two: routes, network policies, cables and switch ports",
    action=Action.RESCHEDULE,
)
CONTACT_LOST = Rule(
    "contact-lost",
    when="two nodes do not reach each other, and no third can tell whose fault it is",
    hint="run `trainer-agent preflight` on both, and look at the network between them",
    action=Action.RESCHEDULE,
)
RANK_TAKEN = Rule(
    "rank-taken",
    when="another agent with the same node rank started later",
    hint="this one gives way, as it does when its pod was replaced; if it was not, two pods have one PET_NODE_RANK",
    action=Action.RETRY,
)
OTHER_GANG = Rule(
    "other-gang",
    when="for --gang-timeout seconds rank 0 was of another attempt of the job, of another job, or of another version "
    "of trainer-agent",
    hint="one of the two is about to be replaced; if not, give all pods the same image and the same --attempt, and "
    "other master ports to jobs that share a machine's network",
    action=Action.RETRY,
)
MASTER_ELSEWHERE = Rule(
    "master-elsewhere",
    when="the name of rank 0 leads to another node, and nobody has come within --gang-timeout, or 60 s if static",
    hint="two nodes have rank 0, or ranks are swapped: rank 0 must be the pod that PET_MASTER_ADDR names",
    action=Action.RETRY,
    source="a headless service has a TTL of 30 s in Kubernetes: until then its names may lead to pods that are gone",
)
TORCH_SIDE_ENDED = Rule(
    "torch-side-ended",
    when="the process that connects this node with the others takes over 120 s to import torch, or ends",
    hint="look at the Python of --python, at its file system and at the container's memory",
    action=Action.RETRY,
    source="heuristic: torch may come from a cold network file system",
)
CLOCK_APART = Rule(
    "clock-apart",
    when="a node's clock is more than 30 s from that of rank 0",
    hint="synchronise the node's clock: TLS and tokens fail",
    action=Action.STOP,
    source="heuristic, that of the check clock; AWS refuses requests from clocks that are more than 15 minutes off",
)
CLOCK_SKEWED = Rule(
    "clock-skewed",
    when="a node's clock is more than 1 s from that of rank 0",
    hint="synchronise the node's clock: its logs cannot be compared",
    severity=Severity.WARNING,
    source="heuristic; measured by round trips, exact to the time that they take",
)
ROLL_CALL = (
    NODE_MISSING,
    NODE_LOST,
    NODE_FAILED,
    LINK_LOST,
    CONTACT_LOST,
    RANK_TAKEN,
    OTHER_GANG,
    MASTER_ELSEWHERE,
    TORCH_SIDE_ENDED,
    CLOCK_APART,
    CLOCK_SKEWED,
)

NODE_FAULT = Rule(
    "collective-node-failed",
    when="collectives fail or give wrong numbers with this node, and do clearly better without it",
    hint="take the node out of service and test its GPUs and network cards; the avoid-list has its name",
    action=Action.RESCHEDULE,
    source="pair rounds; benchmarks/localise.py has how often the answer is exact",
)
DEVICE_FAULT = Rule(
    "collective-device-failed",
    when="of all rails between a node at fault and a healthy one, only those of some of its GPUs fail",
    hint="test this GPU and the network card of its rail",
    action=Action.RESCHEDULE,
)
LINK_FAULT = Rule(
    "collective-link-failed",
    when="two nodes always fail with each other, and never with others",
    hint="look at the network between the two: routes, network policies, cables and switch ports",
    action=Action.RESCHEDULE,
)
UNDETERMINED = Rule(
    "collective-undetermined",
    when="some nodes failed with each other, and nothing tells which of them it was",
    hint="run `trainer-agent preflight --profile deep` on each of them",
    action=Action.RESCHEDULE,
)
UNEXPLAINED = Rule(
    "collective-failed",
    when="the collective of all nodes fails twice although every pair of nodes that was tried works",
    hint="the evidence has the last words of its ranks; look for limits that only many connections reach",
    action=Action.RETRY,
)
FLAKY = Rule(
    "collective-flaky",
    when="the collective of all nodes failed once, then every pair worked, and the second time it passed",
    hint="go on, and look here first when the job hangs",
    severity=Severity.WARNING,
)
RANK_DIED = Rule(
    "collective-rank-died",
    when="a rank of the collective is ended by a signal that nobody here sent",
    hint="SIGKILL mostly is the kernel that runs out of memory: `dmesg` on this node says so",
    action=Action.RESCHEDULE,
)
MISCONFIGURED = Rule(
    "collective-misconfigured",
    when="NCCL refuses its settings, or libraries of different versions: ncclInvalidUsage, ncclInvalidArgument; or "
    "GPUs of a multi-node NVLink domain have no IMEX channel",
    hint="correct the NCCL_* variables that the evidence names, or take an image with one NCCL; for IMEX channels give "
    "the pods a ComputeDomain, or set NCCL_MNNVL_ENABLE=0",
    action=Action.STOP,
    source="NCCL's result codes; for IMEX its mnnvl.cc",
)
SHM_SMALL = Rule(
    "collective-shm-small",
    when="NCCL ends with ncclSystemError, whose last words speak of shared memory or are missing, where /dev/shm is "
    "missing, read-only, or has less than 64 MiB free for each rank of the node",
    hint="mount an emptyDir with medium: Memory at /dev/shm in the runtime's pod template",
    action=Action.STOP,
    source="heuristic: NCCL keeps 10 MB and more of it for each rank; the container default is 64 MiB in all",
)
STRAGGLER = Rule(
    "straggler",
    when="the best rate of a node is below a quarter of the median of all nodes, and 5 MADs away from it",
    hint="look at the node's network card, cable and switch port, and at who else uses them",
    action=Action.RESCHEDULE,
    source="heuristic; a link that came up with one lane of four is at a quarter",
)
SLOWER = Rule(
    "slower-node",
    when="the best rate of a node is below half of the median of all nodes, and 5 MADs away from it",
    hint="look at the node's network card, cable and switch port, and at who else uses them",
    severity=Severity.WARNING,
    source="heuristic: more than noise, less than a lost lane",
)
SLOW = Rule(
    "collective-slow",
    when="the bus bandwidth of the collective is below 60 % of what its network cards can do (a warning below 80 %, "
    "and for what nobody has published: buffers below 512 MiB, more than 4 nodes)",
    hint="see which network NCCL uses (transport), and compare the rails with --profile deep",
    action=Action.RESCHEDULE,
    source="nccl-tests as published for nodes of 8 B200 and of 8 A100; judged are nodes of 8 A100, H100, H200 or B200",
)
SLOWER_THAN_BEFORE = Rule(
    "slower-than-before",
    when="the bus bandwidth is below 60 % of the median of earlier runs of --gang-history",
    hint="compare the reports: another node, another route, or a neighbour that uses the network",
    severity=Severity.WARNING,
    source="heuristic: runs of one collective on healthy nodes differ by less; three earlier runs are needed",
)
SOCKETS = Rule(
    "collective-over-sockets",
    when="NCCL uses sockets although this node has RDMA devices that are active",
    hint="look at NCCL_IB_DISABLE, NCCL_NET and at the rdma check: a plugin or /dev/infiniband may be missing",
    severity=Severity.WARNING,
    source="heuristic: sockets mostly reach a tenth of the rate of RDMA",
)
COLLECTIVE = (
    NODE_FAULT,
    DEVICE_FAULT,
    LINK_FAULT,
    UNDETERMINED,
    UNEXPLAINED,
    FLAKY,
    RANK_DIED,
    MISCONFIGURED,
    SHM_SMALL,
    STRAGGLER,
    SLOWER,
    SLOW,
    SLOWER_THAN_BEFORE,
    SOCKETS,
)
