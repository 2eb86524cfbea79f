"""What rank 0 says of nodes that failed, never came, or have gone."""

import pytest
from simulated import Gang, failed_local

from trainer_agent.gang.absent import DOORS, GATHER_S, LOSSY, by_answer, knocked

ONE = {"ends": 1.0}


def gang(nodes, changes, **planned):
    found = Gang(nodes, changes=changes, **planned)
    found.run()
    return found


def gone(nodes, *ranks, **how):
    """Return a gang that some nodes leave after a second, while pairs meet."""
    return gang(nodes, dict.fromkeys(ranks, ONE | how), together=["hang"])


def messages(found):
    return [charge["message"] for charge in found.leader.verdict["charges"]]


# ---- nodes whose own checks failed


def test_nodes_that_failed_are_named_at_once():
    """With what they say of themselves, and all of those that fail within a moment; nobody waits for the rest."""
    says = {"local": failed_local("GPU 3 fell off the bus")}
    changes = {1: {"comes": 2.0, "says": says}, 4: {"comes": 2.0 + GATHER_S / 2, "says": says}, 5: {"comes": None}}
    found = gang(8, changes)

    assert [("node-failed", (1,)), ("node-failed", (4,))] == found.codes()
    assert found.now < 2 + GATHER_S + 1
    assert "node 1 (job-node-0-1) failed its own checks: GPU 3 fell off the bus" == messages(found)[0]
    evidence = found.leader.verdict["charges"][0]["evidence"]
    assert {"exit_code": 20, "findings": says["local"]["findings"]} == evidence
    assert ("failed", "GPU 3 fell off the bus") == tuple(found.leader.verdict["nodes"][1][k] for k in ("state", "note"))


def test_a_node_that_failed_may_start_fewer_processes():
    """A GPU less is why it failed, and no contradiction between settings."""
    found = gang(4, {2: {"says": {"local": failed_local(), "nproc": 7}}})

    assert [("node-failed", (2,))] == found.codes()
    assert "retry" == found.leader.verdict["verdict"]


def test_a_node_that_failed_is_named_though_another_goes():
    found = gang(8, {2: {"says": {"local": failed_local()}, "comes": 5.5}, 3: ONE, 4: {"comes": None}})

    assert 2 in found.culprits()
    assert found.culprits() <= {2, 3}


# ---- nodes that never came


@pytest.mark.parametrize(
    "doors,code,words",
    [
        ({}, "node-missing", "its pod has a name that does not resolve"),
        ({0: "refuses", 1: "refuses"}, "node-missing", "its pod is there, and nobody listens"),
        ({0: "silent", 1: "silent"}, "node-missing", "its pod does not answer"),
        ({0: "answers", 1: "answers"}, "node-missing", "its pod answers"),
        (
            {0: "mute", 1: "answers"},
            "node-missing",
            "its pod answers to rank 1; takes connections and says nothing to rank 0",
        ),
        (
            {0: "silent", 1: "refuses"},
            "node-missing",
            "its pod is there, and nobody listens to rank 1; does not answer to rank 0",
        ),
        (
            {0: "silent", 1: "answers"},
            "link-lost",
            "its pod answers to rank 1; does not answer to rank 0; it reaches others, but not rank 0",
        ),
        (
            {0: "silent", 1: "falters"},
            "contact-lost",
            f"its pod answers over a way that loses packets to rank 1; does not answer to rank 0; {LOSSY}",
        ),
    ],
)
def test_a_node_that_never_came(doors, code, words):
    found = gang(3, {2: {"comes": None, "doors": doors}}, gang_timeout_s=5.0)

    assert [(code, (2,) if code == "node-missing" else (0, 2))] == found.codes()
    assert [f"node 2 (job-node-0-2) never arrived within 5 s: {words}"] == messages(found)
    assert ["ready", "ready", "missing"] == [node["state"] for node in found.leader.verdict["nodes"]]


@pytest.mark.parametrize(
    "zero,lingers", [("answers", False), ("refuses", False), ("falters", True), ("silent", True), ("nameless", True)]
)
def test_who_cannot_reach_rank_zero_may_ask_others(zero, lingers):
    found = gang(3, {2: {"comes": None, "doors": {0: zero}}}, gang_timeout_s=5.0)

    assert lingers is found.leader.verdict["lingers"]


