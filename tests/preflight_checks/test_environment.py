import inspect
import re

import pytest

from preflight_checks.environment import TOPOLOGY, chosen, environment
from trainer_agent import topology
from trainer_agent.accelerators import Accelerators
from trainer_agent.check import Options, Outcome, Status
from trainer_agent.errors import Action, FatalError, Severity
from trainer_agent.testing import NO_DEVICES, FakeHost, run_check

TWO_NODES = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "job-node-0-0.job"}
SEVERITIES = {rule.code: rule.severity for rule in environment.rules}
GPUS = Accelerators("nvidia", 8, "NVML: 8 GPUs")


@pytest.fixture
def host(tmp_path):
    made = FakeHost(tmp_path)
    for name in ("lo", "eth0", "ib0"):
        made.put(f"/sys/class/net/{name}/mtu", "1500\n")
    return made


def adapters(host, **ports):
    for device, numbers in ports.items():
        for number in numbers:
            host.put(f"/sys/class/infiniband/{device}/ports/{number}/state", "4: ACTIVE\n")


def found(outcome):
    return [(str(f.severity), f.code, f.message) for f in outcome.findings]


def test_by_hand_on_a_machine_without_any_job(host):
    assert Outcome("no job: this machine alone, 1 process", (), {"processes": 1}) == run_check(environment, host)


def test_a_job_in_one_line(host):
    outcome = run_check(environment, host, environ=TWO_NODES, nproc=8)

    assert Outcome("torch: nodes 2, this one has rank 1, 8 processes here", (), {"processes": 8}) == outcome


def test_an_elastic_job_in_one_line(host):
    outcome = run_check(environment, host, environ={**TWO_NODES, "PET_NNODES": "1:4"})

    assert "torch: nodes 1 to 4, this one has rank 1, 1 process here" == outcome.message


@pytest.mark.parametrize(
    "environ, code",
    [
        ({**TWO_NODES, "PET_NODE_RANK": "one"}, "not-an-integer"),
        ({**TWO_NODES, "PET_MASTER_PORT": "70000"}, "out-of-range"),
        ({**TWO_NODES, "PET_NNODES": "0"}, "nnodes-invalid"),
        ({**TWO_NODES, "PET_NPROC_PER_NODE": "many"}, "nproc-invalid"),
        ({"PET_NNODES": "2"}, "master-addr-missing"),
        ({"JAX_NUM_PROCESSES": "2"}, "master-addr-missing"),
        ({**TWO_NODES, "PET_RDZV_ENDPOINT": "host:port"}, "endpoint-invalid"),
        ({**TWO_NODES, "PET_NNODES": "1:2", "PET_RDZV_BACKEND": "static"}, "elastic-needs-c10d"),
        ({**TWO_NODES, "PET_NODE_RANK": "2"}, "rank-outside-nnodes"),
        ({"HOSTNAME": "job-node-0-3"}, "pet-missing"),
    ],
)
def test_contradictions_stop_the_job(host, environ, code):
    outcome = run_check(environment, host, environ=environ)

    assert (Status.FAIL, [("error", code, Action.STOP)]) == (
        outcome.status,
        [(str(f.severity), f.code, f.action) for f in outcome.findings],
    )
    assert code in SEVERITIES


@pytest.mark.parametrize("environ", [{"HOSTNAME": "job-node-0-3"}, {"JOB_COMPLETION_INDEX": "3"}])
def test_a_machine_that_is_checked_by_itself_needs_no_job(host, environ):
    """As in a debug container of a pod, or in a Job that goes through all machines."""
    alone = run_check(environment, host, environ=environ, options=Options(scope="node"))
    among = run_check(environment, host, environ=environ)

    assert (Status.PASS, ()) == (alone.status, alone.findings)
    assert among.findings[0].hint.endswith("; to check this machine by itself: --scope node")


def test_every_contradiction_that_can_be_found_is_declared():
    """A code that a check does not declare would make it break, just when it has something to say."""
    codes = set(re.findall(r'_(?:error|warn)\(\s*"([a-z0-9-]+)"', inspect.getsource(topology)))

    assert codes == {rule.code for rule in TOPOLOGY}


