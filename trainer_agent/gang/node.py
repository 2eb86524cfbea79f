"""A node's way through the gang, from its own checks to the verdict."""

from __future__ import annotations

import socket
import time
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from trainer_agent.errors import RetryError
from trainer_agent.gang import alone, peers, rules
from trainer_agent.gang.door import knock
from trainer_agent.gang.leader import Leader
from trainer_agent.gang.member import (
    Chair,
    LeaderSilentError,
    Member,
    OtherGangError,
    SupersededError,
    is_other_job,
)
from trainer_agent.gang.own_name import OwnName
from trainer_agent.gang.ranks import Ranks
from trainer_agent.gang.roll import HEALTHY, LOST_S
from trainer_agent.gang.setting import address_towards, interface_of
from trainer_agent.gang.store import StoreLostError
from trainer_agent.gang.torch_side import TorchStore
from trainer_agent.gang.verdict import Charge, Minutes, section
from trainer_agent.host import NameLookupError
from trainer_agent.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainer_agent.gang.door import Knock
    from trainer_agent.gang.setting import Setting

PROGRESS_S = 10.0
PAUSE_S = 0.5
LOOK_S = 0.1
CONNECT_S = 2.0  # for one attempt to reach rank 0's port
OPEN_S = 5.0  # for torch to connect to it, or to open it
LOOKUP_S = 5.0
FRESH_S, SLOW_S, RECENT_S = 2.0, 1.0, 20.0
RETURN_S = 1.0  # at least so long a node tries to come back that lost rank 0
TELL_S = 60.0  # a node that failed waits so long for somebody to tell
OPEN_DOOR_S = 4.0  # between two questions at a door lie some seconds
LINGER_S = 5.0  # rank 0 stays so long for the others to read the verdict
# Where nobody can read it any more, they ask for it at the door, when they have noticed (ANSWER_S), and have tried to
# come back (LOST_S) and to connect (CONNECT_S), and it has answered (door.KNOCK_S).
LOST_DOOR_S = 15.0
# A node without rank 0 asks others for so long what they know: rank 0 notices in 6 s that a node is silent, and others
# take up to 10 s to find out about it.
ALONE_S = 25.0
ASKED = 7  # other nodes that are asked
TRIES = 3  # of rank 0 and others at the door of a node that is gone
KNOCKS = 2  # at least; a network that loses packets may lose one


PARTS = {"verdict", "summary", "nodes", "charges", "messages", "skipped", "phases", "collective", "lingers"}


class _LostError(Exception):
    """Rank 0 has gone; says what happened, after its name."""


