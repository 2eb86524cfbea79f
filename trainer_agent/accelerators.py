"""Which accelerators a training process here would see, without importing torch."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trainer_agent.env import whole_number
from trainer_agent.nvml import NvmlDevices, read_nvml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trainer_agent.host import Host

WORKS_ON_CUDA = ("nvidia", "amd")  # torch calls AMD's GPUs cuda, too
INTEL_VENDOR, HABANA_VENDOR, NVIDIA_VENDOR = "0x8086", "0x1da3", "0x10de"  # PCI vendor numbers
DISPLAY = "0x03"  # how the class of a GPU begins
# Where GKE's device plugin mounts the driver, without a word to the loader; NVIDIA's images look there.
MOUNTED = "/usr/local/nvidia/lib64/libnvidia-ml.so.1"
NO_PERMISSION, DRIVER_NOT_LOADED = 4, 9  # NVML_ERROR_*


@dataclass(frozen=True)
class Accelerators:
    """
    The accelerators of one kind that are visible here.

    Args:
        kind: `nvidia`, `mig`, `amd`, `intel`, `gaudi`, `tpu`, `neuron` or `none`.
        count: how many a process can use one rank each for.
        source: how they were counted, in words.
        problem: why an NVIDIA driver that should answer does not, and `hung` whether it said nothing at all.
        visible: entries of CUDA_VISIBLE_DEVICES when it lists MIG instances.
        others: whether there are some of which nothing tells that they are this pod's.
    """

    kind: str
    count: int
    source: str
    problem: str = ""
    visible: tuple[str, ...] = ()
    hung: bool = False
    others: bool = False


def find_accelerators(
    host: Host, environ: Mapping[str, str], *, nvml: Callable[[], NvmlDevices] = read_nvml
) -> Accelerators:
    """Return the first kind of accelerator found here; NVIDIA's driver is asked first."""
    devices = nvml()
    if devices.code == DRIVER_NOT_LOADED and not expects_nvidia(host, environ):
        devices = NvmlDevices("missing", reason=devices.reason)
    if devices.others and not devices.gpus and (nvidia_nodes(host) or listed_gpus(environ)):
        reason = f"Insufficient Permissions for all of {devices.others} GPUs"
        devices = NvmlDevices("broken", reason=reason, code=NO_PERMISSION)
    nvidia = _nvidia(host, environ, devices)
    if nvidia.count or nvidia.problem:
        return nvidia
    for find in (_gaudi, _neuron, _tpu, _amd, _intel):
        found = find(host, environ)
        if found.count:
            return found
    return replace(nvidia, kind="none")


def given(found: Accelerators, host: Host, environ: Mapping[str, str], wanted: object) -> Accelerators:
    """
    Return those that may be put to the test, none where they may be other jobs'.

    An image that sets NVIDIA_VISIBLE_DEVICES=all shows a container without a request every GPU of its node, where
    NVIDIA's container runtime is the default one (README of k8s-device-plugin). Since its toolkit 1.18 the variable is
    `void` in every container, also where GPUs were asked for: then there are device nodes for all of the machine's or
    fewer. GKE's plugin lists nothing, and has no such runtime.

    Args:
        wanted: processes on this node, a number or a word.
    """
    visible = environ.get("NVIDIA_VISIBLE_DEVICES", "").strip().lower()
    everything = visible == "all" or (visible == "void" and 0 < gpus_on_the_bus(host) <= len(nvidia_nodes(host)))
    in_a_pod = bool(environ.get("KUBERNETES_SERVICE_HOST")) and not host.exists(MOUNTED)
    fewer = isinstance(wanted, int) and wanted < found.count
    if not (everything and in_a_pod and fewer and found.kind in ("nvidia", "mig")):
        return found
    source = (
        f"of {found.count} GPUs that are visible the job uses {wanted}, and nothing tells which: "
        "have this container request nvidia.com/gpu"
    )
    return Accelerators("none", 0, source, others=True)


