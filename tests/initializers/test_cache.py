"""A data cache is started, adopted, awaited, probed and cleaned up, against an API server and an Arrow Flight head."""

import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
from flight import OUT_OF_RANGE, flight_head, refusing_head, silent_head
from kube_api import DROP, LOSE_ANSWER, KubeApi, kubeconfig

from trainer_agent.errors import ConfigurationError, ExitCode, FatalError, RetryError
from trainer_agent.initializers import open_source
from trainer_agent.initializers.cache import CacheSource
from trainer_agent.initializers.cache_wait import Pace

SERVICE_ACCOUNT = ("serviceaccounts", "job-cache")
SET = ("leaderworkersets", "job-cache")
SERVICE = ("services", "job-cache-service")
TRAIN_JOB = ("trainjobs", "job")
OWNER = {"kind": "TrainJob", "name": "job", "uid": "uid-1"}
AVAILABLE = {"conditions": [{"type": "Available", "status": "True"}]}
QUICK = Pace(look=1, shortest=0.01, image=0.0, progress=0.5)


@pytest.fixture
def api():
    """Return a cluster in which there is nothing but the TrainJob."""
    with KubeApi() as server:
        server.put(*TRAIN_JOB, apiVersion="trainer.kubeflow.org/v1alpha1", kind="TrainJob")
        yield server


@pytest.fixture(scope="module")
def head():
    """Return the port of a head with rows."""
    with flight_head() as port:
        yield port


@pytest.fixture
def source(api, tmp_path, head):
    """Return a function that makes the source, with variables over the usual ones."""

    def make(**variables):
        environ = {
            "TRAIN_JOB_NAME": "job",
            "CACHE_IMAGE": "registry.example/cache:1",
            "METADATA_LOC": "s3a://bucket/metadata.json",
            "TRAINER_AGENT_INIT_CACHE_ENDPOINT": f"127.0.0.1:{head}",
            **kubeconfig(tmp_path, api),
            **variables,
        }
        return CacheSource("schema/table", environ, stall_s=5.0, pace=QUICK)

    return make


@pytest.fixture
def lines(capsys):
    """Return a function that returns what has been logged since it was last asked, as one text."""
    return lambda: capsys.readouterr().out


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


def in_seconds(seconds):
    return time.monotonic() + seconds


def becomes_available(api, *, watches=1):
    """Return the steps of the LeaderWorkerSet's controller when all goes well."""
    return lambda: api.until("watch", "leaderworkersets", times=watches), lambda: api.put(*SET, status=AVAILABLE)


def serve(api, source, *, seconds=20):
    with meanwhile(*becomes_available(api)):
        source.serve(deadline=in_seconds(seconds))


def pod(name="job-cache-0", **status):
    return {
        "metadata": {"name": name, "labels": {"leaderworkerset.sigs.k8s.io/name": "job-cache"}},
        "status": {"phase": "Pending", **status},
    }


def waits(reason, *, restarts=0, message="", last=None):
    """Return the status of a container that waits."""
    status = {"name": "head", "image": "registry.example/cache:1", "restartCount": restarts}
    state = {"state": {"waiting": {"reason": reason, "message": message}}, "lastState": {"terminated": last or {}}}
    return {"containerStatuses": [status | state]}


def put_pod(api, **status):
    shown = pod(**status)
    api.put("pods", shown["metadata"].pop("name"), **shown)


def without_what_the_server_adds(found):
    kept = {k: v for k, v in found["metadata"].items() if k not in {"uid", "resourceVersion"}}
    kept["annotations"] = {k: v for k, v in kept["annotations"].items() if k != "trainer-agent/run"}
    return found | {"metadata": kept}


def container(role, *, cpu, memory):
    resources = {"cpu": cpu, "memory": memory}
    return {
        "name": role,
        "image": "registry.example/cache:1",
        "command": [role],
        "args": ["0.0.0.0", "50051"],
        "resources": {"limits": resources, "requests": resources},
        "env": [
            {"name": "METADATA_LOC", "value": "s3a://bucket/metadata.json"},
            {"name": "TABLE_NAME", "value": "table"},
            {"name": "SCHEMA_NAME", "value": "schema"},
        ],
        "ports": [{"containerPort": 50051, "name": "grpc"}, {"containerPort": 8080, "name": "health"}],
        "readinessProbe": {
            "httpGet": {"path": "/ready", "port": 8080},
            "initialDelaySeconds": 5,
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 3,
        },
    }


