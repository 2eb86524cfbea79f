"""
The main job on one machine: two nodes check themselves, fetch data and model from an S3 server, and train.

Starts moto (an S3-protocol server that checks signatures and permissions) on loopback, puts the digits of
scikit-learn and initial weights there, then runs `trainer-agent local`.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

BUCKET = "demo"
WANTED_ACCURACY = 0.90
START_SECONDS = 30.0
STOP_SECONDS = 10.0
TRAINING = Path(__file__).with_name("train_digits.py")
READ_ONLY = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": ["s3:ListBucket", "s3:GetObject"], "Resource": "*"}],
}


@contextmanager
def s3_server(log: Path) -> Iterator[str]:
    """Run moto on a free port of loopback; yield its endpoint."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file) as server:
        try:
            wait_for(port, server)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            try:
                server.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()


def wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    """Return when the server accepts connections."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        with socket.socket() as sock:
            if sock.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise SystemExit("the S3 server did not start; see its log")


def fill(endpoint: str) -> dict[str, str]:
    """Put dataset and model there, create a user who may only read, turn the checks on; return the user's variables."""
    import boto3

    account: dict[str, Any] = {
        "endpoint_url": endpoint,
        "region_name": "us-east-1",
        "aws_access_key_id": "setup",
        "aws_secret_access_key": secrets.token_hex(16),
    }
    s3, iam = boto3.client("s3", **account), boto3.client("iam", **account)
    s3.create_bucket(Bucket=BUCKET)
    s3.put_object(Bucket=BUCKET, Key="dataset/digits.npz", Body=digits())
    s3.put_object(Bucket=BUCKET, Key="model/init.pt", Body=weights())
    iam.create_user(UserName="reader")
    iam.put_user_policy(UserName="reader", PolicyName="read", PolicyDocument=json.dumps(READ_ONLY))
    key = iam.create_access_key(UserName="reader")["AccessKey"]
    plain = {"Content-Type": "text/plain"}  # moto reads no form here
    request = urllib.request.Request(f"{endpoint}/moto-api/reset-auth", data=b"0", headers=plain, method="POST")
    urllib.request.urlopen(request, timeout=START_SECONDS).close()
    return {
        "ENDPOINT": endpoint,
        "REGION": "us-east-1",
        "ACCESS_KEY_ID": key["AccessKeyId"],
        "SECRET_ACCESS_KEY": key["SecretAccessKey"],
        "TRAINER_AGENT_INIT_DATASET_STORAGE_URI": f"s3://{BUCKET}/dataset",
        "TRAINER_AGENT_INIT_MODEL_STORAGE_URI": f"s3://{BUCKET}/model",
    }


def digits() -> bytes:
    """Return 1,797 handwritten digits of 8 by 8 pixels, the data set inside scikit-learn, as an .npz file."""
    import numpy as np
    from sklearn.datasets import load_digits

    data = load_digits()
    file = io.BytesIO()
    np.savez_compressed(file, images=data.data.astype("uint8"), labels=data.target.astype("uint8"))
    return file.getvalue()


def weights() -> bytes:
    """Return the initial weights of the example's network."""
    import torch
    from train_digits import network

    torch.manual_seed(0)
    file = io.BytesIO()
    torch.save(network().state_dict(), file)
    return file.getvalue()


def rehearse(workdir: Path, variables: dict[str, str], *, nnodes: int) -> tuple[int, str]:
    """Run the agents; return their exit code and what they printed on standard output."""
    command = [sys.executable, "-m", "trainer_agent", "local", "--nnodes", str(nnodes), "--workdir", str(workdir)]
    lines = []
    with subprocess.Popen(
        [*command, "--", str(TRAINING)], env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True
    ) as agents:
        for line in agents.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
    return agents.returncode, "".join(lines)


def main() -> int:
    """Run the demo; exit 0 when the network learnt to read."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nnodes", type=int, default=2)
    parser.add_argument("--workdir", type=Path, help="default: a new temporary directory")
    args = parser.parse_args()
    workdir = args.workdir or Path(tempfile.mkdtemp(prefix="trainer-agent-demo-"))
    workdir.mkdir(parents=True, exist_ok=True)
    print("starting an S3 server and putting dataset and model there", flush=True)
    with s3_server(workdir / "s3-server.log") as endpoint:
        code, output = rehearse(workdir, fill(endpoint), nnodes=args.nnodes)
    found = re.search(r"test accuracy ([\d.]+)", output)
    if code or not found:
        print(f"the demo failed with exit code {code}; see {workdir}")
        return code or 1
    print(f"\ntest accuracy {found[1]} (wanted {WANTED_ACCURACY:.2f})")
    for rank in range(args.nnodes):
        print(f"node {rank}: report {workdir}/node-{rank}/preflight.json  log {workdir}/node-{rank}/log.txt")
    return 0 if float(found[1]) >= WANTED_ACCURACY else 1


if __name__ == "__main__":
    sys.exit(main())
