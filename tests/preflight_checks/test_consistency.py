"""consistency: a fingerprint that can be compared key by key, and what contradicts itself within one node."""

import json
import os
import subprocess
import sys

import pytest
from nvml_checks import run_on
from nvml_faults import FAULTS
from nvml_machines import h100_sxm, machine, mig
from nvml_models import GB200
from rdma_machines import lay_out as lay_out_rdma
from rdma_machines import ndr, roce

from preflight_checks._probes import FOLDER
from preflight_checks.consistency import consistency
from trainer_agent import __version__
from trainer_agent.check import Options, Status
from trainer_agent.testing import FakeHost, run_check

pytestmark = pytest.mark.lab

LIBRARY = "int ncclGetVersion(int* version) {{ *version = {}; return 0; }}"
QUICK = Options(profile="quick")


@pytest.fixture
def host(tmp_path):
    made = FakeHost(tmp_path / "root")
    made.put("/proc/sys/kernel/random/boot_id", "6a1f0e9e-1a8f-4a28-8ee2-2c3c5a0f5a53\n")
    made.put("/proc/sys/kernel/osrelease", "6.8.0-53-generic\n")
    made.put("/etc/os-release", 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.1 LTS"\n')
    return made


@pytest.fixture
def environment(tmp_path):
    """Return a function that makes a Python with wheels of torch and NCCL, and returns its path."""

    def make(nccl="2.21.5"):
        site = tmp_path / "site"
        (site / "torch").mkdir(parents=True)
        (site / "torch" / "__init__.py").write_text("raise SystemExit('it was imported')")
        version = "from typing import Optional\n__all__ = ['__version__', 'cuda']\n__version__ = '2.5.1+cu124'\n"
        (site / "torch" / "version.py").write_text(
            version + "debug = False\ncuda: Optional[str] = '12.4'\nhip = None\n"
        )
        for name, number in (("nvidia_nccl_cu12", nccl), ("nvidia_cudnn_cu12", "9.1.0.70")):
            folder = site / f"{name}-{number}.dist-info"
            folder.mkdir()
            (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} -S "$@"\n')
        python.chmod(0o755)
        return str(python)

    return make


@pytest.fixture
def nccl(tmp_path):
    """Return a function that builds a libnccl which says it has a version."""

    def build(code):
        folder = tmp_path / f"lib{code}"
        folder.mkdir()
        (folder / "nccl.c").write_text(LIBRARY.format(code))
        library = folder / "libnccl.so.2"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, folder / "nccl.c"], check=True)
        return library

    return build


def rows(outcome):
    return [(str(f.severity), f.code, f.message) for f in outcome.findings]


def probe(python, environ):
    """Return what the probe says, run as the check runs it."""
    argv = [python, FOLDER / "versions_probe.py", "{}"]
    ended = subprocess.run(argv, env={**os.environ, **environ}, check=True, capture_output=True, text=True)
    return json.loads(ended.stdout)


def test_a_machine_with_nothing_passes(host):
    outcome = run_check(consistency, host, options=QUICK, nproc=2)

    expected = {
        "hostname": "fake-host",
        "boot_id": "6a1f0e9e-1a8f-4a28-8ee2-2c3c5a0f5a53",
        "kernel": "6.8.0-53-generic",
        "os": "Ubuntu 24.04.1 LTS",
        "arch": os.uname().machine,
        "processes": 2,
        "agent": __version__,
        "gpus": None,
        "rdma_devices": [],
        "rdma_ports": [],
        "rdma_mtu_bytes": [],
        "rdma_firmware": [],
        "settings": {},
        "settings_sha256": "44136fa355b3678a",
    }
    reasons = outcome.measurements["not_read"]
    assert (Status.PASS, expected) == (
        outcome.status,
        {k: v for k, v in outcome.measurements.items() if k != "not_read"},
    )
    assert ["gpus"] == list(reasons)
    assert "0 settings of NCCL and Gloo" == outcome.message


