"""Waiting for a data cache: what its pods' troubles, deletions and the deadline become."""

import re
import time

import pytest
from data_cache import ALL, IMAGE, SET, TRAIN_JOB, available, failure, put_pod, serve, waits

from trainer_agent.errors import ExitCode, FatalError, RetryError
from trainer_agent.initializers.cache_wait import Pace

pytestmark = pytest.mark.lab

POD = ("pods", "job-cache-0")
GOING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


def test_a_version_that_is_too_old_is_no_end(cluster, cache):
    cluster.oldest = 1 << 20

    serve(cache(), *available(cluster))

    assert cluster.names() == ALL


def test_never_available(cluster, cache, capsys):
    """At the deadline: exit 20, exactly our objects are gone, and lines said how it went."""
    cluster.put("services", "another")
    put_pod(cluster, conditions=[{"type": "Ready", "status": "True"}])
    started = time.monotonic()

    error = failure(RetryError, cache(), seconds=6)

    assert (error.code, error.exit_code) == ("cache-not-ready", ExitCode.RETRY)
    late = r"LeaderWorkerSet job-cache is not available after \d+ s: 1 of 3 pods ready"
    assert re.fullmatch(late, error.message)
    assert time.monotonic() - started < 60
    assert cluster.names() == {TRAIN_JOB, ("services", "another"), POD}
    assert capsys.readouterr().out.count("waiting for the cache: 1 of 3 pods ready") >= 3


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff", "InvalidImageName"])
def test_an_image_that_cannot_be_pulled_ends_the_wait(cluster, cache, reason):
    put_pod(cluster, **waits(reason, message="not found"))

    error = failure(FatalError, cache())

    assert (error.code, error.exit_code) == ("cache-image-unavailable", ExitCode.FATAL)
    assert error.message == f"Image {IMAGE} of pod job-cache-0 cannot be pulled: {reason}: not found"
    assert cluster.names() == {TRAIN_JOB, POD}


def test_an_image_that_is_pulled_at_the_second_attempt_is_fine(cluster, cache):
    put_pod(cluster, **waits("ErrImagePull", message="timeout"))
    steps = lambda: cluster.until("list", "pods"), lambda: put_pod(cluster, phase="Running")

    serve(cache(Pace(look=1, shortest=0.01, image=10.0)), *steps, *available(cluster))

    assert cluster.names() == ALL | {POD}


def test_a_crash_loop_ends_the_wait_with_the_last_message(cluster, cache):
    last = {"reason": "Error", "exitCode": 101, "message": "no such table\n"}
    put_pod(cluster, **waits("CrashLoopBackOff", restarts=3, last=last))

    error = failure(RetryError, cache())

    assert (error.code, error.exit_code) == ("cache-crashing", ExitCode.RETRY)
    assert error.message == (
        "Container head of pod job-cache-0 has ended 3 times, wanted fewer than 3; "
        "last: Error, exit code 101: no such table"
    )
    assert cluster.names() == {TRAIN_JOB, POD}


def test_crashes_are_counted_over_the_pods_that_follow_each_other(cluster, cache, capsys):
    """LeaderWorkerSet deletes the whole group as soon as one container has been restarted."""
    last = {"reason": "OOMKilled", "exitCode": 137}

    def crash():
        put_pod(cluster, **waits("PodInitializing", restarts=1, last=last))

    def seen_and_gone():
        asked = [(verb, plural) for verb, plural, _ in cluster.asked].count(("list", "pods"))
        cluster.until("list", "pods", times=asked + 2)
        cluster.remove(*POD)

    error = failure(RetryError, cache(), crash, seen_and_gone, crash, seen_and_gone, crash)

    assert error.code == "cache-crashing"
    assert error.message.endswith("has ended 3 times, wanted fewer than 3; last: OOMKilled, exit code 137")
    told = "Container head of pod job-cache-0 has ended and is started again: OOMKilled, exit code 137"
    assert capsys.readouterr().out.count(told) == 2


