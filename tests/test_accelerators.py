"""Accelerators: what a training process would see, without importing torch."""

from dataclasses import replace

import pytest

from trainer_agent.accelerators import Accelerators, find_accelerators, given, parse_cuda_visible
from trainer_agent.nvml import NvmlDevices
from trainer_agent.testing import FakeHost

MISSING = NvmlDevices("missing", reason="no library")
GPUS = ("GPU-aa11", "GPU-aa22", "GPU-bb33")
KFD = "/sys/class/kfd/kfd/topology/nodes"


@pytest.fixture
def host(tmp_path):
    return FakeHost(tmp_path)


def find(host, environ=None, *, devices=MISSING):
    return find_accelerators(host, environ or {}, nvml=lambda: devices)


@pytest.mark.parametrize(
    "visible, expected",
    [
        (None, ["GPU-aa11", "GPU-aa22", "GPU-bb33"]),
        ("0,1,2", ["GPU-aa11", "GPU-aa22", "GPU-bb33"]),
        ("2, 0", ["GPU-bb33", "GPU-aa11"]),
        ("+1", ["GPU-aa22"]),
        ("", []),
        ("-1", []),
        ("none", []),
        ("void", []),
        ("all", []),
        ("0,0", []),
        ("0,-1,1", ["GPU-aa11"]),
        ("0,foo,1", ["GPU-aa11"]),
        ("0,7,1", ["GPU-aa11"]),
        ("GPU-b,1", ["GPU-bb33", "GPU-aa22"]),
        ("GPU-aa", []),
        ("GPU-zz", []),
        ("GPU-aa11,0", []),
        ("²", []),
        ("٣", []),
        ("9" * 5000, []),
        (",0", []),
    ],
)
def test_cuda_visible_devices(visible, expected):
    """The list is read as CUDA reads it: it ends at the first bad entry, and a repetition empties it."""
    assert expected == parse_cuda_visible(visible, GPUS, [])


def test_cuda_visible_devices_with_mig():
    """MIG instances match by prefix too, and are all that is visible without a list."""
    mig = ["MIG-aa", "MIG-bb"]
    assert mig == parse_cuda_visible(None, GPUS, mig)
    assert ["MIG-bb"] == parse_cuda_visible("MIG-b,MIG-x", GPUS, mig)


def test_nothing(host):
    """A machine without devices has none, and says how that was found out."""
    expected = Accelerators("none", 0, "0 device nodes /dev/nvidia<N>; NVML is not here")
    assert expected == find(host)


def test_nvml(host):
    """NVML's list counts, limited by CUDA_VISIBLE_DEVICES."""
    devices = NvmlDevices("ok", GPUS)
    assert Accelerators("nvidia", 3, "NVML: 3 GPUs") == find(host, devices=devices)
    limited = Accelerators("nvidia", 1, "NVML: 3 GPUs, CUDA_VISIBLE_DEVICES='1'")
    assert limited == find(host, {"CUDA_VISIBLE_DEVICES": "1"}, devices=devices)
    hidden = Accelerators("none", 0, "NVML: 3 GPUs, CUDA_VISIBLE_DEVICES=''")
    assert hidden == find(host, {"CUDA_VISIBLE_DEVICES": ""}, devices=devices)


