"""Make the objects of a data cache, or adopt those that an earlier run of the same TrainJob made; take ours away."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from trainer_agent.errors import AgentError, FatalError
from trainer_agent.initializers import CLEANUP_S, TransientError, cache_manifests
from trainer_agent.initializers.cache_api import (
    LEADER_WORKER_SET,
    SERVICE,
    SERVICE_ACCOUNT,
    TRAIN_JOB,
    ExistsError,
    MissingError,
)
from trainer_agent.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainer_agent.initializers.cache_api import Api, Kind
    from trainer_agent.initializers.cache_settings import Settings


@dataclass
class Cluster:
    """
    A cache in the cluster.

    Args:
        run: names this run on everything that it creates.
        created: kind, name and uid of what this run created, in order.
    """

    api: Api
    settings: Settings
    run: str
    train_job_uid: str = ""
    created: list[tuple[Kind, str, str]] = field(default_factory=list)

    def create(self) -> dict[str, Any]:
        """
        Create or adopt the ServiceAccount, the LeaderWorkerSet and the Service; return the LeaderWorkerSet.

        Raises:
            FatalError: there is no such TrainJob, something is not allowed, or a name is another's.
        """
        train_job = find_train_job(self.api, self.settings.job)
        self.train_job_uid = train_job["metadata"]["uid"]
        metadata = cache_manifests.shared_metadata(train_job, namespace=self.api.namespace, run=self.run)
        self._ensure(SERVICE_ACCOUNT, cache_manifests.service_account(self.settings, metadata))
        try:
            made = self._ensure(LEADER_WORKER_SET, cache_manifests.leader_worker_set(self.settings, metadata))
        except MissingError as error:
            raise FatalError(
                "leader-worker-set-missing",
                f"LeaderWorkerSet is not installed in this cluster: {error.message}",
                hint="install https://lws.sigs.k8s.io, which Kubeflow's data cache is built on",
            ) from error
        self._ensure(SERVICE, cache_manifests.service(self.settings, metadata))
        return made

    def delete(self) -> None:
        """Delete exactly what this run created; what cannot be deleted is logged, and goes with the TrainJob."""
        api = replace(self.api, deadline=monotonic() + CLEANUP_S)
        for kind, name, uid in reversed(self.created):
            try:
                api.persist(partial(api.delete, kind, name, uid))
                get_logger().info(f"deleted {kind.name} {name}")
            except (MissingError, ExistsError):  # somebody else deleted it, or made another
                continue
            except AgentError as error:
                get_logger().warning(f"left {kind.name} {name} behind: {error.message}", code=error.code)
        self.created.clear()

    def _ensure(self, kind: Kind, body: Mapping[str, Any]) -> dict[str, Any]:
        marked = cache_manifests.marked(body)
        return self.api.persist(lambda: self._create_or_adopt(kind, marked))

    def _create_or_adopt(self, kind: Kind, body: Mapping[str, Any]) -> dict[str, Any]:
        name = body["metadata"]["name"]
        try:
            made = self.api.create(kind, body)
        except ExistsError as error:
            try:
                made = self.api.get(kind, name)
            except MissingError:
                raise TransientError(error.code, error.message) from error
            self._check_owner(kind, name, made["metadata"])
            self._replace_if_other(kind, body["metadata"], made["metadata"])
        metadata = made["metadata"]
        if metadata.get("annotations", {}).get(cache_manifests.RUN_ANNOTATION) == self.run:
            self.created.append((kind, name, metadata["uid"]))
            get_logger().info(f"created {kind.name} {name}")
        else:
            get_logger().info(f"adopted {kind.name} {name}, which an earlier run of this TrainJob created")
        return made

    def _replace_if_other(self, kind: Kind, wanted: Mapping[str, Any], found: Mapping[str, Any]) -> None:
        """Delete what was made with other settings: a TrainJob may be suspended, changed and resumed."""
        mark = cache_manifests.WANTED_ANNOTATION
        if found.get("annotations", {}).get(mark) in {None, wanted["annotations"][mark]}:  # None: Kubeflow's made it
            return
        what = f"{kind.name} {found['name']} was made with other settings"
        get_logger().warning(f"{what}: replacing it")
        with suppress(MissingError, ExistsError):  # somebody else did, or made another
            self.api.delete(kind, found["name"], found["uid"])
        raise TransientError("cache-object-leaving", f"{what} and is not gone yet")

    def _check_owner(self, kind: Kind, name: str, metadata: Mapping[str, Any]) -> None:
        """Refuse what is another's; wait for what is about to go."""
        owners = metadata.get("ownerReferences", [])
        ours = any(o["uid"] == self.train_job_uid for o in owners)
        # Its TrainJob was deleted and made again: the garbage collector is on its way.
        earlier = any((o["kind"], o["name"]) == (TRAIN_JOB.name, self.settings.job) for o in owners)
        if metadata.get("deletionTimestamp") or (earlier and not ours):
            raise TransientError("cache-object-leaving", f"{kind.name} {name} of an earlier cache is not gone yet")
        if not ours:
            whose = ", ".join(f"{o['kind']} {o['name']} (uid {o['uid']})" for o in owners) or "nobody"
            raise FatalError(
                "cache-name-taken",
                f"{kind.name} {name} belongs to {whose}, wanted {TRAIN_JOB.name} {self.settings.job} "
                f"(uid {self.train_job_uid})",
                hint=f"rename the TrainJob, or: kubectl -n {self.api.namespace} delete {kind.plural} {name}",
            )


def find_train_job(api: Api, name: str) -> dict[str, Any]:
    """Return the TrainJob, which owns the cache."""
    try:
        return api.persist(lambda: api.get(TRAIN_JOB, name))
    except MissingError as error:
        raise FatalError(
            "train-job-missing",
            f"TRAIN_JOB_NAME={name!r} names no TrainJob in namespace {api.namespace}: {error.message}",
            hint="set TRAIN_JOB_NAME from the pod's label jobset.sigs.k8s.io/jobset-name",
        ) from error
