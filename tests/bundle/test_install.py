"""Putting a bundle into a directory: whole or not at all, once, and never beside what was there before."""

import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import pytest
from podlab import children, without

from trainer_agent.bundle.install import INCOMING, LOCK, install
from trainer_agent.errors import FatalError, RetryError
from trainer_agent.isolation import contained

pytestmark = pytest.mark.lab


def says(to):
    """Return what the program in a directory says when it is started."""
    return subprocess.run(
        [to / "bin/trainer-agent", "--version"],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
        env={"PATH": os.defpath},
    ).stdout


def versions(to):
    """Return the versions in a directory."""
    return sorted(p.name for p in to.glob("lib-*"))


def names(to):
    """Return all that lies in a directory."""
    return sorted(p.name for p in to.iterdir())


def test_a_real_installation(run_install, bundle, tmp_path):
    """The log says what was copied, where to, and how long it took; the same again is no copy."""
    to = tmp_path / "new" / "agent"
    first = run_install(to)
    inode = next(to.glob("lib-*")).stat().st_ino
    second = run_install(to)

    assert ("installed", "already installed") == (first.said["event"], second.said["event"])
    assert {"event", "files", "level", "mb", "seconds", "timestamp", "to", "version"} == set(first.said)
    assert (str(to), versions(bundle)[0]) == (first.said["to"], first.said["version"])
    assert 40 < first.said["mb"] < 150
    assert inode == next(to.glob("lib-*")).stat().st_ino
    assert "" == first.stdout
    shutil.rmtree(to)


def test_a_bundle_installs_itself(run_install, bundle, tmp_path):
    """Its copy is the same, file by file, with the same name, and starts."""
    to = tmp_path / "on"
    done = run_install(to, program=bundle / "bin/trainer-agent", env={"PATH": os.defpath})
    trees = [
        {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()} for root in (bundle, to)
    ]

    assert "installed" == done.said["event"]
    assert trees[0] == trees[1]
    assert says(to).startswith("trainer-agent, version")
    shutil.rmtree(to)


def test_whatever_the_umask(small, tmp_path):
    """Other users can run what root has copied."""
    to = tmp_path / "a" / "b"
    umask = os.umask(0o077)
    try:
        install(small(), to)
    finally:
        assert 0o077 == os.umask(umask)
    everything = list((tmp_path / "a").rglob("*"))

    assert {0o755} == {stat.S_IMODE(p.stat().st_mode) for p in everything if p.is_dir()}
    assert {0o644, 0o755} == {stat.S_IMODE(p.stat().st_mode) for p in everything if p.is_file()}


def test_an_upgrade_keeps_what_may_still_be_running(small, tmp_path):
    """The replaced version stays until another replaces this one, not the same again; files of others stay for good."""
    to = tmp_path / "to"
    (to / "lib-of-somebody").mkdir(parents=True)
    left = []
    for name in ("lib-1-a", "lib-2-b", "lib-2-b", "lib-3-c"):
        install(small(name, loader=f"#!/bin/sh\necho {name}\n"), to)
        assert f"{name}\n" == says(to)
        left.append(versions(to))

    assert [
        ["lib-1-a", "lib-of-somebody"],
        ["lib-1-a", "lib-2-b", "lib-of-somebody"],
        ["lib-1-a", "lib-2-b", "lib-of-somebody"],
        ["lib-2-b", "lib-3-c", "lib-of-somebody"],
    ] == left


INSTALL = """
import json, sys
from pathlib import Path
from trainer_agent.bundle.contents import Contents
from trainer_agent.bundle.install import install
facts = json.loads(sys.argv[1])
facts["files"] = {place: Path(path) for place, path in facts["files"].items()}
print(install(Contents(**facts), Path(sys.argv[2])).copied)
"""


