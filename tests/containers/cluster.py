"""A TrainJob's Pods on podman: rendered as the controllers would, started together, with their init containers."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from controller import render
from engine import Result, environment, image, podman
from manifests import jobs
from podman_pod import documents, mount_memory, network_config, termination_message

NETWORKS = Path("/etc/cni/net.d")
IMAGES = {
    "trainer-agent": image("agent:torch"),
    "pytorch": image("training"),
    "torch": image("agent-torch"),
    "mpi": image("agent-mpi"),
    "dataset-initializer": image("agent-dataset-initializer"),
    "model-initializer": image("agent-model-initializer"),
}
PLAY_S = 240.0


def pod_spec(document: dict[str, Any], job: str = "node") -> dict[str, Any]:
    """Return the spec of the Pods of a replicated job."""
    spec: dict[str, Any] = jobs(document)[job]["template"]["spec"]
    return spec


@dataclass
class Cluster:
    """One TrainJob on a network of its own; everything is gone after `end`."""

    folder: Path
    images: dict[str, str] = field(default_factory=lambda: dict(IMAGES))
    volumes: dict[str, Path] = field(default_factory=dict)
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)
    bridge: str = field(default_factory=lambda: f"ta{uuid.uuid4().hex[:8]}")
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    mounts: list[Path] = field(default_factory=list)
    played: dict[str, Result] = field(default_factory=dict)

    def run(self, runtime: dict[str, Any], trainjob: dict[str, Any]) -> None:
        """Start the Pods of a TrainJob, job after job; returns when all init containers have ended."""
        self.prepare(trainjob)
        waiting = list(render(runtime, trainjob))
        while waiting:
            held = {pod.job for pod in waiting}
            now = [pod for pod in waiting if not held & set(pod.after)]
            assert now, f"the jobs {held} wait for each other"
            for pod in now:
                self.pods[pod.name] = pod.manifest
            with ThreadPoolExecutor(len(now)) as pool:
                list(pool.map(lambda pod: self._play(pod.name), now))
            waiting = [pod for pod in waiting if pod not in now]
            for pod in now:  # Complete, where somebody waits for that
                if any(pod.job in each.after and each.after[pod.job] == "Complete" for each in waiting):
                    assert self.wait(pod.name) == 0, self.logs(pod.name).said

    def prepare(self, trainjob: dict[str, Any]) -> None:
        """Give the TrainJob a name of its own, as Pods of several tests run at the same time, and open its network."""
        if not trainjob["metadata"]["name"].endswith(self.bridge):
            trainjob["metadata"]["name"] += f"-{self.bridge}"
            self._open_network(trainjob["metadata"]["name"])

    def _open_network(self, job: str) -> None:
        octets = int(self.bridge[2:6], 16)
        config = network_config(job, bridge=self.bridge, subnet=f"10.{100 + octets % 100}.{octets // 256}.0/24")
        NETWORKS.mkdir(parents=True, exist_ok=True)
        (NETWORKS / f"{self.bridge}.conflist").write_text(json.dumps(config))

    def _play(self, name: str) -> None:
        path = self.folder / f"{name}.yaml"
        self.mounts += mount_memory(self.pods[name], self.folder)
        kwargs = {"images": self.images, "volumes": self.volumes, "secrets": self.secrets}
        path.write_text(yaml.safe_dump_all(documents(self.pods[name], self.folder, **kwargs)))
        words = ("kube", "play", "--network", self.bridge, str(path))
        self.played[name] = played = podman(*words, timeout_s=PLAY_S, check=False)
        assert played.code == 0 or "exited with code" in played.err, played.said  # that of an init container

    def state(self, pod: str, container: str) -> dict[str, Any]:
        """Return podman's State of a container."""
        found: list[dict[str, Any]] = json.loads(podman("inspect", f"{pod}-{container}").out)
        return found[0]["State"]

    def main(self, pod: str) -> str:
        """Return the name of a Pod's first container."""
        name: str = self.pods[pod]["spec"]["containers"][0]["name"]
        return name

    def wait(self, pod: str, *, seconds: float = 180.0) -> int:
        """Return the exit code of a Pod's first container once it has ended."""
        deadline = time.monotonic() + seconds
        while (status := self.state(pod, self.main(pod))["Status"]) not in ("exited", "stopped"):
            assert status in ("running", "stopping"), f"{pod} is {status}: {self.played[pod].said}"
            assert time.monotonic() < deadline, f"{pod} still runs: {self.logs(pod).said}"
            time.sleep(0.3)
        return int(self.state(pod, self.main(pod))["ExitCode"])

    def logs(self, pod: str, container: str = "") -> Result:
        """Return what a container has said so far."""
        return podman("logs", f"{pod}-{container or self.main(pod)}", check=False)

    def waited(self) -> dict[str, int]:
        """Return the exit code of each Pod's first container once all have ended, and print what they said."""
        codes = {pod: self.wait(pod) for pod in self.pods}
        for pod in self.pods:
            print(pod, self.logs(pod).said)
        return codes

    def termination_message(self, pod: str, container: str) -> dict[str, Any]:
        """Return what a container left for `kubectl describe`."""
        message: dict[str, Any] = json.loads(termination_message(self.folder, pod, container))
        return message

    def end(self) -> None:
        """Remove everything."""
        for name in self.pods:
            podman("pod", "rm", "--force", "--time", "0", name, check=False)
        for path in self.mounts:
            subprocess.run(["umount", str(path)], check=True)
        podman("network", "rm", "--force", self.bridge, check=False)
        (NETWORKS / f"{self.bridge}.conflist").unlink(missing_ok=True)
        subprocess.run(["ip", "link", "delete", self.bridge], env=environment(), check=False, capture_output=True)
