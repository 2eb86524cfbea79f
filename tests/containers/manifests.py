"""The manifests of runtimes/, read."""

from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]

RUNTIMES = Path(__file__).parents[2] / "runtimes"
# A runtime, and the file of its example.
EXAMPLES = {
    "mpi-distributed": "mpi.yaml",
    "torch-distributed-data": "torch-data.yaml",
    "torch-distributed-dra": "torch-dra.yaml",
    "torch-distributed-preflight": "torch-preflight.yaml",
}


def documents(path: Path) -> list[Json]:
    """All documents of a file."""
    return list(yaml.safe_load_all(path.read_text()))


def runtime(name: str) -> Json:
    """A runtime of ours, by its name."""
    return documents(RUNTIMES / f"{name}.yaml")[0]


def trainjob(name: str) -> Json:
    """The TrainJob that shows how to use this runtime."""
    return documents(RUNTIMES / "examples" / EXAMPLES[name])[-1]


def jobs(runtime: Json) -> dict[str, Json]:
    """The runtime's replicated jobs by name, each as the spec of its Job."""
    return {job["name"]: job["template"]["spec"] for job in runtime["spec"]["template"]["spec"]["replicatedJobs"]}


def containers(job: Json) -> dict[str, Json]:
    """All containers of a Job, init containers first."""
    spec = job["template"]["spec"]
    return {container["name"]: container for container in [*spec.get("initContainers", []), *spec["containers"]]}