def test_the_objects_are_those_that_kubeflows_images_expect(api, source):
    serve(api, source(IAM_ROLE="arn:aws:iam::123456789012:role/reader"))

    owner = OWNER | {"apiVersion": "trainer.kubeflow.org/v1alpha1", "controller": True, "blockOwnerDeletion": True}
    shared = {"namespace": "team", "ownerReferences": [owner]}
    role = {
        "eks.amazonaws.com/sts-regional-endpoints": "true",
        "eks.amazonaws.com/role-arn": "arn:aws:iam::123456789012:role/reader",
    }
    expected = {
        SERVICE_ACCOUNT: {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": shared | {"name": "job-cache", "annotations": role},
        },
        SET: {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": shared | {"name": "job-cache", "annotations": {}},
            "spec": {
                "replicas": 1,
                "leaderWorkerTemplate": {
                    "size": 3,
                    "leaderTemplate": {
                        "metadata": {"labels": {"app": "job-cache-head"}},
                        "spec": {
                            "serviceAccountName": "job-cache",
                            "containers": [container("head", cpu="1", memory="1Gi")],
                        },
                    },
                    "workerTemplate": {
                        "spec": {
                            "serviceAccountName": "job-cache",
                            "containers": [container("worker", cpu="2", memory="2Gi")],
                        }
                    },
                },
            },
            "status": AVAILABLE,
        },
        SERVICE: {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": shared | {"name": "job-cache-service", "annotations": {}},
            "spec": {
                "selector": {"app": "job-cache-head"},
                "ports": [{"protocol": "TCP", "port": 50051, "targetPort": 50051}],
            },
        },
    }
    made = {key: without_what_the_server_adds(found) for key, found in api.objects.items() if key != TRAIN_JOB}
    assert made == expected


def test_without_a_role_the_service_account_has_no_annotation_of_eks(api, source):
    serve(api, source())

    assert list(api.objects[SERVICE_ACCOUNT]["metadata"]["annotations"]) == ["trainer-agent/run"]


def test_a_restarted_pod_takes_over_what_it_left(api, source):
    """The same objects, by uid, before and after."""
    serve(api, source())
    before = {key: found["metadata"]["uid"] for key, found in api.objects.items()}

    source().serve(deadline=in_seconds(20))

    assert {key: found["metadata"]["uid"] for key, found in api.objects.items()} == before


def test_an_adopted_cache_is_not_deleted_when_it_fails(api, source):
    serve(api, source())
    api.put(*SET, status={})

    with pytest.raises(RetryError):
        source().serve(deadline=in_seconds(1))

    assert api.names() == {TRAIN_JOB, SERVICE_ACCOUNT, SET, SERVICE}


SERVE = """
import os, time
from trainer_agent.errors import Terminated
from trainer_agent.initializers import open_source
from trainer_agent.process import catch_termination

catch_termination()
try:
    open_source("cache://schema/table", os.environ).serve(deadline=time.monotonic() + 20)
except Terminated as error:
    print("terminated by", error.signum)
"""


def test_termination_leaves_all_for_the_next_run(api, source):
    """SIGTERM comes in the middle of the wait."""
    environ = os.environ | source().environ
    with subprocess.Popen([sys.executable, "-c", SERVE], env=environ, stdout=subprocess.PIPE, text=True) as process:
        api.until("watch", "leaderworkersets")
        process.terminate()
        said = process.communicate(timeout=20)[0]

    assert said.splitlines()[-1] == "terminated by 15"
    assert api.names() == {TRAIN_JOB, SERVICE_ACCOUNT, SET, SERVICE}