def test_the_gpus_of_a_node(nvml_standin, tmp_path):
    outcome = run_on(nvml_standin, h100_sxm(), [consistency], tmp_path, options=QUICK)["consistency"]

    marks = outcome.measurements
    names = ("gpus", "gpu_count", "mig", "ecc", "clique")
    assert ("8 x NVIDIA H100 80GB HBM3", 8, 0, 8, None) == tuple(marks[name] for name in names)
    assert (1, 1) == (len(marks["vbios"]), len(marks["gpu_memory_bytes"]))
    assert (Status.PASS, {}) == (outcome.status, marks["not_read"])


def test_the_nvlink_domain_of_a_rack(nvml_standin, tmp_path):
    outcome = run_on(nvml_standin, machine(GB200, 4), [consistency], tmp_path, options=QUICK)["consistency"]

    expected = ("01020304-0506-0708-090a-0b0c0d0e0f10", 2)
    assert expected == tuple(outcome.measurements[name] for name in ("cluster_uuid", "clique"))


def test_mig_is_counted(nvml_standin, tmp_path):
    outcome = run_on(nvml_standin, mig(), [consistency], tmp_path, options=QUICK)["consistency"]

    assert outcome.measurements["gpu_count"] == outcome.measurements["mig"]


def test_gpus_of_several_models_are_a_warning(nvml_standin, tmp_path):
    scenario = h100_sxm(2).says("nvmlDeviceGetName", "NVIDIA L4", gpu=1)

    outcome = run_on(nvml_standin, scenario, [consistency], tmp_path, options=QUICK)["consistency"]

    message = "the GPUs are of 2 models, NVIDIA H100 80GB HBM3, NVIDIA L4, wanted one"
    assert [("warning", "gpus-mixed", message)] == rows(outcome)
    assert [0, 1] == [gpu["index"] for gpu in outcome.findings[0].evidence["gpus"]]


@pytest.mark.parametrize(
    "nics, ports, mtu",
    [
        (ndr, ["8 x InfiniBand 400 Gb/sec (4X NDR)"], []),
        (
            roce,
            [
                "1 x Ethernet 100 Gb/sec (4X EDR)",
                "2 x Ethernet 200 Gb/sec (4X HDR)",
                "8 x Ethernet 400 Gb/sec (4X NDR)",
            ],
            [4092, 9000],
        ),
    ],
)
def test_the_network_of_a_node(host, nics, ports, mtu):
    marks = run_check(consistency, lay_out_rdma(host, nics()), options=QUICK).measurements

    assert (ports, mtu, ["28.39.2048"]) == tuple(marks[f"rdma_{name}"] for name in ("ports", "mtu_bytes", "firmware"))
    assert sum(int(port.split()[0]) for port in ports) == len(marks["rdma_devices"])


def test_settings_are_kept_without_secrets(host):
    environ = {
        "NCCL_DEBUG": "INFO",
        "NCCL_NET_PLUGIN_TOKEN": "hunter2hunter2",
        "NCCL_TUNER_URL": "http://hunter2hunter2@tuner",
        "GLOO_SOCKET_IFNAME": "eth0",
        "HOME": "/root",
    }
    marks = run_check(consistency, host, environ=environ, options=QUICK).measurements

    assert ["GLOO_SOCKET_IFNAME", "NCCL_DEBUG", "NCCL_TUNER_URL"] == list(marks["settings"])
    assert "hunter2" not in json.dumps(marks)


def test_the_hash_tells_settings_apart_and_not_their_order(host):
    def hashed(environ):
        return run_check(consistency, host, environ=environ, options=QUICK).measurements["settings_sha256"]

    one, two = {"NCCL_ALGO": "Ring", "NCCL_DEBUG": "INFO"}, {"NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring"}

    assert hashed(one) == hashed(two)
    assert hashed(one) != hashed({**one, "NCCL_ALGO": "Tree"})


