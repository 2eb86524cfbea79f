"""An OUTPUT_PATH where nothing can be."""

import os
import resource
import tempfile
from pathlib import Path

import pytest
from fetching import MIB, bring
from memory_source import Memory

from trainer_agent.errors import FatalError
from trainer_agent.isolation import contained


@pytest.mark.parametrize("below", ["x" * 300, "/".join(["x" * 250] * 17), "x" * 300 + "/y"])
def test_a_path_that_is_too_long(tmp_path, below):
    """Nothing at the source has to do with it."""
    with pytest.raises(FatalError, match=r"the file system refuses OUTPUT_PATH='.*': File name too long") as caught:
        bring(Memory({"f": b"abc"}), tmp_path / below)

    assert ("destination-not-writable", "choose another OUTPUT_PATH") == (caught.value.code, caught.value.hint)


def test_a_path_that_leaves_our_own_names_no_room(tmp_path):
    """The destination itself could be made."""
    deep = tmp_path.joinpath(*["x" * 250] * 15)
    deep /= "y" * (4090 - len(str(deep)))
    with pytest.raises(FatalError, match=r"the file system refuses OUTPUT_PATH='.*': File name too long"):
        bring(Memory({"f": b"abc"}), deep)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_path_below_what_this_user_may_not_look_at():
    """The hint says whose it is."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "private" / "x"
        place.parent.mkdir(mode=0o700)
        Path(folder).chmod(0o755)

        def brought():
            os.setgroups([])
            os.setgid(1000)
            os.setuid(1000)
            return bring(Memory({"f": b"abc"}), place)

        with pytest.raises(FatalError, match=f"cannot write to {place}: Permission denied") as caught:
            contained(brought, grace_s=1.0, timeout_s=20.0)

    hint = f"make the volume writable for uid 1000, groups 1000; {place.parent} is of 0:0, mode 0700"
    assert ("destination-not-writable", hint) == (caught.value.code, caught.value.hint)


@pytest.mark.parametrize("below", ["", "deep/er"])
def test_a_link_to_nowhere(tmp_path, below):
    """As to a volume that is not mounted here."""
    (tmp_path / "link").symlink_to("/nowhere/at/all")
    with pytest.raises(FatalError, match="link is a link to /nowhere/at/all, which is not there") as caught:
        bring(Memory({"f": b"abc"}), tmp_path / "link" / below)

    hint = "mount what it leads to, or choose another OUTPUT_PATH"
    assert ("destination-in-the-way", hint) == (caught.value.code, caught.value.hint)


@pytest.mark.parametrize("size", [2 * MIB, 9 * MIB])
def test_a_place_that_takes_no_large_files(tmp_path, size):
    """As FAT, or with a limit; that is so on every node."""

    def brought():
        resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, MIB))
        return bring(Memory({"f": bytes(size)}), tmp_path)

    with pytest.raises(FatalError, match="takes no files so large: File too large") as caught:
        contained(brought, grace_s=1.0, timeout_s=20.0)

    hint = "use a file system that takes larger files, or raise the container's limit (ulimit -f)"
    assert ("destination-not-writable", hint) == (caught.value.code, caught.value.hint)
