"""
The servers that everybody fetches from: a bucket nearby (nginx), one far away (tests/servers/remote_s3.py), a Hub.

Both buckets say what S3 says: multipart ETags, MD5s for small objects, full-object CRC64NVMEs to those who ask.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data import MANIFEST, OBJECTS
from nginx import Nginx, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

REMOTE_S3 = Path(__file__).parent.parent / "tests" / "servers" / "remote_s3.py"
LATENCY_MS, MB_PER_S = 30, 80
UNCAPPED_MB_PER_S = 1e6
COMMIT = "c" * 40
REPOSITORY, XET_REPOSITORY = "bench/mixed", "bench/xet"

BUCKET = """
    map $uri $etag {{ {etags} }}
    map $uri $crc {{ {crcs} }}
    map "$http_x_amz_checksum_mode $http_range" $asked_crc {{ default ""; "~*^enabled $" $crc; }}
    map "$http_if_match|$etag" $differs {{ default 1; "~^\\|" ""; "~^(.+)\\|\\1$" ""; }}
    server {{
        listen 127.0.0.1:{port};
        location = /bucket {{ proxy_pass {lists}; }}
        location = /bucket/ {{ proxy_pass {lists}; }}
        location /bucket/ {{
            alias {objects}/;
            if ($differs) {{ return 412; }}
            more_clear_input_headers If-Match;
            etag off;
            add_header ETag $etag;
            add_header x-amz-checksum-crc64nvme $asked_crc;
            add_header x-amz-checksum-type $asked_type;
        }}
    }}
    map $asked_crc $asked_type {{ default FULL_OBJECT; "" ""; }}
"""

HUB = """
    map $uri $etag {{ {etags} }}
    server {{
        listen 127.0.0.1:{port};
        location ~ ^/api/datasets/[^/]+/[^/]+/(revision|tree)/ {{
            root {pages};
            try_files $uri.json =404;
            default_type application/json;
            types {{ }}
        }}
        location ~ ^/api/datasets/[^/]+/[^/]+/xet-read-token/ {{
            default_type application/json;
            add_header X-Xet-Cas-Url {cas};
            add_header X-Xet-Access-Token xet;
            add_header X-Xet-Token-Expiration 4102444800;
            return 200 '{{"casUrl": "{cas}", "accessToken": "xet", "exp": 4102444800}}';
        }}
        location /datasets/{repository}/resolve/{commit}/texts/ {{
            alias {objects}/hub/texts/;
            etag off;
            add_header ETag $etag;
            add_header X-Repo-Commit {commit};
        }}
        {large}
    }}
"""
# A CDN has an origin of its own: huggingface_hub follows the redirection of a HEAD otherwise.
ON_THE_CDN = """
        location = /datasets/{repository}/resolve/{commit}/{path} {{
            add_header X-Repo-Commit {commit} always;
            add_header X-Linked-ETag '"{sha256}"' always;
            add_header X-Linked-Size {size} always;
            add_header ETag '"{git}"' always;
            return 302 {cdn}/bucket/{key}?signature=none;
        }}
"""
IN_XET_ONLY = """
        location = /datasets/{repository}/resolve/{commit}/{path} {{
            add_header X-Repo-Commit {commit} always;
            add_header X-Linked-ETag '"{sha256}"' always;
            add_header X-Linked-Size {size} always;
            add_header X-Xet-Hash {xet} always;
            add_header X-Error-Code EntryNotFound always;
            return 404;
        }}
