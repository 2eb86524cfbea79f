"""A bundle in images that have nothing in common with the one it was made in, and on volumes that will not do."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trainer_agent import __version__
from trainer_agent.bundle.libraries import loader_of
from trainer_agent.errors import FatalError

pytestmark = pytest.mark.lab
IN_IMAGE = """
set -e
for place in agent proc sys dev; do mkdir -p "$1/$place"; done
mount --bind "$1" "$1"
mount --bind "$2" "$1/agent"; mount -o remount,ro,bind "$1/agent"
mount -t proc proc "$1/proc"; mount --rbind /sys "$1/sys"; mount --rbind /dev "$1/dev"
mount -o remount,ro,bind "$1"; mount -t tmpfs -o mode=1777 tmpfs "$1/tmp"
root=$1; user=$3; shift 3
exec chroot --userspec="$user" "$root" "$@"
"""
ON_VOLUME = """
set -e
mount -t tmpfs -o "$1" tmpfs "$2"
"$3" -m trainer_agent install --to "$2" || echo $?
ls -A "$2"
"""


def unshared(script, *words):
    """Run a shell script with mounts of its own."""
    return subprocess.run(
        ["unshare", "-m", "-p", "-f", "sh", "-c", script, "sh", *words],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={"PATH": os.environ["PATH"]},
    )


@pytest.fixture(autouse=True)
def _can_mount():
    missing = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
    if os.geteuid() != 0 or unshared("mount -t tmpfs tmpfs /mnt").returncode:
        missing("mounting needs root")


def is_static(program):
    """Return whether a program needs no loader."""
    try:
        loader_of(program)
    except FatalError:
        return True
    return False


@pytest.fixture
def in_image(bundle, tmp_path):
    """Run words in an image that has busybox, linked statically, and nothing else; the bundle is in /agent."""
    busybox = shutil.which("busybox")
    if not busybox or not is_static(Path(busybox)):
        missing = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        missing("an image without any library needs busybox-static")
    root = tmp_path / "root"
    for directory in ("bin", "tmp"):
        (root / directory).mkdir(parents=True)
    shutil.copy(busybox, root / "bin/busybox")
    (root / "bin/sh").symlink_to("busybox")
    tmp_path.chmod(0o755)

    def run(*words, user="0:0"):
        return unshared(IN_IMAGE, root, bundle, user, *words)

    return run


@pytest.mark.parametrize("user", ["0:0", "1000:1000"])
def test_an_image_without_any_library(in_image, user):
    """No libc, no Python, a read-only root file system, and any user: it starts and does its work."""
    version = in_image("/agent/bin/trainer-agent", "--version", user=user)
    words = ("preflight", "--checks", "environment,cgroup,limits,clock", "--output", "json")
    report = in_image("/agent/bin/trainer-agent", *words, user=user)

    assert f"trainer-agent, version {__version__}\n" == version.stdout, version.stderr
    assert "environment " == in_image("/agent/bin/trainer-agent", "checks", user=user).stdout[:12]
    assert report.returncode in (0, 10), report.stderr
    assert set() == {check["status"] for check in json.loads(report.stdout)["checks"]} - {"pass", "warn"}


def test_it_goes_on_from_there(in_image):
    """A user without rights copies the copy, which runs."""
    words = "/agent/bin/trainer-agent install --to /tmp/on && /tmp/on/bin/trainer-agent --version"
    done = in_image("/bin/sh", "-c", words, user="1000:1000")

    assert f"trainer-agent, version {__version__}\n" == done.stdout, done.stderr


def test_what_an_image_lacks(in_image):
    """Certificates are those that were brought, and Python is ours."""
    code = "from trainer_agent.bundle import own_authorities; print(own_authorities())"
    certificates = in_image("/bin/sh", "-c", f"/agent/lib-*/bin/python3 -c '{code}'")
    launch = in_image("/agent/bin/trainer-agent", "launch", "--dry-run", "--launcher", "python", "--", "train.py")

    assert "/certificates.pem\n" == certificates.stdout[-18:]
    assert "/bin/python3 train.py\n" == launch.stdout[-22:]


def test_a_directory_that_the_user_may_not_write_to(in_image):
    """One message with the next action."""
    done = in_image("/agent/bin/trainer-agent", "install", "--to", "/dev", user="1000:1000")
    said = json.loads(done.stderr)

    assert (30, "install-not-writable", "--to=/dev: Permission denied") == (
        done.returncode,
        said["code"],
        said["event"],
    )


@pytest.mark.parametrize(
    "options,code,exit_code",
    [("noexec", "install-noexec", 30), ("size=20m", "install-no-space", 20), ("nr_inodes=500", "install-no-space", 20)],
)
def test_volumes_that_will_not_do(installation, tmp_path, options, code, exit_code):
    """Mounted noexec, too small, full on the way: one message, and nothing is left that looks like a program."""
    done = unshared(ON_VOLUME, options, tmp_path, installation)
    said = json.loads(done.stderr)

    assert (code, exit_code, True) == (said["code"], said["exit_code"], said["event"].startswith(f"--to={tmp_path}: "))
    assert [str(exit_code), ".trainer-agent-lock"] == done.stdout.split()


def test_the_host_is_another(bundle):
    """What these tests show would mean little if the bundle were bound to this interpreter's place."""
    used = next(bundle.glob("lib-*/bin/python3"))
    done = subprocess.run(
        [used, "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True, timeout=60, check=True
    )

    assert f"{used.parents[1]}\n" == done.stdout != f"{sys.prefix}\n"