@pytest.mark.parametrize(
    "environ, code",
    [
        ({"HOSTNAME": "job-node-0-0"}, "pet-missing"),
        ({**TWO_NODES, "HOSTNAME": "job-node-0-0"}, "rank-differs-from-pod"),
    ],
)
def test_doubtful_ones_are_warnings(host, environ, code):
    outcome = run_check(environment, host, environ=environ)

    assert (Status.WARN, [("warning", code)]) == (outcome.status, [row[:2] for row in found(outcome)])
    assert code in SEVERITIES


def test_what_is_declared_as_a_warning():
    """Whatever is an error in some case only, such as `pet-missing`, says so in its words."""
    expected = {
        "rank-differs-from-pod",
        "no-accelerator",
        "gpu-driver-broken",
        "interface-missing",
        "adapter-missing",
        "transport-disabled",
    }
    assert expected == {code for code, severity in SEVERITIES.items() if severity is Severity.WARNING}


@pytest.mark.parametrize("code", ["no-accelerator", "gpu-driver-broken"])
def test_what_launch_would_refuse_is_a_warning_here(host, code):
    """An init container may have no devices of its own."""
    refusal = FatalError(code, "PET_NPROC_PER_NODE=auto asks for accelerators", hint="request them")

    outcome = run_check(environment, host, refusal=refusal)

    assert (Status.WARN, [("warning", code, refusal.message)]) == (outcome.status, found(outcome))
    assert [("request them", Action.CONTINUE)] == [(f.hint, f.action) for f in outcome.findings]
    assert code in SEVERITIES


@pytest.mark.parametrize(
    "setting, expected",
    [
        ("eth", ["eth0", "eth1"]),
        ("eth0", ["eth0"]),
        ("=eth", []),
        ("=eth0", ["eth0"]),
        ("ib,eth1", ["eth1", "ib0"]),
        ("^lo", ["eth0", "eth1", "ib0"]),
        ("^lo,docker", ["eth0", "eth1", "ib0"]),
        ("^=eth", ["eth0", "eth1", "ib0", "lo"]),
        ("^=eth0,=lo", ["eth1", "ib0", "lo"]),
        ("wlan", []),
        ("eth0:1", ["eth0"]),
    ],
)
def test_nccl_reads_its_lists_like_this(setting, expected):
    """After ncclFindInterfaces: one `^` and one `=` in front hold for the whole list."""
    assert expected == chosen(setting, ["eth0", "eth1", "ib0", "lo"])


@pytest.mark.parametrize(
    "setting, expected",
    [
        ("mlx5_0", ["mlx5_0:1", "mlx5_0:2"]),
        ("mlx5_0:2", ["mlx5_0:2"]),
        ("=mlx5_1", ["mlx5_1:1"]),
        ("^mlx5_0:1", ["mlx5_0:2", "mlx5_1:1"]),
        ("=mlx5", []),
    ],
)
def test_adapters_may_have_ports(setting, expected):
    assert expected == chosen(setting, ["mlx5_0:1", "mlx5_0:2", "mlx5_1:1"])


