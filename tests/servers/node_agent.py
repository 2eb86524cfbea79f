"""What gives credentials on a node: the instance's metadata service and EKS Pod Identity's agent in one."""

import json
import socket
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class SixthServer(ThreadingHTTPServer):
    """One that speaks IPv6."""

    address_family = socket.AF_INET6


class NodeAgent:
    """
    A server on a free port of loopback; a context manager.

    Args:
        server: `SixthServer` for one at [::1].

    Attributes:
        answers: {path: (status, body)}, which go before its own.
        busy: so many requests are answered with 503 first.
        minutes: how long its credentials are valid; the access keys are ASIA1, ASIA2…
        seen: (method, path, headers) of every request.
    """

    def __init__(self, server=ThreadingHTTPServer):
        self.answers, self.seen, self.minutes, self.given = {}, [], 60, 0
        self.busy = 0
        self._server = server(("::1" if server is SixthServer else "127.0.0.1", 0), _Handler)
        self._server.world = self
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path):
        if path == "/latest/api/token":
            return 200, b"imds-token"
        if path == "/latest/meta-data/iam/security-credentials/":
            return 200, b"node-role\n"
        self.given += 1
        end = datetime.now(UTC) + timedelta(minutes=self.minutes)
        data = {"AccessKeyId": f"ASIA{self.given}", "SecretAccessKey": "agent-secret", "Token": "agent-token"}
        return 200, json.dumps({**data, "Expiration": f"{end:%Y-%m-%dT%H:%M:%SZ}"}).encode()


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_PUT(self):
        self.do_GET()

    def do_GET(self):
        world = self.server.world
        world.seen.append((self.command, self.path, dict(self.headers)))
        if world.busy:
            world.busy -= 1
            self.send_error(503)
            return
        status, body = world.answers.get(self.path) or world.answer(self.path)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)
