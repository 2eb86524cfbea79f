"""The candidates of the benchmark all do the same work, and what goes wrong is told."""

import os
import sys
from dataclasses import replace

import data
import gang_scale
import pytest
from cells import CELLS, differences
from fetch import empty
from hub import Hub
from measure import FailedError, Run, run
from peers import HUB_PEERS, NEAR_PEERS
from remote_s3 import RemoteS3, read_manifest
from servers import Servers
from tables import HEADER, table, verdicts

CELL = {cell.name: cell for cell in CELLS}


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bench")
    data.make(directory / "data", divide=1000)
    return Servers(directory / "data", directory, nginx=None)


@pytest.fixture
def fetched(tmp_path, servers):
    """Return a function that runs a candidate and returns the files that are wrong."""

    def fetch(peer, cell, endpoint):
        destination = tmp_path / "fetched"
        destination.mkdir()
        job = cell.job(servers, endpoint, peer, destination)
        environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **peer.environ(job)}
        run(peer.command(job), environ, log=tmp_path / "log")
        return differences(destination, cell.expected(servers), hashes=True)

    return fetch


@pytest.mark.parametrize("peer", NEAR_PEERS, ids=lambda peer: peer.name)
def test_every_candidate_fetches_the_bucket(peer, servers, fetched):
    with RemoteS3(read_manifest(servers.data / data.MANIFEST, servers.objects), latency_s=0) as bucket:
        assert fetched(peer, CELL["again"], bucket.endpoint) == []


@pytest.mark.parametrize("peer", HUB_PEERS, ids=lambda peer: peer.name)
def test_every_candidate_fetches_the_repository(peer, servers, fetched):
    with Hub() as hub:
        files = CELL["hub-near"].expected(servers)
        hub.repository("datasets/bench/mixed").commit({path: servers.objects / "hub" / path for path in files})
        assert fetched(peer, CELL["hub-near"], hub.endpoint) == []


def test_files_that_are_wrong_are_found(tmp_path, servers):
    """Missing, too many, another size, other bytes."""
    expected = CELL["again"].expected(servers)
    assert sorted(expected) == differences(tmp_path, expected, hashes=False)
    for name in expected:
        (tmp_path / name).write_bytes((servers.objects / "many" / name).read_bytes())
    (tmp_path / ".trainer-agent").mkdir()
    (tmp_path / ".trainer-agent" / "record").write_text("ours")
    assert differences(tmp_path, expected, hashes=True) == []
    first, second, third, *_ = sorted(expected)
    (tmp_path / first).write_bytes(bytes(expected[first][0]))
    (tmp_path / second).write_bytes(b"another size")
    (tmp_path / third).rename(tmp_path / "other")
    assert [second, third, "other"] == differences(tmp_path, expected, hashes=False)
    assert [first, second, third, "other"] == differences(tmp_path, expected, hashes=True)


def test_a_run_is_measured_with_its_children(tmp_path):
    """Memory and processor time of a process that the program waited for count."""
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'bytes(b\"x\") * (100 << 20)'], check=True)"
    assert run([sys.executable, "-c", script], {}, log=tmp_path / "log").peak_mb > 100


def test_a_run_that_fails_says_what_the_program_said(tmp_path):
    with pytest.raises(FailedError, match=r"ended with 3: no such bucket"):
        run(["/bin/sh", "-c", "echo no such bucket; exit 3"], {}, log=tmp_path / "log")


