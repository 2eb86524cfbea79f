"""What the simulated nodes of `gang_scale.py` say of themselves: as much as a node of eight H100 does."""

from __future__ import annotations

import uuid
from typing import Any

# What the check `consistency` measures on a node of eight H100 with InfiniBand.
SETTINGS = {
    "NCCL_DEBUG": "WARN",
    "NCCL_IB_HCA": "=mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7",
    "NCCL_IB_GID_INDEX": "3",
    "NCCL_IB_QPS_PER_CONNECTION": "2",
    "NCCL_IB_TIMEOUT": "22",
    "NCCL_NET_GDR_LEVEL": "PHB",
    "NCCL_SOCKET_IFNAME": "eth0",
    "NCCL_TOPO_FILE": "/etc/nccl/topo.xml",
    "TORCH_NCCL_BLOCKING_WAIT": "0",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "600",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
}
MARKS: dict[str, Any] = {
    "kernel": "5.15.0-1063-nvidia",
    "os": "Ubuntu 22.04.5 LTS",
    "arch": "x86_64",
    "processes": 8,
    "agent": "0.1.0",
    "gpus": "8 x NVIDIA H100 80GB HBM3",
    "gpu_count": 8,
    "gpu_memory_bytes": [85520809984],
    "driver": "550.54.15",
    "cuda_driver": "12.4",
    "vbios": ["96.00.89.00.01"],
    "mig": 0,
    "ecc": 8,
    "cluster_uuid": "",
    "clique": None,
    "rdma_devices": [f"mlx5_{number}" for number in range(8)],
    "rdma_ports": ["8 x InfiniBand 400 Gb/sec (4X NDR)"],
    "rdma_mtu_bytes": [4096],
    "rdma_firmware": ["28.39.1002"],
    "python": "3.11.7",
    "torch": "2.5.1+cu124",
    "torch_cuda": "12.4",
    "nccl": "2.21.5",
    "cudnn": "9.1.0.70",
    "nccl_preloaded": None,
    "nccl_preloaded_path": None,
    "nccl_on_the_way": None,
    "nccl_on_the_way_path": None,
    "settings": SETTINGS,
    "settings_sha256": "0f1e2d3c4b5a6978",
    "not_read": {},
    "checks": ["cgroup", "clock", "consistency", "environment", "gpu-count", "gpu-health", "gpu-link", "storage"],
}


def marks(rank: int) -> dict[str, Any]:
    """Return the fingerprint of a node."""
    return {"hostname": f"job1-node-0-{rank}", "boot_id": str(uuid.UUID(int=rank)), **MARKS}


def hello(rank: int, nnodes: int) -> dict[str, Any]:
    """Return what a node says that is well."""
    name = f"job1-node-0-{rank}"
    local = {"verdict": "pass", "exit_code": 0, "message": "", "findings": []}
    shape = {"nnodes": nnodes, "nproc": 8, "hostname": name, "node": f"gpu-{rank}", "address": "127.0.0.1"}
    return {**shape, "marks": marks(rank), "born": 1.0, "local": local}