def nvidia_nodes(host: Host) -> list[str]:
    """Return the device nodes of NVIDIA's GPUs, such as `nvidia0`."""
    return [name for name in host.names("/dev") if re.fullmatch(r"nvidia\d+", name)]


def listed_gpus(environ: Mapping[str, str]) -> list[str]:
    """Return the GPUs that NVIDIA_VISIBLE_DEVICES lists; `all`, `void` and MIG instances are no such list."""
    entries = [entry.strip() for entry in environ.get("NVIDIA_VISIBLE_DEVICES", "").split(",")]
    listed = [entry for entry in entries if re.fullmatch(r"[0-9]{1,3}|GPU-[0-9a-fA-F-]+", entry)]
    return list(dict.fromkeys(listed)) if len(listed) == len(entries) else []


def expects_nvidia(host: Host, environ: Mapping[str, str]) -> bool:
    """
    Return whether a driver of NVIDIA's has anything to do here: a device node, a request, or a GPU on the PCI bus.

    Images bring the driver's library to machines of other makers, too.
    """
    visible = environ.get("NVIDIA_VISIBLE_DEVICES", "").strip().lower()
    if nvidia_nodes(host) or visible not in ("", "none", "void"):
        return True
    return any(vendor == NVIDIA_VENDOR for vendor, _ in _on_the_bus(host))


def gpus_on_the_bus(host: Host) -> int:
    """Return how many GPUs of NVIDIA's the machine has, this container's or not; an NVSwitch is none."""
    return sum(vendor == NVIDIA_VENDOR and kind.startswith(DISPLAY) for vendor, kind in _on_the_bus(host))


def _on_the_bus(host: Host) -> Iterator[tuple[str, str]]:
    """Yield vendor and class of each PCI device."""
    bus = "/sys/bus/pci/devices"
    for name in host.names(bus):
        vendor, kind = ((host.read(f"{bus}/{name}/{fact}") or "").strip() for fact in ("vendor", "class"))
        yield vendor, kind


def _nvidia(host: Host, environ: Mapping[str, str], devices: NvmlDevices) -> Accelerators:
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if devices.state == "missing":
        nodes = nvidia_nodes(host)
        count = len(parse_cuda_visible(visible, [f"GPU-?{n}" for n in nodes], []))
        return Accelerators(
            "nvidia", count, f"{len(nodes)} device nodes /dev/nvidia<N>{_limited(visible)}; NVML is not here"
        )
    if devices.state != "ok":
        return Accelerators("nvidia", 0, "NVML", problem=devices.reason, hung=devices.state == "hung")
    if devices.mig:
        entries = parse_cuda_visible(visible, devices.gpus, devices.mig)
        listed = tuple(e for e in entries if e in devices.mig)
        source = f"NVML: {len(devices.mig)} MIG instances{_limited(visible)}"
        # The index or UUID of a GPU in MIG mode stands for one of its instances, the only one CUDA then shows.
        count = len(listed) or min(1, len(entries))
        return Accelerators("mig", count, source, visible=listed if visible is not None else ())
    count = len(parse_cuda_visible(visible, devices.gpus, []))
    return Accelerators("nvidia", count, f"NVML: {len(devices.gpus)} GPUs{_limited(visible)}")


def _limited(visible: str | None) -> str:
    return "" if visible is None else f", CUDA_VISIBLE_DEVICES={visible!r}"


def parse_cuda_visible(visible: str | None, gpus: Sequence[str], mig: Sequence[str]) -> list[str]:
    """
    Return the devices that CUDA would show for a value of CUDA_VISIBLE_DEVICES, out of `gpus` and `mig` UUIDs.

    As CUDA does: the list ends at the first invalid entry, a repeated index makes it empty, UUIDs match by prefix.
    """
    if visible is None:
        return list(mig or gpus)
    chosen: list[str] = []
    for entry in (e.strip() for e in visible.split(",")):
        device = _one_device(entry, gpus, mig)
        if device is None:
            break
        if device in chosen:
            return []
        chosen.append(device)
    return chosen


