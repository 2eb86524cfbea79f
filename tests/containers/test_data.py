"""Dataset and model by our initializer images, on a volume that both nodes of the training share."""

import pytest
from cluster import pod_spec
from manifests import runtime, trainjob
from s3_server import s3_server

pytestmark = pytest.mark.containers

TRAIN = """
from pathlib import Path
import torch.distributed as dist
dist.init_process_group("gloo")
print(dist.get_rank(), Path("/workspace/dataset/part-0").read_text(), Path("/workspace/model/weights").read_text())
dist.barrier()
dist.destroy_process_group()
"""


def test_data_arrives_before_two_nodes_train(cluster):
    """The trainer's Pods start when both initializers are complete, in an image with the agent built in."""
    buckets, code = cluster.folder / "buckets", cluster.folder / "code"
    for path, text in (("data/digits/part-0", "digits"), ("data/llama/weights", "numbers")):
        (buckets / path).parent.mkdir(parents=True)
        (buckets / path).write_text(text)
    code.mkdir()
    (code / "train.py").write_text(TRAIN)
    definition, wanted = runtime("torch-distributed-data"), trainjob("torch-distributed-data")
    node = pod_spec(definition)
    node["volumes"].append({"name": "code", "hostPath": {"path": str(code)}})
    node["containers"][0]["volumeMounts"].append({"name": "code", "mountPath": "/code"})
    secret = wanted["spec"]["initializer"]["dataset"]["secretRef"]
    wanted["spec"]["initializer"]["dataset"]["storageUri"] = "s3://data/digits"
    wanted["spec"]["initializer"]["model"] = {"storageUri": "s3://data/llama", "secretRef": secret}
    wanted["spec"]["trainer"] = {"numNodes": 2, "args": ["/code/train.py"], "numProcPerNode": 1}

    with s3_server(buckets) as variables:
        cluster.secrets[secret["name"]] = variables
        cluster.run(definition, wanted)
        codes = cluster.waited()

    pods = [pod for pod in cluster.pods if "-node-" in pod]
    assert dict.fromkeys(cluster.pods, 0) == codes
    assert ["0 digits numbers", "1 digits numbers"] == [cluster.logs(pod).out.splitlines()[-1] for pod in pods]
