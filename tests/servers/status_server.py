"""What takes a TrainJob's status: HTTPS, with the rules of Kubeflow Trainer's pkg/statusserver and of its CRD."""

import json
import threading
import time
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from authority import server_context

from trainer_agent.status import Endpoint

PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team-a/trainjobs/job1/status"
MOST_BODY = 1 << 16


class StatusServer:
    """
    A server on a free port of loopback; a context manager.

    Args:
        folder: where the files lie that the controller mounts: `ca.crt` and `token`.
        play: instead of its own answer: a function that gets the handler of a request.

    Attributes:
        status: what the TrainJob has in status.trainerStatus: the last update, which replaces all before.
        updates: all that were taken, in order.
        asked: (method, path, headers) of every request.
        times: when they came.
    """

    def __init__(self, folder, *, token="token-1", play=None):
        self.status, self.updates, self.asked, self.times, self.play = None, [], [], [], play
        self.token = folder / "token"
        self.token.write_text(f"{token}\n")
        self.ca = folder / "ca.crt"
        self._came = threading.Condition()
        self.over = threading.Event()
        self._server = _Quiet(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads, self._server.world = True, self
        context = server_context(self.ca)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"https://127.0.0.1:{self._server.server_port}{PATH}"

    @property
    def environ(self):
        """What the controller injects."""
        words = {"URL": self.url, "CA_CERT": str(self.ca), "TOKEN": str(self.token)}
        return {f"KUBEFLOW_TRAINER_SERVER_{word}": value for word, value in words.items()}

    @property
    def metrics(self):
        """The metrics of the last update."""
        return {metric["name"]: metric["value"] for metric in self.status["metrics"]} if self.status else {}

    def until(self, requests, within=60.0):
        """Wait until so many requests have come."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.asked) >= requests, within), f"{len(self.asked)} requests"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self._server.shutdown()
        self._server.server_close()

    def came(self, handler):
        """Take a request down."""
        with self._came:
            self.asked.append((handler.command, handler.path, dict(handler.headers)))
            self.times.append(time.monotonic())
            self._came.notify_all()

    def take(self, path, authorization, body):
        """Return code and answer, as the controller has them."""
        if path != PATH:
            return 404, "Not found"
        if authorization != f"Bearer {self.token.read_text().strip()}":
            return 403, "Forbidden"
        if len(body) > MOST_BODY:
            return 413, "Payload too large"
        try:
            update = json.loads(body)
            wrong = faults(update["trainerStatus"])
        except (ValueError, KeyError, TypeError):
            return 422, "Invalid payload"
        if wrong:
            return 422, "; ".join(wrong)
        self.status = update["trainerStatus"]
        self.updates.append(self.status)
        return 200, update


def faults(status):
    """Return what the validation of the TrainJob's resource definition says."""
    metrics = status.get("metrics", [])
    texts = [metric[key] for metric in metrics for key in ("name", "value")]
    found = [f"{name}: unknown" for name in {*status} - {"metrics", "lastUpdatedTime"}]  # those that we must not send
    found += ["metrics: more than 256"] * (len(metrics) > 256)
    found += [f"{text!r}: not 1 to 64 characters" for text in texts if not 1 <= len(text) <= 64]
    stamp = datetime.strptime(status["lastUpdatedTime"], "%Y-%m-%dT%H:%M:%S%z")
    return found + ["lastUpdatedTime: long ago"] * (abs(stamp.timestamp() - time.time()) > 60)


class _Quiet(ThreadingHTTPServer):
    def handle_error(self, *_):
        """Clients that refuse our certificate or go away are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.world.came(self)
        self.answer(404, "Not found")

    def do_POST(self):
        world = self.server.world
        world.came(self)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if world.play:
            world.play(self)
        else:
            self.answer(*world.take(self.path, self.headers["Authorization"], body))

    def answer(self, code, said):
        """Send an answer; a text becomes the message of a Kubernetes status."""
        data = json.dumps({"kind": "Status", "message": said, "code": code} if isinstance(said, str) else said).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def endpoint(server, **changes):
    """Return what the variables of a pod say of a server."""
    return Endpoint(**{"url": server.url, "ca": str(server.ca), "token": str(server.token), **changes})
