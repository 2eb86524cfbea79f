"""
Prove that the agent leaves the same files as Kubeflow's own initializers where it promises to.

    git clone https://github.com/kubeflow/trainer
    python tests/servers/kubeflow_contract.py --kubeflow trainer

Both run unchanged, with the same variables, against the same servers on loopback, in a root whose /workspace is a
directory of ours: /workspace/dataset and /workspace/model are written into their program. It prints the table of
docs/initialize.md with what was measured, and ends with 1 where that is not what `kubeflow_cases.py` promises.
Works for root and for whoever may make user namespaces; everything is below one temporary directory.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from hub import Hub
from kubeflow_cases import CASES, TOKEN, Outcome, promised, table

# Mount points cannot be made in a root that is not ours, so this makes another one of the same directories.
ROOT = """
set -e; root=$1 workspace=$2; shift 2
mount -t tmpfs tmpfs "$root"
for entry in /*; do
    if [ -L "$entry" ]; then cp -P "$entry" "$root$entry"
    elif [ -d "$entry" ]; then mkdir "$root$entry"; mount --rbind "$entry" "$root$entry"; fi
done
mkdir -p "$root/workspace"; mount --bind "$workspace" "$root/workspace"
exec chroot "$root" "$@"
"""
RUN_S = 120
LOG_CHARACTERS = 1000
# huggingface_hub asks it before it stores a token.
WHOAMI = {"name": "reader", "type": "user", "auth": {"accessToken": {"displayName": "contract", "role": "read"}}}
# What each keeps for itself.
OWN = {".trainer-agent", ".cache"}
# Whether an empty one of these is made before a refusal says nothing.
DESTINATIONS = {Path("dataset"), Path("model")}


class Bucket:
    """
    The S3 server; each case has a bucket of its own.

    Signatures are not checked: opendal leaves a slash in a query as it is, which S3 takes and moto does not.
    """

    def __init__(self, endpoint):
        import boto3

        keys = {"aws_access_key_id": "contract", "aws_secret_access_key": "not-for-logs"}
        self.client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)
        names = {"ACCESS_KEY_ID": keys["aws_access_key_id"], "SECRET_ACCESS_KEY": keys["aws_secret_access_key"]}
        self.environ = {"ENDPOINT": endpoint, "REGION": "us-east-1", **names}

    def provide(self, case, name):
        """Put what a case needs there."""
        self.client.create_bucket(Bucket=name)
        for key, body in case.files.items():
            self.client.put_object(Bucket=name, Key=key, Body=body)

    def change(self, case, name):
        """Delete what goes before the second time."""
        for key in case.gone:
            self.client.delete_object(Bucket=name, Key=key)


class Repositories:
    """The Hub; each case has a repository of its own."""

    def __init__(self, hub):
        self.hub = hub
        self.environ = {"HF_ENDPOINT": hub.endpoint}
        hub.tokens[TOKEN] = set()
        answer = {"status": 200, "body": json.dumps(WHOAMI).encode(), "headers": {"Content-Type": "application/json"}}
        hub.fault("hub GET /api/whoami-v2", times=sys.maxsize, **answer)

    def provide(self, case, name):
        """Put what a case needs there."""
        path = self._path(case, name)
        self.hub.repository(path, private=case.private).commit(case.files)
        self.hub.tokens[TOKEN].add(path)

    def change(self, case, name):
        """Delete what goes before the second time."""
        left = {path: data for path, data in case.files.items() if path not in case.gone}
        self.hub.repos[self._path(case, name)].commit(left)

    def _path(self, case, name):
        return f"{case.kind}s/{name}" if case.uri == "hf://{}" else f"{case.kind}s/org/{name}"


class Side:
    """
    One of the two, with a case of its own.

    Args:
        directory: its home, its log and its /workspace.
        command: an interpreter of Python, and the module with its arguments.
    """

    def __init__(self, directory, command):
        self.directory, self.command = directory, command
        self.workspace, self.log = directory / "workspace", directory / "log"
        for path in (self.workspace, directory / "root", directory / "home"):
            path.mkdir(parents=True)

    def run(self, environ):
        """Run it once; return its exit code."""
        namespace = ["unshare", "--map-root-user", "--mount", "sh", "-c", ROOT, "sh"]
        argv = [*namespace, self.directory / "root", self.workspace, *self.command]
        environ = {**environ, "HOME": str(self.directory / "home")}
        with self.log.open("ab") as log:
            done = subprocess.run(argv, env=environ, cwd="/", stdout=log, stderr=log, timeout=RUN_S, check=False)
        return done.returncode

    def tree(self):
        """Return {path: permissions and SHA-256} of all below /workspace that is not its own."""
        found = {path.relative_to(self.workspace): path for path in self.workspace.rglob("*")}
        kept = (name for name in found if name not in DESTINATIONS and OWN.isdisjoint(name.parts))
        return {name.as_posix(): _described(found[name]) for name in kept}


def _described(path):
    mode = f"{path.lstat().st_mode:o}"
    return f"{mode} {hashlib.sha256(path.read_bytes()).hexdigest()}" if path.is_file() else mode


def measure(case, sides, *, source, name, environ):
    """Fetch a case both ways; return what became of it, and what either has alone, with the end of its log."""
    source.provide(case, name)
    environ = {**environ, "STORAGE_URI": case.uri.format(name), **case.environ}
    codes = [side.run(environ) for side in sides]
    if case.gone or case.later:
        source.change(case, name)
        codes = [side.run({**environ, **case.later}) for side in sides]
    trees = [side.tree() for side in sides]
    alone = (sorted(tree.items() - other.items()) for tree, other in zip(trees, reversed(trees), strict=True))
    told = [f"{files}\n{side.log.read_text()[-LOG_CHARACTERS:]}" for files, side in zip(alone, sides, strict=True)]
    return Outcome(trees[0] == trees[1], tuple(codes)), "\n".join(told)


@contextmanager
def servers():
    """Run both; yield them by the scheme of what they serve."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    try:
        with Hub() as hub:
            bucket, repositories = Bucket("http://{}:{}".format(*moto.get_host_and_port())), Repositories(hub)
            yield {"s3": bucket, "hf": repositories, "ftp": repositories}
    finally:
        moto.stop()


def arguments():
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.strip().partition("\n")[0])
    parser.add_argument("--kubeflow", type=Path, required=True, help="a checkout of kubeflow/trainer")
    parser.add_argument("--python", default=sys.executable, help="a Python with what Kubeflow's initializers need")
    return parser.parse_args()


def main():
    """Measure all cases; return the exit code."""
    given = arguments()
    # A copy of the agent may be tried with PYTHONPATH.
    paths = [str(given.kubeflow.resolve(strict=True)), os.environ.get("PYTHONPATH")]
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    outcomes, wrong = [], 0
    with tempfile.TemporaryDirectory(prefix="contract-") as directory, servers() as sources:
        for source in sources.values():
            environ |= source.environ
        for number, case in enumerate(CASES):
            name = f"case-{number}"
            ours = [sys.executable, "-m", "trainer_agent", "init", case.kind]
            theirs = [given.python, "-m", f"pkg.initializers.{case.kind}"]
            sides = [Side(Path(directory, name, who), argv) for who, argv in (("ours", ours), ("theirs", theirs))]
            source = sources[case.uri.partition(":")[0]]
            outcome, told = measure(case, sides, source=source, name=name, environ=environ)
            outcomes.append(outcome)
            if outcome != promised(case):
                wrong += 1
                print(f"{case.what}: {outcome} instead of {promised(case)}\n{told}", file=sys.stderr)
    print("\n".join(table(outcomes)))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
