"""The manifests of runtimes/: fields that the APIs have, restricted containers, policies that do what we say."""

import json
import os
import re
import shutil
import subprocess
import sys
import typing

import kubeflow_trainer_api.models as trainer_api
import kubernetes.client
import pytest
import yaml
from controller import ANCESTOR, render
from manifests import EXAMPLES, RUNTIMES, containers, documents, jobs, runtime, trainjob

from trainer_agent import __version__
from trainer_agent.accelerators import Accelerators
from trainer_agent.initializers.cache_settings import read_settings
from trainer_agent.nproc import decide
from trainer_agent.status import ATTEMPT
from trainer_agent.termination import GRACE_S

OVERLAY = RUNTIMES.parent / "overlays" / "gpus"
KUSTOMIZATIONS = [RUNTIMES / "kustomization.yaml", *sorted(OVERLAY.parent.rglob("kustomization.yaml"))]
# All that train and all that check, but with Dynamic Resource Allocation, where a claim gives the GPUs.
GPUS = sorted(
    (name, job, container, {"nvidia.com/gpu": 8})
    for name in set(EXAMPLES) - {"torch-distributed-dra"}
    for job, spec in jobs(runtime(name)).items()
    for container in containers(spec)
    if container in {"node", "preflight"}
)
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


def test_the_kustomization_has_every_runtime_and_every_image():
    (kustomization,) = documents(RUNTIMES / "kustomization.yaml")
    images = {
        container["image"]
        for name in EXAMPLES
        for job in jobs(runtime(name)).values()
        for container in containers(job).values()
    }

    assert sorted(f"{name}.yaml" for name in EXAMPLES) == kustomization["resources"]
    tags = {image["name"]: image["newTag"] for image in kustomization["images"]}
    assert images == {f"{name}:{tag}" for name, tag in tags.items()}
    assert {__version__} == {tag for name, tag in tags.items() if name.startswith("ghcr.io/trainer-agent/")}


@pytest.mark.parametrize("path", KUSTOMIZATIONS, ids=[path.parent.name for path in KUSTOMIZATIONS])
def test_what_a_kustomization_takes_is_there_and_is_no_folder_above_it(path):
    """Kustomize would call that a cycle."""
    resources = [(path.parent / name).resolve() for name in documents(path)[0]["resources"]]

    assert [] == [place for place in resources if not place.exists()]
    assert [] == [place for place in resources if path.resolve().is_relative_to(place)]


def test_the_overlay_gives_gpus_to_all_that_train_and_all_that_check():
    assert GPUS == gpus(overlaid().values())


@pytest.mark.lab
@pytest.mark.parametrize("folder, wanted", [(RUNTIMES, []), (OVERLAY, GPUS)], ids=["runtimes", "overlay"])
def test_kubectl_renders_runtimes_and_overlay(folder, wanted):
    _needs_kubectl()
    done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, timeout=60, check=False)

    assert "" == done.stderr
    rendered = list(yaml.safe_load_all(done.stdout))
    assert set(EXAMPLES) == {document["metadata"]["name"] for document in rendered}
    assert wanted == gpus(rendered)


def _needs_kubectl():
    """Skip where kubectl is missing, or brings the kustomize 2 that it had for years."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    words = ["kubectl", "version", "--client", "--output", "json"]
    version = json.loads(subprocess.run(words, capture_output=True, timeout=60, check=True).stdout)["clientVersion"]
    if (int(version["major"]), int(version["minor"].rstrip("+"))) < (1, 21):
        pytest.skip(f"kubectl {version['gitVersion']} brings an older kustomize than 4, and 1.21 is wanted")


def gpus(found):
    """Return (runtime, job, container, limits) of all containers with NVIDIA GPUs."""
    return sorted(
        (document["metadata"]["name"], job, name, container["resources"]["limits"])
        for document in found
        for job, spec in jobs(document).items()
        for name, container in containers(spec).items()
        if "nvidia.com/gpu" in container.get("resources", {}).get("limits", {})
    )


def overlaid():
    """Return the runtimes by name, with the overlay's patches; without kubectl, which is not everywhere."""
    (overlay,) = documents(OVERLAY / "kustomization.yaml")
    patches = {patch["target"]["name"]: yaml.safe_load(patch["patch"]) for patch in overlay["patches"]}
    return {name: patched(runtime(name), patches.get(name, [])) for name in EXAMPLES}


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


@pytest.mark.parametrize("path", ["Dockerfile.agent", "images/mpi/Dockerfile", "images/torch/Dockerfile"])
def test_an_image_made_of_yours_keeps_your_labels(path):
    """Title and licence of a training image are its owner's to say."""
    dockerfile = RUNTIMES.parent / path

    assert [] == re.findall(r"^\s*LABEL.*", dockerfile.read_text(), re.MULTILINE | re.IGNORECASE)


def processes(definition, job):
    """Return what the controller says to all that has PET_*, and what the agent makes of it on eight GPUs."""
    (asked,) = {
        variable["value"]
        for pod in render(definition, job)
        for container in containers({"template": pod.manifest}).values()
        for variable in container.get("env", [])
        if "PET_NPROC_PER_NODE" == variable["name"]
    }
    number = decide(int(asked) if asked.isdigit() else asked, Accelerators("nvidia", 8, "NVML"), cpus=64).value
    return asked, number


