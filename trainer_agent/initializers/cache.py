"""
cache://schema/table: Kubeflow's data cache, which serves a table to the trainer.

Nothing is fetched: `serve` starts the cache in the cluster and returns once it answers.
The objects, their names and their probes are Kubeflow's, so its images run unchanged.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from trainer_agent.errors import FatalError
from trainer_agent.initializers import PATIENCE_S, STALL_S
from trainer_agent.initializers.cache_api import connect
from trainer_agent.initializers.cache_create import Cluster
from trainer_agent.initializers.cache_probe import probe
from trainer_agent.initializers.cache_settings import read_settings
from trainer_agent.initializers.cache_wait import PACE, Pace, Vigil

if TYPE_CHECKING:
    from collections.abc import Mapping


class CacheSource:
    """
    A table that is served from the memory of some pods.

    Args:
        stall_s: a connection to the API server that brings no byte for so long is given up.
        patience_s: how long a question to it is repeated.
        pace: how often to look while waiting.
    """

    def __init__(
        self,
        rest: str,
        environ: Mapping[str, str],
        *,
        kind: str = "dataset",
        stall_s: float = STALL_S,
        patience_s: float = PATIENCE_S,
        pace: Pace = PACE,
    ) -> None:
        self.uri = f"cache://{rest}"
        if kind != "dataset":
            raise FatalError(
                "cache-holds-datasets",
                f"STORAGE_URI={self.uri!r} names a data cache, wanted somewhere a {kind} can be fetched from",
                hint=f"fetch the {kind} from hf://, s3:// or file://",
            )
        self.settings = read_settings(rest, environ)
        self.environ = environ
        self.stall_s = stall_s
        self.patience_s = patience_s
        self.pace = pace

    def serve(self, *, deadline: float) -> None:
        """
        Return once the cache serves its table; what an earlier run of the same TrainJob started is taken over.

        When it cannot, what this run created is deleted; when it is told to end, all stays for the next run.

        Args:
            deadline: on the monotonic clock.

        Raises:
            RetryError: the cache is not ready in time, or crashes.
            FatalError: it is not allowed, its image cannot be pulled, its table is empty.
        """
        api = replace(connect(self.environ, deadline=deadline), stall_s=self.stall_s, patience_s=self.patience_s)
        cluster = Cluster(api, self.settings, run=uuid.uuid4().hex)
        try:
            made = cluster.create()
            Vigil(api, self.settings, cluster.train_job_uid, made, self.pace).keep()
            probe(self.settings.endpoint, deadline=deadline)
        except Exception:
            cluster.delete()
            raise
