"""
A training runtime and a TrainJob become the Pods that Kubeflow Trainer, JobSet and the Job controller make of them.

Written after Trainer 2.3 (plugins torch, mpi, plainml, jobset, trainjobstatus) and JobSet 0.12, for what containers can
tell: gang scheduling, owners, hashes in names and quotas are left out.
"""

import copy
import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from indexed_pod import INDEX, Json, Pod, pod_of
from strategic_merge import merged

ANCESTOR = "trainer.kubeflow.org/trainjob-ancestor-step"
TRAINER_PORT = 29500
STATUS_MOUNT = "/var/run/secrets/kubeflow/trainer"
STATUS_VOLUME = "kubeflow-trainer-token"
SSH_VOLUME = "mpi-ssh-auth"
HOSTFILE_VOLUME = "mpi-hostfile"


def render(runtime: Json, trainjob: Json, *, status_url: str | None = None, restart_attempt: int = 0) -> list[Pod]:
    """Every Pod of the TrainJob, in the order of the runtime's jobs; status_url as with the gate TrainJobStatus."""
    jobs = _replicated_jobs(runtime, trainjob)
    policy = runtime["spec"].get("mlPolicy") or {}
    _resources(jobs, policy, trainjob)
    counts = _counts(jobs, policy, trainjob)
    if "torch" in policy:
        _torch(jobs, policy["torch"] or {}, trainjob, counts)
    elif "mpi" in policy:
        _mpi(jobs, policy["mpi"] or {}, trainjob)
    if status_url:
        _status(jobs, status_url, trainjob)
    _initializers(jobs, trainjob)
    _trainer(jobs, policy, trainjob)
    _claims(jobs, runtime, trainjob)
    return [
        pod_of(job, index, trainjob=trainjob, subdomain=_subdomain(runtime, trainjob), attempt=restart_attempt)
        for job in jobs
        for index in range(counts[job["name"]])
    ]


def hostfile(runtime: Json, trainjob: Json) -> str:
    """The MPI hostfile that the controller puts into a ConfigMap."""
    jobs = _replicated_jobs(runtime, trainjob)
    policy = runtime["spec"]["mlPolicy"]
    counts = _counts(jobs, policy, trainjob)
    slots = _mpi_slots(jobs, policy["mpi"] or {}, trainjob)
    hosts = ("node", "launcher") if (policy["mpi"] or {}).get("runLauncherAsNode") else ("node",)
    name = trainjob["metadata"]["name"]
    lines = [
        f"{name}-{job['name']}-0-{index}.{_subdomain(runtime, trainjob)} slots={slots}\n"
        for job in jobs
        if job["name"] in hosts
        for index in range(counts[job["name"]])
    ]
    return "".join(lines)


def _replicated_jobs(runtime: Json, trainjob: Json) -> list[Json]:
    spec = runtime["spec"]["template"]["spec"]
    for patch in trainjob["spec"].get("runtimePatches") or []:
        spec = merged(spec, ((patch.get("trainingRuntimeSpec") or {}).get("template") or {}).get("spec") or {})
    return copy.deepcopy(spec["replicatedJobs"])


def _ancestor(job: Json) -> str | None:
    return ((job["template"].get("metadata") or {}).get("labels") or {}).get(ANCESTOR)


def _pod_spec(job: Json) -> Json:
    return job["template"]["spec"]["template"]["spec"]


def _containers(job: Json) -> list[Json]:
    return [*(_pod_spec(job).get("initContainers") or []), *_pod_spec(job)["containers"]]


def _node_containers(job: Json) -> list[Json]:
    return [container for container in _pod_spec(job)["containers"] if container["name"] == "node"]


def _upsert(container: Json, field: str, items: list[Json], *, key: str = "name") -> None:
    present = {item.get(key): item for item in container.get(field) or []}
    container[field] = list((present | {item[key]: item for item in items}).values())


def _env(values: Mapping[str, str]) -> list[Json]:
    return [{"name": name, "value": value} for name, value in values.items()]


def _launcher_is_node(policy: Json) -> bool:
    return bool((policy.get("mpi") or {}).get("runLauncherAsNode"))


def _resources(jobs: list[Json], policy: Json, trainjob: Json) -> None:
    """Only the containers named node get the TrainJob's resources, and lose their claims where it has any."""
    wanted = _of_trainer(trainjob, "resourcesPerNode")
    for job in jobs:
        if wanted and (_ancestor(job) == "trainer" or (_launcher_is_node(policy) and job["name"] == "node")):
            for container in _node_containers(job):
                resources = merged(container.get("resources") or {}, wanted)
                container["resources"] = {kind: resources[kind] for kind in ("limits", "requests") if kind in resources}


