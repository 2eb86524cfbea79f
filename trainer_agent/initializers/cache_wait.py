"""Wait until a data cache is available, tell how far it is, and stop as soon as it cannot become so."""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from trainer_agent.errors import FatalError, RetryError
from trainer_agent.initializers import TransientError
from trainer_agent.initializers.cache_api import (
    EVENT,
    LEADER_WORKER_SET,
    POD,
    TRAIN_JOB,
    ForbiddenError,
    MissingError,
)
from trainer_agent.initializers.cache_pods import (
    IMAGE_REASONS,
    STUCK_REASONS,
    Crashed,
    Waiting,
    crashed,
    state,
    unschedulable,
    waiting,
)
from trainer_agent.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainer_agent.initializers.cache_api import Api
    from trainer_agent.initializers.cache_settings import Settings

MOST_CRASHES = 3


@dataclass(frozen=True, slots=True)
class Pace:
    """
    How often things happen while waiting, in seconds.

    Args:
        look: pods and the TrainJob are looked at this often, and at each change of the LeaderWorkerSet.
        shortest: and not more often than this.
        image: an image that still cannot be pulled after this, the kubelet having tried again after 10 s.
        progress: a line at least this often.
    """

    look: int = 5
    shortest: float = 0.2
    image: float = 15.0
    progress: float = 10.0


PACE = Pace()