@pytest.mark.parametrize(
    "owners,whose",
    [
        ([{"kind": "TrainJob", "name": "other", "uid": "u2"}], "TrainJob other (uid u2)"),
        ([], "nobody"),
    ],
)
@pytest.mark.parametrize("key", [SERVICE_ACCOUNT, SET, SERVICE], ids=lambda key: key[0])
def test_what_belongs_to_another_is_refused_by_name_and_left_alone(api, source, key, owners, whose):
    before = dict(api.put(*key, metadata={"ownerReferences": owners}))

    with pytest.raises(FatalError, match="cache") as caught:
        source().serve(deadline=in_seconds(20))

    kind = {"serviceaccounts": "ServiceAccount", "leaderworkersets": "LeaderWorkerSet", "services": "Service"}[key[0]]
    assert caught.value.code == "cache-name-taken"
    assert caught.value.message == f"{kind} {key[1]} belongs to {whose}, wanted TrainJob job (uid uid-1)"
    assert api.objects == {TRAIN_JOB: api.objects[TRAIN_JOB], key: before}


def test_what_an_earlier_trainjob_of_that_name_left_is_waited_for(api, source):
    """The garbage collector takes it away a moment later."""
    earlier = {"kind": "TrainJob", "name": "job", "uid": "uid-0"}
    api.put(*SERVICE_ACCOUNT, metadata={"ownerReferences": [earlier]})
    gone = lambda: api.until("get", "serviceaccounts"), lambda: api.remove(*SERVICE_ACCOUNT)

    with meanwhile(*gone, *becomes_available(api)):
        source().serve(deadline=in_seconds(20))

    assert api.objects[SERVICE_ACCOUNT]["metadata"]["ownerReferences"][0]["uid"] == "uid-1"


def test_a_missing_trainjob_is_named(api, source):
    api.remove(*TRAIN_JOB)

    with pytest.raises(FatalError) as caught:
        source().serve(deadline=in_seconds(20))

    assert (caught.value.code, caught.value.exit_code) == ("train-job-missing", ExitCode.FATAL)
    assert "TRAIN_JOB_NAME='job' names no TrainJob in namespace team" in caught.value.message


@pytest.mark.parametrize(
    "verb,plural,group",
    [
        ("get", "trainjobs", "trainer.kubeflow.org"),
        ("create", "serviceaccounts", ""),
        ("create", "leaderworkersets", "leaderworkerset.x-k8s.io"),
        ("create", "services", ""),
        ("watch", "leaderworkersets", "leaderworkerset.x-k8s.io"),
    ],
)
def test_a_missing_access_rule_is_spelled_out_and_nothing_stays_behind(api, source, verb, plural, group):
    api.denied.add((verb, plural))

    with pytest.raises(FatalError) as caught:
        source().serve(deadline=in_seconds(20))

    rule = f'{{apiGroups: ["{group}"], resources: ["{plural}"], verbs: ["{verb}"]}}'
    assert (caught.value.code, caught.value.exit_code) == ("kube-forbidden", ExitCode.FATAL)
    assert caught.value.message.startswith(f"This pod's service account may not {verb} {plural} in namespace team: ")
    assert caught.value.hint == f"add to a Role bound to it: {rule}"
    assert api.names() == {TRAIN_JOB}


def test_a_quota_is_told_from_a_missing_access_rule(api, source):
    api.quota.add("services")

    with pytest.raises(FatalError) as caught:
        source().serve(deadline=in_seconds(20))

    assert caught.value.code == "kube-admission-refused"
    assert caught.value.message == (
        "A quota or another admission rule refuses to create services in namespace team: "
        'services "job-cache-service" is forbidden: exceeded quota: small'
    )
    assert api.names() == {TRAIN_JOB}


def test_leader_worker_set_not_installed(api, source):
    del api.kinds["/apis/leaderworkerset.x-k8s.io/v1"]

    with pytest.raises(FatalError) as caught:
        source().serve(deadline=in_seconds(20))

    assert caught.value.code == "leader-worker-set-missing"
    assert api.names() == {TRAIN_JOB}


