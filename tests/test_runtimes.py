"""The manifests of runtimes/: fields that the APIs have, restricted containers, policies that do what we say."""

import re
import typing

import kubeflow_trainer_api.models as trainer_api
import kubernetes.client
import pytest
import yaml
from manifests import EXAMPLES, RUNTIMES, containers, documents, jobs, runtime, trainjob

from trainer_agent import __version__
from trainer_agent.termination import GRACE_S

FILES = sorted(path for path in RUNTIMES.rglob("*.yaml") if path.name != "kustomization.yaml")
TRAINER_KINDS = {
    "ClusterTrainingRuntime": trainer_api.TrainerV1alpha1ClusterTrainingRuntime,
    "TrainJob": trainer_api.TrainerV1alpha1TrainJob,
}
# What the Job controller writes into a failed Job's condition, by what became of the Pod.
FAILED_MESSAGE = "Container {container} for pod default/x failed with exit code {code} matching FailJob rule at index 0"
DISRUPTED_MESSAGE = "Pod default/x has condition DisruptionTarget matching FailJob rule at index 1"


def unknown_fields(value, annotation, path):
    """Yield the path of every key that the model of its place does not have."""
    models = [kind for kind in _unions(annotation) if hasattr(kind, "model_fields")]
    if isinstance(value, list):
        item = next(typing.get_args(kind)[0] for kind in _unions(annotation) if typing.get_origin(kind) is list)
        for index, element in enumerate(value):
            yield from unknown_fields(element, item, f"{path}[{index}]")
    elif isinstance(value, dict) and models:
        fields = {field.alias or name: field.annotation for name, field in models[0].model_fields.items()}
        for key, element in value.items():
            if key in fields:
                yield from unknown_fields(element, fields[key], f"{path}.{key}")
            else:
                yield f"{path}.{key}"


def _unions(annotation):
    if typing.get_origin(annotation) is typing.Annotated:
        return _unions(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) is typing.Union:
        return [kind for member in typing.get_args(annotation) for kind in _unions(member)]
    return [annotation]


def unknown_client_fields(value, type_name, path):
    """Yield the same for the types of the Kubernetes client, which has those that Trainer's models lack."""
    if type_name.startswith("list["):
        for index, element in enumerate(value):
            yield from unknown_client_fields(element, type_name[5:-1], f"{path}[{index}]")
    elif hasattr(kubernetes.client, type_name):
        model = getattr(kubernetes.client, type_name)
        types = {key: model.openapi_types[name] for name, key in model.attribute_map.items()}
        for key, element in value.items():
            if key in types:
                yield from unknown_client_fields(element, types[key], f"{path}.{key}")
            else:
                yield f"{path}.{key}"


def every_container():
    """Return runtime, job and container names of all containers."""
    return [
        pytest.param(name, job, container, id=f"{name}-{job}-{container}")
        for name in EXAMPLES
        for job, spec in jobs(runtime(name)).items()
        for container in containers(spec)
    ]


@pytest.mark.parametrize("path", FILES, ids=[path.name for path in FILES])
def test_every_field_is_one_of_the_api(path):
    """The API server would drop a field that it does not know, without a word."""
    for document in documents(path):
        if document["kind"] == "ResourceClaimTemplate":
            assert "resource.k8s.io/v1" == document["apiVersion"]
            assert [] == list(unknown_client_fields(document, "V1ResourceClaimTemplate", ""))
            continue
        model = TRAINER_KINDS[document["kind"]]

        assert "trainer.kubeflow.org/v1alpha1" == document["apiVersion"]
        assert [] == list(unknown_fields(document, model, document["kind"]))
        assert model.from_dict(document) is not None


def test_the_walk_finds_what_no_model_has_far_down_in_a_pod():
    document = runtime("torch-distributed-preflight")
    containers(jobs(document)["node"])["preflight"]["securityContext"]["readOnlyFilesystem"] = True

    (found,) = unknown_fields(document, TRAINER_KINDS["ClusterTrainingRuntime"], "")

    assert found.endswith("initContainers[1].securityContext.readOnlyFilesystem")


def test_a_claims_template_with_a_wrong_key_is_found():
    document = documents(RUNTIMES / "examples" / "torch-dra.yaml")[0]
    document["spec"]["spec"]["devices"]["requests"][0]["exactly"]["deviceClass"] = "x"

    assert [".spec.spec.devices.requests[0].exactly.deviceClass"] == list(
        unknown_client_fields(document, "V1ResourceClaimTemplate", "")
    )


def test_the_kustomization_has_every_runtime_and_every_image_of_ours():
    (kustomization,) = documents(RUNTIMES / "kustomization.yaml")
    images = {
        container["image"]
        for name in EXAMPLES
        for job in jobs(runtime(name)).values()
        for container in containers(job).values()
    }

    assert sorted(f"{name}.yaml" for name in EXAMPLES) == kustomization["resources"]
    assert {f"{image['name']}:{image['newTag']}" for image in kustomization["images"]} == {
        image for image in images if image.startswith("ghcr.io/trainer-agent/")
    }
    assert {__version__} == {image["newTag"] for image in kustomization["images"]}


