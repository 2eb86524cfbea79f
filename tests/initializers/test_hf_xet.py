"""Files that only Xet has, by the real hf_xet from a storage in a local directory."""

import hashlib
import random
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from hub import Hub
from hub_repository import Blob

from trainer_agent.errors import FatalError
from trainer_agent.initializers import TransientError
from trainer_agent.initializers.hf import HubSource

pytestmark = pytest.mark.lab

SIZE = 64 << 20
DATASET = "datasets/org/name"


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Return the address of a storage, 64 MiB that are in it, and their hash there."""
    import hf_xet

    address = f"local://{tmp_path_factory.mktemp('cas')}"
    data = random.Random(3).randbytes(SIZE)
    with hf_xet.XetSession().new_upload_commit(address) as commit:
        stream = commit.start_upload_stream(name="big.bin")
        stream.write(data)
        found = stream.finish()
    return address, data, found.xet_info.hash


@pytest.fixture
def hub(stored):
    address, data, xet_hash = stored
    with Hub(cas=address) as server:
        only = Blob.of(data, lfs=True, xet=xet_hash, plain=False)
        both = Blob.of(data[:100], lfs=True, xet=xet_hash)
        server.repository(DATASET).commit({"only.bin": only, "both.bin": both})
        yield server


@pytest.fixture
def source(hub):
    return HubSource("org/name", {"HF_ENDPOINT": hub.endpoint})


def entry_of(source, path):
    return next(e for e in source.entries() if e.path == path)


def read(source, entry, start, stop):
    return b"".join(map(bytes, source.read(entry, start, stop)))


def test_whole_file_has_its_checksum(source):
    entry = entry_of(source, "only.bin")
    digest = hashlib.sha256()
    pieces = [digest.update(piece) or len(piece) for piece in source.read(entry, 0, SIZE)]

    assert f"sha256:{digest.hexdigest()}" == entry.checksum
    assert max(pieces) <= 256 << 10


def test_ranges_side_by_side_with_one_token(hub, source, stored):
    entry = entry_of(source, "only.bin")
    cuts = [(0, 10), (SIZE - 5, SIZE), (1 << 20, 3 << 20), (12345, 23456), (SIZE // 2, SIZE // 2 + 1)]
    got = {}
    threads = [threading.Thread(target=lambda a=a, b=b: got.update({a: read(source, entry, a, b)})) for a, b in cuts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {a: stored[1][a:b] for a, b in cuts} == got
    assert 1 == len(hub.requests("xet-read-token"))


def test_file_that_can_be_had_otherwise_is(hub, source, stored):
    assert stored[1][:100] == read(source, entry_of(source, "both.bin"), 0, 100)
    assert [] == hub.requests("xet-read-token")


def test_larger_file_than_the_cdn_sends_is_not_asked_for_there(hub, source, stored):
    """The beginning of a file that the Hub says has more than 50 GB."""
    entry = replace(entry_of(source, "only.bin"), size=50_000_000_001)

    assert stored[1][:9] == read(source, entry, 0, 9)
    assert [] == hub.requests("/resolve/")


def test_storage_that_lacks_the_bytes_is_worth_a_retry(hub, source, tmp_path):
    hub.cas = f"local://{tmp_path}"

    with pytest.raises(TransientError, match="Xet") as caught:
        read(source, entry_of(source, "only.bin"), 0, 10)
    assert "xet-failed" == caught.value.code


@pytest.mark.parametrize("status", [401, 500])
def test_refused_or_broken_storage_is_asked_again_with_a_new_token(hub, source, status):
    """One on the network, which answers nothing good."""
    hub.cas = hub.endpoint
    hub.fault("/reconstructions/", status=status, times=99)
    entry = entry_of(source, "only.bin")

    for asked in [1, 2]:
        with pytest.raises(TransientError, match="Xet"):
            read(source, entry, 0, 10)
        assert asked == len(hub.requests("xet-read-token"))


def test_hash_that_is_none_is_told(hub, source):
    files = {"only.bin": Blob.of(b"1234567890", lfs=True, xet="no hash", plain=False)}
    hub.repository(DATASET).commit(files)

    with pytest.raises(TransientError, match="RuntimeError"):
        read(source, entry_of(source, "only.bin"), 0, 10)


def test_only_xet_is_asked_once_it_is_known(hub, source, stored):
    entry = entry_of(source, "only.bin")
    for start in range(5):
        assert stored[1][start : start + 9] == read(source, entry, start, start + 9)

    assert 1 == len(hub.requests("/resolve/"))


def test_hub_that_gives_no_token_is_told(hub, source):
    hub.fault("xet-read-token", status=200, body=b'{"casUrl": 1}')

    with pytest.raises(FatalError, match="names no Xet storage"):
        read(source, entry_of(source, "only.bin"), 0, 10)


def test_missing_library_is_named(hub):
    """In a Python that has no hf_xet."""
    code = """
import sys
sys.modules["hf_xet"] = None
from trainer_agent.errors import FatalError
from trainer_agent.initializers.hf import HubSource
source = HubSource("org/name", {"HF_ENDPOINT": sys.argv[1]})
entry = next(e for e in source.entries() if e.path == "only.bin")
try:
    list(source.read(entry, 0, 10))
except FatalError as error:
    print(error.code, error.hint)
"""
    command = [sys.executable, "-c", code, hub.endpoint]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)

    assert "xet-missing install hf-xet in this image\n" == done.stdout
