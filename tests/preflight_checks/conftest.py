"""A real HTTPS server on loopback that stands for the API server."""

import email.utils
import http.server
import shutil
import ssl
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from trainer_agent.testing import FakeHost

CA = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
NOW = 1_800_000_000.0  # a moment in 2027


@pytest.fixture
def host(tmp_path):
    machine = FakeHost(tmp_path / "root")
    machine.clock = NOW
    return machine


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """A self-signed certificate for loopback, and another authority that did not sign it."""
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("server", "stranger"):
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
                *("-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,IP:::1"),
                *("-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.crt")),
            ],
            check=True,
            capture_output=True,
        )
    return folder


@dataclass
class ApiServer:
    """What the server answers with, one entry for each request, the last one for ever; `drop` hangs up."""

    certificates: Path
    port: int = 0
    address: str = "127.0.0.1"
    answers: list = field(default_factory=lambda: [200])
    date: str | None = email.utils.formatdate(NOW, usegmt=True)
    asked: list = field(default_factory=list)

    @property
    def environ(self):
        return {"KUBERNETES_SERVICE_HOST": self.address, "KUBERNETES_SERVICE_PORT": str(self.port)}

    def trusted_by(self, host, *, authority="server"):
        """Mount the service account of a pod."""
        host.put(CA, (self.certificates / f"{authority}.crt").read_text())

    def handler(self):
        api = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                api.asked.append((self.path, self.headers.get("Authorization")))
                answer = api.answers.pop(0) if len(api.answers) > 1 else api.answers[0]
                if answer == "drop":
                    return
                self.send_response_only(answer)
                if api.date is not None:
                    self.send_header("Date", api.date)
                self.end_headers()

            def log_message(self, *args):
                pass

        return Handler


def _serve(api, address):
    server_class = type("Server", (http.server.ThreadingHTTPServer,), {"address_family": 10 if ":" in address else 2})
    server = server_class((address, 0), api.handler())
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(api.certificates / "server.crt", api.certificates / "server.key")
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # clients that refuse our certificate are part of the tests
    api.port, api.address = server.server_address[1], address
    return server


@pytest.fixture(params=["127.0.0.1"])
def api(certificates, request):
    """The API server; parametrise with `indirect` for another address."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    made = ApiServer(certificates)
    server = _serve(made, request.param)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    server.shutdown()
    thread.join()
    server.server_close()