@pytest.fixture
def start_install():
    """Start an installation in a process of its own; ended after the test."""
    started = []

    def start(contents, to):
        facts = json.dumps(asdict(contents), default=str)
        started.append(subprocess.Popen([sys.executable, "-c", INSTALL, facts, to], stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def slow():
    """Return a file whose reader waits for ever."""
    master, slave = os.openpty()
    yield os.ttyname(slave)
    os.close(master)
    os.close(slave)


def wait_until(there):
    """Return when something is there."""
    deadline = time.monotonic() + 60
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_an_installation_that_is_killed_leaves_nothing_that_looks_whole(small, slow, start_install, tmp_path, signum):
    """While it copies, and after it was killed, the old program works; the next installation tidies up."""
    to = tmp_path / "to"
    install(small("lib-1-a"), to)
    process = start_install(small("lib-2-b", **{"lib/late": slow}), to)
    wait_until(lambda: list(to.glob(f"{INCOMING}*/bin/trainer-agent")))
    during = says(to), versions(to)
    process.send_signal(signum)
    process.wait(timeout=60)

    assert during == ("version\n", ["lib-1-a"]) == (says(to), versions(to))
    assert install(small("lib-2-b"), to).copied
    assert [LOCK, "bash_env", "bin", "lib-1-a", "lib-2-b", "wrappers"] == names(to)


def test_two_at_once_end_with_one_copy(small, start_install, tmp_path):
    """They wait for each other, and the second has nothing to do."""
    to = tmp_path / "to"
    to.mkdir()
    with (to / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        both = [start_install(small("lib-1-a"), to) for _ in range(2)]
        wait_until(lambda: all(has_open(process.pid, to / LOCK) for process in both))
        before = names(to)
    copied = sorted(process.communicate(timeout=60)[0] for process in both)

    assert [LOCK] == before
    assert ["False\n", "True\n"] == copied
    assert [LOCK, "bash_env", "bin", "lib-1-a", "wrappers"] == names(to)


def has_open(pid, path):
    """Return whether a process has opened a file."""
    try:
        return any(fd.resolve() == path for fd in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


FS_GROUP = 2000


@pytest.fixture
def volume(tmp_path):
    """Return a directory as the kubelet makes a volume for an fsGroup."""
    if os.geteuid() != 0:
        without("only root can be other users")
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & stat.S_IXOTH:  # all of pytest's own
            folder.chmod(0o755)
    to = tmp_path / "to"
    to.mkdir()
    os.chown(to, 0, FS_GROUP)
    to.chmod(0o2775)
    return to


def copied_by(user, contents, to):
    """Return whether the installation of another user, of the fsGroup, has copied anything; or how it was refused."""

    def other():
        os.setgroups([FS_GROUP])
        os.setgid(user)
        os.setuid(user)
        return install(contents, to).copied

    return contained(other, grace_s=5)


def test_another_user_of_the_volume_finds_the_same_version_and_brings_another(small, volume):
    """What lies there is as much the group's as the directory itself; nobody is refused for the lock of the first."""
    done = [copied_by(user, small(name), volume) for user, name in ((1000, "lib-1-a"), (1001, "lib-1-a"))]
    done += [copied_by(user, small(name), volume) for user, name in ((1001, "lib-2-b"), (1000, "lib-3-c"))]

    assert [True, False, True, True] == done
    assert [LOCK, "bash_env", "bin", "lib-2-b", "lib-3-c", "wrappers"] == names(volume)


def test_another_user_waits_for_the_first_one(small, volume):
    """It finds what the other has brought in the meantime."""
    copied_by(1000, small("lib-1-a"), volume)
    with (volume / LOCK).open("r+") as lock, ThreadPoolExecutor(1) as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)
        other = pool.submit(copied_by, 1001, small("lib-2-b"), volume)
        wait_until(lambda: any(has_open(pid, volume / LOCK) for pid in children(os.getpid())))
        before = versions(volume), other.done()
        fcntl.flock(lock, fcntl.LOCK_UN)

    assert ((["lib-1-a"], False), True) == (before, other.result())


def test_a_version_that_is_there_is_found_where_nobody_can_write(small, volume):
    """As on a volume that is mounted read-only; another version needs one that is not."""
    install(small("lib-1-a"), volume)
    volume.chmod(0o555)

    assert not copied_by(1001, small("lib-1-a"), volume)
    for to in (volume, volume / "below"):
        with pytest.raises(FatalError) as caught:
            copied_by(1001, small("lib-2-b"), to)
        assert "install-not-writable" == caught.value.code


def test_a_place_that_cannot_be_looked_at(small, volume):
    """It is refused as one that cannot be written."""
    volume.chmod(0o700)
    with pytest.raises(FatalError) as caught:
        copied_by(1001, small(), volume / "below")
    assert "install-not-writable" == caught.value.code


def test_a_copy_that_does_not_start_is_not_switched_to(small, tmp_path):
    """What was there before stays in use."""
    to = tmp_path / "to"
    install(small("lib-1-a"), to)
    with pytest.raises(FatalError) as caught:
        install(small("lib-2-b", loader="#!/bin/sh\necho no such library >&2; exit 127\n"), to)

    assert "install-broken" == caught.value.code
    assert f"--to={to}: the copied program does not start (exit code 127: no such library)" == caught.value.message
    assert ("version\n", [LOCK, "bash_env", "bin", "lib-1-a", "wrappers"]) == (says(to), names(to))


def test_what_was_damaged_is_copied_again(small, tmp_path):
    """A version that is there and does not start is no version."""
    to = tmp_path / "to"
    install(small(), to)
    (to / "lib-1-a/bin/trainer-agent").write_text("damaged")

    assert install(small(), to).copied
    assert "version\n" == says(to)


def test_too_little_space_is_said_before_copying(small, tmp_path):
    """With both numbers, and nothing left behind; the same pod may find more on another node."""
    huge = tmp_path / "huge"
    huge.touch()
    os.truncate(huge, 1 << 42)
    with pytest.raises(RetryError) as caught:
        install(small(**{"lib/huge": huge}), tmp_path / "to")

    assert "install-no-space" == caught.value.code
    assert caught.value.message.endswith("MB are free there, and the copy takes 4398047 MB or more")
    assert [LOCK] == names(tmp_path / "to")


@pytest.mark.parametrize(
    "to,code,words",
    [
        ("file", "install-not-a-directory", "is a file, and a directory is wanted"),
        ("file/below", "install-not-writable", "Not a directory"),
        ("/proc/agent", "install-not-writable", "No such file or directory"),
        ("a:b", "install-path", "the path has one of the characters : ; $ or a line break"),
        ("a$b", "install-path", "the path has one of the characters : ; $ or a line break"),
    ],
)
def test_directories_that_will_not_do(small, tmp_path, to, code, words):
    """One message that names the option, its value and what is the matter."""
    (tmp_path / "file").touch()
    with pytest.raises(FatalError) as caught:
        install(small(), tmp_path / to)

    assert (code, True, True) == (caught.value.code, caught.value.message.startswith("--to="), bool(caught.value.hint))
    assert caught.value.message.endswith(words)


def test_errors_are_one_line_of_the_command(run_install, tmp_path):
    """With our exit code, and no traceback."""
    (tmp_path / "file").touch()
    done = run_install(tmp_path / "file")

    assert (30, "install-not-a-directory", 1) == (done.returncode, done.said["code"], done.stderr.count("\n"))
