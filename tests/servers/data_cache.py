"""What happens around a data cache while it is started: its objects, its pods, its controller's steps."""

import threading
import time
from contextlib import contextmanager

import pytest

from trainer_agent.initializers.cache_wait import Pace

SERVICE_ACCOUNT = ("serviceaccounts", "job-cache")
SET = ("leaderworkersets", "job-cache")
SERVICE = ("services", "job-cache-service")
TRAIN_JOB = ("trainjobs", "job")
ALL = {TRAIN_JOB, SERVICE_ACCOUNT, SET, SERVICE}
IMAGE = "registry.example/cache:1"
METADATA = "s3a://bucket/metadata.json"
AVAILABLE = {"conditions": [{"type": "Available", "status": "True"}]}
QUICK = Pace(look=1, shortest=0.01, image=0.0, progress=0.5)


@contextmanager
def meanwhile(*steps):
    """Take the steps in a thread, as a controller or a person does, and see to it that they were taken."""
    failures = []

    def act():
        try:
            for step in steps:
                step()
        except AssertionError as error:
            failures.append(error)

    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        thread.join(30)
    assert failures == []


def serve(source, *steps, seconds=20):
    """Serve while the steps are taken."""
    with meanwhile(*steps):
        source.serve(deadline=time.monotonic() + seconds)


def failure(kind, source, *steps, seconds=20):
    """Serve while the steps are taken; return the error of that kind with which it ends."""
    with pytest.raises(kind) as caught:
        serve(source, *steps, seconds=seconds)
    return caught.value


def available(api, *, watches=1):
    """Return the steps of the LeaderWorkerSet's controller when all goes well."""
    return lambda: api.until("watch", "leaderworkersets", times=watches), lambda: api.put(*SET, status=AVAILABLE)


def uids(api):
    """Return the objects' uids by their names."""
    return {key: found["metadata"]["uid"] for key, found in api.objects.items()}


def put_pod(api, **status):
    """Make or change the head's pod."""
    labels = {"leaderworkerset.sigs.k8s.io/name": "job-cache"}
    api.put("pods", "job-cache-0", metadata={"labels": labels}, status={"phase": "Pending", **status})


def waits(reason, *, restarts=0, message="", last=None):
    """Return the status of a container that waits."""
    status = {"name": "head", "image": IMAGE, "restartCount": restarts}
    state = {"state": {"waiting": {"reason": reason, "message": message}}, "lastState": {"terminated": last or {}}}
    return {"containerStatuses": [status | state]}
