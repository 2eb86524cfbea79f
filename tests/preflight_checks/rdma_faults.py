"""One of each fault that the check `rdma` can find, on the machine that shows it, and what is said of it."""

from dataclasses import dataclass, field, replace

from rdma_machines import ETH200, HDR, NO_GID, efa, ndr, roce, virtual_function, with_mezzanine

PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n"
FABRIC = "mlx5_{} port 1 (0000:{}:00.0)"
ONE, THREE, FIVE = FABRIC.format(1, "40"), FABRIC.format(3, "5e"), FABRIC.format(5, "c0")


@dataclass
class Fault:
    """
    One thing that is wrong.

    Args:
        changes: attributes by the number of the device, None when it is not there.
        later: what happens while the check waits.
        found: severity, code, action, (device, port)s and message of the only finding above info.
    """

    found: tuple
    machine: object = ndr
    changes: dict = field(default_factory=dict)
    environ: dict = field(default_factory=dict)
    later: object = None
    files: dict = field(default_factory=dict)


def rises(device, counter, number, folder="counters"):
    return lambda host: host.put(f"/sys/class/infiniband/{device}/ports/1/{folder}/{counter}", f"{number}\n")


DOWN = {"state": "DOWN"}
SEVEN = "7 of 8 cards of its board have 1 active"
NAMES = ",".join(f"mlx5_{n}" for n in range(8))
FAULTS = {
    "port down": Fault(
        (
            "error",
            "rdma-port-down",
            "reschedule",
            [("mlx5_3", 1)],
            f"{THREE}: it is DOWN (Polling), wanted ACTIVE, as {SEVEN}",
        ),
        changes={3: DOWN},
    ),
    "two ports down": Fault(
        (
            "error",
            "rdma-port-down",
            "reschedule",
            [("mlx5_3", 1), ("mlx5_5", 1)],
            f"{THREE}, {FIVE}: it is DOWN (Polling), wanted ACTIVE, as 6 of 8 cards of its board have 1 active",
        ),
        changes={3: DOWN, 5: DOWN},
    ),
    "port down beside unused functions": Fault(
        (
            "error",
            "rdma-port-down",
            "reschedule",
            [("mlx5_3", 1)],
            f"{THREE}: it is DOWN (Polling), wanted ACTIVE, as {SEVEN}",
        ),
        machine=with_mezzanine,
        changes={3: DOWN},
    ),
    "unreadable port": Fault(
        (
            "error",
            "rdma-port-down",
            "reschedule",
            [("mlx5_3", 1)],
            f"{THREE}: it is not readable (Sleep), wanted ACTIVE, as {SEVEN}",
        ),
        changes={3: {"state": "broken", "physical": "1: Sleep"}},
    ),
    "port of RoCE down": Fault(
        (
            "error",
            "rdma-port-down",
            "reschedule",
            [("mlx5_2", 1)],
            f"mlx5_2 port 1 (0000:12:00.0): it is DOWN (Disabled), wanted ACTIVE, as {SEVEN}",
        ),
        machine=roce,
        changes={2: {"state": "DOWN", "physical": "3: Disabled", "operstate": "down"}},
    ),
    "EFA down": Fault(
        (
            "error",
            "rdma-port-down",
            "reschedule",
            [("rdmap84s0", 1)],
            "rdmap84s0 port 1 (0000:54:00.0): it is DOWN, wanted ACTIVE, as 31 of 32 cards of its board have 1 active",
        ),
        machine=efa,
        changes={5: {"net": "efa5", "operstate": "down"}},
    ),
    "one of two cards down": Fault(
        (
            "warning",
            "rdma-port-down",
            "continue",
            [("mlx5_1", 1)],
            f"{ONE}: it is DOWN (Polling), wanted ACTIVE, as 1 of 2 cards of its board have 1 active",
        ),
        machine=lambda: ndr()[:2],
        changes={1: DOWN},
    ),
    "named port down": Fault(
        (
            "error",
            "rdma-port-down",
            "reschedule",
            [("mlx5_1", 1)],
            "mlx5_1 port 1 (0000:40:00.0): it is DOWN (Polling), wanted ACTIVE, as NCCL_IB_HCA names it",
        ),
        machine=lambda: ndr()[:2],
        changes={1: DOWN},
        environ={"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1"},
    ),
    "one port without a subnet manager": Fault(
        (
            "error",
            "rdma-port-not-ready",
            "reschedule",
            [("mlx5_3", 1)],
            f"{THREE}: it is INIT (LinkUp), wanted ACTIVE, which is for the subnet manager to do",
        ),
        changes={3: {"state": "INIT"}},
    ),
    "no subnet manager": Fault(
        (
            "error",
            "rdma-port-not-ready",
            "retry",
            [(f"mlx5_{n}", 1) for n in range(2)],
            (
                "mlx5_0 port 1 (0000:18:00.0), mlx5_1 port 1 (0000:40:00.0): it is INIT (LinkUp), wanted ACTIVE, "
                "which is for the subnet manager to do"
            ),
        ),
        machine=lambda: ndr()[:2],
        changes={0: {"state": "INIT"}, 1: {"state": "INIT"}},
    ),
    "no port active": Fault(
        (
            "warning",
            "rdma-none-active",
            "continue",
            [("mlx5_0", 1), ("mlx5_1", 1)],
            "mlx5_0 port 1 (0000:18:00.0), mlx5_1 port 1 (0000:40:00.0): none is ACTIVE, wanted one at least",
        ),
        machine=lambda: ndr()[:2],
        changes={0: DOWN, 1: DOWN},
    ),
    "device gone": Fault(
        (
            "error",
            "rdma-device-missing",
            "reschedule",
            [("mlx5_7", None)],
            "mlx5_7: not here although NCCL_IB_HCA names it, wanted beside " + NAMES[:-7].replace(",", ", "),
        ),
        changes={7: None},
        environ={"NCCL_IB_HCA": NAMES},
    ),
    "list of a larger machine": Fault(
        (
            "warning",
            "rdma-device-missing",
            "continue",
            [("mlx5_8", None), ("mlx5_9", None), ("mlx5_10", None)],
            "mlx5_8, mlx5_9, mlx5_10: not here although NCCL_IB_HCA names it, wanted beside "
            + NAMES.replace(",", ", "),
        ),
        environ={"NCCL_IB_HCA": f"={NAMES},mlx5_8,mlx5_9,mlx5_10"},
    ),
    "slow port": Fault(
        (
            "error",
            "rdma-rate-low",
            "reschedule",
            [("mlx5_3", 1)],
            f"{THREE}: its rate is 200 Gb/sec (4X HDR), wanted 400 Gb/sec as 7 others of its board",
        ),
        changes={3: {"rate": HDR}},
    ),
    "several slow ports": Fault(
        (
            "warning",
            "rdma-rate-low",
            "continue",
            [("mlx5_3", 1), ("mlx5_5", 1)],
            f"{THREE}, {FIVE}: its rate is 200 Gb/sec (4X HDR), wanted 400 Gb/sec as 6 others of its board",
        ),
        changes={3: {"rate": HDR}, 5: {"rate": HDR}},
    ),
    "slow RoCE port": Fault(
        (
            "error",
            "rdma-rate-low",
            "reschedule",
            [("mlx5_6", 1)],
            "mlx5_6 port 1 (0000:16:00.0): its rate is 200 Gb/sec (4X HDR), wanted 400 Gb/sec as 7 others of its board",
        ),
        machine=roce,
        changes={6: {"rate": ETH200}},
    ),
    "fewer ports than its like": Fault(
        (
            "warning",
            "rdma-ports-fewer",
            "continue",
            [("mlx5_2", 1)],
            "mlx5_2 port 1 (0000:4f:00.0): its device has no more than 1, wanted 2",
        ),
        machine=lambda: [replace(nic, ports=2) for nic in ndr()[:3]],
        changes={2: {"ports": 1}},
    ),
    "no address": Fault(
        (
            "error",
            "rdma-gid-missing",
            "reschedule",
            [("mlx5_4", 1)],
            "mlx5_4 port 1 (0000:14:00.0): all entries of its GID table are zero, wanted an address",
        ),
        machine=roce,
        changes={4: {"gids": (NO_GID,)}},
    ),
    "a function without an address": Fault(
        (
            "warning",
            "rdma-gid-missing",
            "continue",
            [("mlx5_4", 1)],
            "mlx5_4 port 1 (0000:86:00.2): all entries of its GID table are zero, wanted an address",
        ),
        machine=virtual_function,
        changes={0: {"gids": ()}},
    ),
    "link-local address": Fault(
        (
            "warning",
            "rdma-gid-link-local",
            "continue",
            [("mlx5_4", 1)],
            (
                "mlx5_4 port 1 (0000:14:00.0): its GID table has link-local addresses only, "
                "wanted the IP address of its net device"
            ),
        ),
        machine=roce,
        changes={4: {"gids": ("fe80:0000:0000:0000:5aa2:e1ff:fe03:0004",)}},
    ),
    "another MTU": Fault(
        (
            "warning",
            "rdma-mtu-differs",
            "continue",
            [("mlx5_4", 1)],
            "mlx5_4 port 1 (0000:14:00.0): its MTU is 1500, wanted 9000 as 7 others of its board",
        ),
        machine=roce,
        changes={4: {"mtu": 1500}},
    ),
    "no uverbs": Fault(
        (
            "warning",
            "rdma-nodes-missing",
            "continue",
            [],
            "/dev/infiniband has no uverbs node, wanted one for each of 8 RDMA devices",
        ),
        changes={n: {"verbs": False} for n in range(8)},
    ),
    "link flapped": Fault(
        (
            "error",
            "rdma-link-flapped",
            "reschedule",
            [("mlx5_3", 1)],
            f"{THREE}: link_downed rose by 1 while this check ran, wanted 0",
        ),
        later=rises("mlx5_3", "link_downed", 256),
    ),
    "errors": Fault(
        (
            "warning",
            "rdma-errors",
            "continue",
            [("mlx5_5", 1)],
            f"{FIVE}: symbol_error rose by 93 while this check ran, wanted 0",
        ),
        later=rises("mlx5_5", "symbol_error", 100),
    ),
    "errors of RoCE": Fault(
        (
            "warning",
            "rdma-errors",
            "continue",
            [("mlx5_5", 1)],
            "mlx5_5 port 1 (0000:15:00.0): packet_seq_err rose by 4 while this check ran, wanted 0",
        ),
        machine=roce,
        later=rises("mlx5_5", "packet_seq_err", 7, folder="hw_counters"),
    ),
    "no GPUDirect": Fault(
        (
            "warning",
            "rdma-gpudirect-missing",
            "continue",
            [],
            "nvidia_peermem is not loaded and the driver is the proprietary one, wanted the module or dma-buf",
        ),
        files={"/proc/driver/nvidia/version": PROPRIETARY},
    ),
}
