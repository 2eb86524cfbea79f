"""System calls that a seccomp profile may refuse, and that a fetch can do without."""

import errno

import pytest
from fetching import BLOCK, bring, held_back, tree
from memory_source import Memory
from seccomp import refuse

from trainer_agent.host import Host
from trainer_agent.initializers.disk import Disk
from trainer_agent.isolation import isolated

pytestmark = pytest.mark.lab

FILES = {"large": BLOCK * 9} | {f"{number}": b"small" for number in range(100)}


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOSYS], ids=errno.errorcode.get)
@pytest.mark.parametrize(
    "names", [("syncfs",), ("flock",), ("fallocate", "sync_file_range"), ("statfs", "fstatfs")], ids=" ".join
)
def test_a_fetch_does_without(tmp_path, names, code):
    """All arrives, and is put on disk in another way."""

    def fetched():
        refuse(*names, code=code)
        bring(Memory(FILES), tmp_path)

    isolated(fetched, timeout_s=60)

    assert FILES == tree(tmp_path)
    if Disk(tmp_path, host=Host()).together:
        assert [] == [name for name in FILES if held_back(tmp_path / name)]