@pytest.mark.parametrize("variable", ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"])
def test_an_interface_that_does_not_exist_is_a_warning(host, variable):
    outcome = run_check(environment, host, environ={variable: "bond0"})

    message = f"{variable}=bond0 names nothing that is here, wanted some of: eth0, ib0, lo"
    assert [("warning", "interface-missing", message)] == found(outcome)
    assert {"variable": variable, "value": "bond0", "present": ["eth0", "ib0", "lo"]} == outcome.findings[0].evidence


@pytest.mark.parametrize("environ, nproc, gpus", [(TWO_NODES, 8, 8), (TWO_NODES, 1, 1), ({}, 2, 2)])
def test_it_is_an_error_where_processes_with_gpus_would_use_nccl(host, environ, nproc, gpus):
    accelerators = Accelerators("nvidia", gpus, "NVML")
    environ = {**environ, "NCCL_SOCKET_IFNAME": "bond0"}

    outcome = run_check(environment, host, environ=environ, accelerators=accelerators, nproc=nproc)

    expected = (Status.FAIL, [("interface-missing", Action.STOP)])
    assert expected == (outcome.status, [(f.code, f.action) for f in outcome.findings])


@pytest.mark.parametrize(
    "accelerators, nproc",
    [(NO_DEVICES, 8), (GPUS, 1), (Accelerators("tpu", 4, "4 device nodes"), 4), (Accelerators("nvidia", 0, "NVML"), 8)],
)
def test_it_stays_a_warning_where_nccl_is_not_sure_to_be_used(host, accelerators, nproc):
    environ = {"NCCL_SOCKET_IFNAME": "bond0"}

    outcome = run_check(environment, host, environ=environ, accelerators=accelerators, nproc=nproc)

    assert Status.WARN is outcome.status


@pytest.mark.parametrize(
    "environ",
    [
        {"NCCL_SOCKET_IFNAME": "eth,bond"},
        {"NCCL_SOCKET_IFNAME": "^docker0,lo"},
        {"NCCL_SOCKET_IFNAME": " "},
        {"GLOO_SOCKET_IFNAME": "eth0,ib0"},
        {"GLOO_SOCKET_IFNAME": ""},
    ],
)
def test_interfaces_that_exist_pass(host, environ):
    assert [] == found(run_check(environment, host, environ=environ))


def test_gloo_wants_every_name_and_knows_no_prefix(host):
    outcome = run_check(environment, host, environ={"GLOO_SOCKET_IFNAME": "eth0,ib"})

    assert ["interface-missing"] == [f.code for f in outcome.findings]


def test_without_a_list_of_interfaces_nothing_is_said(tmp_path):
    environ = {"NCCL_SOCKET_IFNAME": "bond0", "GLOO_SOCKET_IFNAME": "bond0"}

    assert [] == found(run_check(environment, FakeHost(tmp_path), environ=environ))


@pytest.mark.parametrize("setting", ["mlx4", "=mlx5", "mlx5_0:3"])
def test_an_adapter_that_does_not_exist_is_a_warning(host, setting):
    adapters(host, mlx5_0="12")

    outcome = run_check(environment, host, environ={"NCCL_IB_HCA": setting})

    message = f"NCCL_IB_HCA={setting} names nothing that is here, wanted some of: mlx5_0"
    assert [("warning", "adapter-missing", message)] == found(outcome)


def test_an_adapter_is_named_on_a_machine_that_has_none(host):
    outcome = run_check(environment, host, environ={"NCCL_IB_HCA": "mlx5"})

    message = "NCCL_IB_HCA=mlx5 names nothing that is here, wanted some of: there are none"
    assert [("warning", "adapter-missing", message)] == found(outcome)


@pytest.mark.parametrize("setting", ["mlx5", "=mlx5_0:1,mlx5_9", "^mlx5_1", ""])
def test_adapters_that_exist_pass(host, setting):
    adapters(host, mlx5_0="12")

    assert [] == found(run_check(environment, host, environ={"NCCL_IB_HCA": setting}))


def test_an_adapter_whose_ports_cannot_be_read_is_known_by_name(host):
    host.put("/sys/class/infiniband/mlx5_0/node_guid")

    assert [] == found(run_check(environment, host, environ={"NCCL_IB_HCA": "mlx5_0:1"}))


def test_transports_left_disabled_are_warnings(host):
    adapters(host, mlx5_0="1")
    names = ["NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE"]

    outcome = run_check(environment, host, environ=dict.fromkeys(names, "1"))

    assert [("warning", "transport-disabled", f"{n}=1 is set, wanted 0 or unset") for n in names] == found(outcome)


@pytest.mark.parametrize("environ", [{"NCCL_IB_DISABLE": "1"}, {"NCCL_P2P_DISABLE": "0", "NCCL_SHM_DISABLE": ""}])
def test_no_adapter_to_disable_and_zeros_pass(host, environ):
    assert [] == found(run_check(environment, host, environ=environ))