def _one_device(entry: str, gpus: Sequence[str], mig: Sequence[str]) -> str | None:
    index = whole_number(entry.removeprefix("+"))
    if index is not None:
        return gpus[index] if index < len(gpus) else None
    if entry.startswith(("GPU-", "MIG-")):
        matches = [u for u in (*gpus, *mig) if u.startswith(entry)]
        unknown = bool(gpus) and gpus[0].startswith("GPU-?")  # counted by device nodes: their UUIDs cannot be compared
        return matches[0] if len(matches) == 1 else entry if unknown else None
    return None


def _gaudi(host: Host, environ: Mapping[str, str]) -> Accelerators:
    # The accel subsystem also serves NPUs of laptops, so the vendor decides.
    nodes = [n for n in host.names("/dev/accel") if _vendor(host, f"/sys/class/accel/{n}") == HABANA_VENDOR]
    modules = [m for m in environ.get("HABANA_VISIBLE_MODULES", "").split(",") if whole_number(m.strip()) is not None]
    count = min(len(nodes), len(modules)) if modules else len(nodes)
    return Accelerators("gaudi", count, f"{len(nodes)} Gaudi device nodes /dev/accel/accel<N>")


def _neuron(host: Host, _environ: Mapping[str, str]) -> Accelerators:
    nodes = [n for n in host.names("/dev") if re.fullmatch(r"neuron\d+", n)]
    return Accelerators("neuron", len(nodes), f"{len(nodes)} device nodes /dev/neuron<N>")


def _tpu(host: Host, environ: Mapping[str, str]) -> Accelerators:
    nodes = [n for n in host.names("/dev") if re.fullmatch(r"accel\d+", n)]
    if any(name.startswith("TPU_") for name in environ):  # a NIC passed through has /dev/vfio/<N> too
        nodes += [n for n in host.names("/dev/vfio") if n.isdigit()]
    return Accelerators("tpu", len(nodes), f"{len(nodes)} TPU device nodes /dev/accel<N> or /dev/vfio/<N>")


def _vendor(host: Host, device: str) -> str:
    return (host.read(f"{device}/device/vendor") or "").strip()


def _amd(host: Host, environ: Mapping[str, str]) -> Accelerators:
    devices: list[str] = []
    if host.exists("/dev/kfd"):
        base = "/sys/class/kfd/kfd/topology/nodes"
        facts = [_properties(host.read(f"{base}/{node}/properties") or "") for node in host.names(base)]
        minors = {f.get("drm_render_minor", 0) for f in facts if f.get("simd_count", 0) > 0}
        devices = [f"GPU-?{minor}" for minor in sorted(minors) if host.exists(f"/dev/dri/renderD{minor}")]
    source = f"{len(devices)} ROCm GPUs with /dev/kfd and /dev/dri/renderD<N>"
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        if name in environ:
            devices = parse_cuda_visible(environ[name], devices, [])
            source += f", {name}={environ[name]!r}"
            if name == "HIP_VISIBLE_DEVICES":
                break  # torch looks at CUDA_VISIBLE_DEVICES only without it
    return Accelerators("amd", len(devices), source)


def _properties(text: str) -> dict[str, int]:
    pairs = (line.split() for line in text.splitlines())
    numbers = ((words[0], whole_number(words[1])) for words in pairs if len(words) == 2)
    return {name: number for name, number in numbers if number is not None}


def _intel(host: Host, environ: Mapping[str, str]) -> Accelerators:
    nodes = [n for n in host.names("/dev/dri") if n.startswith("renderD")]
    nodes = [n for n in nodes if _vendor(host, f"/sys/class/drm/{n}") == INTEL_VENDOR]
    mask = environ.get("ZE_AFFINITY_MASK")
    limited = f", ZE_AFFINITY_MASK={mask!r}" if mask else ""
    count = min(len(nodes), len(mask.split(","))) if mask else len(nodes)
    return Accelerators("intel", count, f"{len(nodes)} Intel render nodes /dev/dri/renderD<N>{limited}")