def _of_trainer(trainjob: Json, field: str) -> Any:
    return (trainjob["spec"].get("trainer") or {}).get(field)


def _counts(jobs: list[Json], policy: Json, trainjob: Json) -> dict[str, int]:
    counts = {job["name"]: job["template"]["spec"].get("parallelism") or 1 for job in jobs}
    trainers = [job["name"] for job in jobs if _ancestor(job) == "trainer"]
    counts |= dict.fromkeys(trainers, policy.get("numNodes") or 1)
    nodes = _of_trainer(trainjob, "numNodes")
    if nodes is not None and "mpi" not in policy:
        counts |= dict.fromkeys(trainers[:1], nodes)
    elif nodes is not None and "node" in counts:
        # The launcher is one of the nodes; even of one node the controller makes two.
        counts["node"] = max(nodes - 1, 1) if _launcher_is_node(policy) else nodes
    return counts


def _node_resources(jobs: list[Json], trainjob: Json) -> Json:
    """What the number of processes is taken from: the TrainJob's own resources, else the runtime's."""
    for job in jobs:
        if job["name"] == "node" or _ancestor(job) == "trainer":
            for container in _node_containers(job):
                if container.get("resources"):
                    return _of_trainer(trainjob, "resourcesPerNode") or container["resources"]
    return _of_trainer(trainjob, "resourcesPerNode") or {}


def _quantity(resources: Json, word: str) -> int:
    """Of requests, else of limits, the first resource whose name contains the word, rounded up."""
    for kind in ("requests", "limits"):
        for name, value in (resources.get(kind) or {}).items():
            milli = str(value).endswith("m")
            number = math.ceil(Decimal(str(value).removesuffix("m")) / (1000 if milli else 1)) if word in name else 0
            if number:
                return number
    return 0


def _torch(jobs: list[Json], torch: Json, trainjob: Json, counts: Mapping[str, int]) -> None:
    trainer = next((job for job in jobs if _ancestor(job) == "trainer"), None)
    resources = _node_resources(jobs, trainjob)
    processes = str(_of_trainer(trainjob, "numProcPerNode") or "auto")
    if processes == "auto" and not _quantity(resources, "gpu"):
        processes = str(max(1, _quantity(resources, "cpu")))
    name = trainjob["metadata"]["name"]
    pet = [
        {"name": "PET_NNODES", "value": str(counts[trainer["name"]] if trainer else 1)},
        {"name": "PET_NPROC_PER_NODE", "value": processes},
        {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}},
        {"name": "PET_MASTER_ADDR", "value": f"{name}-node-0-0.{name}"},
        {"name": "PET_MASTER_PORT", "value": str(TRAINER_PORT)},
    ]
    # Without spec.trainer the controller leaves the trainer container as it is.
    if trainer and "trainer" in trainjob["spec"]:
        for container in _node_containers(trainer)[:1]:
            _upsert(container, "env", _of_trainer(trainjob, "env") or [])
            _upsert(container, "env", pet)
            _upsert(container, "ports", [{"containerPort": TRAINER_PORT}], key="containerPort")
    for container in _injected(jobs, torch):
        _upsert(container, "env", pet)


def _injected(jobs: list[Json], torch: Json) -> Iterator[Json]:
    for target in (torch.get("envInjection") or {}).get("targets") or []:
        for name in target["containerNames"]:
            found = [
                container
                for job in jobs
                if job["name"] == target["jobName"]
                for container in _containers(job)
                if container["name"] == name
            ]
            if not found:
                msg = f"envInjection: job {target['jobName']!r} has no container {name!r}"
                raise ValueError(msg)
            yield found[0]


def _mpi_slots(jobs: list[Json], mpi: Json, trainjob: Json) -> int:
    slots = _of_trainer(trainjob, "numProcPerNode") or mpi.get("numProcPerNode") or 1
    if slots == 1 and not _of_trainer(trainjob, "numProcPerNode"):
        slots = max(1, _quantity(_node_resources(jobs, trainjob), "gpu"))
    return int(slots)


