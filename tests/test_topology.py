"""Topology: what each environment of a controller describes."""

import pytest

from trainer_agent.env import Setting
from trainer_agent.errors import Severity
from trainer_agent.topology import Topology, read_topology

TORCH = {
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "4",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "job-node-0-0.job",
    "PET_MASTER_PORT": "29500",
}


def read(environ, *, hostname="box"):
    return read_topology(environ, hostname=hostname)


def shape(environ, *, hostname="box"):
    """Return the fields that the environment decides."""
    found = read(environ, hostname=hostname)
    nodes = (found.min_nodes, found.max_nodes)
    place = (found.master_addr, found.master_port, found.rdzv_backend)
    return (found.runtime, nodes, found.node_rank, found.nproc, *place, found.findings)


def test_what_trainer_injects():
    """The five variables of the torch plugin give a whole topology, and every value keeps its origin."""
    expected = Topology(
        runtime="torch",
        min_nodes=2,
        max_nodes=2,
        node_rank=1,
        nproc=4,
        master_addr="job-node-0-0.job",
        master_port=29500,
        rdzv_backend="static",
        hostname="box",
        settings=(
            Setting("PET_NNODES", "2", "environment", "number of nodes (MIN:MAX when elastic)"),
            Setting("PET_NPROC_PER_NODE", "4", "environment", "processes asked for on this node"),
            Setting("PET_NODE_RANK", "1", "environment", "this node's rank"),
            Setting("PET_MASTER_ADDR", "job-node-0-0.job", "environment", "where rank 0 listens"),
            Setting("PET_MASTER_PORT", "29500", "environment", "port of the rendezvous and of MASTER_PORT"),
            Setting("PET_RDZV_ENDPOINT", "", "not set", "overrides address and port of the rendezvous"),
            Setting("PET_RDZV_BACKEND", "static", "default", "how the nodes find each other"),
        ),
    )
    actual = read(TORCH)
    assert expected == actual
    assert (False, False, ()) == (actual.elastic, actual.single_node, actual.errors)


def test_nothing_injected():
    """An empty environment is one plain node without complaints."""
    found = read({})
    expected = Topology("plain", 1, 1, 0, None, "", 29500, "static", "box", found.settings, ())
    assert expected == found
    assert found.single_node
    assert {"default", "not set"} == {s.origin for s in found.settings}


def test_jax():
    """The three variables of the jax plugin describe one process on each node."""
    environ = {"JAX_NUM_PROCESSES": "3", "JAX_PROCESS_ID": "2", "JAX_COORDINATOR_ADDRESS": "job-node-0-0.job:6666"}
    expected = Topology(
        runtime="jax",
        min_nodes=3,
        max_nodes=3,
        node_rank=2,
        nproc=1,
        master_addr="job-node-0-0.job",
        master_port=6666,
        rdzv_backend="jax",
        hostname="box",
        settings=(
            Setting("JAX_NUM_PROCESSES", "3", "environment", "number of nodes, one process each"),
            Setting("JAX_PROCESS_ID", "2", "environment", "this node's rank"),
            Setting("JAX_COORDINATOR_ADDRESS", "job-node-0-0.job:6666", "environment", "where process 0 listens"),
        ),
    )
    assert expected == read(environ)


@pytest.mark.parametrize(
    "environ, expected",
    [
        ({**TORCH, "PET_NNODES": " 2 ", "PET_NODE_RANK": " 1\n"}, ("torch", (2, 2), 1, 4)),
        ({**TORCH, "PET_NNODES": "1:4", "PET_NODE_RANK": "3"}, ("torch", (1, 4), 3, 4)),
        ({**TORCH, "PET_NPROC_PER_NODE": " auto "}, ("torch", (2, 2), 1, "auto")),
        ({**TORCH, "PET_NPROC_PER_NODE": "cpu"}, ("torch", (2, 2), 1, "cpu")),
        ({**TORCH, "PET_NPROC_PER_NODE": "gpu"}, ("torch", (2, 2), 1, "gpu")),
        ({"PET_NNODES": "1"}, ("torch", (1, 1), 0, None)),
        ({"JAX_PLATFORMS": "cpu"}, ("plain", (1, 1), 0, None)),
        ({**TORCH, "JAX_NUM_PROCESSES": "7"}, ("torch", (2, 2), 1, 4)),
        ({"JAX_NUM_PROCESSES": "1"}, ("jax", (1, 1), 0, 1)),
    ],
)
def test_nodes_rank_and_processes(environ, expected):
    """White space is no error, ranges are elastic, and JAX's other variables do not make a job a JAX job."""
    assert (expected, ()) == (shape(environ)[:4], shape(environ)[-1])


@pytest.mark.parametrize(
    "environ, hostname, rank",
    [
        ({"PET_NODE_RANK": "1", "JOB_COMPLETION_INDEX": "0"}, "job-node-0-1", 1),
        ({"JOB_COMPLETION_INDEX": " 2 "}, "job-node-0-1", 2),
        ({}, "job-node-0-1", 1),
        ({}, "job-node-0-2-x7z9q", 2),
        ({}, "my-node-5-job-node-0-0-abcde", 0),
        ({}, "job-node-0", 0),
        ({}, "job-worker-0-1", 0),
        ({"HOSTNAME": "job-node-0-2"}, "other", 2),
    ],
)
def test_where_the_rank_comes_from(environ, hostname, rank):
    """PET_NODE_RANK beats the completion index, which beats the pod's name, with or without its random suffix."""
    nodes = {"PET_NNODES": "3", "PET_MASTER_ADDR": "m"}
    assert (rank, ()) == (shape({**nodes, **environ}, hostname=hostname)[2], shape({**nodes, **environ})[-1])


