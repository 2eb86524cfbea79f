"""The name of rank 0 as rank 0 sees it: which address of this node it is, and when it leads elsewhere for too long."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from trainer_agent.gang.own_name import AGAIN_S, NAME_S, OwnName
from trainer_agent.host import NameLookupError
from trainer_agent.rendezvous import STALE_NAME_S
from trainer_agent.testing import FakeHost
from trainer_agent.topology import Topology

NAME = "job-node-0-0.job"
JOB = Topology("torch", 2, 2, 0, 8, NAME, 29500, "static", "job-node-0-0")
OURS = ("10.0.0.1", "fd00::1", "127.0.0.1", "127.0.1.1", "::1")


class FailingServer(FakeHost):
    """A machine whose name server does not answer the first so many questions."""

    def __init__(self, root, *, failures, **how):
        super().__init__(root, **how)
        self.failures = failures
        self.asked = 0

    def resolve(self, name, *, timeout_s):
        self.asked += 1
        if self.asked <= self.failures:
            self.clock += 2.0
            raise NameLookupError(name, "Temporary failure in name resolution", published=None)
        return super().resolve(name, timeout_s=timeout_s)


def own_name(host, *, waits_s=600.0, backend="static"):
    """Return the name on rank 0 of a job whose nodes wait so long for each other."""
    plan = SimpleNamespace(gang_timeout_s=waits_s)
    return OwnName(SimpleNamespace(host=host, topology=replace(JOB, rdzv_backend=backend), plan=plan))


@pytest.mark.parametrize(
    "found,address",
    [
        (["10.0.0.1"], "10.0.0.1"),
        (["fd00::1"], "fd00::1"),
        (["10.0.0.9", "10.0.0.1"], "10.0.0.1"),
        (["127.0.1.1"], ""),
        (["::1", "127.0.0.1"], ""),
        (["127.0.1.1", "10.0.0.1"], "10.0.0.1"),
        (["10.0.0.9"], ""),
        ([], ""),
    ],
)
def test_the_address_is_one_of_this_node_that_others_can_reach(tmp_path, found, address):
    """Of a name with several, as a Service has; never a loopback address, as /etc/hosts may have it."""
    assert address == own_name(FakeHost(tmp_path, own=OURS, names_at={NAME: found})).address


@pytest.mark.parametrize("failures,address", [(1, "10.0.0.1"), (2, "10.0.0.1"), (99, "")])
def test_a_name_server_that_does_not_answer_is_asked_again(tmp_path, failures, address):
    """For some seconds."""
    host = FailingServer(tmp_path, failures=failures, own=OURS, names_at={NAME: ["10.0.0.1"]})
    began = host.monotonic()

    assert address == own_name(host).address
    assert host.monotonic() - began <= NAME_S + 2.5


def test_others_that_wait_for_a_short_time_find_rank_zero_in_it(tmp_path):
    host = FailingServer(tmp_path, failures=99, own=OURS, names_at={NAME: ["10.0.0.1"]})
    began = host.monotonic()
    own_name(host, waits_s=9.0)

    assert host.monotonic() - began <= 9.0 / 3 + 2.5


def test_a_name_that_does_not_exist_holds_nobody_up(tmp_path):
    host = FakeHost(tmp_path, own=OURS, names_at={NAME: [[], ["10.0.0.1"]]})

    assert "" == own_name(host).address
    assert host.slept == 0.0


@pytest.mark.parametrize(
    "waits_s,backend,patience_s", [(600.0, "static", STALE_NAME_S), (10.0, "static", 10.0), (600.0, "c10d", 600.0)]
)
def test_a_name_that_leads_elsewhere_is_told_after_a_while(tmp_path, waits_s, backend, patience_s):
    """As on the wrong one of two nodes with rank 0; without a static rendezvous, others may find it all the same."""
    host = FakeHost(tmp_path, own=OURS, names_at={NAME: ["10.0.0.9", "10.0.0.8"]})
    name = own_name(host, waits_s=waits_s, backend=backend)
    host.clock += patience_s - 0.1
    assert name.charge() is None
    host.clock += 0.2
    charge = name.charge()

    told = f"this node has rank 0, but PET_MASTER_ADDR={NAME} is 10.0.0.9, 10.0.0.8, no address of this node"
    assert ("master-elsewhere", told, ()) == (charge.finding.code, charge.finding.message, charge.culprits)


@pytest.mark.parametrize("then", [["10.0.0.1"], ["127.0.0.1"], []])
def test_a_name_that_was_that_of_the_pod_before_this_one_comes_right(tmp_path, then):
    """Nobody is accused of what is not known any more, either."""
    host = FakeHost(tmp_path, own=OURS, names_at={NAME: [["10.0.0.9"], then]})
    name = own_name(host)
    host.clock += STALE_NAME_S + 1

    assert name.charge() is None
    assert name.charge() is None


@pytest.mark.parametrize("found", [["10.0.0.1"], ["127.0.0.1"], ["10.0.0.9", "10.0.0.1"], []])
def test_a_name_that_leads_here_is_not_asked_for_again(tmp_path, found):
    host = FailingServer(tmp_path, failures=0, own=OURS, names_at={NAME: found})
    name = own_name(host)
    host.clock += STALE_NAME_S + 1

    assert name.charge() is None
    assert 1 == host.asked


def test_one_question_that_nobody_answers_changes_nothing(tmp_path):
    """It is asked again; meanwhile nobody is accused, and nothing is forgotten."""
    host = FailingServer(tmp_path, failures=0, own=OURS, names_at={NAME: ["10.0.0.9"]})
    name = own_name(host)
    host.clock += STALE_NAME_S + 1
    host.failures = 2
    assert [None, None] == [name.charge(), name.charge()]
    assert 2 == host.asked

    host.clock += AGAIN_S
    assert "master-elsewhere" == name.charge().finding.code
