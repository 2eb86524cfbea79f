"""Everything that the check `rdma` can find."""

from trainer_agent.check import Rule
from trainer_agent.errors import Action, Severity

NAMED = "or NCCL_IB_HCA has its very name"
USUAL = "at least three, and more than half, of the cards of its board and link layer"
LOOK = "look at `ibstat`, its cable and `dmesg | grep -i mlx5` on this node, and cordon it until the port is up"

PORT_DOWN = Rule(
    "rdma-port-down",
    when=f"a port is not active although {USUAL} have more active ports, {NAMED}; "
    "a warning when fewer cards tell, for InfiniBand and EFA",
    hint=LOOK,
    action=Action.RESCHEDULE,
    source="the other cards of this node are the yardstick; a state of `ACTIVE` is that of the subnet manager for "
    "InfiniBand, of the link for RoCE, of its net device for EFA, whose own state is always ACTIVE",
)
PORT_UNUSED = Rule(
    "rdma-port-unused",
    when="a port is not active, and nothing says that it should be: the other cards of its board have no more active "
    "ports, it is RoCE and its net device is switched off, or it is a virtual function",
    hint="nothing to do, unless it should be used: then name it in NCCL_IB_HCA",
    severity=Severity.INFO,
)
NOT_READY = Rule(
    "rdma-port-not-ready",
    when="a port that should be active is still INIT or ARMED after 10 s (5 s in the quick profile)",
    hint="look at the subnet manager (`sminfo` on this node): it has not configured this port",
    action=Action.RESCHEDULE,
    source="ports train for a while after a reboot; it is retry when no InfiniBand port of the node is active",
)
NONE_ACTIVE = Rule(
    "rdma-none-active",
    when="this container sees accelerators, no port is active, and some are InfiniBand or the job has several nodes",
    hint="look at `ibstat` on this node and at its switch; without RDMA NCCL uses TCP, many times slower",
    severity=Severity.WARNING,
)
MISSING = Rule(
    "rdma-device-missing",
    when="NCCL_IB_HCA names a device or port that is not here, while at least three quarters of those named are; "
    "a warning when fewer are",
    hint="look for the device in `lspci` and `dmesg` on this node: it may have fallen off the bus",
    action=Action.RESCHEDULE,
    source="NCCL goes on with the others without a word; where none is here, `environment` says it",
)
PORTS_FEWER = Rule(
    "rdma-ports-fewer",
    when="a card has fewer ports than at least two, and most, of the other cards of its board",
    hint="compare its firmware and configuration (`mlxconfig`) with the other cards",
    severity=Severity.WARNING,
)
RATE_LOW = Rule(
    "rdma-rate-low",
    when="one port alone is slower than at least three others of its board and link layer that are equally fast; "
    "a warning when several are slower, or fewer tell",
    hint="reseat or replace its cable and look at `mlxlink -d` of the device, and cordon this node until then; "
    "leave one that is not for training, such as storage's, out by TRAINER_AGENT_RDMA_EXCLUDE",
    action=Action.RESCHEDULE,
    source="the other ports of this node are the yardstick; several slower ones may be meant, such as storage",
)
NO_GID = Rule(
    "rdma-gid-missing",
    when="an active RoCE port has no address at all, while at least two others of its board have one, or NCCL_IB_HCA "
    "has its very name; otherwise a warning",
    hint="look at `ip address` of its net device on the node, and at the CNI that moves it into the pod",
    action=Action.RESCHEDULE,
    source="RoCE derives an address from the MAC alone, so an empty table is broken; no queue pair can be connected",
)
LINK_LOCAL = Rule(
    "rdma-gid-link-local",
    when="an active RoCE port has link-local addresses only, while another of its board has more",
    hint="look at `ip address` of its net device on the node: its IP address is missing",
    severity=Severity.WARNING,
    source="such an address does not go through a router",
)
MTU = Rule(
    "rdma-mtu-differs",
    when="the net device of an active RoCE port has another MTU than most of its board",
    hint="set the same MTU on all of them (`ip link set DEVICE mtu`)",
    severity=Severity.WARNING,
    source="RoCE takes the largest of its own MTUs that fits",
)
NO_NODES = Rule(
    "rdma-nodes-missing",
    when="this container sees accelerators and RDMA devices, and has no /dev/infiniband/uverbs*; "
    "info without accelerators",
    hint="request the device plugin's resource for RDMA (such as rdma/hca or vpc.amazonaws.com/efa) in the trainer's "
    "container, and look at the plugin's pods; an init container may do without",
    severity=Severity.WARNING,
    source="verbs are opened through these nodes; NCCL goes on with TCP, many times slower",
)
FLAPPED = Rule(
    "rdma-link-flapped",
    when="link_downed of a used port rose while this check ran",
    hint=LOOK,
    action=Action.RESCHEDULE,
    source="only a rise counts: totals since the last reset prove nothing and stick at 255",
)
ERRORS = Rule(
    "rdma-errors",
    when="an error counter of a used port rose while this check ran",
    hint="look at `mlxlink -d` of the device and at its cable; training will be slower",
    severity=Severity.WARNING,
    source="only a rise counts: totals since the last reset prove nothing",
)
NO_GPUDIRECT = Rule(
    "rdma-gpudirect-missing",
    when="there are NVIDIA GPUs and RDMA, the driver is the proprietary one, and nvidia_peermem is not loaded",
    hint="run `modprobe nvidia_peermem` on the node, or use the open kernel modules, which need none (dma-buf)",
    severity=Severity.WARNING,
    source="without either, NCCL copies all data through the memory of the CPU",
)
RULES = (
    *(PORT_DOWN, PORT_UNUSED, NOT_READY, NONE_ACTIVE, MISSING, PORTS_FEWER, RATE_LOW, NO_GID, LINK_LOCAL, MTU),
    *(NO_NODES, FLAPPED, ERRORS, NO_GPUDIRECT),
)
