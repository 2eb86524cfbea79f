"""What rank 0 says of nodes that failed, never came, or have gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer_agent.gang import rules
from trainer_agent.gang.course import Concluded
from trainer_agent.gang.door import REACHED, Knock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainer_agent.gang.course import Course, Turns
    from trainer_agent.gang.roll import Node

# After the first node that failed others may be about to say so, too; nodes stop within 5 s in all.
GATHER_S = 1.0
ASK_S = 8.0  # for nodes to knock at doors, and say what came of it
ASKED = 8  # nodes that are sent to knock
DOORS = 16  # at which they knock

LOSSY = "packets are lost, and nothing tells on which side"

Heard = dict[int, str]  # what was heard at a door, by who knocked; see `Knock.answer`


def failed(course: Course) -> Turns[None]:
    """Name the nodes whose own checks failed."""
    yield from course.wait(lambda: False, course.now + GATHER_S)
    for node in (node for node in course.roll.come if node.failed):
        local = node.hello["local"]
        node.note = local["message"]
        text = f"{course.roll.name(node.rank)} failed its own checks: {local['message']}"
        evidence = {"exit_code": local["exit_code"], "findings": local["findings"]}
        course.charge("roll-call", rules.NODE_FAILED, text, culprits=(node.rank,), **evidence)
    raise Concluded


def never_came(course: Course) -> Turns[None]:
    """Name the nodes that have not arrived, with what can be learned of them."""
    missing = [node.rank for node in course.roll.missing]
    knocks = yield from _ask(course, missing)
    if len(course.roll.here) == 1 and all(_out_of_reach(knocks.get(rank, {})) for rank in missing):
        everybody = tuple(course.roll.nodes)
        text = f"{course.called(0)} reaches none of {course.roll.names(missing)}: {knocked(knocks[missing[0]])}"
        course.charge("roll-call", rules.CONTACT_LOST, text, between=everybody)
        raise Concluded
    for rank in missing:
        heard = knocks.get(rank, {})
        words = course.roll.nodes[rank].note = knocked(heard)
        waited = f"never arrived within {course.plan.gang_timeout_s:g} s"
        text = f"{course.called(rank)} {waited}{f': {words}' if words else ''}"
        course.minutes.lingers |= bool(heard) and (heard.get(0) not in REACHED or "falters" in heard.values())
        if heard.get(0) not in REACHED and "falters" in heard.values():
            course.charge("roll-call", rules.CONTACT_LOST, f"{text}; {LOSSY}", between=(0, rank))
        elif heard.get(0) not in REACHED and "answers" in heard.values():
            course.link("roll-call", rules.LINK_LOST, (0, rank), f"{text}; it reaches others, but not rank 0")
        else:
            course.charge("roll-call", rules.NODE_MISSING, text, culprits=(rank,), knocks=by_answer(heard))
    raise Concluded


def gone(course: Course) -> Turns[None]:
    """Say of nodes that had come whether they are gone, or out of reach."""
    course.task = None
    gone = {node.rank: node for node in course.roll.nodes.values() if node.lost}  # one may come again meanwhile
    yield from course.wait(lambda: False, course.now + GATHER_S)
    course.roll.lose(course.now)
    lost = list((gone | {node.rank: node for node in course.roll.nodes.values() if node.lost}).values())
    knocks = yield from _ask(course, [node.rank for node in lost])
    reached = {
        node.rank: {who for who, answer in knocks.get(node.rank, {}).items() if answer in REACHED} for node in lost
    }
    # A process that was killed or stopped asks nobody; one that is cut off may ask others for the verdict.
    course.minutes.lingers = any(
        0 not in reached[node.rank] or "falters" in knocks.get(node.rank, {}).values() for node in lost
    )
    alone = all(node.rank == 0 for node in course.roll.here)
    if alone and not any(reached.values()):
        _cut_off(course, lost)
        return
    apart = [rank for rank, who in reached.items() if who and 0 not in who]
    if len(lost) > (course.plan.nnodes - 1) / 2 and len(apart) > max(1, len(knocks) / 2):
        text = f"{course.roll.name(0)} lost {len(apart)} nodes that others reach: its own network"
        course.charge("roll-call", rules.NODE_LOST, text, culprits=(0,), lost=apart)
        return
    for node in lost:
        words = knocked(knocks.get(node.rank, {}))
        text = f"{course.roll.name(node.rank)} is gone: {node.note}{f', {words}' if words else ''}"
        if node.rank not in knocks and apart:
            course.charge("roll-call", rules.CONTACT_LOST, text, between=(0, node.rank))
        elif node.rank in apart and "falters" in knocks[node.rank].values():
            course.charge("roll-call", rules.CONTACT_LOST, f"{text}; {LOSSY}", between=(0, node.rank))
        elif node.rank in apart:
            course.link("roll-call", rules.LINK_LOST, (0, node.rank), f"{text}; others reach it, rank 0 does not")
        else:
            course.charge("roll-call", rules.NODE_LOST, text, culprits=(node.rank,), phase=course.phase)


def _cut_off(course: Course, lost: Sequence[Node]) -> None:
    """Say that nobody is left, and nobody answers."""
    if len(lost) > 1:
        text = f"{course.roll.name(0)} lost all {len(lost)} other nodes at once, and reaches none: its own network"
        course.charge("roll-call", rules.NODE_LOST, text, culprits=(0,))
        return
    pair = (0, lost[0].rank)
    text = f"{course.roll.names(pair)} do not reach each other any more, and there is no third node"
    course.charge("roll-call", rules.CONTACT_LOST, text, between=pair)


def _ask(course: Course, ranks: Sequence[int]) -> Turns[dict[int, Heard]]:
    """Send some nodes to knock at the doors of others; return what was heard at each door."""
    nodes = course.roll.nodes
    askers = [node.rank for node in course.roll.here][:ASKED]
    names = {rank: nodes[rank].hello.get("address") or course.names(rank) for rank in ranks[:DOORS]}
    doors = {rank: name for rank, name in names.items() if name}
    if not doors:
        return {}
    course.post({"kind": "ask", "members": askers, "doors": {str(rank): name for rank, name in doors.items()}})
    yield from course.wait(lambda: set(askers) <= course.reports.keys(), course.now + ASK_S)
    found: dict[int, Heard] = {rank: {} for rank in doors}
    for asker, report in course.reports.items():
        for rank, answer in report["knocks"].items():
            found[int(rank)][asker] = answer
    course.task = None
    return found


def _out_of_reach(heard: Heard) -> bool:
    """Whether what was heard may be due to whoever knocked."""
    return bool(heard) and set(heard.values()) <= {"silent", "nameless"}


def knocked(heard: Mapping[int, str]) -> str:
    """Return what several nodes heard at one door, in words."""
    answers = by_answer(heard)
    if len(answers) < 2:
        return f"its pod {Knock(next(iter(answers))).words}" if answers else ""
    parts = (f"{Knock(answer).words} to rank {', '.join(map(str, ranks))}" for answer, ranks in answers.items())
    return f"its pod {'; '.join(parts)}"


def by_answer(heard: Mapping[int, str]) -> dict[str, list[int]]:
    """Return who heard what."""
    return {answer: sorted(r for r, a in heard.items() if a == answer) for answer in sorted(set(heard.values()))}
