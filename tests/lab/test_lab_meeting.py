"""Nodes meet by the names that DNS gives them, or say in time why not."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from podlab import ADDRESSES, AGENT, MASTER, SCRIPTS, eventually

pytestmark = pytest.mark.lab

ALLREDUCE = str(SCRIPTS / "allreduce.py")
FIRST = ADDRESSES["job1-node-0-0"]


def pet(rank, nnodes):
    """Return what the torch plugin of Kubeflow Trainer injects."""
    shape = {"PET_NNODES": str(nnodes), "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": str(rank)}
    return {**shape, "PET_MASTER_ADDR": MASTER, "PET_MASTER_PORT": "29500"}


def start(lab, count, *, nnodes=None):
    """Start a container in each of the first `count` pods."""
    return [lab[rank].launch("--", ALLREDUCE, env=pet(rank, nnodes or count)) for rank in range(count)]


def results(containers):
    """Return exit codes and what the ranks printed, by rank."""
    codes = [c.wait() for c in containers]
    said = [json.loads(line) for c in containers for line in c.stdout.splitlines()]
    return codes, sorted(said, key=lambda s: s["rank"])


def all_reduced(world):
    """Return what the ranks print when all of them took part."""
    return [{"rank": r, "world": world, "sum": world * (world + 1) / 2} for r in range(world)]


def test_three_nodes_meet_by_their_names(lab):
    """All ranks see a world of 3 and the same sum."""
    lab.publish()
    assert ([0, 0, 0], all_reduced(3)) == results(start(lab, 3))


def test_the_masters_name_may_be_published_late(lab):
    """Both nodes ask again and again, and go on when it is there."""
    containers = start(lab, 2)
    for pod in (lab[0], lab[1]):
        eventually(lambda pod=pod: lab.queries(MASTER, pod) >= 10, what="it is asked for for 5 s")
    lab.publish()
    assert ([0, 0], all_reduced(2)) == results(containers)


def refusal(container):
    """Return exit code, finding and reason from the termination message, which the log repeats."""
    told = container.termination
    assert (told["reason"], told["hint"]) == (container.logs[-1]["event"], container.logs[-1]["hint"])
    return told["exit_code"], told["code"], told["reason"]


def test_a_name_that_is_never_published_ends_the_wait_in_time(lab):
    """20, and both the log and the termination message name it."""
    container = lab[1].launch("--rendezvous-timeout", "4", "--", ALLREDUCE, env=pet(1, 2))
    assert 20 == container.wait()
    why = f"{MASTER} does not resolve (Name or service not known)"
    reason = f"PET_MASTER_ADDR={MASTER} did not resolve within 4 s: {why}"
    assert (20, "master-name-missing", reason) == refusal(container)


ABSENT = "torch.distributed.DistStoreError: Timed out after 4 seconds waiting for clients. 1/2 clients joined."
TIMEOUT = "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError"
NO_STORE = (
    "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed"
)


@pytest.mark.parametrize(
    "rank, nnodes, why",
    [(0, "2", ABSENT), (0, "2:3", TIMEOUT), (1, "2:3", NO_STORE)],
    ids=["static", "elastic", "elastic-without-the-first"],
)
def test_a_peer_that_never_comes_ends_the_rendezvous_in_time(lab, rank, nnodes, why):
    """20, because another attempt may find it; torchrun itself says 1 and has a traceback of 40 lines."""
    lab.publish()
    container = lab[rank].launch("--rendezvous-timeout", "3", "--", ALLREDUCE, env=pet(rank, nnodes))
    assert 20 == container.wait()
    told = container.termination
    expected = (20, lab[rank].name, f"the nodes did not meet: {why}")
    assert expected == (told["exit_code"], told["host"], told["reason"].partition(". See inner")[0])


def test_a_taken_port_is_named_with_its_holder(lab):
    """Without waiting: the process will not go away by itself."""
    lab.publish()
    hold = [sys.executable, str(SCRIPTS / "hold_port.py"), "29500"]
    agent = [AGENT, "launch", "--termination-log", "termination-log", "--", ALLREDUCE]
    container = lab[0].run(*hold, *agent, env=pet(0, 2))
    assert 20 == container.wait()
    name = Path(sys.executable).name
    reason = f"port 29500 of PET_MASTER_PORT is taken on this node by {name} (pid {container.stdout.strip()})"
    assert (20, "master-port-taken", reason) == refusal(container)


def test_a_second_rank_0_says_that_the_name_leads_elsewhere(lab):
    """The name leads to pod 0, so pod 1 with rank 0 is the wrong one."""
    lab.publish()
    container = lab[1].launch("--rendezvous-timeout", "3", "--", ALLREDUCE, env=pet(0, 2))
    assert 20 == container.wait()
    reason = f"this node has rank 0, but PET_MASTER_ADDR={MASTER} is {FIRST}, no address of this node"
    assert (20, "master-elsewhere", reason) == refusal(container)
    assert "rank-differs-from-pod" == container.log("PET_NODE_RANK=0, but this pod is job1-node-0-1")["code"]


def test_a_rank_outside_the_job_is_refused_at_once(lab):
    """30: no other node would help."""
    container = lab[2].launch("--", ALLREDUCE, env=pet(2, 2))
    assert 30 == container.wait()
    reason = "PET_NODE_RANK=2 is outside 0..1 (PET_NNODES=2)"
    assert (30, "rank-outside-nnodes", reason) == refusal(container)


def test_a_single_node_needs_no_name(lab):
    """Kubeflow gives it a master's name all the same, and nobody has published it."""
    container = lab[0].launch("--", ALLREDUCE, env=pet(0, 1))
    assert ([0], all_reduced(1)) == results([container])
    assert 0 == lab.queries(MASTER, lab[0])


def test_an_elastic_job_takes_all_nodes_that_are_there(lab):
    """1:2 nodes and both present make a world of 2."""
    lab.publish()
    assert ([0, 0], all_reduced(2)) == results(start(lab, 2, nnodes="1:2"))
