"""Every fault does to packets, names, processes and numbers what it says, to nobody else, and can be undone."""

from __future__ import annotations

import itertools
import json
import os
import sys

import faults
import psutil
import pytest
from ganglab import leftovers, results, start_gang
from podlab import LAUNCHER, MASTER, SCRIPTS, Lab, eventually

pytestmark = pytest.mark.lab

PORT = 7000
TOKENS = itertools.count()
PROBE = str(SCRIPTS / "probe.py")


@pytest.fixture
def net(lab_of_faults):
    """Return a lab with four nodes, and by name what answers on a port of each."""
    return Echoes(lab_of_faults(4))


class Echoes:
    """A lab with an echo on every pod, and what crosses between them."""

    def __init__(self, lab):
        self.lab = lab
        self.echo = {p.name: p.run(sys.executable, str(SCRIPTS / "echo.py"), str(PORT)) for p in lab.pods.values()}
        for container in self.echo.values():
            container.printed("ready")

    def __getitem__(self, rank):
        return self.lab[rank]

    def crossing(self, source, target):
        """Return `arrived` when only the answer to a datagram is lost, `lost` when the datagram is, or `answered`."""
        token = f"token {next(TOKENS)}."
        said = printed_by(self[source], "ask", self[target].address, str(PORT), token, "0.5")
        arrived = token in self.echo[self[target].name].stdout
        return {(True, "answered"): "answered", (True, "silent"): "arrived", (False, "silent"): "lost"}[arrived, said]

    def answers(self, *pairs):
        """Return whether the first node of each pair has an answer from the second; a busy machine has 10 s for it."""
        words = [(self[a], "ask", self[b].address, str(PORT), f"token {next(TOKENS)}.", "10") for a, b in pairs]
        return ["answered"] * len(words) == [printed_by(*w) for w in words]

    def connect(self, source, target, *, wait_s=10.0):
        """Return what comes of a connection."""
        return printed_by(self[source], "connect", self[target].address, str(PORT), str(wait_s))


def printed_by(pod, *words):
    """Return what a probe prints in a pod."""
    container = pod.run(sys.executable, PROBE, *words)
    assert 0 == container.wait(), container.story()
    return container.stdout.strip()


def carrier(lab, pid, link):
    """Return whether one end of a link has a carrier."""
    flags = json.loads(lab.network(pid, "ip", "-json", "link", "show", link))[0]["flags"]
    return "LOWER_UP" in flags


def test_a_cut_link_has_no_carrier_at_either_end_and_carries_nothing(net):
    """The others still reach each other; a node whose cable is back is back."""
    pod = net[0]
    ends = [(net.lab.holder, pod.link), (pod.holder, "eth0")]
    with faults.cut(pod):
        assert [False, False] == [carrier(net.lab, *end) for end in ends]
        assert ["lost", "lost"] == [net.crossing(0, 1), net.crossing(1, 0)]
        assert net.answers((1, 2))
    assert [True, True] == [carrier(net.lab, *end) for end in ends]
    for pair in ((0, 1), (1, 0)):
        eventually(lambda pair=pair: net.crossing(*pair) == "answered", what="the answer of a node is back")


@pytest.mark.parametrize("direction, outwards, inwards", [("from", "lost", "arrived"), ("to", "arrived", "lost")])
def test_a_half_cut_link_loses_one_direction_only(net, direction, outwards, inwards):
    """What is sent the other way arrives, and its answer is lost."""
    with faults.half_cut(net[0], direction):
        assert [outwards, inwards] == [net.crossing(0, 1), net.crossing(1, 0)]
        assert "timed out" == net.connect(0, 1, wait_s=0.5)
        assert net.answers((1, 2))
    assert net.answers((0, 1), (1, 0))


def test_a_cut_pair_is_silent_to_each_other_and_reaches_all_others(net):
    """A connection that is open stays open, and goes on when the fault is undone."""
    talk = net[0].run(sys.executable, PROBE, "talk", net[2].address, str(PORT))
    talk.printed("came back")
    with faults.cut_pair(net[0], net[2]):
        assert ["lost", "lost"] == [net.crossing(0, 2), net.crossing(2, 0)]
        assert ["timed out", "connected"] == [net.connect(2, 0, wait_s=0.5), net.connect(0, 1)]
        assert net.answers((0, 3), (2, 3), (1, 2))
        talk.printed("nothing")
        before = talk.stdout.count("came back")
    eventually(lambda: talk.stdout.count("came back") > before, what="the connection goes on")


