"""nginx on loopback, in the foreground, with nothing outside a directory of its own."""

from __future__ import annotations

import getpass
import os
import socket
import subprocess
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGES = ("nginx", "libnginx-mod-http-headers-more-filter")
# nginx compares If-Match with an ETag of its own making, never with the one that it was told to send.
MODULE = "usr/lib/nginx/modules/ngx_http_headers_more_filter_module.so"
START_S = 10.0
CONFIGURATION = """
load_module {module};
daemon off;
user {user};
worker_processes 1;
pid {directory}/pid;
error_log {directory}/error.log warn;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    sendfile on;
    tcp_nopush on;
    keepalive_requests 1000000;
    default_type application/octet-stream;
    open_file_cache max=4096;
    map_hash_max_size 65536;
    map_hash_bucket_size 256;
    variables_hash_max_size 2048;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    {http}
}}
"""


@dataclass(frozen=True)
class Nginx:
    """A program and its module."""

    program: Path
    module: Path

    @classmethod
    def found_below(cls, root: Path) -> Nginx | None:
        """Return the nginx of Debian's packages in `root`, None when one of them is missing."""
        found = cls(root / "usr/sbin/nginx", root / MODULE)
        return found if found.program.exists() and found.module.exists() else None

    @contextmanager
    def serving(self, http: str, *, directory: Path, port: int) -> Iterator[None]:
        """Serve what `http` configures until the block is left; `port` is one that it listens on."""
        directory.mkdir(parents=True)
        configuration = directory / "nginx.conf"
        configuration.write_text(
            CONFIGURATION.format(user=getpass.getuser(), module=self.module, directory=directory, http=http)
        )
        command: list[str | Path] = [self.program, "-p", directory, "-c", configuration, "-e", directory / "error.log"]
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        try:
            _await(server, port)
            yield
        finally:
            server.terminate()
            server.wait()


def find_nginx(cache: Path) -> Nginx:
    """Return the installed nginx, or one that lies in `cache`: unpacked there, not installed."""
    if found := Nginx.found_below(Path("/")) or Nginx.found_below(cache):
        return found
    packages = cache / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "download", "--quiet", *PACKAGES], cwd=packages, check=True)  # noqa: S607
    for package in packages.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, cache], check=True)  # noqa: S607
    found = Nginx.found_below(cache)
    if found is None:
        raise SystemExit(f"{', '.join(PACKAGES)} hold no nginx for this machine: install both")
    return found


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def _await(server: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        os.sched_yield()
    raise SystemExit(f"nginx does not answer on port {port}")
