"""Destinations that several users write: what another one has left, and what the next one may do with ours."""

import codecs
import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from claiming import as_nobody
from fetching import BIG, FEW, bring
from memory_source import Memory

from trainer_agent.errors import FatalError, RetryError
from trainer_agent.initializers import HIDDEN
from trainer_agent.isolation import isolated

FILES = {"a": b"alpha", "deep/b": b"beta"}
CLONE_NEWNS, MS_RDONLY, MS_REC, MS_PRIVATE = 0x20000, 1, 0x4000, 1 << 18  # linux/sched.h, linux/mount.h


def test_what_another_user_has_left_is_told_as_such(ours):
    """As root did in an earlier run: the volume itself may be written, so that it is not to blame."""
    ours.parent.chmod(0o777)
    lock = ours / "lock"
    lock.touch(0o400)
    owner = lock.stat()

    def enter():
        with pytest.raises(FatalError) as caught:
            bring(Memory(FILES), as_nobody(ours.parent))
        return caught.value.code, caught.value.hint, os.geteuid()

    code, hint, user = isolated(enter, timeout_s=20)

    assert "destination-not-writable" == code
    assert hint.startswith(f"make {HIDDEN} and all in it writable for uid {user}, groups ")
    assert hint.endswith(f", or remove it; {HIDDEN}/lock is of {owner.st_uid}:{owner.st_gid}, mode 0400")


@pytest.mark.parametrize("below", ["", "/new"], ids=["in it", "deeper"])
def test_a_directory_of_another_user_is_told_before_the_first_byte(tmp_path, below):
    """Where the file could not be put in place in the end, however long it took to come."""
    tmp_path.chmod(0o777)
    (tmp_path / "theirs").mkdir(0o555)
    owner = (tmp_path / "theirs").stat()

    def enter():
        source = Memory({f"theirs{below}/f": b"abc"})
        with pytest.raises(FatalError) as caught:
            bring(source, as_nobody(tmp_path))
        return caught.value.message, caught.value.hint, source.reads

    message, hint, reads = isolated(enter, timeout_s=20)

    assert ("cannot write to .: Permission denied (theirs)", []) == (message, reads)
    assert hint.startswith("make theirs writable for uid ")
    assert hint.endswith(f", or remove it; theirs is of {owner.st_uid}:{owner.st_gid}, mode 0555")


@pytest.mark.lab
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_read_only_directory_of_a_volume_is_told_before_the_first_byte(tmp_path):
    """Another volume may be mounted there: nobody's rights are to blame."""
    (tmp_path / "theirs").mkdir()

    def enter():
        libc, source = ctypes.CDLL(None, use_errno=True), Memory({"theirs/f": b"abc"})
        assert 0 == libc.unshare(CLONE_NEWNS)
        assert 0 == libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None)
        assert 0 == libc.mount(b"none", bytes(tmp_path / "theirs"), b"tmpfs", MS_RDONLY, None)
        with pytest.raises(RetryError) as caught:
            bring(source, tmp_path)
        return caught.value.message, source.reads

    message = f"cannot write to {tmp_path}: Read-only file system ({tmp_path}/theirs)"
    assert (message, []) == isolated(enter, timeout_s=20)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become several users")
@pytest.mark.parametrize("umask, mode", [(0o002, 0o664), (0o000, 0o666)])
def test_one_of_the_same_group_goes_on_where_the_umask_lets_it(tmp_path, umask, mode):
    """Files have the mode of any that a program opens, as with Kubeflow's initializers, from the first byte on."""
    tmp_path.chmod(0o777)
    codecs.lookup("ascii")  # Python's own files may be root's

    def cut(path, at):
        if at >= len(BIG) // 2:
            raise FatalError("cut", "in the middle")

    def brought(user, hook):
        os.chdir(tmp_path)
        os.umask(umask)
        os.setgroups([])
        os.setresgid(1000, 1000, 1000)
        os.setresuid(user, user, user)
        source = Memory({"sub/f": BIG}, hook=hook)
        try:
            bring(source, Path(), bounds=FEW)
        except FatalError as error:
            return error.code, source.served.total()
        return "", source.served.total()

    code, first = isolated(lambda: brought(1000, cut), timeout_s=60)
    assert ("cut", True) == (code, first > 0)
    code, rest = isolated(lambda: brought(1001, lambda path, at: None), timeout_s=60)

    published = (tmp_path / "sub" / "f").stat()
    assert ("", True, 1000, mode) == (code, rest < len(BIG), published.st_uid, published.st_mode & 0o7777)


@pytest.mark.lab
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up root's rights")
def test_a_root_without_rights_is_told_as_such(tmp_path):
    """As in a container that drops all capabilities; an owner of 0:0 would be no explanation on NFS."""
    destination = tmp_path / "destination"
    destination.mkdir(0o755)
    os.chown(destination, 1000, 1000)
    (tmp_path / "source").write_text("alpha")
    rightless = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", sys.executable, "-m", "trainer_agent"]

    done = subprocess.run(
        [*rightless, "init", "dataset"],
        env={**os.environ, "STORAGE_URI": f"file://{tmp_path}/source", "OUTPUT_PATH": str(destination)},
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )

    last = json.loads(done.stderr.splitlines()[-1])
    hint = "(root has no further rights there: root_squash of NFS, or no CAP_DAC_OVERRIDE)"
    assert (30, "destination-not-writable") == (done.returncode, last["code"])
    assert last["hint"].endswith(f" {hint}; {destination} is of 1000:1000, mode 0755")
