"""door: whoever knocks hears what a node knows, whatever others do at its door; what is not there is told apart."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from threading import Thread, Timer

import pytest
from marked import until

from trainer_agent.gang.door import Door, Knock, knock
from trainer_agent.process import is_alive

pytestmark = pytest.mark.lab

HOST = "127.0.0.1"
MUCH = 6 << 20  # more than the buffers of a connection hold
# In a network of its own, where packets to 10.9.9.2 go nowhere and no name server is in reach.
NOWHERE = """set -e
ip link set lo up; ip link add v0 type veth peer name v1; ip link set v1 up; ip link set v0 arp off up
ip addr add 10.9.9.1/24 dev v0; exec "$@"
"""
KNOCK = """
import json, sys
from trainer_agent.gang.door import knock
names = {1: "10.9.9.2", 2: "job1-node-0-2.job1"}
print(json.dumps({rank: heard.answer for rank, heard in knock(names, 29502).items()}))
"""


def heard(port, rank=0):
    """Knock at one door."""
    return knock({rank: HOST}, port)[rank]


@pytest.fixture
def port():
    with socket.create_server((HOST, 0)) as free:
        return free.getsockname()[1]


@pytest.fixture
def door(port):
    """A door that is open, and tells that it is rank 0's."""
    door = Door(port)
    door.tell({"rank": 0, "state": "waiting"})
    until(lambda: heard(port).answer == "answers")
    yield door
    door.close()


def all_of(guest):
    """Return what a guest hears until the door says no more."""
    return b"".join(iter(lambda: guest.recv(1 << 16), b""))


def test_it_tells_the_last_status(door, port):
    door.tell({"rank": 0, "state": "met"})
    door.tell({"rank": 0, "state": "lost"})

    assert until(lambda: heard(port).status.get("state") == "lost")
    assert Knock("answers", {"rank": 0, "state": "lost"}) == heard(port)


def test_a_large_status_arrives_whole(door, port):
    status = {"rank": 0, "verdict": "x" * (1 << 20)}
    door.tell(status)

    assert until(lambda: "verdict" in heard(port).status)
    assert status == heard(port).status


def test_a_door_that_did_not_take_all_tells_what_came_last(door, port):
    """On a busy node it may not run for a while; what it has read a part of is not lost."""
    os.kill(process(door), signal.SIGSTOP)
    door.tell({"rank": 0, "verdict": "x" * MUCH})
    os.kill(process(door), signal.SIGCONT)
    door.tell({"rank": 0, "state": "lost"})

    assert until(lambda: heard(port).status.get("state") == "lost")


def test_guests_are_served_side_by_side(door, port):
    """Of two that are there at once the second is served first where it listens first."""
    with socket.create_connection((HOST, port)) as first, socket.create_connection((HOST, port)) as second:
        assert {"rank": 0, "state": "waiting"} == json.loads(all_of(second))
        assert {"rank": 0, "state": "waiting"} == json.loads(all_of(first))


def test_a_guest_that_does_not_listen_keeps_nobody_waiting(door, port):
    """It is sent away in the end, without having heard all."""
    door.tell({"rank": 0, "verdict": "x" * MUCH})
    until(lambda: "verdict" in heard(port).status)
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.settimeout(10)
        deaf.connect((HOST, port))
        assert heard(port).answer == "answers"
        until(lambda: not open_connections(door))
        assert len(all_of(deaf)) < MUCH


def test_strangers_that_talk_or_leave_do_no_harm(door, port):
    with ExitStack() as stack:
        for _ in range(20):
            guest = stack.enter_context(socket.create_connection((HOST, port)))
            guest.sendall(b"GET / HTTP/1.1\r\n\r\n\0\xff" * 100)
    assert heard(port).answer == "answers"


def test_a_port_that_is_taken_keeps_it_shut(port):
    """Telling and closing go on working; whoever has the port is not taken for the node."""
    with socket.create_server((HOST, port)) as taken:
        door = Door(port)
        try:
            until(lambda: not is_alive(process(door)))
            door.tell({"rank": 0})
            assert heard(port).answer == "mute"
        finally:
            door.close()
        taken.settimeout(5)
        taken.accept()[0].close()


def test_closing_ends_its_process(port):
    door = Door(port)
    pid = process(door)
    door.tell({"rank": 0})
    until(lambda: heard(port).answer == "answers")

    door.close()
    door.close()

    assert not is_alive(pid)
    assert Knock("refuses") == heard(port)


def test_the_door_of_another_rank_is_mute(door, port):
    """Nodes that share an address share a port."""
    assert Knock("mute") == heard(port, rank=1)


def test_who_takes_the_connection_and_says_nothing_is_mute():
    with socket.create_server((HOST, 0)) as listener:
        found = heard(listener.getsockname()[1])

    assert Knock("mute") == found
    assert found.reached


def test_who_is_mute_only_sometimes_is_behind_a_network_that_loses_packets():
    """A stuck process takes every connection; here the kernel takes one or two and drops the packets of the others."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen(0)
        found = knock({0: HOST}, listener.getsockname()[1], tries=6)[0]

    assert Knock("silent") == found


def test_who_answers_only_sometimes_is_behind_a_network_that_loses_packets():
    """The kernel drops the packets of some until somebody accepts; they come again, and are answered."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen(0)
        answering = Thread(target=answer, args=(listener, 6), daemon=True)
        Timer(0.3, answering.start).start()
        found = knock({0: HOST}, listener.getsockname()[1], tries=6)[0]

    assert Knock("falters", {"rank": 0}) == found


def answer(listener, times):
    for _ in range(times):
        with suppress(OSError), listener.accept()[0] as sock:
            sock.sendall(b'{"rank": 0}')


def test_a_name_that_is_none_does_not_resolve(port):
    assert Knock("unresolved") == knock({1: "no name!"}, port)[1]


def test_no_way_is_told_from_no_name_server():
    """Silence of the node, and silence of the name server, which says nothing about the node."""
    argv = ["unshare", "--net", "--map-root-user", "sh", "-c", NOWHERE, "sh", sys.executable, "-c", KNOCK]

    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)

    assert (0, "") == (done.returncode, done.stderr)
    assert {"1": "silent", "2": "nameless"} == json.loads(done.stdout)


def process(door):
    """Return the pid of a door's process."""
    return door.children.running[0].pid


def open_connections(door):
    """Return the connections that a door has with guests."""
    import psutil

    return [c for c in psutil.Process(process(door)).net_connections("tcp") if c.status == psutil.CONN_ESTABLISHED]
