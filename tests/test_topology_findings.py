"""Topology: every contradiction, with its whole message, and no input that raises."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trainer_agent.errors import Finding, Severity
from trainer_agent.topology import read_topology

TORCH = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "m"}
NNODES_HINT = "set PET_NNODES to a number such as 2, or to a range such as 1:4 for an elastic job"
NPROC_HINT = "set spec.trainer.numProcPerNode of the TrainJob to the number of GPUs in a pod, or leave it out"
MISSING_HINT = (
    "give the TrainJob a spec.trainer (an empty one is enough); for an init container, "
    "list it in mlPolicy.torch.envInjection of the runtime; where the runtime is PlainML, "
    "say that each pod runs the command by itself: TRAINER_AGENT_LAUNCH_LAUNCHER=python, or launch --launcher python"
)
MASTER_HINT = (
    "set it to the name of the pod with rank 0, such as <job>-node-0-0.<job>; "
    "Trainer injects it when the TrainJob has a spec.trainer (an empty one is enough)"
)


def findings(environ, *, hostname="box"):
    return read_topology(environ, hostname=hostname).findings


@pytest.mark.parametrize(
    "value", ["", "0", "auto", "2:1", "0:2", "-1", "1:", ":2", "1:2:3", "²", "٣", "1_0", "9" * 5000]
)
def test_nnodes_invalid(value):
    """PET_NNODES is a number of ASCII digits or a range that does not fall."""
    message = f"PET_NNODES={value!r} is neither a number of nodes (1 or more) nor a range MIN:MAX"
    assert (Finding("nnodes-invalid", message, hint=NNODES_HINT),) == findings({**TORCH, "PET_NNODES": value})


@pytest.mark.parametrize("value", ["", "0", "-1", "2.0", "AUTO", "cuda", "²", "٣", "9" * 5000])
def test_nproc_invalid(value):
    """PET_NPROC_PER_NODE is one of torchrun's words or a number, spelt exactly."""
    message = f"PET_NPROC_PER_NODE={value!r} is neither auto, cpu, gpu nor a number of 1 or more"
    expected = (Finding("nproc-invalid", message, hint=NPROC_HINT),)
    assert expected == findings({**TORCH, "PET_NPROC_PER_NODE": value})


@pytest.mark.parametrize("value", ["", "x", "1.0", "+1", "--1", "²", "٣", "1_0", "9" * 5000])
@pytest.mark.parametrize("name, default", [("PET_NODE_RANK", 0), ("PET_MASTER_PORT", 29500)])
def test_not_an_integer(name, default, value):
    """What is not written in ASCII digits is no number."""
    hint = f"set {name} to a number such as {default}"
    expected = (Finding("not-an-integer", f"{name}={value!r} is not a whole number", hint=hint),)
    assert expected == findings({**TORCH, name: value})


@pytest.mark.parametrize(
    "name, value, wanted",
    [
        ("PET_NODE_RANK", "-1", "0 or more"),
        ("PET_MASTER_PORT", "0", "1..65535"),
        ("PET_MASTER_PORT", "65536", "1..65535"),
        ("PET_MASTER_PORT", "-5", "1..65535"),
    ],
)
def test_out_of_range(name, value, wanted):
    """Numbers that exist but cannot be meant name the range."""
    hint = f"set {name} to a number in {wanted}"
    expected = (Finding("out-of-range", f"{name}={value} is outside {wanted}", hint=hint),)
    assert expected == findings({**TORCH, name: value})


def test_master_addr_missing():
    """Several nodes need a place to meet; brackets alone are none."""
    message = "PET_MASTER_ADDR is empty although the job has 2 nodes"
    expected = (Finding("master-addr-missing", message, hint=MASTER_HINT),)
    for environ in ({"PET_NNODES": "2"}, {**TORCH, "PET_MASTER_ADDR": " "}, {**TORCH, "PET_MASTER_ADDR": "[]"}):
        assert expected == findings(environ)