def test_a_refused_pair_is_told_at_once(net):
    """New connections are refused and open ones reset, between these two only."""
    talk = net[0].run(sys.executable, PROBE, "talk", net[2].address, str(PORT))
    talk.printed("came back")
    with faults.cut_pair(net[0], net[2], how="refused"):
        assert ["Connection refused"] * 2 == [net.connect(0, 2), net.connect(2, 0)]
        talk.printed("Connection reset by peer")
        assert ["connected"] * 3 == [net.connect(0, 1), net.connect(2, 1), net.connect(1, 2)]
    assert ["connected"] * 2 == [net.connect(0, 2), net.connect(2, 0)]


@pytest.mark.parametrize("source, target", [(0, 1), (1, 0)], ids=["from-it", "to-it"])
def test_a_slow_link_carries_no_more_than_its_rate(net, source, target):
    """2 MiB on 80 Mbit/s take 0.2 s at least, less what the first burst carries."""
    fault = faults.slow(net[0], "80mbit")
    size, burst, rate = 2 << 20, 128 << 10, 10e6
    drain = net[target].run(sys.executable, PROBE, "drain", net[target].address, str(PORT + 1))
    drain.printed("ready")
    seconds = float(printed_by(net[source], "pour", net[target].address, str(PORT + 1), str(size)))
    assert seconds > (size - burst) / rate
    fault.undo()
    kinds = [net.lab.network(pid, "tc", "qdisc", "show") for pid in (net.lab.holder, net[0].holder)]
    assert [False, False] == ["tbf" in kind for kind in kinds]


def received(pod):
    """Return how many packets have come to a node, whether anybody takes them or not."""
    link = json.loads(pod.lab.network(pod.holder, "ip", "-json", "-stats", "link", "show", "eth0"))[0]
    return link["stats64"]["rx"]["packets"]


def arrived(source, target, count):
    """Return how many of so many datagrams arrive, one or two packets of ARP among them."""
    before = received(target)
    printed_by(source, "shower", target.address, str(PORT + 1), str(count))
    return received(target) - before


def test_loss_takes_its_share_both_ways(net):
    """Of 4,000 packets 2,800 are left; 200 more or less is seven standard deviations."""
    ways = [(net[0], net[1]), (net[1], net[0])]
    with faults.loss(net[0], 0.3):
        assert [2800, 2800] == pytest.approx([arrived(*way, 4000) for way in ways], abs=200)
        assert net.answers((1, 2))
    assert 4000 <= arrived(*ways[0], 4000) < 4010


def test_a_flapping_name_comes_and_goes_until_it_is_undone(net):
    """Other names are known all the time."""
    net.lab.publish()
    looks = [net[1].run(sys.executable, PROBE, "names", MASTER.replace("0-0", f"0-{rank}")) for rank in (0, 2)]
    for look in looks:
        look.printed("known")
    fault = faults.dns_flapping(net[0], known_s=0.2, unknown_s=0.2)
    turns = ["known", "unknown", "known", "unknown", "known"]
    eventually(lambda: looks[0].stdout.split()[:5] == turns, what="it comes and goes")
    fault.undo()
    eventually(lambda: looks[0].stdout.split()[-1] == "known", what="it is known in the end")
    assert ["known"] == looks[1].stdout.split()


def test_a_stranger_tries_every_kind_of_nonsense(net):
    """His connections come from the launcher's pod and end with him."""
    stranger = faults.stranger(net[0], PORT)
    lines = eventually(lambda: (s := stranger.container.stdout.splitlines())[24:] and s, what="two rounds")
    outcomes = {line["kind"]: line["outcome"] for line in map(json.loads, lines[:12])}
    kinds = {"http", "tls", "random", "huge length, 4 bytes", "huge length, 8 bytes", "endless line", "deep json"}
    talking = {*kinds, "wrong json", "nothing", "reset", "half-open, silent", "half-open, half a request"}
    assert talking == set(outcomes)
    assert ["37 bytes", "reset", "open"] == [outcomes[k] for k in ("http", "reset", "half-open, silent")]
    address = net.lab.pods[LAUNCHER].address
    assert {address} == established(net[0])
    stranger.undo()
    assert stranger.container.ended
    eventually(lambda: not established(net[0]), what="his connections end with him")


def established(pod):
    """Return who has a connection with the echo of a pod."""
    lines = pod.lab.network(pod.holder, "ss", "-Htn", "state", "established", f"( sport = :{PORT} )").splitlines()
    return {line.split()[-1].rpartition(":")[0] for line in lines}


def states(container):
    """Return whether each process of a container is stopped, PID 1 first."""
    return container.of_each(lambda p: p.status() == psutil.STATUS_STOPPED)


