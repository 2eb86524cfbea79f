"""The objects of a data cache: made once, taken over from the run before, never from anybody else."""

from dataclasses import replace

import pytest
from data_cache import (
    ALL,
    AVAILABLE,
    IMAGE,
    METADATA,
    SERVICE,
    SERVICE_ACCOUNT,
    SET,
    TRAIN_JOB,
    available,
    failure,
    serve,
    uids,
)
from kube_api import LOSE_ANSWER

from trainer_agent.errors import ExitCode, FatalError, RetryError

pytestmark = pytest.mark.lab

KINDS = {SERVICE_ACCOUNT: "ServiceAccount", SET: "LeaderWorkerSet", SERVICE: "Service"}
ROLE = "arn:aws:iam::123456789012:role/reader"
OWNER = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "TrainJob",
    "name": "job",
    "uid": "uid-1",
    "controller": True,
    "blockOwnerDeletion": True,
}


def metadata(name, **annotations):
    return {"namespace": "team", "name": name, "ownerReferences": [OWNER], "annotations": annotations}


def container(role, *, cpu, memory):
    resources = {"cpu": cpu, "memory": memory}
    return {
        "name": role,
        "image": IMAGE,
        "command": [role],
        "args": ["0.0.0.0", "50051"],
        "resources": {"limits": resources, "requests": resources},
        "env": [
            {"name": "METADATA_LOC", "value": METADATA},
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


def pod(role, **resources):
    return {"spec": {"serviceAccountName": "job-cache", "containers": [container(role, **resources)]}}


EXPECTED = {
    SERVICE_ACCOUNT: {
        "apiVersion": "v1",
        "metadata": metadata(
            "job-cache",
            **{"eks.amazonaws.com/sts-regional-endpoints": "true", "eks.amazonaws.com/role-arn": ROLE},
        ),
    },
    SET: {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "metadata": metadata("job-cache"),
        "spec": {
            "replicas": 1,
            "leaderWorkerTemplate": {
                "size": 3,
                "leaderTemplate": {
                    "metadata": {"labels": {"app": "job-cache-head"}},
                    **pod("head", cpu="1", memory="1Gi"),
                },
                "workerTemplate": pod("worker", cpu="2", memory="2Gi"),
            },
        },
        "status": AVAILABLE,
    },
    SERVICE: {
        "apiVersion": "v1",
        "metadata": metadata("job-cache-service"),
        "spec": {
            "selector": {"app": "job-cache-head"},
            "ports": [{"protocol": "TCP", "port": 50051, "targetPort": 50051}],
        },
    },
}


def without_what_changes(found):
    """Return an object as it was asked for, but for the annotations of our own."""
    kept = {k: v for k, v in found["metadata"].items() if k not in {"uid", "resourceVersion"}}
    kept["annotations"] = {k: v for k, v in kept["annotations"].items() if not k.startswith("trainer-agent/")}
    return found | {"metadata": kept}


def test_the_objects_are_those_that_kubeflows_images_expect(cluster, cache):
    serve(cache(IAM_ROLE=ROLE), *available(cluster))

    made = {key: without_what_changes(found) for key, found in cluster.objects.items() if key != TRAIN_JOB}
    assert {key: {"kind": KINDS[key], **expected} for key, expected in EXPECTED.items()} == made


def test_without_a_role_the_service_account_has_no_annotation_of_eks(cluster, cache):
    serve(cache(), *available(cluster))

    assert list(cluster.objects[SERVICE_ACCOUNT]["metadata"]["annotations"]) == [
        "trainer-agent/run",
        "trainer-agent/wanted",
    ]


def test_a_restarted_pod_takes_over_what_it_left(cluster, cache):
    """The same objects, by uid, before and after."""
    serve(cache(), *available(cluster))
    before = uids(cluster)

    serve(cache())

    assert before == uids(cluster)


def test_a_cache_of_other_settings_is_replaced(cluster, cache, capsys):
    """The TrainJob was suspended, given another table's metadata and resumed: its uid is the same."""
    serve(cache(), *available(cluster))
    before = uids(cluster)
    source = cache()
    source.settings = replace(source.settings, metadata_location="s3a://bucket/newer.json")

    serve(source, *available(cluster, watches=2))

    pod = cluster.objects[SET]["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["spec"]
    assert pod["containers"][0]["env"][0]["value"] == "s3a://bucket/newer.json"
    assert {key for key, uid in uids(cluster).items() if uid != before[key]} == {SET}
    assert "LeaderWorkerSet job-cache was made with other settings: replacing it" in capsys.readouterr().out


def test_a_cache_that_kubeflows_initializer_made_is_adopted(cluster, cache):
    serve(cache(), *available(cluster))
    for key in KINDS:
        del cluster.objects[key]["metadata"]["annotations"]
    before = uids(cluster)

    serve(cache())

    assert before == uids(cluster)


def test_an_adopted_cache_is_not_deleted_when_it_fails(cluster, cache):
    serve(cache(), *available(cluster))
    cluster.put(*SET, status={})

    failure(RetryError, cache(), seconds=1)

    assert cluster.names() == ALL


@pytest.mark.parametrize(
    "owners,whose",
    [
        ([{"kind": "TrainJob", "name": "other", "uid": "u2"}], "TrainJob other (uid u2)"),
        ([], "nobody"),
    ],
)
@pytest.mark.parametrize("key", KINDS, ids=KINDS.get)
def test_what_belongs_to_another_is_refused_by_name_and_left_alone(cluster, cache, key, owners, whose):
    before = dict(cluster.put(*key, metadata={"ownerReferences": owners}))

    error = failure(FatalError, cache())

    assert error.code == "cache-name-taken"
    assert error.message == f"{KINDS[key]} {key[1]} belongs to {whose}, wanted TrainJob job (uid uid-1)"
    assert cluster.objects == {TRAIN_JOB: cluster.objects[TRAIN_JOB], key: before}


def test_what_an_earlier_trainjob_of_that_name_left_is_waited_for(cluster, cache):
    """The garbage collector takes it away a moment later."""
    earlier = {"kind": "TrainJob", "name": "job", "uid": "uid-0"}
    cluster.put(*SERVICE_ACCOUNT, metadata={"ownerReferences": [earlier]})
    gone = lambda: cluster.until("get", "serviceaccounts"), lambda: cluster.remove(*SERVICE_ACCOUNT)

    serve(cache(), *gone, *available(cluster))

    assert cluster.objects[SERVICE_ACCOUNT]["metadata"]["ownerReferences"][0]["uid"] == "uid-1"


def test_a_missing_trainjob_is_named(cluster, cache):
    cluster.remove(*TRAIN_JOB)

    error = failure(FatalError, cache())

    assert (error.code, error.exit_code) == ("train-job-missing", ExitCode.FATAL)
    assert "TRAIN_JOB_NAME='job' names no TrainJob in namespace team" in error.message


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
def test_a_missing_access_rule_is_spelled_out_and_nothing_stays_behind(cluster, cache, verb, plural, group):
    cluster.denied.add((verb, plural))

    error = failure(FatalError, cache())

    rule = f'{{apiGroups: ["{group}"], resources: ["{plural}"], verbs: ["{verb}"]}}'
    assert (error.code, error.exit_code) == ("kube-forbidden", ExitCode.FATAL)
    assert error.message.startswith(f"This pod's service account may not {verb} {plural} in namespace team: ")
    assert error.hint == f"add to a Role bound to it: {rule}"
    assert cluster.names() == {TRAIN_JOB}


def test_a_quota_is_told_from_a_missing_access_rule(cluster, cache):
    cluster.quota.add("services")

    error = failure(FatalError, cache())

    assert error.code == "kube-admission-refused"
    assert error.message == (
        "A quota or another admission rule refuses to create services in namespace team: "
        'services "job-cache-service" is forbidden: exceeded quota: small'
    )
    assert cluster.names() == {TRAIN_JOB}


def test_an_admission_webhook_is_quoted(cluster, cache):
    cluster.webhook = "images come from registry.example"

    error = failure(FatalError, cache())

    assert (error.code, error.exit_code) == ("kube-refused", ExitCode.FATAL)
    assert error.message == (
        "The API server answers 400 to create serviceaccounts in namespace team: "
        'admission webhook "validate" denied the request: images come from registry.example'
    )


def test_leader_worker_set_not_installed(cluster, cache):
    del cluster.kinds["/apis/leaderworkerset.x-k8s.io/v1"]

    error = failure(FatalError, cache())

    assert error.code == "leader-worker-set-missing"
    assert cluster.names() == {TRAIN_JOB}


def test_what_was_created_without_our_hearing_of_it_is_ours_to_delete(cluster, cache):
    """The answer to the creation is lost, the second attempt meets the object."""
    cluster.faults["create", "leaderworkersets"] = [LOSE_ANSWER]

    failure(RetryError, cache(), seconds=2)

    assert cluster.names() == {TRAIN_JOB}
