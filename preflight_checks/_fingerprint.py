"""What a node is made of, by keys that all nodes of a job have in common."""

from __future__ import annotations

import ctypes
import hashlib
import json
import platform
import uuid
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from preflight_checks import _rdma
from preflight_checks._gpus import READ_S, NvmlHungError, models, read
from preflight_checks._probes import ProbeError, ask
from trainer_agent import __version__
from trainer_agent.env import SECRET_NAME, redact, secrets_in
from trainer_agent.isolation import IsolatedError, isolated

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from preflight_checks._gpus import Gpu
    from trainer_agent.check import Context

SETTINGS = ("NCCL_", "TORCH_NCCL_", "GLOO_")
PROBE_S = 10.0
COMPLETED = 3  # NVML_GPU_FABRIC_STATE_COMPLETED


def machine(context: Context) -> dict[str, Any]:
    """Return host, kernel and the program itself."""
    host = context.host
    release = dict(line.split("=", 1) for line in (host.read("/etc/os-release") or "").splitlines() if "=" in line)
    return {
        "hostname": host.hostname(),
        "boot_id": (host.read("/proc/sys/kernel/random/boot_id") or "").strip(),
        "kernel": (host.read("/proc/sys/kernel/osrelease") or "").strip(),
        "os": release.get("PRETTY_NAME", "").strip('"'),
        "arch": platform.machine(),
        "processes": context.nproc,
        "agent": __version__,
    }


def settings(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what is set for NCCL and Gloo, without secrets, and a hash of it."""
    secrets = secrets_in(environ)
    names = sorted(name for name in environ if name.startswith(SETTINGS) and not SECRET_NAME.search(name))
    found = {name: redact(environ[name], secrets) for name in names}
    return {"settings": found, "settings_sha256": hashlib.sha256(json.dumps(found).encode()).hexdigest()[:16]}


def rdma(context: Context) -> dict[str, Any]:
    """Return the ports that can be used, as `8 x InfiniBand 400 Gb/sec (4X NDR)`."""
    left_out = _rdma.excluded(context.environ)
    names = [name for name in _rdma.devices(context.host) if name not in left_out]
    ports = [port for port in _rdma.used_ports(context, _rdma.read_ports(context.host, names)) if port.active]
    kinds = Counter(f"{port.layer} {port.rate}" for port in ports)
    return {
        "rdma_devices": sorted({port.device for port in ports}),
        "rdma_ports": sorted(f"{count} x {kind}" for kind, count in kinds.items()),
        "rdma_mtu_bytes": _unique(port.mtu for port in ports),
        "rdma_firmware": _unique(port.firmware for port in ports),
    }


def gpus(context: Context) -> tuple[dict[str, Any], tuple[Gpu, ...], str]:
    """Return what NVML says, the GPUs, and why it says nothing."""
    try:
        reading = read(context, "state", "ecc", "memory")
        first = [gpu.index for gpu in reading.gpus[:1]]
        cluster = isolated(partial(_place_in_fabric, *first), timeout_s=READ_S) if first else ("", None)
    except (NvmlHungError, IsolatedError) as error:
        return {"gpus": None}, (), str(error)
    if reading.state != "ok":
        return {"gpus": None}, (), reading.reason
    found = reading.gpus
    facts = {
        "gpus": models(found) if found else "none",
        "gpu_count": len(found),
        "gpu_memory_bytes": _unique(gpu.memory_total for gpu in found),
        "driver": reading.driver,
        "cuda_driver": reading.cuda or None,
        "vbios": _unique(gpu.vbios for gpu in found),
        "mig": sum(bool(gpu.mig) for gpu in found),
        "ecc": sum(bool(gpu.ecc_on) for gpu in found),
        "cluster_uuid": cluster[0],
        "clique": cluster[1],
    }
    return facts, found, ""


def software(context: Context) -> tuple[dict[str, Any], str]:
    """Return the versions in the training environment's Python, or why they are not known."""
    try:
        return ask(context, "versions", {}, timeout_s=PROBE_S), ""
    except ProbeError as error:
        return {}, f"{context.python}: {error}"


def _place_in_fabric(index: int) -> tuple[str, int | None]:
    """Return the NVLink domain of a GPU, and its clique there; nothing where there is no such fabric."""
    import pynvml as nvml

    try:
        nvml.nvmlInit()
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        info = nvml.c_nvmlGpuFabricInfo_t()
        nvml.nvmlDeviceGetGpuFabricInfo(gpu, ctypes.byref(info))
    except (nvml.NVMLError, AttributeError):  # a driver before 525, or one without a fabric
        return "", None
    domain = uuid.UUID(bytes=bytes(byte & 255 for byte in info.clusterUuid))
    return (str(domain), int(info.cliqueId)) if info.state == COMPLETED and domain.int else ("", None)


def _unique(values: Iterable[Any]) -> list[Any]:
    return sorted({value for value in values if value not in (None, "")})
