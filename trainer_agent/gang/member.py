"""
What the nodes and rank 0 write at the meeting place.

    open                   written by rank 0 when all else is: the number of this protocol, attempt, job, this meeting's
                           epoch, and whether those that met have gone on
    claim/R                when the agent started that has node rank R; of two the younger has it
    news, news/N           what nodes say, in order: rank 0 reads all of it, and nobody else does
    beat/R                 a number that grows every second as long as node R lives
    version, board         what everybody should do now; rank 0 writes it, all read it when the version has changed
    pulse                  a number that grows as long as rank 0 lives, and what its clock says
    verdict                written once
    read/R                 is there when node R has read the verdict

Every node reads three small values a few times a second, so that the cost is linear in their number. Other protocols,
too, have the keys open, which may be only their number, and pulse.
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainer_agent.errors import RetryError
from trainer_agent.gang.roll import BEAT_S, HEALTHY, LOST_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trainer_agent.gang.leader import Leader
    from trainer_agent.gang.store import Store

PROTOCOL = "3"
# Who is here changes with each node that comes, and is for people to read and for nodes that lose rank 0.
SHOW_S, LEISURELY = 1.0, {"here", "missing", "doors"}
AT_ONCE = 256  # keys in one request: what thousands of nodes say would be more than is answered in time


class NotOpenError(RetryError):
    """Rank 0 has not opened the meeting place yet."""

    def __init__(self) -> None:
        super().__init__("not-open", "rank 0 is about to open the meeting place")


class OtherGangError(RetryError):
    """The meeting place is there, but for others."""


class OtherAttemptError(OtherGangError):
    """The meeting place is that of another attempt of the job."""

    def __init__(self, theirs: str, ours: str) -> None:
        super().__init__(
            "other-attempt",
            f"rank 0 is of attempt {theirs!r} of the job, and this node of {ours!r}",
            hint="one of the two is about to be replaced; see TRAINER_AGENT_PREFLIGHT_ATTEMPT",
        )


class OtherJobError(OtherGangError):
    """The meeting place is that of another job."""

    def __init__(self, theirs: str, ours: str) -> None:
        super().__init__(
            "other-job",
            f"rank 0 is {theirs} of another job, and this node looks for {ours}",
            hint="its name may still lead to an address that another job has now; jobs on one machine's network need "
            "ports of their own",
        )


def is_other_job(theirs: str, ours: str) -> bool:
    """Whether two jobs differ for sure; see `peers.job_of`."""
    return bool(theirs and ours and theirs != ours)


class OtherProtocolError(OtherGangError):
    """The agent on rank 0 writes something else at the meeting place."""

    def __init__(self, theirs: str) -> None:
        super().__init__(
            "other-protocol",
            f"the agent on rank 0 speaks protocol {theirs} at the meeting place, and this one {PROTOCOL}",
            hint="give all nodes the same version of trainer-agent",
        )


class SupersededError(RetryError):
    """A younger agent has this node's rank."""

    def __init__(self, rank: int) -> None:
        super().__init__(
            "rank-taken",
            f"another agent with node rank {rank} has started later; this one gives way",
            hint="a pod that was replaced ends like this; if none was, two pods have one PET_NODE_RANK",
        )


class LeaderSilentError(RetryError):
    """The meeting place answers, and rank 0 gives no sign of life."""

    def __init__(self, silent_s: float) -> None:
        super().__init__("leader-silent", f"rank 0 has given no sign of life for {silent_s:.0f} s")


