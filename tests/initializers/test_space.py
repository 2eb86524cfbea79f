"""Room that is lacking is told before the first byte."""

import shutil
import tempfile
from pathlib import Path

import pytest
from fetching import FEW, order, tree
from memory_source import Memory

from trainer_agent.errors import FatalError, RetryError
from trainer_agent.host import Host
from trainer_agent.initializers.disk import Disk
from trainer_agent.initializers.fetch import fetch

MIB = 1 << 20
HINT = "raise the container's limit of memory, or take a volume on disk, such as an emptyDir without a medium"


@pytest.fixture
def volume():
    """Return an emptyDir of the medium Memory."""
    place = Path(tempfile.mkdtemp(dir="/dev/shm"))
    if not Disk(place, host=Host()).in_memory:
        pytest.skip("/dev/shm is no tmpfs here")
    yield place
    shutil.rmtree(place)


@pytest.fixture
def container(tmp_path):
    """Return a function that makes a container with so many MiB of memory, of which it uses 4."""

    def make(limit, *, swap=0):
        limits = {"memory.limit_in_bytes": str(limit * MIB), "memory.usage_in_bytes": str(4 * MIB), "memory.stat": ""}
        files = {f"sys/fs/cgroup/memory/{name}": text for name, text in limits.items()}
        for name, text in (files | {"proc/meminfo": f"SwapTotal: 9 kB\nSwapFree:  {swap * 1024} kB\n"}).items():
            (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "root" / name).write_text(text)
        return Host(tmp_path / "root")

    return make


def big(size):
    """Return a source that says that it has so many MiB, and a small file that it has."""
    return Memory({"big": b"", "small": b"abc"}, listed={"big": size * MIB - 3})


@pytest.mark.parametrize("limit, kind", [(16, FatalError), (30, RetryError)], ids=["never", "not now"])
def test_a_volume_in_memory_counts_to_the_limit_of_the_container(volume, container, limit, kind):
    """Whoever exceeds it is killed; that is so with every attempt where not even an empty container holds it."""
    source = big(20)
    with pytest.raises(kind) as caught:
        fetch([order(source, volume)], host=container(limit), bounds=FEW)

    message = (
        f"{volume} lies in memory, of which this container has {(limit - 4) * MIB:,} bytes left of {limit * MIB:,}, "
        f"and {20 * MIB:,} are to come"
    )
    told = caught.value.code, caught.value.message, caught.value.hint
    assert (("no-space", message, HINT), [], {}) == (told, source.reads, tree(volume))


@pytest.mark.parametrize("limit, swap", [(60, 0), (16, 40)], ids=["memory", "swap"])
def test_what_the_container_holds_is_fetched(volume, container, limit, swap):
    """It is the source that ends this one: it sends nothing of the large file."""
    with pytest.raises(RetryError) as caught:
        fetch([order(big(20), volume)], host=container(limit, swap=swap), bounds=FEW)

    assert "source-cut" == caught.value.code


def test_a_limit_of_memory_is_no_limit_of_a_disk(tmp_path, container):
    """Its page cache goes when memory is needed."""
    destination = tmp_path / "destination"
    destination.mkdir()
    if Disk(destination, host=Host()).in_memory:
        pytest.skip(f"{destination} is no disk: choose one with --basetemp")
    with pytest.raises(RetryError) as caught:
        fetch([order(big(20), destination)], host=container(16), bounds=FEW)

    assert "source-cut" == caught.value.code


def test_a_volume_in_memory_without_a_limit(volume, tmp_path):
    """As where the pod has none, or a kernel that tells none."""
    source = Memory({"f": b"abc"})
    fetch([order(source, volume)], host=Host(tmp_path / "nothing"), bounds=FEW)

    assert {"f": b"abc"} == tree(volume)
