"""
Train with the Kubeflow SDK on podman, as a user's notebook does; print what became of it as one line of JSON.

    python sdk_job.py NAME SOCKET RUNTIMES_FOLDER ENDPOINT DATASET_IMAGE MODEL_IMAGE
"""

import json
import sys

from kubeflow.trainer import CustomTrainer, Initializer, S3DatasetInitializer, S3ModelInitializer, TrainerClient
from kubeflow.trainer.backends.container.types import ContainerBackendConfig, TrainingRuntimeSource
from kubeflow.trainer.options import Name

KEYS = {"access_key_id": "test", "secret_access_key": "testtest", "region": "us-east-1"}


def train():
    """Say what there is, and leave something in the workspace."""
    import os
    from pathlib import Path

    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    files = sorted(p.name for p in Path("/workspace/dataset").iterdir() if not p.name.startswith("."))
    model = sorted(p.name for p in Path("/workspace/model").iterdir() if not p.name.startswith("."))
    print(f"rank {rank} of {world}: dataset {files}, model {model}, threads {os.environ.get('OMP_NUM_THREADS')}")
    Path(f"/workspace/output-{rank}").write_text(f"{world}")
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Run one job to its end."""
    name, socket, runtimes, endpoint, dataset_image, model_image = sys.argv[1:]
    client = TrainerClient(
        backend_config=ContainerBackendConfig(
            container_runtime="podman",
            container_host=f"unix://{socket}",
            pull_policy="Never",
            runtime_source=TrainingRuntimeSource(sources=[f"file://{runtimes}"]),
            dataset_initializer_image=dataset_image,
            model_initializer_image=model_image,
        )
    )
    client.train(
        runtime=client.get_runtime("torch-distributed-preflight"),
        initializer=Initializer(
            dataset=S3DatasetInitializer(storage_uri="s3://data/digits", endpoint=endpoint, **KEYS),
            model=S3ModelInitializer(storage_uri="s3://data/weights", endpoint=endpoint, **KEYS),
        ),
        trainer=CustomTrainer(func=train, num_nodes=2),
        options=[Name(name)],
    )
    job = client.wait_for_job_status(name, timeout=240, polling_interval=1)
    steps = {step.name: step.status for step in job.steps}
    logs = {step: "\n".join(client.get_job_logs(name, step=step, follow=True)) for step in steps}
    print(json.dumps({"status": job.status, "steps": steps, "logs": logs}))
    client.delete_job(name)


if __name__ == "__main__":
    main()
