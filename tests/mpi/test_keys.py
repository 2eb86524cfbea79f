"""The job's key pair: where it is found, how it becomes one that OpenSSH accepts, what is said when it cannot."""

import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest
from podlab import without
from structlog.testing import capture_logs

from trainer_agent.errors import FatalError, RetryError
from trainer_agent.isolation import contained
from trainer_agent.mpi import keys
from trainer_agent.mpi.keys import check_user, copy_key, find_key, fingerprint, no_key, private_folder, public_key

NOBODY = 65534
UNKNOWN = 1000710000  # such uids OpenShift gives


def keygen(path, *options):
    """Make a key pair as ssh-keygen does."""
    if not shutil.which("ssh-keygen"):
        without("there is no ssh-keygen")
    subprocess.run(["ssh-keygen", "-q", "-N", "", *options, "-f", str(path)], check=True, timeout=60)
    return path


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    """A key as Trainer's controller makes it."""
    return keygen(tmp_path_factory.mktemp("key") / "id_rsa", "-t", "ecdsa", "-b", "521", "-m", "PEM")


@pytest.fixture
def folder(tmp_path):
    """Where the copy goes."""
    path = tmp_path / "memory"
    path.mkdir()
    return path


def public_of(key):
    """Return what stands in the public file, without the comment."""
    return " ".join(key.with_name(f"{key.name}.pub").read_text().split()[:2])


def as_user(uid, function):
    """Call a function as another user, where this one is root."""

    def call():
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        return function()

    return contained(call, grace_s=5)


def refused(function):
    """Return the error that a call ends with."""
    with pytest.raises(FatalError) as error:
        function()
    return error.value


def test_the_key_that_is_named(tmp_path, key):
    """A path as a person writes it."""
    assert find_key(str(key), "/nowhere") == key
    assert find_key("~/id_rsa", str(key.parent)) == key


def test_a_key_that_is_named_must_be_there(tmp_path):
    """The places are no substitute; nor is a pipe, on which reading would hang."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "no", tmp_path, tmp_path / "pipe"):
        error = refused(lambda path=path: find_key(str(path), str(tmp_path)))
        assert error.code == "mpi-key-missing"
        assert error.message == f"{path} is no file that can be seen, wanted a private key"


def test_the_key_of_the_home_comes_first(tmp_path):
    """Of the places, the user's own."""
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id_rsa").touch()
    assert find_key(None, str(tmp_path)) == tmp_path / ".ssh" / "id_rsa"


@pytest.mark.skipif(os.path.exists("/home/mpiuser/.ssh/id_rsa"), reason="here is such a key")  # noqa: PTH110  # evaluated at import
def test_no_key_and_places_that_are_closed(tmp_path):
    """None, also where the user may not look; the error says which places those are."""
    (tmp_path / ".ssh").mkdir(mode=0)
    tmp_path.chmod(0o755)
    assert as_user(NOBODY, lambda: find_key(None, "/nowhere")) is None
    message = as_user(NOBODY, lambda: no_key("/root").message)
    expected = "no private key: looked for /root/.ssh/id_rsa and /home/mpiuser/.ssh/id_rsa"
    assert message in (expected, f"{expected}; /root/.ssh is closed to uid {os.getuid() or NOBODY}")
    assert no_key("/nowhere").code == "mpi-key-absent"


@pytest.mark.skipif(os.geteuid() != 0, reason="the place is root's")
def test_a_place_that_is_closed_is_named():
    """Trainer's default place is root's home, whatever the user of the container."""
    with tempfile.TemporaryDirectory() as home:
        assert f"{home}/.ssh is closed to uid {NOBODY}" in as_user(NOBODY, lambda: no_key(home).message)


def test_the_private_folder_is_on_memory_and_gone_afterwards():
    """Nobody else may enter it."""
    with private_folder() as folder:
        assert folder.parent == Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "file").touch()
    assert not folder.exists()


def test_without_memory_the_folder_is_on_disk(monkeypatch, tmp_path):
    """A directory of the image at /dev/shm would be a disk under another name."""
    monkeypatch.setattr(keys, "MEMORY", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    with capture_logs() as logs, private_folder() as folder:
        assert folder.parent == tmp_path / "tmp"
    assert [(line["log_level"], line["folder"]) for line in logs] == [("info", str(folder))]


def test_no_place_for_the_folder(monkeypatch, tmp_path):
    """A read-only root file system without a volume."""
    monkeypatch.setattr(keys, "MEMORY", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))

    def enter():
        with private_folder():
            pass

    assert refused(enter).code == "no-temporary-directory"