@pytest.mark.parametrize(
    "value", ["", "host", ":6666", "host:", "host:0", "host:65536", "host:²", "host:" + "9" * 5000]
)
def test_master_addr_missing_for_jax(value):
    """JAX's coordinator is a host and a valid port in one."""
    message = f"JAX_COORDINATOR_ADDRESS={value!r} is not host:port, and JAX_NUM_PROCESSES=2"
    hint = "set JAX_COORDINATOR_ADDRESS to the first pod's name and a port, as the jax runtime of Trainer does"
    expected = (Finding("master-addr-missing", message, hint=hint),)
    assert expected == findings({"JAX_NUM_PROCESSES": "2", "JAX_COORDINATOR_ADDRESS": value})


@pytest.mark.parametrize(
    "value, lacks, example_host",
    [
        ("e:", "valid port", "e"),
        ("e:0", "valid port", "e"),
        ("e:65536", "valid port", "e"),
        ("e:²", "valid port", "e"),
        ("e:" + "9" * 5000, "valid port", "e"),
        ("[::1]:x", "valid port", "[::1]"),
        (":29500", "host", "<job>-node-0-0.<job>"),
        ("[]:29500", "host", "[]"),
    ],
)
def test_endpoint_invalid(value, lacks, example_host):
    """PET_RDZV_ENDPOINT needs a host, and a port that exists."""
    message = f"PET_RDZV_ENDPOINT={value!r} has no {lacks}"
    hint = f"write it as host:port, such as {example_host}:29500"
    expected = (Finding("endpoint-invalid", message, hint=hint),)
    assert expected == findings({**TORCH, "PET_RDZV_ENDPOINT": value})


def test_elastic_needs_c10d():
    """A static rendezvous would wait for the largest number of nodes for ever."""
    message = "PET_RDZV_BACKEND=static cannot serve an elastic job: it waits for the largest number of nodes"
    expected = (Finding("elastic-needs-c10d", message, hint="set PET_RDZV_BACKEND=c10d, or leave it unset"),)
    assert expected == findings({**TORCH, "PET_NNODES": "1:4", "PET_RDZV_BACKEND": "static"})


@pytest.mark.parametrize(
    "environ, hostname, rank, wanted",
    [
        ({"PET_NODE_RANK": "2"}, "box", "PET_NODE_RANK=2", ("PET_NNODES", 2, "0..1")),
        ({"PET_NODE_RANK": "9"}, "box", "PET_NODE_RANK=9", ("PET_NNODES", 1, "0")),
        ({"JOB_COMPLETION_INDEX": "2"}, "box", "JOB_COMPLETION_INDEX=2", ("PET_NNODES", 2, "0..1")),
        ({}, "job-node-0-3", "PET_NODE_RANK (from the pod name job-node-0-3)=3", ("PET_NNODES", 2, "0..1")),
    ],
)
def test_rank_outside_nnodes(environ, hostname, rank, wanted):
    """A rank that the number of nodes excludes names the variable that it came from."""
    count, nodes, valid = wanted
    environ = {"PET_NNODES": str(nodes), "PET_MASTER_ADDR": "m", **environ}
    hint = f"set {count} to the number of pods, or {rank.rpartition('=')[0]} to one of {valid}"
    message = f"{rank} is outside {valid} ({count}={nodes})"
    assert (Finding("rank-outside-nnodes", message, hint=hint),) == findings(environ, hostname=hostname)


def test_rank_outside_nnodes_for_jax():
    """JAX's variables are named in a JAX job."""
    environ = {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "2", "JAX_COORDINATOR_ADDRESS": "m:1"}
    message = "JAX_PROCESS_ID=2 is outside 0..1 (JAX_NUM_PROCESSES=2)"
    hint = "set JAX_NUM_PROCESSES to the number of pods, or JAX_PROCESS_ID to one of 0..1"
    assert (Finding("rank-outside-nnodes", message, hint=hint),) == findings(environ)


