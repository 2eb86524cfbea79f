"""The checks of trainer-agent, one file each, reached through the entry-point group `trainer_agent.checks`."""

# name: module:attribute. The order is that of the report.
CATALOGUE = {
    "environment": "preflight_checks.environment:environment",
    "cgroup": "preflight_checks.cgroup:cgroup",
    "shm": "preflight_checks.shm:shm",
    "limits": "preflight_checks.limits:limits",
    "gpu-count": "preflight_checks.gpu_count:gpu_count",
    "gpu-health": "preflight_checks.gpu_health:gpu_health",
    "gpu-memory": "preflight_checks.gpu_memory:gpu_memory",
    "gpu-link": "preflight_checks.gpu_link:gpu_link",
    "gpu-clocks": "preflight_checks.gpu_clocks:gpu_clocks",
    "driver-cuda": "preflight_checks.driver_cuda:driver_cuda",
    "cuda": "preflight_checks.cuda:cuda",
    "gemm": "preflight_checks.gemm:gemm",
    "bandwidth": "preflight_checks.bandwidth:bandwidth",
    "nccl-loopback": "preflight_checks.nccl_loopback:nccl_loopback",
    "torchrun-smoke": "preflight_checks.torchrun_smoke:torchrun_smoke",
    "rdma": "preflight_checks.rdma:rdma",
    "clock": "preflight_checks.clock:clock",
    "rendezvous-dns": "preflight_checks.rendezvous_dns:rendezvous_dns",
    "mpi": "preflight_checks.mpi:mpi",
    "storage": "preflight_checks.storage:storage",
    "kube-api": "preflight_checks.kube_api:kube_api",
    "roll-call": "preflight_checks.roll_call:roll_call",
    "consistency": "preflight_checks.consistency:consistency",
    "collective": "preflight_checks.collective:collective",
}