@dataclass
class Vigil:
    """
    The wait for one LeaderWorkerSet.

    Args:
        made: the LeaderWorkerSet as it was created or adopted.
    """

    api: Api
    settings: Settings
    train_job_uid: str
    made: Mapping[str, Any]
    pace: Pace = PACE
    _started: float = field(default_factory=time.monotonic)
    _shown: tuple[float, object] = (-math.inf, None)
    _summary: str = "no pod seen yet"
    _warned: set[str] = field(default_factory=set)
    _image_troubles: dict[tuple[str, str], float] = field(default_factory=dict)
    _crashes: dict[tuple[str, str], Crashed] = field(default_factory=dict)  # by uid and container

    def __post_init__(self) -> None:
        # An API server that is away for some minutes does not undo what the cluster goes on doing.
        self.api = replace(self.api, patience_s=math.inf)

    def keep(self) -> None:
        """
        Return once the LeaderWorkerSet is available.

        Raises:
            RetryError: not in time, it crashes again and again, or it was deleted.
            FatalError: its image cannot be pulled, or its TrainJob is gone.
        """
        while True:
            found = self.api.persist(self._look)
            if is_available(found):
                get_logger().info(f"the cache is available: {self._name}")
                return
            if self.api.left_s <= 0:
                raise self._late()
            self._pause(found["metadata"]["resourceVersion"])

    @property
    def _name(self) -> str:
        return f"{LEADER_WORKER_SET.name} {self.settings.name}"

    def _look(self) -> Mapping[str, Any]:
        """Return the LeaderWorkerSet, having looked at all that may keep it from becoming available."""
        found = self._leader_worker_set()
        if not is_available(found):
            self._check_train_job()
            self._look_at_pods()
        return found

    def _leader_worker_set(self) -> Mapping[str, Any]:
        try:
            found = self.api.get(LEADER_WORKER_SET, self.settings.name)
        except MissingError as error:
            raise self._gone() from error
        same = found["metadata"]["uid"] == self.made["metadata"]["uid"]
        if not same or found["metadata"].get("deletionTimestamp"):
            raise self._gone()
        return found

    def _gone(self) -> RetryError:
        return RetryError(
            "cache-deleted",
            f"{self._name} was deleted while it started",
            hint="find out who deleted it; the next attempt creates it again",
        )

    def _check_train_job(self) -> None:
        name = self.settings.job
        try:
            metadata = self.api.get(TRAIN_JOB, name)["metadata"]
        except MissingError as error:
            raise FatalError("train-job-deleted", f"TrainJob {name} was deleted while its cache started") from error
        if metadata["uid"] != self.train_job_uid or metadata.get("deletionTimestamp"):
            raise FatalError("train-job-deleted", f"TrainJob {name} was deleted while its cache started")

    def _look_at_pods(self) -> None:
        try:
            pods = self.api.list(POD, labels=f"leaderworkerset.sigs.k8s.io/name={self.settings.name}")
        except ForbiddenError as error:
            self._summary = "its pods may not be looked at"
            self._show(())
            self._warn_once(f"{error.message}. {error.hint}", key="pods")
            return
        states = Counter(state(p) for p in pods)
        others = ", ".join(f"{count} {word}" for word, count in sorted(states.items()) if word != "ready")
        self._summary = f"{states['ready']} of {self.settings.size} pods ready" + (f", {others}" if others else "")
        self._show(pods)
        self._check_pods(pods)
        if len(pods) < self.settings.size:
            self._look_at_refusals()

    def _look_at_refusals(self) -> None:
        """Tell why pods are not even made, such as a quota; only the events of their StatefulSets say it."""
        try:
            events = self.api.list(EVENT, fields="involvedObject.kind=StatefulSet,reason=FailedCreate")
        except ForbiddenError as error:
            get_logger().debug("events may not be looked at", error=error.message)
            return
        for event in events:
            name = event["involvedObject"].get("name", "")
            if name == self.settings.name or name.startswith(f"{self.settings.name}-"):
                self._warn_once(f"a pod cannot be made: {event.get('message', '')}")

    def _show(self, pods: Sequence[Mapping[str, Any]]) -> None:
        """Log how far the cache is at each change, and now and then."""
        now = time.monotonic()
        if self._summary != self._shown[1] or now - self._shown[0] >= self.pace.progress:
            self._shown = now, self._summary
            states = {p["metadata"]["name"]: state(p) for p in pods}
            left_s = max(0, round(self.api.left_s))
            get_logger().info(f"waiting for the cache: {self._summary}", pods=states, left_s=left_s)

    def _check_pods(self, pods: Sequence[Mapping[str, Any]]) -> None:
        troubled: dict[tuple[str, str], Waiting] = {}
        for pod in pods:
            if why := unschedulable(pod):
                name = pod["metadata"]["name"]
                self._warn_once(f"no node takes pod {name}: {why}", key=f"pod {name}")
            for found in waiting(pod):
                if found.reason in IMAGE_REASONS:
                    troubled[found.pod, found.container] = found
                elif found.reason in STUCK_REASONS:
                    who = f"container {found.container} of pod {found.pod}"
                    self._warn_once(f"{who} cannot start: {found.reason}: {found.message}")
            for crash in crashed(pod):
                self._count(crash)
        now = time.monotonic()
        self._image_troubles = {key: self._image_troubles.get(key, now) for key in troubled}
        for key, since in self._image_troubles.items():
            if now - since >= self.pace.image:
                raise FatalError(
                    "cache-image-unavailable",
                    f"Image {troubled[key].image} of pod {key[0]} cannot be pulled: "
                    f"{troubled[key].reason}: {troubled[key].message}",
                    hint="correct CACHE_IMAGE, or give the cluster access to its registry",
                )

    def _count(self, crash: Crashed) -> None:
        """Count over pods of one name: its controller makes all of them anew as soon as one container has ended."""
        self._crashes[crash.uid, crash.container] = crash
        same = (crash.pod, crash.container)
        times = sum(each.times for each in self._crashes.values() if (each.pod, each.container) == same)
        who = f"Container {crash.container} of pod {crash.pod}"
        if times >= MOST_CRASHES:
            raise RetryError(
                "cache-crashing",
                f"{who} has ended {times} times, wanted fewer than {MOST_CRASHES}; last: {crash.last}",
                hint="compare METADATA_LOC and IAM_ROLE, and HEAD_MEM or WORKER_MEM where it was OOMKilled; "
                f"kubectl -n {self.api.namespace} logs -f {crash.pod}, while it lives",
            )
        self._warn_once(f"{who} has ended and is started again: {crash.last}", key=f"crash {crash.uid} {times}")

    def _warn_once(self, message: str, *, key: str = "") -> None:
        """Log a message; `key` names what it is of, where its words may change."""
        key = key or message
        if key not in self._warned:
            self._warned.add(key)
            get_logger().warning(message)

    def _pause(self, version: str) -> None:
        """Wait for a change of the LeaderWorkerSet, or until it is time to look at the rest."""
        started = time.monotonic()
        try:
            self.api.await_change(LEADER_WORKER_SET, self.settings.name, version=version, seconds=self.pace.look)
        except TransientError as error:
            get_logger().debug("the watch broke off", error=error.message)
        shortest = self.pace.shortest - (time.monotonic() - started)
        time.sleep(max(0.0, min(shortest, self.api.left_s)))

    def _late(self) -> RetryError:
        waited = time.monotonic() - self._started
        return RetryError(
            "cache-not-ready",
            f"{self._name} is not available after {waited:.0f} s: {self._summary}",
            hint=f"kubectl -n {self.api.namespace} describe pods -l "
            f"leaderworkerset.sigs.k8s.io/name={self.settings.name}, or give --timeout more",
        )


def is_available(leader_worker_set: Mapping[str, Any]) -> bool:
    """Return whether its controller says that all of its pods are ready."""
    conditions = leader_worker_set.get("status", {}).get("conditions", ())
    return any((c["type"], c["status"]) == ("Available", "True") for c in conditions)
