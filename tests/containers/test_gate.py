"""Two nodes of a TrainJob as Pods: the preflight in their init containers holds the training back, or lets it go."""

import pytest
from cluster import pod_spec
from manifests import runtime, trainjob

pytestmark = pytest.mark.containers

# How the preflight comes to its init container: copied into the training image, or in an image of its own with torch.
COPIED, OWN_IMAGE = "preflight", "dra"
TRAIN = """
import socket
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([2**dist.get_rank()])
dist.all_reduce(total)
print("rank", dist.get_rank(), "on", socket.gethostname(), "sum", total.item(), flush=True)
dist.destroy_process_group()
"""


@pytest.fixture
def job(cluster):
    """Return a function that runs two nodes with other environment for the preflight or another command."""

    def run(*, way=COPIED, preflight=(), **trainer):
        code = cluster.folder / "code"
        code.mkdir()
        (code / "train.py").write_text(TRAIN)
        definition, wanted = runtime(f"torch-distributed-{way}"), trainjob("torch-distributed-preflight")
        spec = pod_spec(definition)
        next(each for each in spec["volumes"] if each["name"] == "shm")["emptyDir"]["sizeLimit"] = "64Mi"
        spec["volumes"].append({"name": "code", "hostPath": {"path": str(code)}})
        spec["containers"][0]["volumeMounts"].append({"name": "code", "mountPath": "/code"})
        init = next(each for each in spec["initContainers"] if each["name"] == "preflight")
        init["env"].extend({"name": name, "value": value} for name, value in preflight)
        wanted["spec"]["trainer"] |= {"args": ["/code/train.py"], "numProcPerNode": 1, **trainer}
        cluster.run(definition, wanted)
        return list(cluster.pods)

    return run


def both(pods):
    """Return what the ranks print that have met."""
    return {f"rank {rank} on {pod} sum 3" for rank, pod in enumerate(pods)}


@pytest.mark.parametrize("way", [COPIED, OWN_IMAGE])
def test_two_nodes_meet_and_train(job, cluster, way):
    """A /dev/shm of 64 MB is a warning, which the gate lets pass; torchrun finds its peers by their DNS names."""
    pods = job(way=way)

    assert dict.fromkeys(pods, 0) == cluster.waited()
    said = {line for pod in pods for line in cluster.logs(pod).out.splitlines()}
    assert both(pods) <= said
    reports = [cluster.termination_message(pod, "preflight") for pod in pods]
    assert {"warn"} == {report["verdict"] for report in reports}
    assert all("shm" in cluster.logs(pod, "preflight").out for pod in pods)
    assert [0, 0] == [cluster.state(pod, "preflight")["ExitCode"] for pod in pods]


def test_a_fatal_preflight_keeps_the_trainer_from_starting(job, cluster):
    """Exit 30 in the init container; the trainer's container is never started, and the message says why."""
    pods = job(preflight=[("TRAINER_AGENT_PREFLIGHT_STORAGE", "/not-mounted")])

    for pod in pods:
        assert 30 == cluster.state(pod, "preflight")["ExitCode"], cluster.logs(pod, "preflight").said
        assert "created" == cluster.state(pod, cluster.main(pod))["Status"]
        assert "/not-mounted" in str(cluster.termination_message(pod, "preflight"))


def test_the_sdks_command_goes_through_the_agent(job, cluster):
    """`bash -c "… torchrun f.py"` replaces the image's entrypoint and the runtime's command, and finds our torchrun."""
    script = "cat > /tmp/train.py <<'END'\n" + TRAIN + "END\ntorchrun /tmp/train.py"
    pods = job(command=["bash", "-c", script], args=None)

    assert dict.fromkeys(pods, 0) == cluster.waited()
    assert both(pods) <= {line for pod in pods for line in cluster.logs(pod).out.splitlines()}
    assert "--nproc-per-node" in cluster.logs(pods[0]).log("launching")["command"]
