"""When the disk is told, files are on it: what the kernel still holds back of each is asked of the kernel itself."""

import errno
import os

import pytest
from fetching import held_back

from trainer_agent.host import Host
from trainer_agent.initializers import disk as module
from trainer_agent.initializers.disk import ALONE_BYTES, BATCH_BYTES, MANY, Disk

CALM = "MemTotal:       24000000 kB\nDirty:              3000 kB\nWriteback:             0 kB\n"
BUSY = CALM.replace("   3000 kB", "3000000 kB")


def host_with(tmp_path, meminfo):
    """Return a host with this memory."""
    (tmp_path / "root/proc").mkdir(parents=True)
    (tmp_path / "root/proc/meminfo").write_text(meminfo)
    return Host(tmp_path / "root")


def written(disk, directory, *, files, size):
    """Write files and hand them over."""
    paths = [directory / f"{number}" for number in range(files)]
    for path in paths:
        with path.open("wb") as file:
            file.write(os.urandom(size))
            file.flush()
            disk.take(file.fileno(), path, size)
    return paths


@pytest.fixture
def directory(tmp_path):
    """Return a directory that is on a disk of this machine."""
    made = tmp_path / "data"
    made.mkdir()
    if not Disk(made, host=Host()).together:
        assert os.environ.get("CI") != "true", f"{made} is on no local disk"
        pytest.skip(f"{made} is on no local disk: choose one with --basetemp")
    return made


@pytest.mark.parametrize("meminfo", [CALM, BUSY, ""], ids=["calm", "busy", "unknown"])
@pytest.mark.parametrize("files", [1, MANY])
def test_after_waiting_nothing_is_held_back(tmp_path, directory, meminfo, files):
    """However many there are, and whatever else is to be written on the machine."""
    disk = Disk(directory, host=host_with(tmp_path, meminfo))
    paths = written(disk, directory, files=files, size=100_000)
    disk.wait()

    assert [held_back(path) for path in paths] == [0] * files
    disk.close()


def test_what_an_earlier_attempt_has_written_is_asked_for_file_by_file(tmp_path, directory):
    """However many there are: what failed before the disk was opened, `syncfs` does not tell."""
    disk = Disk(directory, host=host_with(tmp_path, CALM))
    paths = written(disk, directory, files=MANY, size=1000)

    with pytest.raises(FileNotFoundError):
        disk.wait([*paths, directory / "gone"])


def test_small_files_wait_for_each_other(tmp_path, directory):
    """A disk that takes milliseconds for each of them is asked once."""
    disk = Disk(directory, host=host_with(tmp_path, CALM))
    paths = written(disk, directory, files=MANY, size=100_000)

    assert any(held_back(path) for path in paths)


def test_a_large_file_does_not_wait(tmp_path, directory):
    """It is on disk when whoever fetched it goes on."""
    disk = Disk(directory, host=host_with(tmp_path, CALM))
    (path,) = written(disk, directory, files=1, size=ALONE_BYTES)

    assert held_back(path) == 0


def test_a_file_system_of_another_kind_is_not_trusted(tmp_path, directory, monkeypatch):
    """Its `syncfs` may stop at the client of a server."""
    monkeypatch.setattr(module, "LOCAL", frozenset())
    disk = Disk(directory, host=host_with(tmp_path, CALM))
    paths = written(disk, directory, files=MANY, size=100_000)

    assert [held_back(path) for path in paths] == [0] * MANY


def test_more_files_and_directories_may_be_named(tmp_path, directory):
    """Those that somebody else wrote."""
    disk = Disk(directory, host=host_with(tmp_path, CALM))
    path = directory / "other"
    path.write_bytes(os.urandom(100_000))
    disk.wait([path, directory])

    assert held_back(path) == 0


def test_the_disk_begins_before_everything_is_there(tmp_path, directory):
    """With the first files on their way to it, the last ones take less time."""
    disk = Disk(directory, host=host_with(tmp_path, CALM))
    size = ALONE_BYTES - 1
    paths = written(disk, directory, files=BATCH_BYTES // size + 1, size=size)
    disk._early.join()

    assert held_back(paths[0]) == 0


@pytest.mark.parametrize("meminfo,code", [(CALM, errno.EBADF), (BUSY, None)], ids=["calm", "busy"])
def test_errors_of_the_file_system_are_told(tmp_path, directory, meminfo, code):
    """Where it is asked as a whole; on a busy machine it is not."""
    disk = Disk(directory, host=host_with(tmp_path, meminfo))
    written(disk, directory, files=MANY, size=1000)
    disk.close()  # from now on the kernel refuses
    caught = None
    try:
        disk.wait()
    except OSError as error:
        caught = error.errno

    assert caught == code


def test_a_file_that_is_gone_is_told(tmp_path, directory):
    """Nobody may call it whole."""
    disk = Disk(directory, host=host_with(tmp_path, CALM))
    (path,) = written(disk, directory, files=1, size=1000)
    path.unlink()

    with pytest.raises(FileNotFoundError):
        disk.wait()
