"""What tests/containers/controller.py makes of runtimes and TrainJobs: what Trainer's controller would."""

import os

import pytest
from controller import hostfile, render
from manifests import runtime, trainjob
from podman_pod import documents, mpi_volumes, network_config

GATED = "torch-distributed-preflight"


def gated(**trainer):
    """Return the gated runtime and a TrainJob with these fields of its trainer."""
    job = {"metadata": {"name": "job"}, "spec": {"runtimeRef": {"name": GATED}, "trainer": trainer}}
    return runtime(GATED), job


def container(pod, name):
    spec = pod.manifest["spec"]
    return next(each for each in [*spec.get("initContainers", []), *spec["containers"]] if each["name"] == name)


def env(pod, name):
    return {variable["name"]: variable.get("value") for variable in container(pod, name).get("env", [])}


def pet(pod, name):
    return {key: value for key, value in env(pod, name).items() if key.startswith("PET_")}


def test_each_rank_has_its_place_in_the_node_and_in_the_preflight_container():
    pods = render(*gated(numNodes=3, numProcPerNode=2))
    for rank, pod in enumerate(pods):
        expected = {
            "PET_NNODES": "3",
            "PET_NPROC_PER_NODE": "2",
            "PET_NODE_RANK": str(rank),
            "PET_MASTER_ADDR": "job-node-0-0.job",
            "PET_MASTER_PORT": "29500",
        }

        assert expected == pet(pod, "node")
        assert expected == pet(pod, "preflight")
        assert {} == pet(pod, "install")
        assert str(rank) == env(pod, "install")["JOB_COMPLETION_INDEX"]
    assert 3 == len(pods)


def test_without_injection_only_the_node_container_has_them():
    definition, job = gated(numNodes=2)
    definition["spec"]["mlPolicy"]["torch"] = {}

    pod = render(definition, job)[0]

    assert {} == pet(pod, "preflight")
    assert "2" == pet(pod, "node")["PET_NNODES"]


def test_a_trainjob_without_a_trainer_leaves_the_node_container_without_them():
    definition, job = gated()
    del job["spec"]["trainer"]

    (pod,) = render(definition, job)

    assert {} == pet(pod, "node")
    assert "0" == pet(pod, "preflight")["PET_NODE_RANK"]


def test_an_injection_into_a_container_that_is_not_there_is_an_error():
    definition, job = gated()
    definition["spec"]["mlPolicy"]["torch"]["envInjection"]["targets"][0]["containerNames"] = ["preflights"]

    with pytest.raises(ValueError, match="job 'node' has no container 'preflights'"):
        render(definition, job)


