"""Fetching without waiting for the disk: what counts then, and that waiting is made up for."""

import os
import subprocess
import sys

import pytest
from fetching import BLOCK, bring, held_back, tree
from memory_source import Memory

from trainer_agent.errors import FatalError
from trainer_agent.host import Host
from trainer_agent.initializers import HIDDEN, record
from trainer_agent.initializers.disk import Disk

pytestmark = pytest.mark.lab

FILES = {"large": BLOCK * 20, **{f"small/{number}": BLOCK[: 1000 + number] for number in range(40)}}


@pytest.fixture
def local(tmp_path):
    """Return a directory that is on a disk of this machine."""
    if not Disk(tmp_path, host=Host()).together:
        assert os.environ.get("CI") != "true", f"{tmp_path} is on no local disk"
        pytest.skip(f"{tmp_path} is on no local disk: choose one with --basetemp")
    return tmp_path


def on_disk(directory, names):
    """Return whether the kernel has nothing left to write of the files."""
    return not any(held_back(directory / name) for name in names)


def flushed(directory):
    """Return what the record says."""
    return record.read(directory / HIDDEN).flushed


def test_without_waiting_the_kernel_has_it_all(local):
    """And the record says so; files of any size, in place as ever, and none comes twice."""
    bring(Memory(FILES), local, flush="later")

    assert (tree(local), on_disk(local, FILES), flushed(local)) == (FILES, False, False)
    again = Memory(FILES)
    assert (bring(again, local, flush="later").fetched_files, again.reads, flushed(local)) == (0, [], False)


def test_waiting_is_made_up_for(local):
    """By the next fetch that is to wait; whoever does not need to afterwards takes nothing of that back."""
    bring(Memory(FILES), local, flush="later")

    bring(Memory(FILES), local)

    assert (on_disk(local, FILES), flushed(local)) == (True, True)
    bring(Memory(FILES), local, flush="later")
    assert flushed(local)


def test_waiting_is_made_up_for_beside_what_has_changed(local):
    """All that the new record names is on disk."""
    bring(Memory(FILES), local, flush="later")
    changed = Memory({**FILES, "new": b"new"})

    bring(changed, local)

    assert list(changed.served) == ["new"]
    assert (on_disk(local, [*FILES, "new"]), flushed(local)) == (True, True)


def test_waiting_is_made_up_for_what_an_attempt_without_a_record_put_in_place(local):
    """Nobody knows whether it waited."""
    in_the_way = local / HIDDEN / "record.json.part"
    first = Memory(FILES, hook=lambda path, at: in_the_way.mkdir(exist_ok=True))
    with pytest.raises(FatalError, match=r"record\.json\.part is a directory"):
        bring(first, local, flush="later")
    assert not on_disk(local, FILES)
    in_the_way.rmdir()
    again = Memory(FILES)

    bring(again, local)

    assert (again.reads, on_disk(local, FILES)) == ([], True)


@pytest.mark.parametrize("flush", ["wait", "later"])
def test_what_the_disk_has_never_had_is_fetched_again(local, flush):
    """When a node crashes, sizes and times may be right and bytes are not: without waiting, only a proof counts."""
    bring(Memory(FILES), local, flush="later")
    lost = local / "small/7"
    stat = lost.stat()
    lost.write_bytes(bytes(stat.st_size))
    os.utime(lost, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    again = Memory(FILES)

    bring(again, local, flush=flush)

    assert (tree(local), list(again.served), flushed(local)) == (FILES, ["small/7"], flush == "wait")


def test_sizes_prove_nothing(local):
    """Nobody knows a checksum of what was fetched by size."""
    bring(Memory(FILES), local, flush="later", verify="size")
    again = Memory(FILES)

    bring(again, local, verify="size")

    assert (tree(local), sorted(again.served)) == (FILES, sorted(FILES))


def test_each_kind_is_asked_on_its_own(local):
    """By variables, as in a pod."""
    (local / "source").mkdir()
    (local / "source" / "f").write_bytes(b"abc")
    env = {"PATH": os.environ["PATH"], "TRAINER_AGENT_INIT_DATASET_FLUSH": "later"}
    for kind in "dataset", "model":
        env[f"TRAINER_AGENT_INIT_{kind.upper()}_STORAGE_URI"] = f"file://{local}/source"
        env[f"TRAINER_AGENT_INIT_{kind.upper()}_OUTPUT_PATH"] = str(local / kind)

    subprocess.run([sys.executable, "-m", "trainer_agent", "init", "all"], env=env, check=True, timeout=60)

    assert [False, True] == [flushed(local / kind) for kind in ("dataset", "model")]