class Member:
    """
    A node at the meeting place.

    Args:
        rank: its node rank.
        born: when its agent started, in seconds since 1970.
    """

    def __init__(self, store: Store, *, rank: int, born: float) -> None:
        self.store = store
        self.rank = rank
        self.born = born
        self.version = ""
        self.pulse, self.pulse_at = "", 0.0
        self.beats, self.beat_at = 0, float("-inf")

    def join(self, hello: dict[str, Any], *, attempt: str, now: float, wall: Callable[[], float], job: str = "") -> str:
        """
        Say hello; return the epoch of the meeting place.

        With it goes what tells the two clocks apart, as NTP does it: when rank 0 gave a sign of life by its own clock
        and when this node read it, and when this node says hello, which rank 0 hears a moment later.

        Args:
            hello: see `trainer_agent.gang.setting`.
            now: on the monotonic clock, in seconds.
            wall: returns the seconds since 1970.

        Raises:
            NotOpenError, OtherAttemptError, OtherJobError, OtherProtocolError: not yet, or not here.
            SupersededError: a younger agent with this rank is there.
            StoreLostError: no answer.
        """
        if not self.store.has(["open"]):
            raise NotOpenError
        text, pulse = self.store.get(["open", "pulse"])
        heard, meeting = wall(), _opened(text)
        if meeting["protocol"] != PROTOCOL:
            raise OtherProtocolError(meeting["protocol"])
        if is_other_job(meeting["job"], job):
            raise OtherJobError(meeting["job"], job)
        if meeting["over"] and not self._has_come():
            raise NotOpenError
        if meeting["attempt"] != attempt:
            raise OtherAttemptError(meeting["attempt"], attempt)
        claim, mine, seen = f"claim/{self.rank}", repr(self.born), ""
        while (there := self.store.compare_set(claim, seen, mine)) != mine:
            if float(there) > self.born:
                raise SupersededError(self.rank)
            seen = there
        self.beat(now)
        self.pulse_at = now
        self.say("hello", **hello, sent=float(pulse.split()[1]), heard=heard, now=wall())
        epoch: str = meeting["epoch"]
        return epoch

    def _has_come(self) -> bool:
        """Whether this very agent had joined, and has only lost its connection: rank 0 waits for it to read."""
        claim = f"claim/{self.rank}"
        return self.store.has([claim]) and self.store.get([claim])[0] == repr(self.born)

    def say(self, kind: str, **facts: Any) -> None:
        """Tell rank 0 something."""
        number = self.store.add("news", 1)
        self.store.set(f"news/{number}", json.dumps({"kind": kind, "rank": self.rank, "born": self.born, **facts}))

    def beat(self, now: float) -> None:
        """Give a sign of life when it is time."""
        if now - self.beat_at >= BEAT_S:
            self.beats += 1
            self.beat_at = now
            self.store.set(f"beat/{self.rank}", f"{self.born!r} {self.beats}")

    def look(self, *, now: float) -> dict[str, Any] | None:
        """
        Return the board when it has changed.

        Raises:
            SupersededError: a younger agent has taken this rank.
            LeaderSilentError: rank 0 does nothing any more.
            StoreLostError: no answer.
        """
        version, pulse, claim = self.store.get(["version", "pulse", f"claim/{self.rank}"])
        if float(claim) > self.born:
            raise SupersededError(self.rank)
        if pulse != self.pulse:
            self.pulse, self.pulse_at = pulse, now
        if version == self.version:
            if now - self.pulse_at > LOST_S:
                raise LeaderSilentError(now - self.pulse_at)
            return None
        self.version = version
        board: dict[str, Any] = json.loads(self.store.get(["board"])[0])
        return board

    def read_verdict(self) -> str:
        """Return the verdict as it was packed, and say that this node has it."""
        text = self.store.get(["verdict"])[0]
        self.store.set(f"read/{self.rank}", "1")
        return text

    def verdict(self) -> dict[str, Any]:
        """Return the verdict, and say that this node has it."""
        return unpacked(self.read_verdict())

    def write_verdict(self, verdict: dict[str, Any]) -> dict[str, Any]:
        """Write a verdict where there is none yet; return the one that is there."""
        return unpacked(self.store.compare_set("verdict", "", packed(verdict)))


def _opened(text: str) -> dict[str, Any]:
    """Return what rank 0 wrote when it opened the meeting place."""
    found = json.loads(text)
    return found if isinstance(found, dict) else {"protocol": str(found)}


