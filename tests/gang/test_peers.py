"""The names of the other nodes."""

from dataclasses import replace

import pytest

from trainer_agent.gang.peers import hostname_of, name_of
from trainer_agent.topology import Topology

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