def test_the_example_with_gpus_repeats_those_of_the_runtime():
    """The controller counts in the TrainJob's resources where it has any, and never in the runtime's besides."""
    (job,) = documents(RUNTIMES / "examples" / "torch-gpus.yaml")
    gated, trainer = overlaid()["torch-distributed-preflight"], job["spec"]["trainer"]
    complete = processes(gated, job)
    del trainer["resourcesPerNode"]["limits"]["nvidia.com/gpu"]
    trainer["resourcesPerNode"]["requests"]["cpu"] = "2"
    forgotten = processes(gated, job)
    trainer["numProcPerNode"] = 8
    numbered = processes(gated, job)
    del trainer["numProcPerNode"], trainer["resourcesPerNode"]

    assert [("auto", 8), ("2", 2), ("8", 8)] == [complete, forgotten, numbered]
    assert ("auto", 8) == processes(gated, job)


def test_the_example_with_claims_says_how_many_processes():
    """The controller counts no claims, and the runtime's four CPUs would be four processes."""
    claimed, job = runtime("torch-distributed-dra"), trainjob("torch-distributed-dra")
    said = processes(claimed, job)
    del job["spec"]["trainer"]["numProcPerNode"]

    assert [("8", 8), ("4", 4)] == [said, processes(claimed, job)]


def checked(pod):
    """Yield the environment of every container of a Pod that runs the preflight, alone or on the way to training."""
    for name, container in containers({"template": pod.manifest}).items():
        variables = {variable["name"]: variable["value"] for variable in container.get("env", [])}
        if name == "preflight" or "preflight" in variables.get("TRAINER_AGENT_RUN_STEPS", ""):
            yield {"PATH": os.environ["PATH"], "HOSTNAME": pod.manifest["spec"]["hostname"], **variables}


def environment_checked(environ):
    """Return the exit code of the real preflight in this environment, and the codes of what it finds there."""
    command = [sys.executable, "-m", "trainer_agent", "preflight", "--checks", "environment", "--output", "json"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    (check,) = json.loads(done.stdout)["checks"]
    return done.returncode, [finding["code"] for finding in check["findings"]]


@pytest.mark.lab
@pytest.mark.parametrize("path", sorted((RUNTIMES / "examples").iterdir()), ids=lambda path: path.stem)
def test_the_environment_of_every_node_passes_the_preflight(path):
    """With as many nodes as the example has; that this machine lacks the GPUs is all that there is to say."""
    job = documents(path)[-1]
    asked = [each for pod in render(overlaid()[job["spec"]["runtimeRef"]["name"]], job) for each in checked(pod)]
    found = [environment_checked(each) for each in asked]

    assert [0] * job["spec"]["trainer"]["numNodes"] == [code for code, _ in found], found
    assert set() == {code for _, codes in found for code in codes} - {"no-accelerator"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_example_is_of_its_runtime(name):
    assert {"apiGroup": "trainer.kubeflow.org", "kind": "ClusterTrainingRuntime", "name": name} == trainjob(name)[
        "spec"
    ]["runtimeRef"]
    assert name == runtime(name)["metadata"]["name"]


@pytest.mark.parametrize("name, job, container", every_container())
def test_every_container_is_restricted(name, job, container):
    """As the Pod Security Standard `restricted` wants it; the root is read-only unless the SDK writes in MPI's home."""
    spec = jobs(runtime(name))[job]
    pod = spec["template"]["spec"]
    ranks_of_mpi = (name, container) == ("mpi-distributed", "node")

    assert {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        **({} if ranks_of_mpi else {"readOnlyRootFilesystem": True}),
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
    """30 ends it, 20 and the user's own codes start all nodes again, a pod disrupted first does not even count."""
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


def test_a_cache_has_all_its_variables_with_those_that_the_page_adds():
    """The SDK's DataCacheInitializer sends the rest."""
    page = RUNTIMES.parent.joinpath("docs", "runtimes.md").read_text()
    sent = {"CLUSTER_SIZE": "5", "METADATA_LOC": "s3a://bucket/metadata.json", "IAM_ROLE": "arn:aws:iam::1:role/x"}
    added = yaml.safe_load(re.search(r"```yaml\n([^`]*CACHE_IMAGE[^`]*)```", page)[1])

    found = read_settings("schema/table", sent | {each["name"]: each.get("value", "job1") for each in added})

    assert ("job1", 5) == (found.job, found.size)


@pytest.mark.parametrize("name", ["torch-distributed-preflight", "torch-distributed-dra"])
def test_every_bash_finds_the_installed_torchrun_first(name):
    """The SDK's command replaces ours; what is left to say so is BASH_ENV."""
    found = containers(jobs(runtime(name))["node"])
    env = {variable["name"]: variable.get("value", "") for variable in found["node"]["env"]}

    assert ["install", "--to", "/agent"] == found["install"]["args"]
    assert "/agent/bash_env" == env["BASH_ENV"]
    assert {"name": "agent", "mountPath": "/agent", "readOnly": True} in found["node"]["volumeMounts"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_all_that_may_speak_of_the_status_knows_when_the_job_starts_again(name):
    """It would take away what training said; the controller injects the status's address into the trainer job."""
    (template,) = [
        job["template"]
        for job in runtime(name)["spec"]["template"]["spec"]["replicatedJobs"]
        if "trainer" == job["template"].get("metadata", {}).get("labels", {}).get(ANCESTOR)
    ]
    wanted = {
        "name": ATTEMPT,
        "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['jobset.sigs.k8s.io/restart-attempt']"}},
    }

    found = containers(template["spec"])
    assert [] == [each for each in found if each != "install" and wanted not in found[each].get("env", [])]