@pytest.mark.parametrize(
    "trainer, expected",
    [
        ({}, "1"),
        ({"resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}}}, "auto"),
        ({"resourcesPerNode": {"requests": {"amd.com/gpu": "2"}}}, "auto"),
        ({"resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}}, "numProcPerNode": 4}, "4"),
        ({"resourcesPerNode": {"requests": {"cpu": "1500m"}, "limits": {"cpu": "4"}}}, "2"),
        ({"resourcesPerNode": {"limits": {"cpu": 4}}}, "4"),
        ({"resourcesPerNode": {"limits": {"nvidia.com/mig-1g.5gb": 1}}}, "1"),
    ],
)
def test_processes_are_auto_with_gpus_and_else_the_cpus(trainer, expected):
    (pod,) = render(*gated(**trainer))

    assert expected == pet(pod, "preflight")["PET_NPROC_PER_NODE"]


def test_pods_have_the_names_that_resolve():
    first, second = render(*gated(numNodes=2), restart_attempt=4)

    assert ["job-node-0-0", "job-node-0-1"] == [first.name, second.name]
    assert ("job-node-0-1", "job") == (second.manifest["spec"]["hostname"], second.manifest["spec"]["subdomain"])
    assert env(first, "preflight")["PET_MASTER_ADDR"] == f"{first.name}.{first.manifest['spec']['subdomain']}"
    assert "4" == env(second, "preflight")["TRAINER_AGENT_PREFLIGHT_ATTEMPT"]
    assert "machine-of-job-node-0-1" == env(second, "preflight")["NODE_NAME"]


def test_the_trainjobs_command_resources_and_variables_reach_the_node_container_only():
    (pod,) = render(
        *gated(
            image="mine",
            command=["bash", "-c"],
            args=["torchrun f.py"],
            env=[{"name": "A", "value": "1"}, {"name": "HOME", "value": "/root"}],
            resourcesPerNode={"limits": {"nvidia.com/gpu": 8}},
        )
    )
    node, preflight = container(pod, "node"), container(pod, "preflight")

    assert ("mine", ["bash", "-c"], ["torchrun f.py"]) == (node["image"], node["command"], node["args"])
    assert {"limits": {"nvidia.com/gpu": 8}} == node["resources"]
    assert ("1", "/root", "/agent/bash_env") == tuple(env(pod, "node")[name] for name in ("A", "HOME", "BASH_ENV"))
    assert {"requests": {"cpu": "1", "memory": "1Gi"}} == preflight["resources"]
    assert preflight["image"] != "mine"
    assert "A" not in env(pod, "preflight")


def test_resources_of_a_trainjob_take_the_claims_away():
    """Why examples/torch-dra.yaml has no resourcesPerNode."""
    definition, job = runtime("torch-distributed-dra"), trainjob("torch-distributed-dra")
    kept = container(render(definition, job)[0], "node")["resources"]
    job["spec"]["trainer"]["resourcesPerNode"] = {"requests": {"cpu": "8"}}
    pod = render(definition, job)[0]

    assert [{"name": "gpus"}] == kept["claims"]
    assert {"requests": {"cpu": "8", "memory": "16Gi"}} == container(pod, "node")["resources"]
    assert [{"name": "gpus"}] == container(pod, "preflight")["resources"]["claims"]


def test_runtime_patches_reach_the_pod_they_name():
    definition, job = gated()
    patch = {
        "nodeSelector": {"pool": "gpu"},
        "initContainers": [
            {"name": "preflight", "env": [{"name": "TRAINER_AGENT_PREFLIGHT_PROFILE", "value": "deep"}]}
        ],
        "volumes": [{"name": "tmp", "emptyDir": None, "hostPath": {"path": "/x"}}],
    }
    replicated = {"name": "node", "template": {"spec": {"template": {"spec": patch}}}}
    spec = {"template": {"spec": {"replicatedJobs": [replicated]}}}
    job["spec"]["runtimePatches"] = [{"manager": "example.com/us", "trainingRuntimeSpec": spec}]

    (pod,) = render(definition, job)

    assert {"pool": "gpu"} == pod.manifest["spec"]["nodeSelector"]
    assert ("deep", "1") == tuple(
        env(pod, "preflight")[f"TRAINER_AGENT_PREFLIGHT_{name}"] for name in ("PROFILE", "GATE")
    )
    assert {"name": "tmp", "hostPath": {"path": "/x"}} in pod.manifest["spec"]["volumes"]
    assert "install" == container(pod, "install")["name"]


def test_data_is_fetched_first_to_a_volume_that_all_share():
    dataset, model, *nodes = render(runtime("torch-distributed-data"), trainjob("torch-distributed-data"))

    assert ("with-data-dataset-initializer-0-0", {}) == (dataset.name, dataset.after)
    assert "s3://my-bucket/datasets/mine" == env(dataset, "dataset-initializer")["STORAGE_URI"]
    assert [{"secretRef": {"name": "s3-credentials"}}] == container(dataset, "dataset-initializer")["envFrom"]
    assert "hf://Qwen/Qwen2.5-0.5B" == env(model, "model-initializer")["STORAGE_URI"]
    assert "envFrom" not in container(model, "model-initializer")
    claim = {"name": "initializer", "persistentVolumeClaim": {"claimName": "initializer-with-data"}}
    for pod in (dataset, model, *nodes):
        assert claim in pod.manifest["spec"]["volumes"]
    for pod in nodes:
        assert {"dataset-initializer": "Complete", "model-initializer": "Complete"} == pod.after
    assert ["0", "1"] == [pet(pod, "node")["PET_NODE_RANK"] for pod in nodes]


def test_an_mpi_launcher_is_one_of_the_nodes():
    definition, job = runtime("mpi-distributed"), trainjob("mpi-distributed")
    first, _, launcher = render(definition, job)

    expected = "ranks-node-0-0.ranks slots=2\nranks-node-0-1.ranks slots=2\nranks-launcher-0-0.ranks slots=2\n"
    assert expected == hostfile(definition, job)
    assert ("launcher", {"node": "Ready"}) == (launcher.job, launcher.after)
    assert "/etc/mpi/hostfile" == env(launcher, "node")["OMPI_MCA_orte_default_hostfile"]
    assert "2" == env(launcher, "node")["OMPI_MCA_orte_set_default_slots"]
    assert "OMPI_MCA_orte_default_hostfile" not in env(first, "node")
    assert ["mpirun", "python3", "/app/train.py"] == container(launcher, "node")["args"]
    assert "args" not in container(first, "node")
    homes = [
        mount["mountPath"] for mount in container(first, "node")["volumeMounts"] if mount["name"] == "mpi-ssh-auth"
    ]
    assert ["/home/mpiuser/.ssh"] == homes


def test_one_mpi_node_is_two_hosts():
    job = trainjob("mpi-distributed")
    job["spec"]["trainer"] = {"numNodes": 1, "resourcesPerNode": {"limits": {"nvidia.com/gpu": 4}}}

    expected = "ranks-node-0-0.ranks slots=4\nranks-launcher-0-0.ranks slots=4\n"
    assert expected == hostfile(runtime("mpi-distributed"), job)


def test_the_status_server_is_told_to_the_node_container_and_to_no_init_container():
    (pod,) = render(*gated(), status_url="https://trainer.example/status")

    assert "https://trainer.example/status" == env(pod, "node")["KUBEFLOW_TRAINER_SERVER_URL"]
    assert not any(name.startswith("KUBEFLOW") for name in env(pod, "preflight"))


def test_podman_gets_what_it_can_do_and_directories_for_the_rest(tmp_path):
    pod = render(*gated(resourcesPerNode={"limits": {"nvidia.com/gpu": 1, "memory": "1Gi"}}))[0]
    pod.manifest["spec"]["containers"][0]["envFrom"] = [{"secretRef": {"name": "s3"}}]

    (given,) = documents(pod.manifest, tmp_path, images={"pytorch": "localhost/t"}, secrets={"s3": {"KEY": "k"}})
    node = given["spec"]["containers"][0]
    volumes = {volume["name"]: volume for volume in given["spec"]["volumes"]}

    assert str(tmp_path / "job-node-0-0" / "shm") == volumes["shm"]["hostPath"]["path"]
    assert str(tmp_path / "job-node-0-0" / "agent") == volumes["agent"]["hostPath"]["path"]
    assert 0o777 == (tmp_path / "job-node-0-0" / "agent").stat().st_mode & 0o777
    assert {"name": "node-termination-log", "mountPath": "/dev/termination-log"} in node["volumeMounts"]
    assert ("localhost/t", {"limits": {"memory": "1Gi"}}) == (node["image"], node["resources"])
    assert {"name": "KEY", "value": "k"} in node["env"]
    assert "ports" not in node
    assert "envFrom" not in node


def test_podman_gets_no_volume_that_nobody_gave(tmp_path):
    pod = render(*gated(), status_url="https://x")[0]

    with pytest.raises(ValueError, match="kubeflow-trainer-token"):
        documents(pod.manifest, tmp_path, images={})
    mine = documents(pod.manifest, tmp_path, images={}, volumes={"kubeflow-trainer-token": tmp_path})[-1]
    assert {"path": str(tmp_path), "type": "Directory"} in [v.get("hostPath") for v in mine["spec"]["volumes"]]


def test_an_mpi_jobs_key_and_hostfile_are_files(tmp_path):
    definition, job = runtime("mpi-distributed"), trainjob("mpi-distributed")

    volumes = mpi_volumes(definition, job, tmp_path, group=os.getgid())
    key = volumes["mpi-ssh-auth"] / "id_rsa"

    assert hostfile(definition, job) == (volumes["mpi-hostfile"] / "hostfile").read_text()
    assert key.read_text().startswith("-----BEGIN EC PRIVATE KEY-----")
    assert 0o640 == key.stat().st_mode & 0o777
    public = (volumes["mpi-ssh-auth"] / "id_rsa.pub").read_text()
    assert public == (volumes["mpi-ssh-auth"] / "authorized_keys").read_text()
    assert public.startswith("ecdsa-sha2-nistp521 ")


def test_a_network_answers_for_pods_of_its_job():
    config = network_config("job", bridge="ta-1", subnet="10.89.7.0/24")

    assert {"type": "dnsname", "domainName": "job", "capabilities": {"aliases": True}} == config["plugins"][-1]
    assert [[{"subnet": "10.89.7.0/24", "gateway": "10.89.7.1"}]] == config["plugins"][0]["ipam"]["ranges"]
