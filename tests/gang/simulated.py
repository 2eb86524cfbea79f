"""A gang that is simulated: a store in memory, a clock that the test turns, and nodes with faults."""

import json
import random
from collections import Counter
from dataclasses import dataclass, field

from trainer_agent.gang.course import Plan, Work
from trainer_agent.gang.leader import Leader
from trainer_agent.gang.member import Chair, Member, SupersededError
from trainer_agent.gang.ranks import places
from trainer_agent.gang.store import StoreLostError

STEP_S = 0.1
BEGAN = 1_700_000_000.0  # on the clock on the wall of rank 0
BYTES = 1 << 22
USUAL_GBPS = 10.0
READERS = 64  # nodes that read board and verdict as they do in a gang; more are told what the first has read

# What a fault does to all ranks that meet the node, the most telling first.
FAULTS = ("misconfigured", "shm", "unfit", "killed", "error", "wrong", "hang")
# What rank 0 hears at a door, by what became of its node.
ANSWERS = {"away": "unresolved", "here": "answers", "gone": "silent"}


class MemoryStore:
    """The meeting place, as a TCPStore does it: a key that is asked for has to be there."""

    def __init__(self):
        self.values = {}
        self.calls = Counter()
        self.characters = 0
        self.lost = False

    def set(self, key, value):
        self._count("set", value)
        self.values[key] = value

    def get(self, keys):
        self._count("get")
        absent = [key for key in keys if key not in self.values]
        if absent:
            raise StoreLostError(f"wait timeout: {absent}")
        found = [self.values[key] for key in keys]
        self.characters += sum(map(len, found))
        return found

    def add(self, key, amount):
        self._count("add")
        self.values[key] = str(int(self.values.get(key, "0")) + amount)
        return int(self.values[key])

    def compare_set(self, key, expected, value):
        self._count("compare_set", value)
        if self.values.get(key, "") == expected:
            self.values[key] = value
        return self.values.get(key, expected)

    def has(self, keys):
        self._count("has")
        return all(key in self.values for key in keys)

    def _count(self, method, value=""):
        if self.lost:
            raise StoreLostError("connection reset by peer")
        self.calls[method] += 1
        self.characters += len(value)


def hello(rank, nodes, **changes):
    """Return what a node says when it comes and all is well."""
    local = {"verdict": "pass", "exit_code": 0, "message": "", "findings": []}
    own = {"hostname": f"job-node-0-{rank}", "node": f"machine-{rank}", "address": f"10.0.0.{rank}"}
    marks = {"boot_id": f"boot-{rank}", "torch": "2.7.1"}
    return own | {"nnodes": nodes, "nproc": 1, "marks": marks, "gpus": [], "local": local} | changes


def failed_local(message="GPU 3 fell off the bus"):
    """Return what a node says of its own checks when one failed."""
    findings = [{"check": "gpu-count", "code": "gpu-missing", "message": message}]
    return {"verdict": "retry", "exit_code": 20, "message": message, "findings": findings}


def plan(nodes, **changes):
    """Return what is to be done, with times that do not take long."""
    short = {"all_ranks": Work((BYTES,), 0.1, 3.0), "pair": Work((BYTES,), 0.1, 2.0), "screen": 1}
    return Plan(nnodes=nodes, **({"gang_timeout_s": 20.0} | short | changes))


@dataclass
class Pod:
    """
    One node.

    Args:
        comes: when it arrives, None for never.
        says: what is different in its hello.
        clock_s: how far its clock is before that of rank 0.
        fault: one of FAULTS, or `mute`: it gives signs of life, but reports nothing.
        shows: in which task the fault shows, by kind and by how often there was one of this kind: `("all", 1)`.
        speed: its part of the usual rate.
        ends: when it is killed: seconds, or the phase or the task in which it is.
        doors: what others hear at its door, by rank; all the rest hear what is true.
        lost_to_zero: whether it only is out of reach for rank 0 when it ends.
        bad_rails: the numbers of its ranks whose fault it is.
    """

    rank: int
    comes: float | None = 0.0
    says: dict = field(default_factory=dict)
    born: float = BEGAN
    clock_s: float = 0.0
    fault: str = ""
    shows: tuple | None = None
    speed: float = 1.0
    ends: float | str | None = None
    doors: dict = field(default_factory=dict)
    lost_to_zero: bool = False
    bad_rails: tuple = ()
    state: str = "away"
    member: Member | None = None
    board: dict = field(default_factory=dict)
    task: dict | None = None
    report: tuple | None = None  # when, and what
    verdict: dict | None = None
    error: Exception | None = None

    def is_faulty_in(self, task):
        kind, number = task["kind"], task["count"]
        return self.fault if self.shows is None or self.shows in ((kind,), (kind, number)) else ""


