"""What a node says that has lost rank 0, or has never found it."""

import pytest

from trainer_agent.gang.alone import LOST, MET, WAITING, judge
from trainer_agent.gang.door import Knock

NAMES = {rank: f"node {rank} (job-{rank})" for rank in range(4)}
NEVER = "never opened the meeting place within 600 s: port 29501: refused"
GONE = "is gone: no sign of life for 6 s"


def knocks(heard):
    """Return `{0: "silent", 2: "met"}` as what was heard at doors: an answer, or the state of a node that answers."""
    return {
        rank: Knock("answers", {"rank": rank, "state": word}) if word in (MET, LOST, WAITING) else Knock(word)
        for rank, word in heard.items()
    }


def verdict(heard, *, nnodes=4, why=GONE, rank=1):
    charge = judge(rank, nnodes, knocks(heard), names=NAMES, why=why)
    return charge.finding.code, charge.culprits or charge.between


@pytest.mark.parametrize("why,code", [(NEVER, "node-missing"), (GONE, "node-lost")])
@pytest.mark.parametrize(
    "heard",
    [
        {0: "refuses", 2: LOST},
        {0: "mute", 2: LOST},
        {0: "mute", 2: "refuses"},
        {0: "unresolved"},
        {0: "unresolved", 2: "silent"},
        {0: "silent", 2: LOST},
        {0: "silent", 2: WAITING, 3: "silent"},
        {0: "nameless", 2: WAITING},
        {0: "refuses"},
    ],
)
def test_rank_zero_is_named(heard, why, code):
    """When something on the way to it works, or others do not reach it either."""
    assert (code, (0,)) == verdict(heard, why=why)


@pytest.mark.parametrize("zero", ["silent", "refuses", "mute", "nameless"])
def test_the_link_is_named_when_others_are_in_contact(zero):
    charge = judge(1, 4, knocks({0: zero, 2: MET, 3: LOST}), names=NAMES, why=GONE)

    assert ("link-lost", (), (0, 1)) == (charge.finding.code, charge.culprits, charge.between)
    assert [("link", "job-0 - job-1", 0)] == [(each.kind, each.id, each.node_rank) for each in charge.suspects]
    assert charge.finding.message == charge.suspects[0].reason
    assert charge.finding.message.endswith("to node 1 (job-1); but node 2 (job-2) is in contact with it")


@pytest.mark.parametrize("other", ["refuses", "silent", "mute", "nameless"])
def test_where_everybody_has_left_they_may_have_ended_without_this_node(other):
    """Its own network may have kept it from them until then; not where it was in contact with rank 0 just before."""
    heard = {0: "refuses", 2: "refuses", 3: other}
    assert ("contact-lost", (0, 1)) == verdict(heard, why=NEVER)
    assert ("node-lost", (0,)) == verdict(heard, why=GONE)


@pytest.mark.parametrize("heard", [{0: "silent", 2: MET}, {0: "falters"}, {0: "mute", 2: LOST}])
def test_nobody_is_named_over_ways_that_lose_packets(heard):
    """The fault may be at this end, whatever is heard."""
    lossy = knocks(heard) | {3: Knock("falters", {"rank": 3, "state": LOST})}
    charge = judge(1, 4, lossy, names=NAMES, why=GONE)

    assert ("contact-lost", (), (0, 1)) == (charge.finding.code, charge.culprits, charge.between)


@pytest.mark.parametrize(
    "nnodes,heard", [(3, {0: "silent", 2: "silent"}), (4, {0: "silent", 2: "silent", 3: "silent"}), (3, {2: "silent"})]
)
def test_a_node_that_reaches_nobody_names_itself(nnodes, heard):
    assert ("node-lost", (1,)) == verdict(heard, nnodes=nnodes)


@pytest.mark.parametrize(
    "nnodes,heard",
    [
        (2, {0: "silent"}),
        (2, {0: "nameless"}),
        (3, {0: "silent"}),
        (3, {0: "silent", 2: "nameless"}),
        (4, {0: "nameless", 2: "silent", 3: "silent"}),
        (3, {0: "unresolved", 2: "unresolved"}),
        (4, {0: "unresolved", 2: "unresolved", 3: "nameless"}),
        (3, {0: MET, 2: LOST}),
        (3, {2: LOST}),
        (3, {}),
        (3, {0: "silent", 2: "refuses"}),
        (4, {0: "nameless", 2: "nameless", 3: "silent"}),
    ],
)
def test_nobody_can_tell(nnodes, heard):
    assert ("contact-lost", (0, 1)) == verdict(heard, nnodes=nnodes)


@pytest.mark.parametrize(
    "heard,found",
    [
        ({0: "refuses"}, ("contact-lost", (0, 1))),
        ({0: "refuses", 2: "refuses"}, ("contact-lost", (0, 1))),
        ({0: "refuses", 2: LOST}, ("node-lost", (0,))),
        ({0: "mute"}, ("node-lost", (0,))),
        ({0: "silent", 2: LOST}, ("node-lost", (0,))),
    ],
)
def test_rank_zero_may_have_gone_on(heard, found):
    """Whoever refuses has nothing more to tell; that is so at the end of a preflight, too."""
    charge = judge(1, 4, knocks(heard), names=NAMES, why=GONE, went_on=True)

    assert found == (charge.finding.code, charge.culprits or charge.between)


def test_the_message_says_what_happened_and_what_was_heard():
    charge = judge(1, 4, knocks({0: "refuses", 2: LOST}), names=NAMES, why=GONE)

    text = "node 0 (job-0) is gone: no sign of life for 6 s; its pod is there, and nobody listens"
    assert text == charge.finding.message
    assert {"0": "refuses", "2": "answers"} == charge.finding.evidence["knocks"]


def test_without_names_a_link_is_between_numbers():
    names = {rank: f"node {rank}" for rank in range(4)}
    charge = judge(3, 4, knocks({0: "silent", 2: MET}), names=names, why=GONE)

    assert "node 0 - node 3" == charge.suspects[0].id