def test_a_key_with_the_mode_that_trainer_mounts(key, folder):
    """OpenSSH refuses 0640 from its owner, and accepts the copy."""
    key.chmod(0o640)
    copy, public = copy_key(key, folder)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert public_of(key) == public == public_key(copy)
    assert public_of(key).startswith("ecdsa-sha2-nistp521 AAAA")


@pytest.mark.parametrize("change", [lambda t: t.rstrip(b"\n"), lambda t: t.replace(b"\n", b"\r\n")], ids=["end", "CR"])
def test_a_key_that_went_through_an_editor(tmp_path, folder, change):
    """Without the last newline, or with those of Windows, ssh-keygen itself reads no key in OpenSSH's format."""
    key = keygen(tmp_path / "key", "-t", "ed25519")
    key.write_bytes(change(key.read_bytes()))
    assert copy_key(key, folder)[1] == public_of(key)


@pytest.mark.parametrize(
    "text,said",
    [(b"", "error in libcrypto"), (b"ssh-rsa AAAA me\n", "error in libcrypto"), (b"a" * 70000, "65536 bytes")],
    ids=["empty", "public", "large"],
)
def test_what_is_no_key(tmp_path, folder, text, said):
    """The error calls it by the name of the mounted file."""
    key = tmp_path / "id_rsa"
    key.write_bytes(text)
    error = refused(lambda: copy_key(key, folder))
    assert error.code == "mpi-key-invalid"
    assert str(key) in error.message
    assert said in error.message
    assert str(folder) not in error.message


@pytest.mark.parametrize("form", [("-m", "PEM"), ()], ids=["PEM", "OpenSSH"])
def test_a_key_with_a_passphrase(tmp_path, folder, form):
    """Nobody is there to type it, and nothing waits for that."""
    key = keygen(tmp_path / "key", "-t", "ecdsa", *form, "-N", "secret")
    error = refused(lambda: copy_key(key, folder))
    assert error.code == "mpi-key-invalid"
    assert error.message.endswith("incorrect passphrase supplied to decrypt private key")


def test_a_key_that_cannot_be_read(key):
    """Whose it is, who asks, and what to do."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        mounted = Path(name) / "id_rsa"
        mounted.write_bytes(key.read_bytes())
        mounted.chmod(0)
        uid, gid = os.getuid(), os.getgid()
        error = refused(lambda: as_user(NOBODY, lambda: copy_key(mounted, Path(name))))
        asked = (NOBODY, NOBODY) if uid == 0 else (uid, gid)
    assert error.code == "mpi-key-unreadable"
    assert error.message == (
        f"cannot read {mounted} (of uid {uid}, gid {gid}, mode 0000) as uid {asked[0]}, gid {asked[1]}: "
        "Permission denied"
    )
    assert "fsGroup" in error.hint


def test_a_key_that_vanishes(tmp_path):
    """A secret that is deleted meanwhile."""
    error = refused(lambda: copy_key(tmp_path / "no", tmp_path))
    assert error.code == "mpi-key-unreadable"
    assert "of an unknown owner: No such file or directory" in error.message


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user without an entry")
def test_a_user_without_an_entry():
    """OpenSSH would only say that no user exists."""
    error = refused(lambda: as_user(UNKNOWN, check_user))
    assert error.code == "mpi-user-unknown"
    assert f"uid {UNKNOWN} has no entry in /etc/passwd" in error.message


def test_without_ssh_keygen(monkeypatch, tmp_path, key):
    """What to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    error = refused(lambda: public_key(key))
    assert error.code == "ssh-keygen-missing"
    assert "openssh-client" in error.hint


def test_an_ssh_keygen_that_hangs(monkeypatch, tmp_path, key):
    """It is ended, and the same pod may do better."""
    (tmp_path / "ssh-keygen").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "ssh-keygen").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(keys, "KEYGEN_S", 0.1)
    with pytest.raises(RetryError) as error:
        public_key(key)
    assert error.value.code == "ssh-keygen-stuck"


def test_the_fingerprint_is_the_one_of_openssh(key):
    """So that people can compare it."""
    shown = subprocess.run(["ssh-keygen", "-l", "-f", key], capture_output=True, text=True, check=True, timeout=60)
    assert fingerprint(public_of(key)) == shown.stdout.split()[1]