def _mpi(jobs: list[Json], mpi: Json, trainjob: Json) -> None:
    name = trainjob["metadata"]["name"]
    public = ("ssh-publickey", 0o644)
    files = {"id_rsa": ("ssh-privatekey", 0o640), "id_rsa.pub": public, "authorized_keys": public}
    items = [{"key": key, "path": path, "mode": mode} for path, (key, mode) in files.items()]
    ssh = {"name": SSH_VOLUME, "secret": {"secretName": f"{name}-mpi-ssh-auth", "defaultMode": 0o400, "items": items}}
    hosts = {"name": HOSTFILE_VOLUME, "configMap": {"name": f"{name}-mpi-hostfile"}}
    settings = {
        "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_set_default_slots": str(_mpi_slots(jobs, mpi, trainjob)),
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
    }
    for job in jobs:
        launcher = job["name"] == "launcher"
        if not launcher and job["name"] != "node":
            continue
        _upsert(_pod_spec(job), "volumes", [ssh, hosts] if launcher else [ssh])
        for container in _node_containers(job):
            home = {"name": SSH_VOLUME, "mountPath": mpi.get("sshAuthMountPath") or "/root/.ssh"}
            mounts = [home, {"name": HOSTFILE_VOLUME, "mountPath": "/etc/mpi"}] if launcher else [home]
            _upsert(container, "volumeMounts", mounts, key="mountPath")
            _upsert(container, "env", _env(settings) if launcher else [])


def _status(jobs: list[Json], url: str, trainjob: Json) -> None:
    """Every container of the trainer's Pods but the init containers may report its progress."""
    token = {"serviceAccountToken": {"audience": "trainer", "expirationSeconds": 3600, "path": "token"}}
    ca = {"configMap": {"name": f"{trainjob['metadata']['name']}-tls-config", "items": [{"key": "ca.crt"}]}}
    variables = {"URL": url, "CA_CERT": f"{STATUS_MOUNT}/ca.crt", "TOKEN": f"{STATUS_MOUNT}/token"}
    mount = {"name": STATUS_VOLUME, "mountPath": STATUS_MOUNT, "readOnly": True}
    for job in jobs:
        if _ancestor(job) == "trainer":
            _upsert(_pod_spec(job), "volumes", [{"name": STATUS_VOLUME, "projected": {"sources": [token, ca]}}])
            for container in _pod_spec(job)["containers"]:
                names = {f"KUBEFLOW_TRAINER_SERVER_{name}": value for name, value in variables.items()}
                _upsert(container, "env", _env(names))
                _upsert(container, "volumeMounts", [mount], key="mountPath")


def _initializers(jobs: list[Json], trainjob: Json) -> None:
    for job in jobs:
        ancestor = _ancestor(job) or ""
        wanted = (trainjob["spec"].get("initializer") or {}).get(ancestor.removesuffix("-initializer"))
        for container in _pod_spec(job)["containers"]:
            if wanted and container["name"] == ancestor:
                if wanted.get("storageUri") is not None:
                    _upsert(container, "env", _env({"STORAGE_URI": wanted["storageUri"]}))
                _upsert(container, "env", wanted.get("env") or [])
                if wanted.get("secretRef"):
                    container.setdefault("envFrom", []).append({"secretRef": wanted["secretRef"]})


def _trainer(jobs: list[Json], policy: Json, trainjob: Json) -> None:
    """Image, command and arguments reach the trainer; its variables reach MPI's workers, too."""
    for job in jobs:
        for container in _node_containers(job):
            if _ancestor(job) == "trainer":
                trainer = trainjob["spec"].get("trainer") or {}
                container |= {field: trainer[field] for field in ("image", "command", "args") if field in trainer}
            if _ancestor(job) == "trainer" or (_launcher_is_node(policy) and job["name"] == "node"):
                _upsert(container, "env", _of_trainer(trainjob, "env") or [])


def _claims(jobs: list[Json], runtime: Json, trainjob: Json) -> None:
    """JobSet adds the volumes of its claims to Pods that mount them."""
    policies = runtime["spec"]["template"]["spec"].get("volumeClaimPolicies") or []
    names = [template["metadata"]["name"] for policy in policies for template in policy["templates"]]
    for job in jobs:
        mounted = {mount["name"] for container in _containers(job) for mount in container.get("volumeMounts") or []}
        for name in names:
            if name in mounted:
                claim = {"claimName": f"{name}-{trainjob['metadata']['name']}"}
                _upsert(_pod_spec(job), "volumes", [{"name": name, "persistentVolumeClaim": claim}])


def _subdomain(runtime: Json, trainjob: Json) -> str:
    network = runtime["spec"]["template"]["spec"].get("network") or {}
    return str(network.get("subdomain") or trainjob["metadata"]["name"])
