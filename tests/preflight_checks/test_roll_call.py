"""roll-call: on its own it only says why there is nobody to meet; the meeting itself is trainer_agent.gang's."""

import pytest

from preflight_checks.roll_call import roll_call
from trainer_agent.check import Options
from trainer_agent.gang.rules import COLLECTIVE, ROLL_CALL
from trainer_agent.testing import FakeHost, run_check

TWO = {"PET_NNODES": "2", "PET_NODE_RANK": "0", "PET_MASTER_ADDR": "job-node-0-0.job"}
C10D = {"PET_NNODES": "2", "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "job-node-0-0.job:29500"}

ETCD = {"PET_RDZV_BACKEND": "etcd-v2", "PET_RDZV_ENDPOINT": "etcd.infra:2379"}


@pytest.mark.parametrize(
    "environ, gang, reason",
    [
        ({}, False, "the job has one node"),
        (TWO | {"PET_NNODES": "1"}, False, "the job has one node"),
        ({"HYDRA_HOST_FILE": "/etc/mpi/hostfile"}, False, "this is no job of torch"),
        (TWO | {"PET_NNODES": "1:2"}, False, "the job is elastic: nobody knows how many nodes will come"),
        (C10D, False, "nobody has told this node its rank: give --node-rank or PET_NODE_RANK, and the nodes can meet"),
        (
            TWO | ETCD | {"PET_MASTER_ADDR": ""},
            False,
            (
                "the rendezvous is at etcd.infra (PET_RDZV_BACKEND=etcd-v2), no node of the job: "
                "set PET_MASTER_ADDR to rank 0's pod, and they meet"
            ),
        ),
        (TWO | ETCD, False, "the nodes meet with --scope gang"),
        (TWO, False, "the nodes meet with --scope gang"),
        (TWO, True, "the nodes did not meet"),
    ],
    ids=["by hand", "one node", "mpi", "elastic", "no rank", "etcd", "etcd and rank 0", "scope node", "alone"],
)
def test_it_is_skipped_with_the_reason(tmp_path, environ, gang, reason):
    assert reason == run_check(roll_call, FakeHost(tmp_path), environ=environ, options=Options(gang=gang))


def test_no_two_of_its_findings_have_one_code():
    codes = [rule.code for rule in (*ROLL_CALL, *COLLECTIVE)]

    assert len(codes) == len(set(codes))