class Gang:
    """All nodes and what is between them; `step` lets a tenth of a second pass."""

    def __init__(self, nodes, *, changes=None, cut=(), together=(), noise=0.0, seed=0, **planned):
        self.plan = plan(nodes, **planned)
        self.pods = [Pod(rank, **(changes or {}).get(rank, {})) for rank in range(nodes)]
        self.cut = [set(pair) for pair in cut]
        self.together = list(together)  # what is wrong with the collective of all ranks, each time
        self.noise = noise
        self.chance = random.Random(seed)
        self.now = 0.0
        self.store = MemoryStore()
        self.leader = Leader(self.plan, lambda rank: f"job-node-0-{rank}.job")
        self.chair = Chair(self.store, self.leader, "epoch-1", lambda: BEGAN + self.now)
        self.chair.open()
        self.kinds = []  # of the tasks so far
        self.tasks = {}

    def run(self, limit_s=200.0):
        """Let time pass until there is a verdict, and everybody had the time to read it."""
        while self.leader.verdict is None and self.now < limit_s:
            self.step()
        self.step()
        return self.leader.verdict

    def step(self):
        """Let everybody have a turn, then rank 0 decide."""
        for pod in self.pods:
            if pod.state != "gone" and pod.error is None:
                self._turn(pod)
        if self.leader.verdict is None:
            self.chair.turn(self.now)
        self.now += STEP_S

    def rejoin(self, rank, *, born=BEGAN + 30):
        """Let a younger agent with a rank arrive; return it."""
        self.pods.append(Pod(rank, born=born))
        return self.pods[-1]

    def codes(self):
        """Return the codes of what was found, each with the ranks that did it or between which it is."""
        charges = self.leader.verdict["charges"]
        return sorted((c["code"], tuple(c["culprits"] or c["between"])) for c in charges)

    def culprits(self):
        """Return the ranks of all nodes that are accused."""
        return {rank for charge in self.leader.verdict["charges"] for rank in charge["culprits"]}

    # ---- a node

    def _turn(self, pod):
        if self._ends(pod):
            pod.state = "gone"
            return
        if pod.state == "away":
            if pod.comes is not None and self.now >= pod.comes:
                self._arrive(pod)
            return
        if pod.verdict is not None:
            return
        if pod.report and self.now >= pod.report[0]:
            pod.member.say("result", **pod.report[1])
            pod.report = None
        pod.member.beat(self.now)
        try:
            board = self._read(pod)
        except SupersededError as error:
            pod.error = error
            return
        if board is not None:
            pod.board = board
            self._obey(pod, board["task"])
            if board["verdict"]:
                pod.verdict = pod.member.verdict() if pod.rank < READERS else self.pods[0].verdict

    def _read(self, pod):
        if pod.rank < READERS:
            return pod.member.look(now=self.now)
        first = self.pods[0].board
        return first if first is not pod.board else None

    def _ends(self, pod):
        if isinstance(pod.ends, str):
            return pod.state == "here" and (pod.ends == self.leader.phase or pod.ends in self.kinds)
        return pod.ends is not None and self.now >= pod.ends

    def _arrive(self, pod):
        pod.state = "here"
        pod.member = Member(self.store, rank=pod.rank, born=pod.born)
        words, wall = hello(pod.rank, self.plan.nnodes, **pod.says), lambda: BEGAN + self.now + pod.clock_s
        pod.member.join(words, attempt=self.plan.attempt, now=self.now, wall=wall)

    def _obey(self, pod, task):
        if task is None:
            pod.task = pod.report = None
        elif pod.task is None or pod.task["id"] != task["id"]:
            pod.task, pod.report = task, None
            self._see(task)
            if task["kind"] == "ask":
                if pod.rank in task["members"]:
                    heard = {rank: self._heard(pod.rank, int(rank)) for rank in task["doors"]}
                    pod.report = (self.now + STEP_S, {"task": task["id"], "ok": True, "knocks": heard})
            else:
                self._work(pod, self.tasks[task["id"]])

    def _see(self, task):
        """Take down that there is a task, with the group of each node in it."""
        if task["id"] not in self.tasks:
            self.kinds.append(task["kind"])
            task["count"] = self.kinds.count(task["kind"])
            groups = {node: pair for pair in task.get("pairs", ()) for node in pair}
            groups |= dict.fromkeys(task.get("members", ()), task.get("members"))
            self.tasks[task["id"]] = task | {"groups": groups, "results": {}}

    def _heard(self, asker, rank):
        pod = self.pods[rank]
        if asker in pod.doors:
            return pod.doors[asker]
        if pod.lost_to_zero and pod.state == "gone":
            return "silent" if asker == 0 else "answers"
        return "silent" if {asker, rank} in self.cut else ANSWERS[pod.state]

    # ---- what comes of tasks

    def _work(self, pod, task):
        group = task["groups"].get(pod.rank)
        if group is None or pod.is_faulty_in(task) == "mute":
            return
        key = task["kind"] if task["kind"] == "all" else tuple(group)
        if key not in task["results"]:
            task["results"][key] = self._outcome(group, task)
        fault, seconds = task["results"][key]
        # As the agent does it, which looks through all pairs.
        numbers = places(task, pod.rank) if pod.rank < READERS else range(task["per_node"])
        bad = {number for rank in group for number in self.pods[rank].bad_rails}
        good = set(numbers) - bad if bad and task["kind"] == "rails" else set()
        rows = [self._row(pod, number, fault, seconds, task | {"good": good}) for number in numbers]
        took = task["timeout_s"] if any("hung" in row for row in rows) else seconds
        pod.report = (self.now + took, {"task": task["id"], "ok": all(row["ok"] for row in rows), "ranks": rows})

    def _outcome(self, group, task):
        """Return the fault that all of a group meet, and the seconds of an all-reduce."""
        pods = [self.pods[rank] for rank in group]
        faults = {pod.is_faulty_in(task) for pod in pods}
        if task["kind"] == "all" and len(self.together) >= task["count"]:
            faults.add(self.together[task["count"] - 1])
        if any(pod.state == "gone" for pod in pods) or any(pair <= set(group) for pair in self.cut):
            faults.add("hang")
        rate = min(pod.speed for pod in pods) * USUAL_GBPS * 2 ** self.chance.gauss(0, self.noise)
        ranks = len(group) * task["per_node"]
        return next((each for each in FAULTS if each in faults), ""), 2 * (ranks - 1) / ranks * BYTES / rate / 1e9

    @staticmethod
    def _row(pod, number, fault, seconds, task):
        if number in task["good"]:
            fault = ""
        own = pod.is_faulty_in(task) == fault
        row = {"number": number, "stage": "results", "ok": False, "timings": [], "uuid": f"GPU-{pod.rank}-{number}"}
        if not fault:
            timings = [{"of": "all-reduce", "bytes": BYTES, "seconds": seconds}] if task["sizes"] else []
            return row | {"ok": True, "stage": "done", "timings": timings, "transport": "tcp"}
        if fault == "wrong":
            return row | {"stage": "done", "wrong": [{"of": "all-reduce", "differ": 7, "of_numbers": 65536}]}
        if fault == "hang" or (fault == "unfit" and not own):
            return row | {"hung": True}
        if fault == "unfit":
            return row | {"stage": "done", "unfit": "torch is built without gloo"}
        if fault == "killed" and own:
            return row | {"code": -9}
        if fault == "misconfigured" and own:
            return row | {"error": "DistBackendError", "text": "ncclInvalidUsage: bad NCCL_NET"}
        if fault == "shm" and own:
            return row | {"error": "DistBackendError", "text": "ncclSystemError: failed", "shm_free": 5 << 20}
        return row | {"error": "RuntimeError", "text": "Connection closed by peer"}


def outcome(gang):
    """Return the verdict, and the codes of what was found."""
    return gang.leader.verdict["verdict"], gang.codes()


def plain_json(value):
    """Return whether a value is JSON and nothing else: it comes back as it went."""
    return json.loads(json.dumps(value, allow_nan=False)) == value
