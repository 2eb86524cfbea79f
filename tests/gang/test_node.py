"""A node's way through the gang, where what happens cannot be timed from outside; the meeting place is in memory."""

import socket
import threading
import time
from contextlib import ExitStack
from dataclasses import replace

import pytest
from meeting_place import Place
from simulated import BEGAN, MemoryStore, hello, plan

from trainer_agent.gang import node as gang_node
from trainer_agent.gang.door import Door, knock
from trainer_agent.gang.member import Member
from trainer_agent.gang.node import Node
from trainer_agent.gang.roll import LOST_S
from trainer_agent.gang.setting import Setting, interface_of
from trainer_agent.gang.store import StoreLostError
from trainer_agent.host import Host
from trainer_agent.topology import Topology

JOB = Topology("torch", 2, 2, 0, 1, "localhost", 29500, "static", "job-node-0-0")


class MemorySide:
    """A torch side whose store is in memory; what its ranks are told is kept."""

    def __init__(self, store):
        self.store = store
        self.given = []

    def ask(self, what, *, answer_s=4.0, timeout_s=5.0, port=0, **how):
        return None if what == "serve" else getattr(self.store, what)(**how)

    def events(self, timeout_s):
        time.sleep(0.01)
        return []

    def give(self, tasks):
        self.given.append(tasks)

    def end(self, numbers):
        pass


class DyingStore(MemoryStore):
    """It is lost when rank 0 writes the verdict, as where the kernel has ended it for memory."""

    def compare_set(self, key, expected, value):
        self.lost = self.lost or key == "verdict"
        return super().compare_set(key, expected, value)


@pytest.fixture
def door():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    found = Door(port)
    found.port = port
    yield found
    found.close()


@pytest.fixture
def silent():
    """A port, and three addresses at which it takes no more connections: what is sent to it is lost."""
    with ExitStack() as held:
        addresses, port = [f"127.0.0.{number}" for number in (2, 3, 4)], 0
        for address in addresses:
            listener = held.enter_context(socket.create_server((address, port), backlog=0))
            port = listener.getsockname()[1]
            held.enter_context(socket.create_connection((address, port)))
        yield port, addresses


def rank_zero(store, door, *, host=None, **planned):
    """Return rank 0 of two nodes."""
    side = MemorySide(store)
    setting = Setting(JOB, host or Host(), side, door, plan(2, **planned), door.port - 1, hello(0, 2), BEGAN)
    return Node(setting), side


@pytest.mark.lab
def test_a_verdict_that_nobody_can_read_any_more_is_told_at_the_door(door):
    """For as long as others need to notice, and to come and ask; else rank 0 goes on to training alone."""
    store = DyingStore()
    node, _ = rank_zero(store, door, collective="left out")
    thread = threading.Thread(target=node.run, daemon=True)
    thread.start()
    while "open" not in store.values:
        time.sleep(0.01)
    Member(store, rank=1, born=BEGAN).join(hello(1, 2), attempt="", now=0.0, wall=time.time)
    while not store.lost:
        time.sleep(0.01)
    with pytest.raises(StoreLostError):
        store.get(["verdict"])
    time.sleep(LOST_S + gang_node.CONNECT_S + 1)
    heard = knock({0: "127.0.0.1"}, door.port)[0]

    assert ("answers", "pass") == (heard.answer, heard.status.get("verdict", {}).get("verdict"))
    assert thread.is_alive()


class Elsewhere(Host):
    """A machine where the name of rank 0 is that of a Service, whose address no machine has."""

    def resolve(self, name, *, timeout_s):
        return ["10.96.7.7"]


@pytest.mark.lab
def test_a_name_that_leads_elsewhere_is_no_matter_once_somebody_has_come(door, silent):
    """Of two nodes nobody can tell who it is when the other is gone, and the name is not why."""
    store, found = MemoryStore(), {}
    door.port, (address, *_) = silent
    node, _ = rank_zero(store, door, host=Elsewhere(), gang_timeout_s=LOST_S - 1)
    thread = threading.Thread(target=lambda: found.update(node.run()), daemon=True)
    thread.start()
    while "open" not in store.values:
        time.sleep(0.01)
    Member(store, rank=1, born=BEGAN).join(hello(1, 2, address=address), attempt="", now=0.0, wall=time.time)
    thread.join(LOST_S + 20)

    assert [("contact-lost", [])] == [(charge["code"], charge["culprits"]) for charge in found["charges"]]


@pytest.mark.lab
def test_a_node_that_the_job_does_not_have_says_what_it_can_alone(door, silent):
    """It has a row of its own beside those of the job's nodes."""
    topology, (port, addresses) = replace(JOB, max_nodes=3, node_rank=7), silent
    setting = Setting(topology, Host(), MemorySide(MemoryStore()), door, plan(3), port - 1, hello(7, 3), BEGAN)
    node = Node(setting)
    node.doors = {str(rank): address for rank, address in enumerate(addresses)}
    verdict = node._alone("never opened the meeting place within 5 s")

    assert [[7]] == [charge["culprits"] for charge in verdict["charges"]]
    assert (3, [0, 1, 2, 7]) == (verdict["nnodes"], [row["rank"] for row in verdict["nodes"]])
    assert [("job-node-0-7", ["machine-7"])] == [(s["id"], verdict["avoid"]["hostnames"]) for s in verdict["suspects"]]


@pytest.mark.parametrize("address,variables", [("127.0.0.1", {"GLOO_SOCKET_IFNAME": "lo"}), ("", {})])
def test_rank_zero_that_does_not_know_its_address_uses_the_way_to_another(door, address, variables):
    """Where the name server did not answer it: then the way to others is the one by which they reach it."""
    place = Place(attempt="")
    place.open()
    node, side = rank_zero(place.store, door)
    node._join("localhost", "")
    node.doors = {"0": "", "1": address}
    task = {"id": "all-1", "kind": "all", "members": [0, 1], "per_node": 1, "backend": "gloo", "timeout_s": 1.0}
    node._obey(task | {"numbers": 1, "sizes": [], "seconds": 0.0})

    assert [variables] == [task["environ"] for tasks in side.given for task in tasks.values()]


def test_no_address_is_that_of_no_interface():
    assert {} == interface_of("")
