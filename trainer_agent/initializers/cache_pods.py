"""What a pod's status says: how far it is, and what keeps it from going on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

IMAGE_REASONS = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName"}
# What the kubelet tries again for ever, such as an image that runs as root where that is not allowed.
STUCK_REASONS = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}


@dataclass(frozen=True, slots=True)
class Waiting:
    """
    A container that waits.

    Args:
        reason: Kubernetes' word for why, such as ImagePullBackOff.
        message: its explanation.
    """

    pod: str
    container: str
    image: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Crashed:
    """
    A container that has ended by itself, and how often.

    Args:
        uid: the pod's; another one of the same name comes in its place.
        last: how it ended the last time.
    """

    pod: str
    uid: str
    container: str
    times: int
    last: str


def state(pod: Mapping[str, Any]) -> str:
    """Return one word for how far a pod is."""
    if pod["metadata"].get("deletionTimestamp"):
        return "Terminating"
    if _condition(pod, "Ready").get("status") == "True":
        return "ready"
    if unschedulable(pod):
        return "Unschedulable"
    reasons = [w.reason for w in waiting(pod)]
    return reasons[0] if reasons else str(pod.get("status", {}).get("phase", "Unknown"))


def unschedulable(pod: Mapping[str, Any]) -> str:
    """Return why no node takes the pod; empty when one does, or nobody has looked yet."""
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.get("reason") != "Unschedulable" or scheduled.get("status") == "True":
        return ""
    return str(scheduled.get("message") or "no node fits")


def waiting(pod: Mapping[str, Any]) -> Iterator[Waiting]:
    """Yield the containers that wait for something."""
    for container in _containers(pod):
        found = container.get("state", {}).get("waiting")
        if found:
            yield Waiting(
                pod=pod["metadata"]["name"],
                container=container["name"],
                image=container.get("image", ""),
                reason=found.get("reason", "waiting"),
                message=found.get("message", ""),
            )


def crashed(pod: Mapping[str, Any]) -> Iterator[Crashed]:
    """Yield the containers that have ended by themselves: not those that end because their pod is deleted."""
    metadata = pod["metadata"]
    for container in _containers(pod):
        ended = container.get("state", {}).get("terminated") or {}
        now = bool(ended.get("exitCode")) and not metadata.get("deletionTimestamp")
        times = container.get("restartCount", 0) + now
        if times:
            last = _ended(ended if now else container.get("lastState", {}).get("terminated"))
            yield Crashed(metadata["name"], metadata["uid"], container["name"], times, last)


def _containers(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    status = pod.get("status", {})
    return [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]


def _ended(terminated: Mapping[str, Any] | None) -> str:
    if not terminated:
        return "nobody knows how it ended"
    how = f"{terminated.get('reason', 'ended')}, exit code {terminated.get('exitCode')}"
    message = str(terminated.get("message", "")).strip()
    return f"{how}: {message}" if message else how


def _condition(pod: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    conditions = pod.get("status", {}).get("conditions", ())
    return next((c for c in conditions if c["type"] == name), {})