@dataclass
class Node:
    """One node until it has the verdict."""

    setting: Setting
    member: Member = field(init=False)
    ranks: Ranks = field(init=False)
    told: float = field(default_factory=time.monotonic)
    epoch: str = ""
    doors: dict[str, str] = field(default_factory=dict)  # addresses of some nodes, by rank
    # Whether rank 0 may have gone on without this node: nobody has seen its port closed while it was waited for.
    went_on: bool = True
    slow_at: float = float("-inf")  # when the meeting place last took long to answer
    open_door_s: float = OPEN_DOOR_S

    def run(self) -> dict[str, Any]:
        """
        Return the verdict: that of rank 0, or, when there is no rank 0, what this node can tell.

        Raises:
            TorchSideError: the torch side of this node has ended.
        """
        try:
            verdict = self._lead() if self.setting.rank == 0 else self._follow()
        except SupersededError as error:
            return self._said(Charge("roll-call", rules.RANK_TAKEN.found(error.message)))
        except OtherGangError as error:
            return self._said(Charge("roll-call", rules.OTHER_GANG.found(error.message)))
        get_logger().info("verdict", verdict=verdict["verdict"], summary=verdict["summary"])
        self._linger(verdict)
        return verdict

    def _linger(self, verdict: Mapping[str, Any]) -> None:
        """Keep the door open for those that have lost rank 0: they ask others what the verdict is."""
        self._tell(alone.MET, verdict=verdict)
        if verdict["lingers"]:
            time.sleep(self.open_door_s)

    # ---- rank 0

    def _lead(self) -> dict[str, Any]:
        setting = self.setting
        leader = Leader(setting.plan, lambda rank: peers.name_of(rank, setting.topology))
        chair = Chair(TorchStore(setting.side), leader, uuid.uuid4().hex, setting.host.now)
        try:
            self._open(time.monotonic() + setting.plan.gang_timeout_s)
            name = OwnName(setting)  # before anybody says what time it is, as this may take seconds
            chair.open()
            self._join("localhost", name.address)
            while leader.verdict is None:
                self._turn(self._missing(leader))
                if not leader.roll.met and (charge := name.charge()):
                    return self._said(charge)
                chair.turn(time.monotonic())
                setting.tell(preflight_nodes_here=len(leader.roll.here), preflight_nodes=setting.topology.max_nodes)
            self._wait_for_readers(chair)
        except StoreLostError as error:
            if leader.verdict is None:
                text = f"{setting.name(0)} cannot keep the meeting place open: {error.message}"
                return self._said(Charge("roll-call", rules.NODE_LOST.found(text), (0,)))
            self.open_door_s = LOST_DOOR_S
            return leader.verdict | {"lingers": True}
        return leader.verdict

    def _wait_for_readers(self, chair: Chair) -> None:
        """Stay until all others have the verdict."""
        self.member.read_verdict()
        deadline = time.monotonic() + LINGER_S
        while not chair.everybody_knows() and time.monotonic() < deadline:
            time.sleep(0.02)

    def _open(self, deadline: float) -> None:
        """Open the meeting place; the agent before this one may still hold the port."""
        while True:
            try:
                self.setting.side.ask("serve", port=self.setting.port, timeout_s=OPEN_S, answer_s=OPEN_S + CONNECT_S)
            except StoreLostError as error:
                if time.monotonic() > deadline:
                    raise
                self._progress("waiting to open the meeting place", port=self.setting.port, last=error.message)
                time.sleep(PAUSE_S)
            else:
                return

    def _missing(self, leader: Leader) -> dict[str, Any]:
        return {"missing": [node.rank for node in leader.roll.missing], "here": len(leader.roll.here)}

    # ---- all others

    def _follow(self) -> dict[str, Any]:
        setting = self.setting
        waits_s = setting.plan.gang_timeout_s
        if setting.hello["local"]["verdict"] not in HEALTHY:
            waits_s = min(waits_s, TELL_S)
        deadline, why = time.monotonic() + waits_s, f"never opened the meeting place within {waits_s:g} s"
        while True:
            try:
                return self._find(deadline) or self._take_part()
            except StoreLostError as error:
                deadline = max(time.monotonic() + RETURN_S, self.member.pulse_at + LOST_S)
                why = "is gone: its meeting place does not answer any more"
                # Whoever is killed closes its connections while all is well; a bad network is bad before.
                now = time.monotonic()
                self.went_on = now - self.member.pulse_at > FRESH_S or now - self.slow_at < RECENT_S
                self._tell(alone.LOST)
                get_logger().warning("rank 0 is lost", reason=error.message)
            except LeaderSilentError as error:
                return self._write(self._alone(f"is gone: {error.message}", silent=True))
            except _LostError as error:
                return self._alone(f"{why}: {error}")

    def _find(self, deadline: float) -> dict[str, Any] | None:
        """Connect to the meeting place and say hello; return the verdict where a door has it already."""
        last, asked = "", time.monotonic()
        while True:
            try:
                limit_s = min(LOOKUP_S, _left(deadline))
                address = self.setting.host.resolve(self.setting.topology.master_addr, timeout_s=limit_s)[0]
                self.doors["0"] = address
                last = self._connect(address, deadline)
                if not last:
                    return None
            except SupersededError:
                raise
            except OtherGangError as error:
                if time.monotonic() > deadline:
                    raise
                last = error.message
            except (NameLookupError, RetryError) as error:
                last = error.message
            if time.monotonic() > deadline:
                raise _LostError(last)
            if time.monotonic() > asked + PROGRESS_S:
                if found := _verdict(self._knock(self._asked())):
                    return found
                asked = time.monotonic()
            self._progress("waiting for rank 0", name=self.setting.topology.master_addr, last=last)
            self.setting.side.events(PAUSE_S)

    def _connect(self, address: str, deadline: float) -> str:
        """Join at an address; return why that was not possible."""
        try:  # torch would try again and again, and fill the log
            socket.create_connection((address, self.setting.port), timeout=CONNECT_S).close()
        except OSError as error:
            if not self.epoch:
                self.went_on = not isinstance(error, ConnectionRefusedError)
            return f"{address} port {self.setting.port}: {error.strerror or error}"
        answer_s = min(OPEN_S + CONNECT_S, _left(deadline))
        self.setting.side.ask("connect", host=address, port=self.setting.port, timeout_s=OPEN_S, answer_s=answer_s)
        self._join(address, address_towards(address, self.setting.port))
        return ""

    def _join(self, address: str, own: str) -> None:
        """Join at an address; `own` is that of this node, nothing where it is not known."""
        setting = self.setting
        if self.epoch:  # it comes back: what its ranks do belongs to the past
            self.ranks.stop()
        self.member = Member(TorchStore(setting.side), rank=setting.rank, born=setting.born)
        environ = interface_of(own)
        self.ranks = Ranks(setting.side, node=setting.rank, host=address, port=setting.port, environ=environ)
        hello, plan, now = setting.hello | {"address": own}, setting.plan, time.monotonic()
        self.epoch = self.member.join(hello, attempt=plan.attempt, job=plan.job, now=now, wall=setting.host.now)
        self.went_on = False
        self._tell(alone.MET)
        get_logger().info("joined the gang", rank=setting.rank, nodes=setting.plan.nnodes, meeting_place=address)

    def _take_part(self) -> dict[str, Any]:
        board: dict[str, Any] = {}
        while not board.get("verdict"):
            board = self._turn(board) or board
        return self.member.verdict()

    # ---- a moment in the life of each

    def _turn(self, waiting: Mapping[str, Any]) -> dict[str, Any] | None:
        """Let some time pass, do what is to be done, and return the board when it has changed."""
        setting = self.setting
        result = self.ranks.hear(setting.side.events(poll_s(setting.rank, setting.plan.nnodes)))
        if result:
            self.member.say("result", **result)
        now = time.monotonic()
        self.member.beat(now)
        board = self.member.look(now=now)
        if time.monotonic() - now > SLOW_S:
            self.slow_at = now
        if board is not None:
            self.doors = board["doors"] or self.doors
            self._obey(board["task"])
        missing = [self.setting.name(rank) for rank in waiting.get("missing", ())[:8]]
        if missing:
            self._progress("waiting for nodes", here=waiting["here"], missing=missing)
        return board

    def _obey(self, task: dict[str, Any] | None) -> None:
        """Begin a task."""
        if task is None:
            self.ranks.stop()
        elif task["kind"] != "ask":
            if self.ranks.running is None or self.ranks.running.id != task["id"]:
                self.ranks.environ = self.ranks.environ or interface_of(self._address_towards_others())
                self.ranks.start(task)
        elif self.setting.rank in task["members"]:
            heard = knock({int(rank): name for rank, name in task["doors"].items()}, self.setting.port + 1, tries=TRIES)
            answers = {rank: each.answer for rank, each in heard.items()}
            self.member.say("result", task=task["id"], ok=True, knocks=answers)

    def _address_towards_others(self) -> str:
        """Return the address from which packets of this node go to another; nothing where none is known."""
        others = (address for rank, address in self.doors.items() if rank != str(self.setting.rank) and address)
        return next((address_towards(address, self.setting.port) for address in others), "")

    def _tell(self, state: str, **facts: Any) -> None:
        """Say at the door how this node stands with rank 0."""
        setting = self.setting
        own = {"rank": setting.rank, "attempt": setting.plan.attempt, "job": setting.plan.job}
        setting.door.tell({**own, "state": state, **facts})

    def _progress(self, what: str, **facts: Any) -> None:
        now = time.monotonic()
        if now - self.told >= PROGRESS_S:
            self.told = now
            get_logger().info(what, **facts)

    # ---- without rank 0

    def _alone(self, why: str, *, silent: bool = False) -> dict[str, Any]:
        """
        Return the verdict that somebody else has, or what this node can tell.

        Args:
            silent: rank 0 does nothing, although its meeting place is there: then its door, too, knows nothing new.
        """
        self._tell(alone.LOST)
        deadline, rounds = time.monotonic() + ALONE_S, 0
        while True:
            knocks, rounds = self._knock(self._asked()), rounds + 1
            found = _verdict(knocks)
            if found:
                return found
            if silent and 0 in knocks and knocks[0].answer in ("falters", "answers"):
                knocks[0] = replace(knocks[0], answer="mute", status={})
            undecided = any(heard.status.get("state") == alone.MET for heard in knocks.values())
            if time.monotonic() > deadline or not (undecided or rounds < (1 if silent else KNOCKS)):
                break
            self.setting.side.events(PAUSE_S)
        if 0 in knocks and knocks[0].answer == "mute" and not silent:  # what it would have said may have been lost
            knocks |= self._knock([0], tries=TRIES)
        names = {rank: self.setting.name(rank) for rank in self._ranks()}
        rank, nnodes = self.setting.rank, self.setting.plan.nnodes
        charge = alone.judge(rank, nnodes, knocks, names=names, why=why, went_on=self.went_on and not silent)
        return self._said(charge) | {"lingers": True}

    def _asked(self) -> list[int]:
        """Return rank 0 and some others."""
        return [0, *[rank for rank in range(1, self.setting.plan.nnodes) if rank != self.setting.rank][:ASKED]]

    def _knock(self, ranks: Sequence[int], *, tries: int = 1) -> dict[int, Knock]:
        """Knock at the doors of nodes, and forget what they say of another attempt or of another job."""
        doors = {rank: self.doors.get(str(rank)) or peers.name_of(rank, self.setting.topology) for rank in ranks}
        heard = knock({rank: name for rank, name in doors.items() if name}, self.setting.port + 1, tries=tries)
        return {rank: each if self._is_ours(each.status) else replace(each, status={}) for rank, each in heard.items()}

    def _is_ours(self, status: Mapping[str, Any]) -> bool:
        plan = self.setting.plan
        return status.get("attempt") == plan.attempt and not is_other_job(str(status.get("job", "")), plan.job)

    def _write(self, verdict: dict[str, Any]) -> dict[str, Any]:
        """Write a verdict for the others, too, where rank 0 has written none."""
        try:
            return self.member.write_verdict(verdict)
        except RetryError:
            return verdict

    def _said(self, charge: Charge) -> dict[str, Any]:
        """Return the verdict of this node alone."""
        setting, minutes = self.setting, Minutes()
        minutes.charges.append(charge)
        nodes, plan = [self._row(rank) for rank in self._ranks()], setting.plan
        return section(minutes, nodes, nnodes=plan.nnodes, attempt=plan.attempt, epoch=2, written_by=setting.rank)

    def _ranks(self) -> list[int]:
        """Return the ranks of the job and that of this node, which may have one that the job does not have."""
        return sorted({*range(self.setting.plan.nnodes), self.setting.rank})

    def _row(self, rank: int) -> dict[str, Any]:
        ours = rank == self.setting.rank
        hello = self.setting.hello if ours else {}
        return {
            "rank": rank,
            "hostname": hello.get("hostname") or peers.hostname_of(rank, self.setting.topology),
            "node": hello.get("node", ""),
            "address": hello.get("address", ""),
            "arrived_s": 0.0 if ours else None,
            "state": "ready" if ours else "missing",
            "note": "" if ours else "not known, as rank 0 is not there",
            "clock_offset_s": None,
        }


def _left(deadline: float) -> float:
    """Return the seconds until a deadline on the monotonic clock, some in any case."""
    return max(RETURN_S, deadline - time.monotonic())


def _verdict(knocks: Mapping[int, Knock]) -> dict[str, Any] | None:
    """Return a verdict that somebody has."""
    found = (heard.status.get("verdict") for heard in knocks.values())
    return next((verdict for verdict in found if isinstance(verdict, dict) and verdict.keys() >= PARTS), None)


def poll_s(rank: int, nnodes: int) -> float:
    """Return how often to look: a store answers some ten thousand questions a second."""
    return min(1.0, LOOK_S + (nnodes / 4096 if rank else 0.0))