def three_processes(pod):
    """Start a container with a command, its child, and a grandchild in a session of its own."""
    container = pod.run("sh", "-c", "sh -c 'setsid sleep 600 & echo ready; wait' & wait")
    container.printed("ready")
    eventually(lambda: len(container.processes()) == 3, what="there are three")
    return container


def test_freezing_stops_every_process_and_thawing_none_is_lost(lab):
    """Also those in sessions of their own; without freezing the others, the agent alone can be frozen."""
    container = three_processes(lab[0])
    with faults.freeze(container):
        assert eventually(lambda: [True] * 3 == states(container), what="all are stopped")
    eventually(lambda: [False] * 3 == states(container), what="all go on")
    with faults.freeze_agent(container):
        eventually(lambda: [True, False, False] == states(container), what="PID 1 is stopped")
    eventually(lambda: [False] * 3 == states(container), what="PID 1 goes on")


def test_killing_pid_1_ends_the_container(lab):
    """And everything in it."""
    container = three_processes(lab[0])
    processes = container.processes()
    faults.kill(container)
    assert 0 != container.wait()
    assert [] == [p for p in processes if p.is_running()] == leftovers(container)


def test_what_a_command_leaves_behind_is_found_where_pids_are_shared(lab):
    """With pids of its own nothing can be left."""
    script = "setsid sleep 600 & exit 3"
    own, shared = [lab[rank].run("sh", "-c", script, shared=rank == 1) for rank in (0, 1)]
    assert [3, 3] == [c.wait() for c in (own, shared)]
    eventually(lambda: ["sleep"] == [p.name() for p in leftovers(shared)], what="setsid has become sleep")
    assert [] == leftovers(own)


@pytest.mark.parametrize("world, bad", [(2, None), (2, 1), (4, 1)])
def test_a_rank_with_wrong_numbers_spoils_results_without_any_error(net, tmp_path, world, bad):
    """Sums are wrong everywhere; all others miss its part of a gather, and it sees every part whole."""
    shim = faults.wrong_numbers(tmp_path)
    words = [sys.executable, str(SCRIPTS / "wrong.py")]
    containers = [
        net[r].run(*words, str(r), str(world), net[0].address, env=shim if r == bad else None) for r in range(world)
    ]
    assert [0] * world == [c.wait() for c in containers], containers[0].story()
    said = [json.loads(c.stdout) for c in containers]
    assert [True] * world == [s["store_whole"] for s in said]
    assert [bad is not None] * world == [s["wrong_sums"] > 0 for s in said]
    assert [bad not in {None, rank} for rank in range(world)] == [bad in s["wrong_parts_of"] for s in said]
    assert [] == said[bad or 0]["wrong_parts_of"]


def test_a_gang_starts_in_each_pod_and_is_read_back(lab_of):
    """Exit code, report and termination message of each node, by rank."""
    lab = lab_of(4)
    lab.publish()
    members = start_gang(lab, 4, options=["--checks", "environment"], env_of={2: {"PET_NODE_RANK": "9"}})
    ended = results(members)
    assert [0, 0, 30, 0] == [e.code for e in ended]
    assert [(rank, lab[rank].name) for rank in range(4)] == [(e.rank, e.report["node"]["hostname"]) for e in ended]
    assert [e.code for e in ended] == [e.termination["exit_code"] for e in ended]
    assert [[]] * 4 == [leftovers(m.container) for m in members]


def test_a_lab_has_as_many_nodes_as_it_is_told(lab_of):
    """Eight, each with its name and address, and the launcher."""
    lab = lab_of(8)
    lab.publish()
    echo = lab[7].run(sys.executable, str(SCRIPTS / "echo.py"), str(PORT))
    echo.printed("ready")
    assert "answered" == printed_by(lab[0], "ask", MASTER.replace("0-0", "0-7"), str(PORT), "hello", "10")
    assert ["10.77.0.10", "10.77.0.17"] == [lab[0].address, lab[7].address]
    assert 9 == len(lab.pods)


@pytest.mark.skipif(os.geteuid() != 0, reason="all other tests are in a user namespace already")
def test_faults_work_in_a_user_namespace(lab_of_faults, tmp_path_factory):
    """Each can be made and undone."""
    with Lab(tmp_path_factory.mktemp("rootless"), rootless=True) as lab:
        for make in (faults.cut, faults.slow, faults.loss, lambda pod: faults.half_cut(pod, "to")):
            make(lab[0]).undo()
        for how in ("silent", "refused"):
            faults.cut_pair(lab[0], lab[1], how=how).undo()
        assert "" == lab.network(lab.holder, "nft", "list", "ruleset")
