"""What a pod's status says: how far it is, and what keeps it from going on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

IMAGE_REASONS = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName"}
CRASH_REASON = "CrashLoopBackOff"


@dataclass(frozen=True, slots=True)
class Waiting:
    """
    A container that waits.

    Args:
        reason: Kubernetes' word for why, such as ImagePullBackOff.
        message: its explanation.
        last: how the container ended before.
    """

    pod: str
    container: str
    image: str
    reason: str
    message: str
    restarts: int
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
    status = pod.get("status", {})
    for container in [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]:
        found = container.get("state", {}).get("waiting")
        if found:
            yield Waiting(
                pod=pod["metadata"]["name"],
                container=container["name"],
                image=container.get("image", ""),
                reason=found.get("reason", "waiting"),
                message=found.get("message", ""),
                restarts=container.get("restartCount", 0),
                last=_ended(container.get("lastState", {}).get("terminated")),
            )


def _ended(terminated: Mapping[str, Any] | None) -> str:
    if not terminated:
        return "nobody knows how it ended"
    how = f"{terminated.get('reason', 'ended')}, exit code {terminated.get('exitCode')}"
    message = str(terminated.get("message", "")).strip()
    return f"{how}: {message}" if message else how


def _condition(pod: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    conditions = pod.get("status", {}).get("conditions", ())
    return next((c for c in conditions if c["type"] == name), {})