def test_the_peers_of_a_pod_that_crashed_have_not(cluster, cache):
    """They end because their group is deleted."""
    ended = {"terminated": {"reason": "Error", "exitCode": 143}}
    status = {"name": "worker", "image": IMAGE, "restartCount": 0, "state": ended}
    for number in range(4):
        metadata = {**GOING, "labels": {"leaderworkerset.sigs.k8s.io/name": "job-cache"}, "uid": str(number)}
        cluster.put("pods", f"job-cache-0-{number}", metadata=metadata, status={"containerStatuses": [status]})

    serve(cache(), *available(cluster))

    assert ALL <= cluster.names()


def test_two_restarts_are_no_crash_loop(cluster, cache):
    put_pod(cluster, **waits("CrashLoopBackOff", restarts=2))

    serve(cache(), *available(cluster))

    assert cluster.names() == ALL | {POD}


def test_an_unschedulable_pod_is_told_once_and_waited_for(cluster, cache, capsys):
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/4 nodes fit"}
    put_pod(cluster, conditions=[refused])
    steps = lambda: cluster.until("list", "pods", times=2), lambda: put_pod(cluster, phase="Running")

    serve(cache(), *steps, *available(cluster))

    assert capsys.readouterr().out.count("no node takes pod job-cache-0: 0/4 nodes fit") == 1


def test_why_a_container_cannot_start_is_told_once(cluster, cache, capsys):
    put_pod(cluster, **waits("CreateContainerConfigError", message="image will run as root"))
    steps = lambda: cluster.until("list", "pods", times=3), lambda: put_pod(cluster, phase="Running")

    serve(cache(), *steps, *available(cluster))

    why = "container head of pod job-cache-0 cannot start: CreateContainerConfigError: image will run as root"
    assert capsys.readouterr().out.count(why) == 1


def test_why_pods_are_not_even_made_is_told_once(cluster, cache, capsys):
    """A quota, or Pod Security: there is no pod that could say it."""
    for number, name in enumerate(["job-cache", "job-cache-0", "job-cachet"]):
        owner = {"kind": "StatefulSet", "name": name}
        message = f"create Pod {name}-0 in StatefulSet {name} failed: exceeded quota"
        cluster.put("events", f"e{number}", involvedObject=owner, reason="FailedCreate", message=message)
    cluster.put("events", "e3", involvedObject=owner, reason="SuccessfulCreate", message="create Pod successful")
    steps = [lambda: cluster.until("list", "events", times=3)]

    serve(cache(), *steps, *available(cluster))

    told = [line.partition("a pod cannot be made: ")[2] for line in capsys.readouterr().out.splitlines()]
    assert [line.partition(" failed")[0] for line in told if line] == [
        "create Pod job-cache-0 in StatefulSet job-cache",
        "create Pod job-cache-0-0 in StatefulSet job-cache-0",
    ]


def test_events_that_may_not_be_listed_cost_only_their_reasons(cluster, cache):
    cluster.denied.add(("list", "events"))

    serve(cache(), lambda: cluster.until("list", "events"), *available(cluster))

    assert cluster.names() == ALL


def test_pods_that_may_not_be_listed_cost_only_their_reasons(cluster, cache, capsys):
    """Kubeflow's own ClusterRole does not list pods."""
    cluster.denied.add(("list", "pods"))

    serve(cache(), *available(cluster))

    assert capsys.readouterr().out.count("may not list pods in namespace team") == 1


@pytest.mark.parametrize("how", ["gone", "going", "made again"])
def test_a_leader_worker_set_that_is_deleted_meanwhile_ends_the_wait(cluster, cache, how):
    def delete():
        if how == "going":
            cluster.put(*SET, metadata=GOING)
            return
        cluster.remove(*SET)
        if how == "made again":
            cluster.put(*SET)

    error = failure(RetryError, cache(), lambda: cluster.until("watch", "leaderworkersets"), delete)

    assert error.code == "cache-deleted"
    assert cluster.names() == {TRAIN_JOB} | ({SET} if how == "made again" else set())


@pytest.mark.parametrize("how", ["gone", "going"])
def test_a_trainjob_that_is_deleted_meanwhile_ends_the_wait(cluster, cache, how):
    def delete():
        if how == "going":
            cluster.put(*TRAIN_JOB, metadata=GOING)
        else:
            cluster.remove(*TRAIN_JOB)

    error = failure(FatalError, cache(), lambda: cluster.until("watch", "leaderworkersets"), delete)

    assert error.code == "train-job-deleted"
    assert cluster.names() == ({TRAIN_JOB} if how == "going" else set())
