"""The names of the other nodes."""

from dataclasses import replace

import pytest

from trainer_agent.gang.peers import at_rank_zero, hostname_of, job_of, name_of
from trainer_agent.topology import Topology, read_topology

JOB = Topology("torch", 4, 4, 1, 8, "", 29500, "static", "job-node-0-1")


@pytest.mark.parametrize(
    "master,name",
    [
        ("train-node-0-0.train", "train-node-0-3.train"),
        ("train-node-0-0.train.ns.svc.cluster.local", "train-node-0-3.train.ns.svc.cluster.local"),
        ("train-node-0-0", "train-node-0-3"),
        ("a-node-0-b-node-0-0.a", "a-node-0-b-node-0-3.a"),
        ("train-node-0-1.train", ""),
        ("train-node-0-10.train", ""),
        ("train-master-0.train", ""),
        ("10.77.0.10", ""),
        ("", ""),
    ],
)
def test_names_follow_that_of_rank_zero(master, name):
    """Where it is the name that JobSet gives; rank 0 has the address that all were told."""
    job = replace(JOB, master_addr=master)

    assert name == name_of(3, job)
    assert name.partition(".")[0] == hostname_of(3, job)
    assert master == name_of(0, job)


@pytest.mark.parametrize(
    "master,job",
    [
        ("train-node-0-0.train", "train-node-0-0"),
        ("train-node-0-0.train.ns.svc.cluster.local", "train-node-0-0"),
        ("train-node-0-0", "train-node-0-0"),
        ("train-master-0.train", ""),
        ("localhost", ""),
        ("10.77.0.10", ""),
        ("fd00::1", ""),
    ],
)
def test_a_job_is_told_by_what_all_its_nodes_call_rank_zero(master, job):
    """One may be told the short name, another the long one; of other names and addresses nobody knows."""
    assert job == job_of(replace(JOB, master_addr=master))


@pytest.mark.parametrize(
    "environ, expected",
    [
        ({"PET_MASTER_ADDR": "m", "PET_MASTER_PORT": "1"}, ("m", 1, "PET_MASTER_ADDR")),
        ({"PET_RDZV_ENDPOINT": "e:12", "PET_MASTER_ADDR": "m"}, ("e", 12, "PET_RDZV_ENDPOINT")),
        ({"PET_RDZV_ENDPOINT": "e:12", "PET_RDZV_BACKEND": "c10d"}, ("e", 12, "PET_RDZV_ENDPOINT")),
        (
            {"PET_RDZV_ENDPOINT": "m:12", "PET_MASTER_ADDR": "m", "PET_RDZV_BACKEND": "c10d"},
            ("m", 12, "PET_RDZV_ENDPOINT"),
        ),
        (
            {"PET_RDZV_ENDPOINT": "e:12", "PET_MASTER_ADDR": "[::1]", "PET_RDZV_BACKEND": "c10d"},
            ("::1", 29500, "PET_MASTER_ADDR"),
        ),
        (
            {
                "PET_RDZV_ENDPOINT": "e:12",
                "PET_MASTER_ADDR": "m",
                "PET_MASTER_PORT": "7",
                "PET_RDZV_BACKEND": "etcd-v2",
            },
            ("m", 7, "PET_MASTER_ADDR"),
        ),
        ({"PET_RDZV_ENDPOINT": "e:12", "PET_RDZV_BACKEND": "etcd"}, ("", 12, "PET_RDZV_ENDPOINT")),
    ],
)
def test_where_rank_zero_is(environ, expected):
    """At the endpoint of a static rendezvous; for others PET_MASTER_ADDR says it, and an etcd is no node at all."""
    found = at_rank_zero(read_topology({"PET_NNODES": "2", **environ}, hostname="box"))
    assert expected == (found.master_addr, found.master_port, found.master_variable)