def test_the_overlay_gives_gpus_to_all_that_train_and_all_that_check():
    (overlay,) = documents(RUNTIMES / "gpus" / "kustomization.yaml")
    want = [
        (patch["target"]["name"], job, name)
        for patch in overlay["patches"]
        for job, spec in jobs(runtime(patch["target"]["name"])).items()
        for name in containers(spec)
        if name in {"node", "preflight"}
    ]
    have = []
    for patch in overlay["patches"]:
        document = patched(runtime(patch["target"]["name"]), yaml.safe_load(patch["patch"]))
        for job, spec in jobs(document).items():
            for name, container in containers(spec).items():
                if {"nvidia.com/gpu": 8} == container.get("resources", {}).get("limits"):
                    have.append((document["metadata"]["name"], job, name))

    assert want == have
    assert {"torch-distributed-dra"} == set(EXAMPLES) - {patch["target"]["name"] for patch in overlay["patches"]}


def patched(document, operations):
    """Apply JSON patch's operation add, whose parents have to be there."""
    for operation in operations:
        *parents, last = operation["path"].strip("/").split("/")
        place = document
        for key in parents:
            place = place[int(key)] if isinstance(place, list) else place[key]
        assert "add" == operation["op"]
        assert last not in place
        place[last] = operation["value"]
    return document


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_example_is_of_its_runtime(name):
    assert {"apiGroup": "trainer.kubeflow.org", "kind": "ClusterTrainingRuntime", "name": name} == trainjob(name)[
        "spec"
    ]["runtimeRef"]
    assert name == runtime(name)["metadata"]["name"]


@pytest.mark.parametrize("name, job, container", every_container())
def test_every_container_is_restricted(name, job, container):
    """As the Pod Security Standard `restricted` wants it, and with a root file system that is read-only."""
    spec = jobs(runtime(name))[job]
    pod = spec["template"]["spec"]

    assert {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    } == containers(spec)[container]["securityContext"]
    assert {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "fsGroup": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    } == pod["securityContext"]
    assert "/tmp" in {mount["mountPath"] for mount in containers(spec)[container]["volumeMounts"]}
    assert GRACE_S + 5 == pod["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("name, job, container", every_container())
def test_what_is_mounted_is_a_volume_of_the_pod_or_a_claim_of_the_jobset(name, job, container):
    document = runtime(name)
    policies = document["spec"]["template"]["spec"].get("volumeClaimPolicies", [])
    claims = {template["metadata"]["name"] for policy in policies for template in policy["templates"]}
    spec = jobs(document)[job]
    volumes = {volume["name"] for volume in spec["template"]["spec"]["volumes"]}

    assert set() == {mount["name"] for mount in containers(spec)[container]["volumeMounts"]} - volumes - claims


def job_action(job, *, code=None):
    """What the Job controller does about a Pod that ended with this code, or that was disrupted."""
    disrupted = [{"type": "DisruptionTarget", "status": "True"}]
    for rule in job["podFailurePolicy"]["rules"]:
        codes = rule.get("onExitCodes", {}).get("values", [])
        if code in codes or (code is None and disrupted == rule.get("onPodConditions")):
            return rule["action"]
    return "Count"


def jobset_action(document, reason, message):
    """What JobSet does about a Job that failed for this reason, as long as restarts are left."""
    for rule in document["spec"]["template"]["spec"]["failurePolicy"]["rules"]:
        patterns = rule["onJobFailureMessagePatterns"]
        if reason in rule["onJobFailureReasons"] and any(re.search(pattern, message) for pattern in patterns):
            return rule["action"]
    return "RestartJobSet"


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_exit_code_decides_whether_the_job_is_tried_again(name):
    """30 ends it, 20 and the user's own codes start all nodes again, a disruption does not even count."""
    document = runtime(name)
    for job in (spec for name, spec in jobs(document).items() if not name.endswith("-initializer")):
        fatal = FAILED_MESSAGE.format(container="preflight", code=30)

        assert 0 == job["backoffLimit"]
        assert "Never" == job["template"]["spec"]["restartPolicy"]
        assert ["FailJob", "Count", "Count"] == [job_action(job, code=code) for code in (30, 20, 1)]
        assert "FailJob" == job_action(job)
        assert "FailJobSet" == jobset_action(document, "PodFailurePolicy", fatal)
        assert "RestartJobSetAndIgnoreMaxRestarts" == jobset_action(document, "PodFailurePolicy", DISRUPTED_MESSAGE)
        assert "RestartJobSet" == jobset_action(document, "BackoffLimitExceeded", "Job has reached the limit")


def test_an_initializer_is_tried_again_by_itself_but_not_after_30():
    document = runtime("torch-distributed-data")
    for job in (jobs(document)["dataset-initializer"], jobs(document)["model-initializer"]):
        assert 3 == job["backoffLimit"]
        assert ["FailJob", "Count", "Ignore"] == [job_action(job, code=30), job_action(job, code=20), job_action(job)]


@pytest.mark.parametrize("name", ["torch-distributed-preflight", "torch-distributed-dra"])
def test_every_bash_finds_the_installed_torchrun_first(name):
    """The SDK's command replaces ours; what is left to say so is BASH_ENV."""
    found = containers(jobs(runtime(name))["node"])
    env = {variable["name"]: variable.get("value", "") for variable in found["node"]["env"]}

    assert ["install", "--to", "/agent"] == found["install"]["args"]
    assert "/agent/bash_env" == env["BASH_ENV"]
    assert {"name": "agent", "mountPath": "/agent", "readOnly": True} in found["node"]["volumeMounts"]
