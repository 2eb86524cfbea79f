"""The objects of a data cache, as Kubeflow's head and workers expect them."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from trainer_agent.initializers.cache_settings import FLIGHT_PORT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainer_agent.initializers.cache_settings import Settings

HEALTH_PORT = 8080
# Tells what this run created from what another one did, also when the answer to a creation was lost.
RUN_ANNOTATION = "trainer-agent/run"
# Tells a cache of other settings. The object itself does not: the API server completes it, and webhooks may change it.
WANTED_ANNOTATION = "trainer-agent/wanted"


def shared_metadata(train_job: Mapping[str, Any], *, namespace: str, run: str) -> dict[str, Any]:
    """Return what all objects of a cache carry: they go when their TrainJob goes."""
    owner = {
        "apiVersion": train_job["apiVersion"],
        "kind": train_job["kind"],
        "name": train_job["metadata"]["name"],
        "uid": train_job["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {"namespace": namespace, "annotations": {RUN_ANNOTATION: run}, "ownerReferences": [owner]}


def marked(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object with a hash of what it asks for, whichever run makes it and whoever owns it."""
    metadata = body["metadata"]
    annotations = {k: v for k, v in metadata["annotations"].items() if k != RUN_ANNOTATION}
    wanted = json.dumps([annotations, body.get("spec")], sort_keys=True)
    mark = hashlib.sha256(wanted.encode()).hexdigest()
    return {**body, "metadata": {**metadata, "annotations": {**metadata["annotations"], WANTED_ANNOTATION: mark}}}


def service_account(settings: Settings, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return whom the pods act as."""
    role = {
        "eks.amazonaws.com/sts-regional-endpoints": "true",
        "eks.amazonaws.com/role-arn": settings.iam_role,
    }
    annotations = {**metadata["annotations"], **(role if settings.iam_role else {})}
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {**metadata, "name": settings.name, "annotations": annotations},
    }


def leader_worker_set(settings: Settings, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the head and its workers, one group of pods."""
    head = _pod(settings, "head", cpu=settings.head_cpu, memory=settings.head_memory)
    worker = _pod(settings, "worker", cpu=settings.worker_cpu, memory=settings.worker_memory)
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {**metadata, "name": settings.name},
        "spec": {
            "replicas": 1,
            "leaderWorkerTemplate": {
                "size": settings.size,
                "leaderTemplate": {"metadata": {"labels": {"app": f"{settings.name}-head"}}, "spec": head},
                "workerTemplate": {"spec": worker},
            },
        },
    }


def service(settings: Settings, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return where the trainer finds the head."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {**metadata, "name": f"{settings.name}-service"},
        "spec": {
            "selector": {"app": f"{settings.name}-head"},
            "ports": [{"protocol": "TCP", "port": FLIGHT_PORT, "targetPort": FLIGHT_PORT}],
        },
    }


def _pod(settings: Settings, role: str, *, cpu: str, memory: str) -> dict[str, Any]:
    resources = {"cpu": cpu, "memory": memory}
    container = {
        "name": role,
        "image": settings.image,
        "command": [role],
        "args": ["0.0.0.0", str(FLIGHT_PORT)],  # noqa: S104  # a pod's own address is not known before it runs
        "resources": {"limits": resources, "requests": resources},
        "env": [
            {"name": "METADATA_LOC", "value": settings.metadata_location},
            {"name": "TABLE_NAME", "value": settings.table},
            {"name": "SCHEMA_NAME", "value": settings.schema},
        ],
        "ports": [
            {"containerPort": FLIGHT_PORT, "name": "grpc"},
            {"containerPort": HEALTH_PORT, "name": "health"},
        ],
        "readinessProbe": {
            "httpGet": {"path": "/ready", "port": HEALTH_PORT},
            "initialDelaySeconds": settings.readiness.initial_delay,
            "periodSeconds": settings.readiness.period,
            "timeoutSeconds": settings.readiness.timeout,
            "failureThreshold": settings.readiness.failure_threshold,
        },
    }
    return {"serviceAccountName": settings.name, "containers": [container]}