def test_every_node_that_never_came_is_named_however_many():
    away = range(20, 60)
    found = gang(64, {rank: {"comes": None} for rank in away}, gang_timeout_s=5.0)

    assert [("node-missing", (rank,)) for rank in away] == found.codes()
    task = next(each for each in found.tasks.values() if each["kind"] == "ask")
    assert (DOORS, 8) == (len(task["doors"]), len(task["members"]))


def test_without_names_there_is_nothing_to_ask():
    found = Gang(3, changes={2: {"comes": None}}, gang_timeout_s=5.0)
    found.leader.names = lambda _: ""
    found.run()

    assert ["node 2 never arrived within 5 s"] == messages(found)
    assert [] == found.kinds


# ---- nodes that have gone


def test_a_node_that_is_gone_is_named():
    found = gone(4, 2)

    assert [("node-lost", (2,))] == found.codes()
    assert ["node 2 (job-node-0-2) is gone: no sign of life for 6 s, its pod does not answer"] == messages(found)


@pytest.mark.parametrize(
    "doors,codes",
    [
        ({0: "refuses", 1: "silent"}, [("node-lost", (2,))]),
        ({0: "answers", 1: "answers"}, [("node-lost", (2,))]),
        ({0: "silent", 1: "silent"}, [("node-lost", (2,))]),
        ({0: "silent", 1: "answers"}, [("link-lost", (0, 2))]),
        ({0: "silent", 1: "refuses"}, [("link-lost", (0, 2))]),
        ({0: "silent", 1: "falters"}, [("contact-lost", (0, 2))]),
        ({0: "falters", 1: "falters"}, [("node-lost", (2,))]),
    ],
)
def test_a_node_that_others_reach_has_lost_its_link_to_rank_zero(doors, codes):
    assert codes == gone(3, 2, doors=doors).codes()


@pytest.mark.parametrize("nodes,lost", [(4, 2), (8, 5), (16, 12), (64, 40), (64, 62)])
def test_rank_zero_that_loses_most_of_what_others_reach_names_itself(nodes, lost):
    found = gone(nodes, *range(nodes - lost, nodes), lost_to_zero=True)

    assert [("node-lost", (0,))] == found.codes()


@pytest.mark.parametrize("nodes,lost", [(4, 1), (8, 3), (16, 5)])
def test_some_links_are_no_fault_of_a_node(nodes, lost):
    found = gone(nodes, *range(nodes - lost, nodes), lost_to_zero=True)

    assert [("link-lost", (0, rank)) for rank in range(nodes - lost, nodes)] == found.codes()


@pytest.mark.parametrize(
    "nodes,codes", [(2, [("contact-lost", (0, 1))]), (3, [("node-lost", (0,))]), (9, [("node-lost", (0,))])]
)
def test_rank_zero_that_loses_everybody(nodes, codes):
    """With two nodes it may be either; of more it is not that all others go at once."""
    assert codes == gone(nodes, *range(1, nodes)).codes()


@pytest.mark.parametrize("nodes", [2, 3])
def test_rank_zero_that_still_reaches_the_machines_of_all_others_is_not_cut_off(nodes):
    found = gone(nodes, *range(1, nodes), doors={0: "refuses"})

    assert [("node-lost", (rank,)) for rank in range(1, nodes)] == found.codes()


def test_nodes_that_go_together_are_all_named():
    found = gang(8, {3: {"ends": 1.0}, 5: {"ends": 1.6}}, together=["hang"])

    assert [("node-lost", (3,)), ("node-lost", (5,))] == found.codes()


def test_a_node_that_comes_again_was_gone_all_the_same():
    """Its task is lost: without a charge the gang would pass although nothing was tried to the end."""
    found = Gang(4, changes={2: ONE}, together=["hang"])
    while not found.leader.roll.nodes[2].lost:
        found.step()
    found.rejoin(2)
    verdict = found.run()

    assert ("retry", [("node-lost", (2,))]) == (verdict["verdict"], found.codes())


def test_what_was_heard_in_words():
    assert "" == knocked({})
    assert "its pod is there, and nobody listens" == knocked({0: "refuses", 3: "refuses"})
    words = "its pod is there, and nobody listens to rank 3; does not answer to rank 0, 7"
    assert words == knocked({7: "silent", 3: "refuses", 0: "silent"})
    assert {"refuses": [3], "silent": [0, 7]} == by_answer({7: "silent", 3: "refuses", 0: "silent"})