@pytest.mark.parametrize("faults", [[(429, {"Retry-After": "0"}), DROP], [500, 503]], ids=["429-drop", "500-503"])
@pytest.mark.parametrize(
    "verb,plural",
    [("get", "trainjobs"), ("create", "leaderworkersets"), ("get", "leaderworkersets"), ("watch", "leaderworkersets")],
)
def test_what_passes_is_tried_again(api, source, verb, plural, faults):
    api.faults[verb, plural] = list(faults)
    watches = len(faults) + 1 if verb == "watch" else 1
    asked, available = becomes_available(api, watches=watches)

    with meanwhile(asked, available):
        source().serve(deadline=in_seconds(20))

    assert api.faults[verb, plural] == []
    assert api.names() == {TRAIN_JOB, SERVICE_ACCOUNT, SET, SERVICE}


def test_what_was_created_without_our_hearing_of_it_is_ours_to_delete(api, source):
    """The answer to the creation is lost, the second attempt meets the object."""
    api.faults["create", "leaderworkersets"] = [LOSE_ANSWER]

    with pytest.raises(RetryError):
        source().serve(deadline=in_seconds(2))

    assert api.names() == {TRAIN_JOB}


def test_a_version_that_is_too_old_is_no_end(api, source):
    api.oldest = 1 << 20

    serve(api, source())

    assert api.names() == {TRAIN_JOB, SERVICE_ACCOUNT, SET, SERVICE}


def test_never_available(api, source, lines):
    """At the deadline: exit 20, exactly our objects are gone, and lines said how it went."""
    api.put("services", "another")
    put_pod(api, conditions=[{"type": "Ready", "status": "True"}])
    started = time.monotonic()

    with pytest.raises(RetryError) as caught:
        source().serve(deadline=in_seconds(2))

    assert (caught.value.code, caught.value.exit_code) == ("cache-not-ready", ExitCode.RETRY)
    assert caught.value.message == "LeaderWorkerSet job-cache is not available after 2 s: 1 of 3 pods ready"
    assert time.monotonic() - started < 4
    assert api.names() == {TRAIN_JOB, ("services", "another"), ("pods", "job-cache-0")}
    assert lines().count("waiting for the cache: 1 of 3 pods ready") >= 3


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff", "InvalidImageName"])
def test_an_image_that_cannot_be_pulled_ends_the_wait(api, source, reason):
    put_pod(api, **waits(reason, message="not found"))

    with pytest.raises(FatalError) as caught:
        source().serve(deadline=in_seconds(20))

    assert (caught.value.code, caught.value.exit_code) == ("cache-image-unavailable", ExitCode.FATAL)
    assert caught.value.message == (
        f"Image registry.example/cache:1 of pod job-cache-0 cannot be pulled: {reason}: not found"
    )
    assert api.names() == {TRAIN_JOB, ("pods", "job-cache-0")}


def test_an_image_that_is_pulled_at_the_second_attempt_is_fine(api, source):
    put_pod(api, **waits("ErrImagePull", message="timeout"))
    subject = source()
    subject.pace = Pace(look=1, shortest=0.01, image=10.0)
    steps = lambda: api.until("list", "pods"), lambda: put_pod(api, phase="Running")

    with meanwhile(*steps, *becomes_available(api)):
        subject.serve(deadline=in_seconds(20))

    assert SET in api.names()


def test_a_crash_loop_ends_the_wait_with_the_last_message(api, source):
    last = {"reason": "Error", "exitCode": 101, "message": "no such table\n"}
    put_pod(api, **waits("CrashLoopBackOff", restarts=3, last=last))

    with pytest.raises(RetryError) as caught:
        source().serve(deadline=in_seconds(20))

    assert (caught.value.code, caught.value.exit_code) == ("cache-crashing", ExitCode.RETRY)
    assert caught.value.message == (
        "Container head of pod job-cache-0 was restarted 3 times, wanted fewer than 3; "
        "last: Error, exit code 101: no such table"
    )
    assert api.names() == {TRAIN_JOB, ("pods", "job-cache-0")}


def test_two_restarts_are_no_crash_loop(api, source):
    put_pod(api, **waits("CrashLoopBackOff", restarts=2))

    serve(api, source())

    assert SET in api.names()