def test_the_verdict_is_a_miss_below_the_ratio():
    """Half the speed of cp, five times Kubeflow's, as fast as the fastest of the others, 150 MB."""
    results = {
        "trainer-agent": [Run(2.0, 1.0, 100.0), Run(4.0, 1.0, 151.0), Run(1.0, 1.0, 100.0)],
        "kubeflow": [Run(10.0, 1.0, 4000.0)],
        "s5cmd": [Run(1.98, 1.0, 20.0)],
        "boto3": [Run(4.0, 1.0, 20.0)],
        "cp": [Run(1.0, 1.0, 10.0)],
    }
    cell = CELL["large-near"]
    assert [
        "ok      large-near: kubeflow takes 5.00 times as long, 5 at least",
        "ok      large-near: cp takes 0.50 times as long, 0.5 at least",
        "MISSED  large-near: the fastest other, s5cmd, takes 0.99 times as long, 1 at least",
        "MISSED  large-near: 151 MB at its largest, 150 at most",
    ] == [str(verdict) for verdict in verdicts(cell, results)]
    assert table(cell, 2 << 30, results).splitlines()[:3] == [
        "large-near: 1 x 2 GiB, nginx on loopback",
        HEADER,
        "trainer-agent            2.00      1.00-4.00   1074   1.00      151         1.0",
    ]


def test_without_waiting_for_the_disk_the_same_is_asked_for():
    """Side by side with the run that waits, whose verdicts stay as they are."""
    seconds = {"trainer-agent": 2.0, "agent-later": 1.0, "kubeflow": 4.0, "s5cmd": 1.5, "cp": 0.4}
    results = {name: [Run(value, 1.0, 100.0)] for name, value in seconds.items()}

    assert [
        "MISSED  large-near: kubeflow takes 2.00 times as long, 5 at least",
        "MISSED  large-near: cp takes 0.20 times as long, 0.5 at least",
        "MISSED  large-near: the fastest other, s5cmd, takes 0.75 times as long, 1 at least",
        "MISSED  large-near: beside agent-later, kubeflow takes 4.00 times as long, 5 at least",
        "MISSED  large-near: beside agent-later, cp takes 0.40 times as long, 0.5 at least",
        "ok      large-near: beside agent-later, the fastest other, s5cmd, takes 1.50 times as long, 1 at least",
        "ok      large-near: 100 MB at its largest, 150 at most",
    ] == [str(verdict) for verdict in verdicts(CELL["large-near"], results)]


def test_who_waits_for_the_disk_is_compared_with_who_does():
    """After what was asked for, beside which the disk alone may decide."""
    seconds = {"trainer-agent": 2.0, "kubeflow+sync": 10.0, "s5cmd": 1.0, "s5cmd+sync": 2.0, "cp": 0.5, "cp+sync": 0.9}
    results = {name: [Run(value, 1.0, 100.0)] for name, value in seconds.items()}

    assert [
        "MISSED  large-near: cp takes 0.25 times as long, 0.5 at least",
        "MISSED  large-near: the fastest other, s5cmd, takes 0.50 times as long, 1 at least",
        "ok      large-near: kubeflow+sync takes 5.00 times as long, 5 at least",
        "MISSED  large-near: cp+sync takes 0.45 times as long, 0.5 at least",
        "ok      large-near: the fastest other that waits, s5cmd+sync, takes 1.00 times as long, 1 at least",
        "ok      large-near: 100 MB at its largest, 150 at most",
    ] == [str(verdict) for verdict in verdicts(CELL["large-near"], results)]


def test_what_has_another_name_is_not_emptied(tmp_path):
    """It is somebody else's."""
    (tmp_path / "library").write_bytes(b"x" * 5000)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "link").hardlink_to(tmp_path / "library")
    empty(tmp_path / "home")

    assert (tmp_path / "library").stat().st_size == 5000


def test_emptied_files_stay(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "file").write_bytes(b"x" * 5000)
    empty(tmp_path)
    assert (tmp_path / "deep" / "file").stat().st_size == 0


@pytest.mark.lab
def test_a_small_gang_meets():
    """Sixteen nodes in two processes, and a real rank 0: all have the verdict, and what it took is known."""
    meeting = gang_scale.run(16, workers=2)

    assert 0 < meeting.unpack_ms / 1000 < meeting.meet_s
    assert 100 < meeting.store_mb < meeting.total_mb
    assert meeting.asks > 5
    assert [str(16), "12.00"] == gang_scale.row(16, [replace(meeting, connect_s=12.0)])[:2]
