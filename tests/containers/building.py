"""
Bootstrap the base images and build all of ours from them, as no image can be pulled here; what is there stays.

    python tests/containers/building.py
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from engine import ROOT, SDK, STATE, environment, exists, image, podman

if TYPE_CHECKING:
    from collections.abc import Callable

TORCH = "torch==2.13.0"  # the CPU build; as in pyproject.toml
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What the official slim images leave out, too.
LEFT_OUT = ("usr/share/doc", "usr/share/man", "usr/share/locale", "var/cache/apt/*", "var/lib/apt/lists/*")
# name: (suite, packages)
BASES = {
    "python": ("bookworm", "ca-certificates,python3,python3-venv"),
    "old": ("bullseye", "ca-certificates"),
}


def main() -> int:
    """Build everything; print what took how long."""
    for name, (suite, packages) in BASES.items():
        if not exists(image(name)):
            timed(f"base {name}", partial(bootstrap, name, suite, packages))
    if not exists(image("bare")):
        timed("base bare", bare)
    if not SDK.exists():
        timed("the SDK", install_sdk)
    timed("a training image", build_training_image)
    timed("our images", build_ours)
    return 0


def timed(what: str, call: Callable[[], None]) -> None:
    """Run it and say how long it took."""
    started = time.monotonic()
    call()
    print(f"{what}: {time.monotonic() - started:.1f} s", flush=True)


def bootstrap(name: str, suite: str, packages: str) -> None:
    """Make an image of a Debian suite, as slim as the official ones."""
    with tempfile.TemporaryDirectory(dir=STATE) as folder:
        words = ["debootstrap", "--variant=minbase", f"--include={packages}", suite, folder]
        run(words, log=f"{name}.log")
        python = Path(folder) / "usr/bin/python3"
        if python.exists():
            (python.parent / "python").symlink_to("python3")
        import_tree(Path(folder), name)


def bare() -> None:
    """Make an image without libc and Python: only a static shell."""
    busybox = shutil.which("busybox")
    assert busybox, "the bare image needs busybox-static"
    with tempfile.TemporaryDirectory(dir=STATE) as folder:
        for path in ("bin", "tmp", "proc", "sys", "dev", "etc", "agent"):
            (Path(folder) / path).mkdir()
        shutil.copy(busybox, Path(folder) / "bin/busybox")
        for tool in ("sh", "ls", "cat", "readlink", "env", "mkdir", "echo"):
            (Path(folder) / "bin" / tool).symlink_to("busybox")
        import_tree(Path(folder), "bare")


def import_tree(folder: Path, name: str) -> None:
    """Make an image of a folder."""
    archive = folder.parent / f"{name}.tar"
    left_out = [f"--exclude=./{path}" for path in LEFT_OUT]
    run(["tar", "-C", str(folder), *left_out, "-cf", str(archive), "."])
    podman("import", "--change", f"ENV PATH={SEARCH_PATH}", str(archive), image(name), timeout_s=300)
    archive.unlink()


def build_training_image() -> None:
    """Build what users bring: an image with torch in its Python, and without us."""
    dockerfile = STATE / "training.Dockerfile"
    dockerfile.write_text(
        f"FROM {image('python')}\n"
        f"RUN python3 -m venv /opt/training && /opt/training/bin/pip install -q --no-cache-dir {TORCH}\n"
        f"ENV PATH=/opt/training/bin:{SEARCH_PATH}\n"
    )
    run([*builder(), "-f", str(dockerfile), "-t", image("training"), str(STATE)], log="training.log")


def build_ours() -> None:
    """Build all images with the command that the documentation gives."""
    variables = {
        "BUILD": shlex.join(builder()),
        "IMAGE": image("agent"),
        "PYTHON_IMAGE": image("python"),
        "TRAINING_IMAGE": image("training"),
    }
    run(["make", "-C", str(ROOT), "images", *(f"{name}={value}" for name, value in variables.items())], log="ours.log")


def builder() -> list[str]:
    """Return the command that builds an image here; pip inside may need what pip here needs."""
    words = ["nice", "buildah", "bud", "--isolation", "chroot", "--network", "host", "--layers", "--quiet"]
    for path in sorted(set(pip_files())):
        words += ["--volume", f"{path}:{path}:ro"]
    return words


def pip_files() -> list[str]:
    """Return the files and folders that this machine's pip settings name, and those with the settings."""
    found = re.findall(r"^\s+(/\S+), exists: True", pip_config("debug"), re.MULTILINE)
    for word in re.split(r"[\s'\"=]+", pip_config("list")):
        path = Path(word.removeprefix("file://"))
        if path.is_absolute() and path.exists():  # an index of files leads to its neighbours
            found.append(str(path.parent if word.startswith("file://") else path))
    return found


def pip_config(command: str) -> str:
    """Return what `pip config` says."""
    words = [sys.executable, "-m", "pip", "config", command]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def install_sdk() -> None:
    """Install the Kubeflow SDK beside the development environment: it wants an older kubernetes."""
    run([sys.executable, "-m", "venv", str(SDK)], log="sdk.log")
    requirements = str(Path(__file__).with_name("sdk-requirements.txt"))
    run([str(SDK / "bin/pip"), "install", "--requirement", requirements], log="sdk.log")


def run(words: list[str], *, log: str = "") -> None:
    """Run a command; what it says goes to a log that is shown when it fails."""
    path = STATE / (log or "last.log")
    with path.open("w") as file:
        code = subprocess.run(words, env=environment(), stdout=file, stderr=subprocess.STDOUT, check=False).returncode
    if code:
        tail = "\n".join(path.read_text().splitlines()[-30:])
        sys.exit(f"{shlex.join(words)}: exit {code}\n{tail}")


if __name__ == "__main__":
    os.nice(5)
    sys.exit(main())