def test_an_unschedulable_pod_is_told_once_and_waited_for(api, source, lines):
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/4 nodes fit"}
    put_pod(api, conditions=[refused])
    steps = lambda: api.until("list", "pods", times=2), lambda: put_pod(api, phase="Running")

    with meanwhile(*steps, *becomes_available(api)):
        source().serve(deadline=in_seconds(20))

    assert lines().count("no node takes pod job-cache-0: 0/4 nodes fit") == 1


def test_pods_that_may_not_be_listed_cost_only_their_reasons(api, source, lines):
    """Kubeflow's own ClusterRole does not list pods."""
    api.denied.add(("list", "pods"))

    serve(api, source())

    assert lines().count("may not list pods in namespace team") == 1


@pytest.mark.parametrize("how", ["gone", "going", "made again"])
def test_a_leader_worker_set_that_is_deleted_meanwhile_ends_the_wait(api, source, how):
    def delete():
        if how == "going":
            api.put(*SET, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
            return
        api.remove(*SET)
        if how == "made again":
            api.put(*SET)

    with meanwhile(lambda: api.until("watch", "leaderworkersets"), delete), pytest.raises(RetryError) as caught:
        source().serve(deadline=in_seconds(20))

    assert caught.value.code == "cache-deleted"
    assert api.names() == {TRAIN_JOB} | ({SET} if how == "made again" else set())


@pytest.mark.parametrize("how", ["gone", "going"])
def test_a_trainjob_that_is_deleted_meanwhile_ends_the_wait(api, source, how):
    def delete():
        if how == "going":
            api.put(*TRAIN_JOB, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
        else:
            api.remove(*TRAIN_JOB)

    with meanwhile(lambda: api.until("watch", "leaderworkersets"), delete), pytest.raises(FatalError) as caught:
        source().serve(deadline=in_seconds(20))

    assert caught.value.code == "train-job-deleted"
    assert api.names() == ({TRAIN_JOB} if how == "going" else set())


def test_cleaning_up_that_is_refused_hides_nothing(api, source, lines):
    """Kubeflow's own ClusterRole may delete ServiceAccounts only."""
    api.denied |= {("delete", "leaderworkersets"), ("delete", "services")}

    with pytest.raises(RetryError) as caught:
        source().serve(deadline=in_seconds(1))

    assert caught.value.code == "cache-not-ready"
    assert api.names() == {TRAIN_JOB, SET, SERVICE}
    assert "left LeaderWorkerSet job-cache behind: This pod's service account may not delete" in lines()


def test_an_empty_table_is_an_error(api, source):
    """Kubeflow's head answers OUT_OF_RANGE, older ones with no endpoint."""
    with refusing_head(OUT_OF_RANGE) as port, pytest.raises(FatalError) as caught:
        serve(api, source(TRAINER_AGENT_INIT_CACHE_ENDPOINT=f"grpc://127.0.0.1:{port}"))

    assert (caught.value.code, caught.value.exit_code) == ("cache-empty", ExitCode.FATAL)
    assert api.names() == {TRAIN_JOB}


def test_a_head_that_never_answers_does_not_hang(api, source):
    started = time.monotonic()
    with silent_head() as port, pytest.raises(RetryError) as caught:
        serve(api, source(TRAINER_AGENT_INIT_CACHE_ENDPOINT=f"127.0.0.1:{port}"), seconds=3)

    assert (caught.value.code, caught.value.exit_code) == ("cache-not-serving", ExitCode.RETRY)
    assert time.monotonic() - started < 5
    assert api.names() == {TRAIN_JOB}


def test_a_cache_holds_no_models():
    with pytest.raises(FatalError) as caught:
        open_source("cache://schema/table", {}, kind="model")

    assert caught.value.code == "cache-holds-datasets"


def test_settings_are_checked_before_anything_is_asked():
    with pytest.raises(ConfigurationError):
        open_source("cache://schema/table", {})


def test_importing_the_source_imports_neither_kubernetes_nor_pyarrow():
    code = (
        "import sys, trainer_agent.initializers.cache; print({'kubernetes', 'pyarrow', 'urllib3'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)

    assert done.stdout == "set()\n"
