"""The part of JobSet and of the Job controller: Pods with names, indexes and labels."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strategic_merge import merged

Json = dict[str, Any]

INDEX = "batch.kubernetes.io/job-completion-index"


@dataclass(frozen=True)
class Pod:
    """A Pod, the replicated job that it belongs to, and the jobs that have to be Complete or Ready before it starts."""

    name: str
    job: str
    after: Mapping[str, str]
    manifest: Json


def pod_of(job: Json, index: int, *, trainjob: Json, subdomain: str, attempt: int) -> Pod:
    """The Pod of an index of a replicated job, with all that refers to its own metadata in place."""
    jobset = trainjob["metadata"]["name"]
    name = f"{jobset}-{job['name']}-0-{index}"
    template = copy.deepcopy(job["template"]["spec"]["template"])
    labels = {
        "jobset.sigs.k8s.io/jobset-name": jobset,
        "jobset.sigs.k8s.io/replicatedjob-name": job["name"],
        "jobset.sigs.k8s.io/job-index": "0",
        "jobset.sigs.k8s.io/restart-attempt": str(attempt),
        INDEX: str(index),
    }
    metadata = merged(
        template.get("metadata") or {}, {"name": name, "labels": labels, "annotations": {INDEX: str(index)}}
    )
    metadata["namespace"] = trainjob["metadata"].get("namespace", "default")
    spec = template["spec"] | {"hostname": name, "subdomain": subdomain}
    for container in [*(spec.get("initContainers") or []), *spec["containers"]]:
        variables = [*(container.get("env") or []), {"name": "JOB_COMPLETION_INDEX", "value": str(index)}]
        container["env"] = [_resolved(variable, metadata) for variable in variables]
    after = {dependency["name"]: dependency["status"] for dependency in job.get("dependsOn") or []}
    return Pod(name, job["name"], after, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def _resolved(variable: Json, metadata: Json) -> Json:
    """What the kubelet makes of a reference to the Pod's own metadata."""
    path = ((variable.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath")
    if path is None:
        return variable
    if path == "spec.nodeName":
        return {"name": variable["name"], "value": "machine-of-" + metadata["name"]}
    _, field, *key = path.replace("']", "").replace("['", ".", 1).split(".", 2)
    value = metadata[field][key[0]] if key else metadata[field]
    return {"name": variable["name"], "value": value}