def test_nvidia_visible_devices_is_no_count(host):
    """NVIDIA_VISIBLE_DEVICES is `void` in containers that do have GPUs."""
    environ = {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert Accelerators("nvidia", 3, "NVML: 3 GPUs") == find(host, environ, devices=NvmlDevices("ok", GPUS))


@pytest.mark.parametrize("state", ["broken", "hung"])
def test_a_driver_that_does_not_answer(host, state):
    """A sick NVIDIA driver is said, and no other device hides it."""
    host.put("/dev/neuron0")
    expected = Accelerators("nvidia", 0, "NVML", problem="Driver Not Loaded", hung=state == "hung")
    assert expected == find(host, devices=NvmlDevices(state, reason="Driver Not Loaded"))


NOT_LOADED = NvmlDevices("broken", reason="Driver Not Loaded", code=9)


def test_a_stray_library_hides_no_other_device(host):
    """Images bring NVIDIA's library to machines of other makers, where its driver is not loaded."""
    put_amd(host, [(128, 304, True), (129, 304, True)])
    host.put("/sys/bus/pci/devices/0000:00:02.0/vendor", "0x1002\n")

    assert Accelerators("amd", 2, AMD_SOURCE) == find(host, devices=NOT_LOADED)
    assert "none" == find(FakeHost(host.root / "empty"), devices=NOT_LOADED).kind


@pytest.mark.parametrize("sign", ["node", "bus", "variable", "another error"])
def test_a_driver_that_is_not_loaded_is_a_problem_where_there_is_work_for_it(host, sign):
    put_amd(host, [(128, 304, True)])
    if sign == "node":
        host.put("/dev/nvidia3")
    if sign == "bus":
        host.put("/sys/bus/pci/devices/0000:53:00.0/vendor", "0x10de\n")
    environ = {"NVIDIA_VISIBLE_DEVICES": "all"} if sign == "variable" else {"NVIDIA_VISIBLE_DEVICES": "void"}
    devices = NvmlDevices("broken", reason="Unknown Error", code=999) if sign == "another error" else NOT_LOADED

    assert devices.reason == find(host, environ, devices=devices).problem


REFUSED = NvmlDevices("ok", others=2)


@pytest.mark.parametrize("sign", ["node", "0,1", "GPU-aa11"])
def test_gpus_of_ours_that_are_all_refused_are_a_problem(host, sign):
    """By a device node, or by the list of the device plugin; no other device hides it."""
    put_amd(host, [(128, 304, True)])
    if sign == "node":
        host.put("/dev/nvidia3")
    environ = {} if sign == "node" else {"NVIDIA_VISIBLE_DEVICES": sign}

    expected = Accelerators("nvidia", 0, "NVML", problem="Insufficient Permissions for all of 2 GPUs")
    assert expected == find(host, environ, devices=REFUSED)


@pytest.mark.parametrize("visible", [None, "all", "void", "none", ""])
def test_gpus_of_others_are_no_problem(host, visible):
    """A container without GPUs on a machine that has some: NVML counts them and gives no handle."""
    environ = {} if visible is None else {"NVIDIA_VISIBLE_DEVICES": visible}

    assert Accelerators("none", 0, "NVML: 0 GPUs") == find(host, environ, devices=REFUSED)
    host.put("/dev/nvidia3")
    some = NvmlDevices("ok", GPUS[:1], others=2)
    assert Accelerators("nvidia", 1, "NVML: 1 GPUs") == find(host, environ, devices=some)


def test_mig(host):
    """MIG instances count instead of their GPU; a list of them in CUDA_VISIBLE_DEVICES is kept."""
    devices = NvmlDevices("ok", ("GPU-aa11",), ("MIG-aa", "MIG-bb"))
    assert Accelerators("mig", 2, "NVML: 2 MIG instances") == find(host, devices=devices)
    source = "NVML: 2 MIG instances, CUDA_VISIBLE_DEVICES='MIG-bb,MIG-aa'"
    expected = Accelerators("mig", 2, source, visible=("MIG-bb", "MIG-aa"))
    assert expected == find(host, {"CUDA_VISIBLE_DEVICES": "MIG-bb,MIG-aa"}, devices=devices)


def test_device_nodes_without_nvml(host):
    """Without NVML the device nodes count; their numbers are the host's and may begin anywhere."""
    for name in ("nvidia6", "nvidia7", "nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap1"):
        host.put(f"/dev/{name}")
    expected = Accelerators("nvidia", 2, "2 device nodes /dev/nvidia<N>; NVML is not here")
    assert expected == find(host)
    source = "2 device nodes /dev/nvidia<N>, CUDA_VISIBLE_DEVICES='GPU-x,GPU-y'; NVML is not here"
    assert Accelerators("nvidia", 2, source) == find(host, {"CUDA_VISIBLE_DEVICES": "GPU-x,GPU-y"})


def put_amd(host, nodes):
    host.put("/dev/kfd")
    for index, (minor, simd, node) in enumerate(nodes):
        host.put(f"{KFD}/{index}/properties", f"simd_count {simd}\ndrm_render_minor {minor}\nname\nunique_id x\n")
        if node:
            host.put(f"/dev/dri/renderD{minor}")


AMD_SOURCE = "2 ROCm GPUs with /dev/kfd and /dev/dri/renderD<N>"


@pytest.mark.parametrize(
    "environ, count, more",
    [
        ({}, 2, ""),
        ({"ROCR_VISIBLE_DEVICES": "0"}, 1, ", ROCR_VISIBLE_DEVICES='0'"),
        ({"ROCR_VISIBLE_DEVICES": "GPU-1234"}, 1, ", ROCR_VISIBLE_DEVICES='GPU-1234'"),
        ({"HIP_VISIBLE_DEVICES": "-1"}, 0, ", HIP_VISIBLE_DEVICES='-1'"),
        ({"HIP_VISIBLE_DEVICES": "1,5"}, 1, ", HIP_VISIBLE_DEVICES='1,5'"),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": ""}, 1, ", HIP_VISIBLE_DEVICES='0'"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, 1, ", CUDA_VISIBLE_DEVICES='1'"),
        (
            {"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0,1"},
            1,
            ", ROCR_VISIBLE_DEVICES='1', HIP_VISIBLE_DEVICES='0,1'",
        ),
    ],
)
def test_amd(host, environ, count, more):
    """ROCm GPUs are topology nodes with SIMDs whose render node is here; HIP's list counts within ROCR's."""
    put_amd(host, [(0, 0, False), (128, 304, True), (129, 304, True), (130, 304, False)])
    found = find(host, environ)
    expected = Accelerators("amd", count, AMD_SOURCE + more)
    nothing = Accelerators("none", 0, find(FakeHost(host.root / "empty"), environ).source)
    assert (expected if count else nothing) == found


def test_amd_without_kfd(host):
    """Render nodes without /dev/kfd are for graphics only."""
    put_amd(host, [(128, 304, True)])
    host.path("/dev/kfd").unlink()
    assert find(host).kind == "none"


def test_intel(host):
    """Only render nodes of Intel's vendor count, limited by ZE_AFFINITY_MASK."""
    for minor, vendor in ((128, "0x8086\n"), (129, "0x8086\n"), (130, "0x1a03\n")):
        host.put(f"/dev/dri/renderD{minor}")
        host.put(f"/sys/class/drm/renderD{minor}/device/vendor", vendor)
    assert Accelerators("intel", 2, "2 Intel render nodes /dev/dri/renderD<N>") == find(host)
    limited = Accelerators("intel", 1, "2 Intel render nodes /dev/dri/renderD<N>, ZE_AFFINITY_MASK='0'")
    assert limited == find(host, {"ZE_AFFINITY_MASK": "0"})


@pytest.mark.parametrize("modules, count", [(None, 2), ("0", 1), ("0,1,2", 2), ("", 2), ("²", 2)])
def test_gaudi(host, modules, count):
    """Nodes of the accel subsystem count when Habana made them, limited by HABANA_VISIBLE_MODULES."""
    for index, vendor in enumerate(("0x1da3\n", "0x1da3\n", "0x8086\n")):
        host.put(f"/dev/accel/accel{index}")
        host.put(f"/sys/class/accel/accel{index}/device/vendor", vendor)
    environ = {} if modules is None else {"HABANA_VISIBLE_MODULES": modules}
    assert Accelerators("gaudi", count, "2 Gaudi device nodes /dev/accel/accel<N>") == find(host, environ)


def test_neuron(host):
    """Neuron devices are numbered nodes."""
    for name in ("neuron0", "neuron1", "neuron_rt"):
        host.put(f"/dev/{name}")
    assert Accelerators("neuron", 2, "2 device nodes /dev/neuron<N>") == find(host)


@pytest.mark.parametrize(
    "nodes, environ, count",
    [
        (["/dev/accel0", "/dev/accel1"], {}, 2),
        (["/dev/vfio/0", "/dev/vfio/1", "/dev/vfio/vfio"], {"TPU_WORKER_ID": "0"}, 2),
        (["/dev/vfio/0", "/dev/vfio/vfio"], {}, 0),
    ],
)
def test_tpu(host, nodes, environ, count):
    """VFIO nodes are TPUs only where TPU variables say so: a network card passed through looks the same."""
    for node in nodes:
        host.put(node)
    expected = Accelerators("tpu", count, f"{count} TPU device nodes /dev/accel<N> or /dev/vfio/<N>")
    nothing = Accelerators("none", 0, "0 device nodes /dev/nvidia<N>; NVML is not here")
    assert (expected if count else nothing) == find(host, environ)


POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
EIGHT = Accelerators("nvidia", 8, "NVML: 8 GPUs")


def test_gpus_that_may_be_other_jobs_are_not_put_to_the_test(host):
    """A container without a request sees the whole node, where its image says so, and two of eight are the job's."""
    found = given(EIGHT, host, {**POD, "NVIDIA_VISIBLE_DEVICES": "all"}, 2)

    assert ("none", 0, True) == (found.kind, found.count, found.others)
    assert "of 8 GPUs that are visible the job uses 2, and nothing tells which" in found.source


@pytest.mark.parametrize("nodes, others", [(8, True), (4, False)])
def test_the_word_of_newer_toolkits_says_nothing(host, nodes, others):
    """`void` stands in every container; one that asked for GPUs has device nodes for these alone."""
    for number in range(8):
        host.put(f"/sys/bus/pci/devices/0000:{number:02x}:00.0/vendor", "0x10de\n")
        host.put(f"/sys/bus/pci/devices/0000:{number:02x}:00.0/class", "0x030200\n")
    host.put("/sys/bus/pci/devices/0000:09:00.0/vendor", "0x10de\n")
    host.put("/sys/bus/pci/devices/0000:09:00.0/class", "0x068000\n")  # an NVSwitch
    for number in range(nodes):
        host.put(f"/dev/nvidia{number}")
    found = replace(EIGHT, count=nodes)

    assert others == given(found, host, {**POD, "NVIDIA_VISIBLE_DEVICES": "void"}, 2).others


@pytest.mark.parametrize(
    "environ, wanted",
    [
        ({**POD, "NVIDIA_VISIBLE_DEVICES": "all"}, 8),
        ({**POD, "NVIDIA_VISIBLE_DEVICES": "all"}, "gpu"),
        ({**POD, "NVIDIA_VISIBLE_DEVICES": "all"}, None),
        ({**POD, "NVIDIA_VISIBLE_DEVICES": "GPU-aa11,GPU-aa22"}, 1),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, 2),
        ({**POD, "NVIDIA_VISIBLE_DEVICES": "void"}, 2),
    ],
    ids=["the whole node", "all that are there", "unknown", "given by the plugin", "no pod", "no bus to look at"],
)
def test_gpus_that_are_ours(host, environ, wanted):
    assert EIGHT == given(EIGHT, host, environ, wanted)


def test_what_is_visible_on_gke_was_given(host):
    """Its device plugin lists nothing, and no runtime of NVIDIA's adds to what it gives."""
    host.put("/usr/local/nvidia/lib64/libnvidia-ml.so.1")
    assert EIGHT == given(EIGHT, host, {**POD, "NVIDIA_VISIBLE_DEVICES": "all"}, 2)
