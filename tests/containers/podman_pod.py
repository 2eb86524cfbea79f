"""A Pod as `podman kube play` runs it: what podman 4 lacks of Kubernetes stands in directories of this host."""

import copy
import os
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

from controller import HOSTFILE_VOLUME, SSH_VOLUME, hostfile
from indexed_pod import Json

INIT_TYPE = "io.podman.annotations.init.container.type"
UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def documents(
    pod: Json,
    root: Path,
    *,
    images: Mapping[str, str],
    volumes: Mapping[str, Path] | None = None,
    secrets: Mapping[str, Mapping[str, str]] | None = None,
) -> list[Json]:
    """
    The documents for `podman kube play`.

    Volumes of a Pod are directories below root/<pod>, claims below root/claims; volumes says where others are, by name.
    Those on memory are, too, of any size: `mount_memory` beforehand limits them.
    Images go by their name without a tag, secrets are values by the secret's name.
    """
    pod = copy.deepcopy(pod)
    spec = pod["spec"]
    home = root / pod["metadata"]["name"]
    # Otherwise podman removes an init container, and its log, as soon as it has ended.
    pod["metadata"].setdefault("annotations", {})[INIT_TYPE] = "always"
    containers = [*(spec.get("initContainers") or []), *spec["containers"]]
    for container in containers:
        _adapt(container, images, secrets or {})
        _termination_log(spec, container, home)
    given = volumes or {}
    spec["volumes"] = [_volume(volume, root, home, given) for volume in spec.get("volumes") or []]
    for field in ("resourceClaims", "subdomain", "schedulingGates", "serviceAccountName"):
        spec.pop(field, None)
    return [pod]


def mount_memory(pod: Json, root: Path) -> list[Path]:
    """
    Mount a tmpfs of its sizeLimit for each emptyDir on memory; returns what to unmount when the Pod is gone.

    podman's own volumes of tmpfs take owner and mode of what the image has there, which for /dev/shm is root's 0755.
    """
    mounted = []
    for volume in pod["spec"].get("volumes") or []:
        if _is_memory(volume):
            path = _open_directory(root / pod["metadata"]["name"] / volume["name"])
            limit = volume["emptyDir"]["sizeLimit"]
            options = f"size={int(limit[:-2]) * UNITS[limit[-2:]]},mode=1777"
            subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], check=True)
            mounted.append(path)
    return mounted


def termination_message(root: Path, pod: str, container: str) -> str:
    """What the container wrote to its termination log."""
    return (root / pod / f"{container}.termination-log").read_text()


def network_config(job: str, *, bridge: str, subnet: str) -> Json:
    """
    A CNI network, for a file in /etc/cni/net.d, in which <pod>.<job> is the address of a Pod.

    The plugin dnsname answers for <pod>.<its domain>; so the domain is the subdomain of the TrainJob.
    """
    gateway = subnet.rsplit(".", 1)[0] + ".1"
    ranges = [[{"subnet": subnet, "gateway": gateway}]]
    return {
        "cniVersion": "0.4.0",
        "name": bridge,
        "plugins": [
            {
                "type": "bridge",
                "bridge": bridge,
                "isGateway": True,
                "ipMasq": True,
                "hairpinMode": True,
                "ipam": {"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}], "ranges": ranges},
                "capabilities": {"ips": True},
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
            {"type": "firewall", "backend": ""},
            {"type": "tuning"},
            {"type": "dnsname", "domainName": job, "capabilities": {"aliases": True}},
        ],
    }


def mpi_volumes(runtime: Json, trainjob: Json, directory: Path, *, group: int = 1000) -> dict[str, Path]:
    """The controller's Secret and ConfigMap of an MPI job as directories, for the volumes of `documents`."""
    ssh, hosts = directory / SSH_VOLUME, directory / HOSTFILE_VOLUME
    for path in (ssh, hosts):
        path.mkdir(parents=True, exist_ok=True)
    (hosts / "hostfile").write_text(hostfile(runtime, trainjob))
    private, public = _key_pair()
    for name, content, mode in (
        ("id_rsa", private, 0o640),
        ("id_rsa.pub", public, 0o644),
        ("authorized_keys", public, 0o644),
    ):
        path = ssh / name
        path.write_bytes(content)
        # As the kubelet does for fsGroup.
        os.chown(path, -1, group)
        path.chmod(mode)
    return {SSH_VOLUME: ssh, HOSTFILE_VOLUME: hosts}


def _key_pair() -> tuple[bytes, bytes]:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = ec.generate_private_key(ec.SECP521R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    return private, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"


def _adapt(container: Json, images: Mapping[str, str], secrets: Mapping[str, Mapping[str, str]]) -> None:
    name = container["image"].rsplit("/", 1)[-1].partition(":")[0]
    container["image"] = images.get(name, container["image"])
    container["imagePullPolicy"] = "Never"
    for kind, amounts in (container.get("resources") or {}).items():
        if kind != "claims":
            container["resources"][kind] = {key: amounts[key] for key in ("cpu", "memory") if key in amounts}
    (container.get("resources") or {}).pop("claims", None)
    for source in container.pop("envFrom", []):
        values = secrets[source["secretRef"]["name"]]
        container.setdefault("env", []).extend({"name": key, "value": value} for key, value in values.items())
    # podman would take the containers' ports on this host, and probe as root.
    for field in ("ports", "readinessProbe", "startupProbe", "livenessProbe"):
        container.pop(field, None)


def _termination_log(spec: Json, container: Json, home: Path) -> None:
    home.mkdir(parents=True, exist_ok=True)
    log = home / f"{container['name']}.termination-log"
    log.touch()
    log.chmod(0o666)
    name = f"{container['name']}-termination-log"
    path = container.pop("terminationMessagePath", "/dev/termination-log")
    container.setdefault("volumeMounts", []).append({"name": name, "mountPath": path})
    spec.setdefault("volumes", []).append({"name": name, "hostPath": {"path": str(log), "type": "File"}})


def _is_memory(volume: Json) -> bool:
    return bool((volume.get("emptyDir") or {}).get("medium") == "Memory")


def _volume(volume: Json, root: Path, home: Path, given: Mapping[str, Path]) -> Json:
    name = volume["name"]
    if "hostPath" in volume:
        return volume
    if name in given:
        path = given[name]
    elif "persistentVolumeClaim" in volume:
        path = _open_directory(root / "claims" / volume["persistentVolumeClaim"]["claimName"])
    elif "emptyDir" in volume:
        # podman shares an emptyDir among all Pods that call it by the same name.
        path = _open_directory(home / name)
    else:
        msg = f"volume {name!r} of {home.name}: nothing says which directory it is"
        raise ValueError(msg)
    return {"name": name, "hostPath": {"path": str(path), "type": "Directory"}}


def _open_directory(path: Path) -> Path:
    """A directory that every user may write to, as the kubelet makes them."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO)
    return path
