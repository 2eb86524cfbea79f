"""Files that only Xet has, by the real hf_xet from a storage in a local directory."""

import hashlib
import json
import os
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

    with pytest.raises(TransientError, match="hash"):
        read(source, entry_of(source, "only.bin"), 0, 10)


def test_query_of_a_signed_url_is_not_shown(hub, source, stored):
    """Its storage refuses what it has signed, as when it has expired."""
    hub.cas = hub.endpoint
    xorb = {"hash": stored[2], "unpacked_length": SIZE, "range": {"start": 0, "end": 1}}
    url = f"{hub.endpoint}/xorb?Sign=secret"
    place = {"range": {"start": 0, "end": 1}, "url": url, "url_range": {"start": 0, "end": 9}}
    found = {"offset_into_first_range": 0, "terms": [xorb], "fetch_info": {stored[2]: [place]}}
    hub.fault("/v2/reconstructions/", status=404, times=99)
    hub.fault("/v1/reconstructions/", status=200, times=99, body=json.dumps(found).encode())
    hub.fault("/xorb", status=403, times=99)

    with pytest.raises(TransientError, match="Xet") as caught:
        read(source, entry_of(source, "only.bin"), 0, 10)
    assert "secret" not in f"{caught.value}"


@pytest.mark.parametrize("told", [{}, {"RUST_LOG": "info"}, {"HF_XET_LOG_DEST": "logs/"}])
def test_its_library_logs_only_where_somebody_wants_it(told, tmp_path):
    """By itself it would write below the home directory, and where that cannot be, among our lines."""
    code = "from trainer_agent.initializers.hf_xet import _hf_xet; _hf_xet()"
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), "HOME": str(tmp_path), **told}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)

    assert "" == done.stdout + done.stderr
    assert bool(told) == any(place.is_file() for place in tmp_path.rglob("*"))


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