def packed(verdict: Mapping[str, Any]) -> str:
    """Return a verdict as text, a fifth as long: thousands of nodes read what rank 0 writes of thousands of nodes."""
    return base64.b64encode(zlib.compress(json.dumps(verdict).encode(), 1)).decode()


def unpacked(text: str) -> dict[str, Any]:
    """Return a verdict that was packed."""
    found: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(text)))
    return found


@dataclass
class Chair:
    """
    Rank 0 at the meeting place: carries what nodes say to the leader, and what it decides to them.

    Args:
        wall: returns the seconds since 1970.
    """

    store: Store
    leader: Leader
    epoch: str
    wall: Callable[[], float]
    heard: int = 0
    awaited: list[int] = field(default_factory=list)
    unread: list[int] | None = None
    pulses: int = 0
    beats_at: float = float("-inf")
    board: dict[str, Any] = field(default_factory=dict)
    board_at: float = float("-inf")

    def open(self) -> None:
        """Open the meeting place."""
        self._live()
        self._write(float("-inf"))  # whatever changes next is shown at once
        self._say_open(over=False)

    def _say_open(self, *, over: bool) -> None:
        plan = self.leader.plan
        meeting = {"protocol": PROTOCOL, "attempt": plan.attempt, "job": plan.job, "epoch": self.epoch, "over": over}
        self.store.set("open", json.dumps(meeting))

    def turn(self, now: float) -> None:
        """Hear what is new, let the leader decide, and tell everybody; `now` is monotonic, in seconds."""
        self._live()
        self._hear(now)
        if now - self.beats_at >= BEAT_S / 2:
            self._feel(now)
        self.leader.turn(now)
        if self.leader.verdict is not None:
            there = self.store.compare_set("verdict", "", packed(self.leader.verdict))
            self.leader.verdict = unpacked(there)
            if self.leader.verdict["verdict"] in HEALTHY:  # one that stopped the others is for those that come, too
                self._say_open(over=True)
        self._write(now)

    def _live(self) -> None:
        self.pulses += 1
        self.store.set("pulse", f"{self.pulses} {self.wall()!r}")

    def everybody_knows(self) -> bool:
        """Return whether all that have come and are not lost have read the verdict."""
        if self.unread is None:
            self.unread = [node.rank for node in self.leader.roll.come]
        while self.unread and self.store.has([f"read/{rank}" for rank in self.unread[:AT_ONCE]]):
            del self.unread[:AT_ONCE]
        return not self.unread

    def _hear(self, now: float) -> None:
        last = self.store.add("news", 0)
        self.awaited += range(self.heard + 1, last + 1)
        self.heard = last
        there = self._there(self.awaited)
        self.awaited = sorted(set(self.awaited) - set(there))
        for first in range(0, len(there), AT_ONCE):
            texts = self.store.get([f"news/{number}" for number in there[first : first + AT_ONCE]])
            wall = self.wall()  # after all that was said has been said
            for text in texts:
                self.leader.hear(json.loads(text), now=now, wall=wall)

    def _there(self, numbers: list[int]) -> list[int]:
        """Return the numbers under which something is written; whoever took one may have died before it wrote."""
        if not numbers or self.store.has([f"news/{number}" for number in numbers]):
            return numbers
        half = len(numbers) // 2
        return self._there(numbers[:half]) + self._there(numbers[half:]) if half else []

    def _feel(self, now: float) -> None:
        self.beats_at = now
        ranks = [node.rank for node in self.leader.roll.here]
        signs = self.store.get([f"beat/{rank}" for rank in ranks]) if ranks else []
        self.leader.roll.beats(dict(zip(ranks, signs, strict=True)), now)

    def _write(self, now: float) -> None:
        board = self.leader.board
        changed = {name for name in board if name not in self.board or board[name] != self.board[name]}
        if changed - LEISURELY or (changed and now >= self.board_at + SHOW_S):
            self.board, self.board_at = board, now
            self.store.set("board", json.dumps(board))
            self.store.add("version", 1)