"""


@dataclass(frozen=True)
class Servers:
    """What the servers need: the data that `data.py` made and room for themselves."""

    data: Path
    directory: Path
    nginx: Nginx

    @property
    def objects(self) -> Path:
        """Where the files lie."""
        return self.data / OBJECTS

    def manifest(self) -> dict[str, Any]:
        """Return what is known of each object."""
        facts: dict[str, Any] = json.loads((self.data / MANIFEST).read_text())
        return facts

    @contextmanager
    def near(self) -> Iterator[str]:
        """Serve the bucket as fast as this machine can; the listings come from the one that is far away."""
        manifest = self.manifest()
        with self.far(latency_ms=0) as lists:
            port = free_port()
            http = BUCKET.format(
                port=port,
                lists=f"{lists}/bucket",
                objects=self.objects,
                etags=_table({f"/bucket/{key}": f'"{facts["etag"]}"' for key, facts in manifest.items()}),
                crcs=_table({f"/bucket/{key}": facts["crc64nvme"] for key, facts in manifest.items()}),
            )
            with self.nginx.serving(http, directory=self.directory / f"nginx-{port}", port=port):
                yield f"http://127.0.0.1:{port}"

    @contextmanager
    def far(self, *, latency_ms: float = LATENCY_MS, mb_per_s: float = MB_PER_S) -> Iterator[str]:
        """Serve the bucket from far away."""
        shape = ["--latency-ms", str(latency_ms), "--mb-per-s", str(mb_per_s)]
        command: list[str | Path] = [
            sys.executable,
            REMOTE_S3,
            self.objects,
            "--manifest",
            self.data / MANIFEST,
            *shape,
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                yield server.stdout.readline().strip()  # type: ignore[union-attr]
            finally:
                server.terminate()

    @contextmanager
    def hub(self, *, capped: bool = False) -> Iterator[str]:
        """Serve the Hub, and its CDN: as fast as this machine can, or capped per connection."""
        with ExitStack() as stack:
            cdn = stack.enter_context(self.far(latency_ms=0) if capped else self.near())
            files = {key.removeprefix("hub/"): facts for key, facts in self.manifest().items() if "hub/" in key}
            large = [
                ON_THE_CDN.format(repository=REPOSITORY, commit=COMMIT, path=path, cdn=cdn, key=f"hub/{path}", **facts)
                for path, facts in files.items()
                if path.startswith("weights/")
            ]
            tree = [_entry(path, facts, lfs=path.startswith("weights/")) for path, facts in files.items()]
            etags = {f"/datasets/{REPOSITORY}/resolve/{COMMIT}/{path}": f'"{f["git"]}"' for path, f in files.items()}
            yield stack.enter_context(self._hub(REPOSITORY, tree, large="".join(large), etags=etags))

    @contextmanager
    def xet(self, cas: str, key: str, xet: str) -> Iterator[str]:
        """Serve a Hub whose only file is one that Xet alone has."""
        facts = self.manifest()[key]
        path = Path(key).name
        large = IN_XET_ONLY.format(repository=XET_REPOSITORY, commit=COMMIT, path=path, xet=xet, **facts)
        tree = [{**_entry(path, facts, lfs=True), "xetHash": xet}]
        with self._hub(XET_REPOSITORY, tree, large=large, cas=cas) as endpoint:
            yield endpoint

    @contextmanager
    def _hub(
        self, repository: str, tree: list[Any], *, large: str, etags: dict[str, str] | None = None, cas: str = "none"
    ) -> Iterator[str]:
        port = free_port()
        directory = self.directory / f"hub-{port}"
        api = directory / "pages" / "api" / "datasets" / repository
        for name in ("main", COMMIT):
            _write_json(api / "revision" / f"{name}.json", {"id": repository, "sha": COMMIT, "private": False})
        _write_json(api / "tree" / f"{COMMIT}.json", tree)
        http = HUB.format(
            port=port,
            pages=directory / "pages",
            objects=self.objects,
            repository=repository,
            commit=COMMIT,
            large=large,
            etags=_table(etags or {}),
            cas=cas,
        )
        with self.nginx.serving(http, directory=directory / "nginx", port=port):
            yield f"http://127.0.0.1:{port}"


def _entry(path: str, facts: dict[str, Any], *, lfs: bool) -> dict[str, Any]:
    """Return a file as the Hub's tree lists it."""
    entry = {"type": "file", "path": path, "size": facts["size"], "oid": facts["git"]}
    return {**entry, "lfs": {"oid": facts["sha256"], "size": facts["size"], "pointerSize": 134}} if lfs else entry


def _table(values: dict[str, str]) -> str:
    """Return the lines of a map of nginx."""
    return "\n".join(f"{key} '{value}';" for key, value in values.items())


def _write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
