"""What a node says that has lost rank 0, or has never found it, by what it hears at the doors of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer_agent.gang import rules
from trainer_agent.gang.verdict import Charge
from trainer_agent.policy import Suspect

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trainer_agent.gang.door import Knock

# What a door says of its node: not yet in contact with rank 0, in contact, or no more.
WAITING, MET, LOST = "waiting", "met", "lost"
UNKNOWN = ("silent", "nameless")  # answers that may be due to whoever knocks


def judge(
    rank: int, nnodes: int, knocks: Mapping[int, Knock], *, names: Mapping[int, str], why: str, went_on: bool = False
) -> Charge:
    """
    Return who it was, as far as this node can tell.

    Args:
        rank: of this node.
        knocks: what was heard at the doors of rank 0 and of some others.
        names: what a message calls each node.
        why: what happened, in words: `never opened the meeting place within 600 s: …`.
        went_on: whether rank 0 may have gone on without this node: it was there, and did not answer this one.
    """
    zero = knocks.get(0)
    peers = {number: heard for number, heard in knocks.items() if number}
    met = [number for number, heard in peers.items() if heard.status.get("state") == MET]
    words = f"{names[0]} {why}{f'; its pod {zero.words}' if zero else ''}"
    if any(heard.answer == "falters" for heard in knocks.values()):
        text = f"{words}; packets are lost on the ways from {names[rank]}: nothing tells on which side it is"
        return Charge("roll-call", rules.CONTACT_LOST.found(text), (), (0, rank))
    if met:
        text = f"{words} to {names[rank]}; but {', '.join(names[n] for n in met)} is in contact with it"
        suspect = Suspect("link", f"{_plain(names[0])} - {_plain(names[rank])}", 0, text)
        return Charge("roll-call", rules.LINK_LOST.found(text), (), (0, rank), (suspect,))
    if nnodes > 2 and peers and all(heard.answer == "silent" for heard in (*peers.values(), *([zero] if zero else []))):
        text = f"{names[rank]} reaches none of the {len(peers) + 1} nodes that it tried: its own network"
        return Charge("roll-call", rules.NODE_LOST.found(text), (rank,))
    never = "never" in why
    if _may_be_here(zero, peers.values(), never=never, went_on=went_on):
        text = f"{words}; nothing tells on which side it is"
        return Charge("roll-call", rules.CONTACT_LOST.found(text), (), (0, rank))
    rule = rules.NODE_MISSING if never else rules.NODE_LOST
    return Charge("roll-call", rule.found(words, knocks={str(n): k.answer for n, k in knocks.items()}), (0,))


def _may_be_here(zero: Knock | None, peers: Iterable[Knock], *, never: bool, went_on: bool) -> bool:
    """Whether what keeps this node from rank 0 may be at this end: its network, or the name server that it asks."""
    if zero is None or zero.status.get("state") == MET:
        return True
    heard = [each.answer for each in peers]
    # Nodes that wait for rank 0 answer; where none does, all may have ended before this node found it.
    if zero.answer in UNKNOWN or (zero.answer == "refuses" and (went_on or (never and heard))):
        return "answers" not in heard
    return zero.answer == "unresolved" and bool(heard) and set(heard) <= {"unresolved", "nameless"}


def _plain(name: str) -> str:
    """Return the host name out of `node 2 (host)`."""
    return name.partition("(")[2].rstrip(")") or name