@pytest.mark.parametrize("path, missing", [("/topo.xml", False), ("/none.xml", True), ("", False), ("relative", False)])
def test_a_topology_file_that_does_not_exist_is_a_warning(host, path, missing):
    host.put("/topo.xml", "<system/>")

    outcome = run_check(consistency, host, environ={"NCCL_TOPO_FILE": path}, options=QUICK)

    message = "NCCL_TOPO_FILE=/none.xml does not exist, wanted a file"
    assert ([("warning", "topology-file-missing", message)] if missing else []) == rows(outcome)


def test_the_software_is_read_without_importing_torch(host, environment):
    options = Options(python=environment())

    outcome = run_check(consistency, host, environ=dict(os.environ), options=options)

    names = ("torch", "torch_cuda", "nccl", "cudnn", "nccl_preloaded", "nccl_on_the_way")
    expected = ("2.5.1+cu124", "12.4", "2.21.5", "9.1.0.70", None, None)
    assert expected == tuple(outcome.measurements[name] for name in names)
    assert outcome.message.startswith("torch 2.5.1+cu124; NCCL 2.21.5")
    assert [] == rows(outcome)


@pytest.mark.parametrize("variable", ["LD_PRELOAD", "LD_LIBRARY_PATH"])
@pytest.mark.parametrize("code", [22304, 22105, 2804])
def test_another_nccl_than_that_of_the_wheel(host, environment, nccl, variable, code):
    """What is preloaded is used for sure; what is on the search path may come after torch's own."""
    library, version = nccl(code), {22304: "2.23.4", 2804: "2.8.4"}.get(code)
    severity = {"LD_PRELOAD": "warning", "LD_LIBRARY_PATH": "info"}[variable]
    value = str(library if variable == "LD_PRELOAD" else f"/nowhere:{library.parent}")

    outcome = run_check(
        consistency, host, environ={"PATH": os.environ["PATH"], variable: value}, options=Options(python=environment())
    )

    message = f"{variable} has NCCL {version} ({library}), wanted 2.21.5 as the nvidia-nccl wheel of torch"
    assert ([(severity, "nccl-differs", message)] if version else []) == rows(outcome)


def test_without_a_wheel_there_is_nothing_to_compare(nccl):
    """As in images whose torch was built for the NCCL of the system; and a file that is no library says nothing."""
    library = nccl(22304)

    told = probe(sys.executable, {"LD_LIBRARY_PATH": str(library.parent)})
    library.write_text("nonsense")
    broken = probe(sys.executable, {"LD_LIBRARY_PATH": str(library.parent)})

    assert (None, "2.23.4") == (told["nccl"], told["nccl_on_the_way"])
    assert (None, str(library)) == (broken["nccl_on_the_way"], broken["nccl_on_the_way_path"])


def test_a_python_without_torch_is_no_fault(host, tmp_path):
    python = tmp_path / "bare"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)

    outcome = run_check(consistency, host, environ=dict(os.environ), options=Options(python=str(python)))

    assert (Status.PASS, None, None) == (outcome.status, outcome.measurements["torch"], outcome.measurements["nccl"])


def test_a_python_that_does_not_start_is_no_fault_of_the_node(host):
    outcome = run_check(consistency, host, options=Options(python="/nowhere/python"))

    reason = "/nowhere/python: /nowhere/python cannot be started: No such file or directory; --python names another"
    assert (Status.PASS, reason) == (outcome.status, outcome.measurements["not_read"]["software"])


def test_a_broken_driver_leaves_the_rest(nvml_standin, tmp_path):
    """That it is broken is for gpu-count to say."""
    scenario = FAULTS["not-loaded"](h100_sxm(1), 0)

    outcome = run_on(nvml_standin, scenario, [consistency], tmp_path, options=QUICK)["consistency"]

    assert (Status.PASS, None) == (outcome.status, outcome.measurements["gpus"])
    assert {"gpus": "Driver Not Loaded"} == outcome.measurements["not_read"]
