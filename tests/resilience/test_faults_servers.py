"""Real servers behind the proxy, which check signatures: a connection breaks, and the data is right."""

import secrets
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from agent_process import KEY_ID, SECRET
from breakage import Fault
from breaker import FaultProxy
from demo import s3_server
from fault_cases import ALONE

MIB = 1 << 20
RCLONE = Path(sys.executable).parent / "rclone"


@contextmanager
def rclone(directory):
    """Serve a directory by rclone, which knows our keys and no others."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [RCLONE, "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY_ID},{SECRET}", directory]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            deadline = time.monotonic() + 60
            while not _listens(port):
                assert server.poll() is None, "rclone has ended"
                assert time.monotonic() < deadline, "rclone does not listen"
                time.sleep(0.02)
            yield port
        finally:
            server.terminate()


@contextmanager
def moto(directory):
    """Serve a directory by moto."""
    import boto3

    with s3_server(directory.parent / f"moto-{secrets.token_hex(4)}") as endpoint:
        keys = {"aws_access_key_id": KEY_ID, "aws_secret_access_key": SECRET}
        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)
        client.create_bucket(Bucket="bucket")
        for path in (p for p in directory.rglob("*") if p.is_file()):
            client.put_object(
                Bucket="bucket", Key=path.relative_to(directory / "bucket").as_posix(), Body=path.read_bytes()
            )
        yield int(endpoint.rpartition(":")[2])


def _listens(port):
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.lab
# rclone sends whole files only (200), which is found out first; what was cut begins anew.
@pytest.mark.parametrize("serve,ranged,again", [(rclone, False, 12 * MIB), (moto, True, MIB)], ids=["rclone", "moto"])
def test_a_reset_in_front_of_a_real_server(agent, data, destination, *, tmp_path, serve, ranged, again):
    """Signed requests pass the proxy unchanged, and a range goes on where it ended."""
    if serve is rclone and not RCLONE.exists():
        pytest.skip("rclone is not installed")
    shutil.copytree(data.directory, tmp_path / "root" / "bucket" / "data")
    with serve(tmp_path / "root") as port, FaultProxy(port) as proxy:
        reset = Fault("GET /bucket/data/big.bin", ranged=ranged, reset_after=10 * MIB)
        proxy.add(reset)
        run = agent(*ALONE, endpoint=proxy.endpoint)

        assert run.finish() == 0, run.output
        assert data.lacking(destination) == []
        assert reset.done == 1
        assert proxy.twice() <= again