def test_origin_of_a_rank_from_the_pod_name():
    """A rank that was concluded from the pod's name says so."""
    found = read({"PET_NNODES": "3", "PET_MASTER_ADDR": "m"}, hostname="job-node-0-2-x7z9q")
    rank = next(s for s in found.settings if s.name == "PET_NODE_RANK")
    assert Setting("PET_NODE_RANK", "2", "pod name job-node-0-2-x7z9q", "this node's rank") == rank


@pytest.mark.parametrize(
    "environ, expected",
    [
        ({"PET_MASTER_ADDR": "m", "PET_MASTER_PORT": "1"}, ("m", 1, "static")),
        ({"PET_MASTER_ADDR": "[::1]"}, ("::1", 29500, "static")),
        ({"PET_MASTER_ADDR": "::1", "PET_RDZV_BACKEND": "c10d"}, ("::1", 29500, "c10d")),
        ({"PET_MASTER_ADDR": "m", "PET_RDZV_BACKEND": ""}, ("m", 29500, "static")),
        ({"PET_RDZV_ENDPOINT": "e:1234", "PET_MASTER_ADDR": "m"}, ("e", 1234, "static")),
        ({"PET_RDZV_ENDPOINT": "e"}, ("e", 29500, "static")),
        ({"PET_RDZV_ENDPOINT": "[fd00::1]:1234"}, ("fd00::1", 1234, "static")),
        ({"PET_RDZV_ENDPOINT": "[fd00::1]", "PET_MASTER_PORT": "7"}, ("fd00::1", 7, "static")),
        ({"PET_RDZV_ENDPOINT": "fd00::1"}, ("fd00::1", 29500, "static")),
        ({"PET_RDZV_ENDPOINT": " ", "PET_MASTER_ADDR": "m"}, ("m", 29500, "static")),
        ({"PET_NNODES": "1:2", "PET_MASTER_ADDR": "m"}, ("m", 29500, "c10d")),
        ({"PET_NNODES": "1:2", "PET_MASTER_ADDR": "m", "PET_RDZV_BACKEND": "etcd"}, ("m", 29500, "etcd")),
    ],
)
def test_where_the_nodes_meet(environ, expected):
    """The endpoint beats the address, IPv6 loses its brackets, and an elastic job meets by c10d."""
    found = shape({"PET_NNODES": "2", **environ})
    assert (expected, ()) == (found[4:7], found[7])


def test_jax_coordinator_with_an_ipv6_address():
    """Brackets belong to the notation, not to the address."""
    environ = {"JAX_NUM_PROCESSES": "2", "JAX_COORDINATOR_ADDRESS": "[fd00::1]:6666"}
    assert ("fd00::1", 6666, "jax", ()) == shape(environ)[4:]


@pytest.mark.parametrize(
    "environ, variables",
    [
        (TORCH, ("PET_MASTER_ADDR", "PET_MASTER_PORT")),
        ({**TORCH, "PET_RDZV_ENDPOINT": "e:1"}, ("PET_RDZV_ENDPOINT", "PET_RDZV_ENDPOINT")),
        ({"JAX_NUM_PROCESSES": "1"}, ("JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_ADDRESS")),
    ],
)
def test_names_of_the_variables_for_messages(environ, variables):
    """Whoever complains about address or port can name the variable that really held it."""
    found = read(environ)
    assert variables == (found.master_variable, found.port_variable)


def test_warnings_are_no_errors():
    """Only what makes the job impossible counts as an error."""
    found = read({**TORCH, "PET_NODE_RANK": "0"}, hostname="job-node-0-1")
    assert ([Severity.WARNING], ()) == ([f.severity for f in found.findings], found.errors)


@pytest.mark.parametrize("word", ["auto", "cpu", "gpu", "xpu"])
def test_torchruns_words_for_processes(word):
    """What torchrun counts by itself is asked for by these words."""
    shape = read_topology({"PET_NPROC_PER_NODE": word}, hostname="box")
    assert (word, ()) == (shape.nproc, shape.findings)


@pytest.mark.parametrize(
    "environ",
    [
        {"OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile"},
        {"I_MPI_HYDRA_HOST_FILE": "/etc/mpi/hostfile"},
        {"HYDRA_HOST_FILE": "/etc/mpi/hostfile"},
        {"K_MPI_JOB_ROLE": "worker", "JOB_COMPLETION_INDEX": "3"},
    ],
)
def test_a_pod_of_an_mpi_job_misses_nothing(environ):
    """It has no PET_* variables, and an index although nobody asks for its rank."""
    found = read_topology(environ, hostname="job-node-0-3")

    assert ("mpi", True, ()) == (found.runtime, found.single_node, found.findings)


# What the kubelet gives all pods of a namespace with a Service of the name `pet`, or `pet-store`.
SERVICES = {
    "PET_SERVICE_HOST": "10.96.0.7",
    "PET_SERVICE_PORT": "80",
    "PET_PORT": "tcp://10.96.0.7:80",
    "PET_PORT_80_TCP_ADDR": "10.96.0.7",
    "PET_STORE_SERVICE_HOST": "10.96.0.8",
}


def test_a_service_whose_name_begins_with_pet():
    """It is nobody's word for torch: an MPI job stays one, and a pod without torchrun's variables misses them."""
    mpi = {"OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile", **SERVICES}
    missing = read_topology(SERVICES, hostname="job-node-0-3")
    assert "mpi" == read_topology(mpi, hostname="box").runtime
    assert ("plain", ["pet-missing"]) == (missing.runtime, [f.code for f in missing.errors])


def test_torch_wins_over_what_an_image_says_of_mpi():
    environ = {"PET_NNODES": "2", "PET_MASTER_ADDR": "a", "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile"}

    assert "torch" == read_topology(environ, hostname="box").runtime