@pytest.mark.parametrize(
    "environ, hostname, index",
    [({}, "job-node-0-1-abcde", "1"), ({"JOB_COMPLETION_INDEX": "2"}, "box", "2"), ({"OTHER": "x"}, "j-node-0-7", "7")],
)
def test_pet_missing(environ, hostname, index):
    """A pod with another index than 0 must not train alone because the controller injected nothing."""
    message = f"no PET_* variable is set although this pod ({hostname}) has index {index} in its job"
    assert (Finding("pet-missing", message, hint=MISSING_HINT),) == findings(environ, hostname=hostname)


@pytest.mark.parametrize("environ", [{}, {"JOB_COMPLETION_INDEX": "0"}, {"JAX_PLATFORMS": "cpu"}])
def test_pet_missing_on_the_first_pod(environ):
    """The pod with index 0 may be alone, so it is only warned."""
    message = (
        "no PET_* variable is set although this pod (job-node-0-0) has index 0 in its job; taken for a job of one node"
    )
    expected = (Finding("pet-missing", message, Severity.WARNING, MISSING_HINT),)
    assert expected == findings(environ, hostname="job-node-0-0")


@pytest.mark.parametrize("index", ["0", "1"])
def test_pet_missing_where_each_pod_is_by_itself(index):
    """A PlainML runtime injects nothing into any pod: who says that the command runs as it is, is only warned."""
    message = (
        f"no PET_* variable is set although this pod (job-node-0-{index}) has index {index} in its job; "
        "the command runs by itself here, as --launcher python says"
    )
    expected = (Finding("pet-missing", message, Severity.WARNING, MISSING_HINT),)
    assert expected == findings({"TRAINER_AGENT_LAUNCH_LAUNCHER": "python"}, hostname=f"job-node-0-{index}")


def test_rank_differs_from_pod():
    """Two pods with one rank are only visible by their names."""
    message = "PET_NODE_RANK=1, but this pod is job-node-0-0"
    hint = "two pods with one rank cannot rendezvous: make sure that another pod does not have this rank too"
    expected = (Finding("rank-differs-from-pod", message, Severity.WARNING, hint),)
    assert expected == findings(TORCH, hostname="job-node-0-0")


def test_all_findings_at_once():
    """One look shows everything that is wrong."""
    environ = {"PET_NNODES": "x", "PET_NPROC_PER_NODE": "y", "PET_NODE_RANK": "z", "PET_MASTER_PORT": "0"}
    expected = ["nnodes-invalid", "nproc-invalid", "not-an-integer", "out-of-range"]
    assert expected == [f.code for f in findings(environ)]


NAMES = [
    "PET_NNODES",
    "PET_NPROC_PER_NODE",
    "PET_NODE_RANK",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
    "PET_RDZV_BACKEND",
    "PET_RDZV_ENDPOINT",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
    "JAX_COORDINATOR_ADDRESS",
    "JOB_COMPLETION_INDEX",
    "HOSTNAME",
]
NUMBERS = st.sampled_from(["0", "1", "2", "3", "1:4", "-1", "²", "٣", "9" * 5000, "a:1", "[::1]:2", "j-node-0-3", " "])


@given(st.dictionaries(st.sampled_from(NAMES), NUMBERS | st.text()), NUMBERS | st.text())
@example({"PET_NNODES": "1" * 5000}, "job-node-0-" + "9" * 5000)
def test_never_raises(environ, hostname):
    """Whatever the variables hold, the answer is a possible rank or an error that says what is wrong."""
    found = read_topology(environ, hostname=hostname)
    assert found.node_rank < found.max_nodes or found.errors
    assert 1 <= found.min_nodes <= found.max_nodes
    assert 0 <= found.node_rank
    assert 0 <= found.master_port <= 65535
