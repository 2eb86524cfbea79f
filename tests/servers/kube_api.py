"""
Kubernetes' API on loopback: objects with uids and versions, selectors, watches, preconditions, access rules, quotas.

kmock's emulator has neither uids, versions nor selectors, and creates objects whose creation it was told to refuse.
"""

import copy
import itertools
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

KINDS = {
    "/api/v1": {"serviceaccounts", "services", "pods", "events"},
    "/apis/trainer.kubeflow.org/v1alpha1": {"trainjobs"},
    "/apis/leaderworkerset.x-k8s.io/v1": {"leaderworkersets"},
}
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
NAMESPACE = "team"
DROP = "drop"
LOSE_ANSWER = "lose the answer"


class KubeApi(ThreadingHTTPServer):
    """
    The server, on a free port; a context manager.

    Attributes:
        objects: by (plural, name), as the server has them.
        denied: (verb, plural) that access rules refuse.
        quota: the plurals of which no more may be made.
        webhook: why an admission webhook refuses whatever is to be made; it gives no reason in a word, as Kyverno's.
        faults: by (verb, plural), the answers to give first: a status, (status, headers), DROP or LOSE_ANSWER.
        asked: (verb, plural, name) of every request, in order; await it with `until`.
    """

    daemon_threads = True

    def __init__(self, *, token="", context=None):
        super().__init__(("127.0.0.1", 0), _Handler)
        if context:
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.token = token
        self.changed = threading.Condition()
        self.objects = {}
        self.events = []
        self.oldest = 0
        self.kinds = copy.deepcopy(KINDS)
        self.denied, self.quota, self.faults, self.asked = set(), set(), {}, []
        self.versions, self.uids = itertools.count(1), itertools.count(1)
        self.webhook = ""
        self.closing = False

    def __enter__(self):
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_):
        with self.changed:
            self.closing = True
            self.changed.notify_all()
        self.shutdown()
        self.server_close()

    def put(self, plural, name, **fields):
        """Make or change an object, as a controller or a person does; return it."""
        with self.changed:
            known = self.objects.get((plural, name))
            body = copy.deepcopy(known) or {"metadata": {"name": name, "namespace": NAMESPACE}}
            body["metadata"] |= fields.pop("metadata", {})
            body["metadata"].setdefault("uid", f"uid-{next(self.uids)}")
            self._happened("MODIFIED" if known else "ADDED", plural, body | fields)
            return self.objects[plural, name]

    def remove(self, plural, name):
        """Make an object go."""
        with self.changed:
            self._happened("DELETED", plural, self.objects[plural, name])

    def until(self, verb, plural, *, times=1):
        """Return once something has been asked for so many times."""
        with self.changed:
            done = self.changed.wait_for(lambda: [(v, p) for v, p, _ in self.asked].count((verb, plural)) >= times, 10)
        assert done, self.asked

    def names(self):
        """Return (plural, name) of all objects."""
        with self.changed:
            return set(self.objects)

    def _happened(self, kind, plural, body):
        body["metadata"]["resourceVersion"] = str(next(self.versions))
        key = plural, body["metadata"]["name"]
        if kind == "DELETED":
            del self.objects[key]
        else:
            self.objects[key] = body
        self.events.append((kind, plural, copy.deepcopy(body)))
        self.changed.notify_all()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self._serve("get")

    def do_POST(self):
        self._serve("create")

    def do_DELETE(self):
        self._serve("delete")

    def log_message(self, *_):
        pass

    def _serve(self, verb):
        url = urlsplit(self.path)
        self.query = dict(parse_qsl(url.query))
        self.body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        if self.server.token and (scheme.lower(), token) != ("bearer", self.server.token):
            self._status(401, "Unauthorized", "Unauthorized")
        elif url.path == REVIEWS:
            asked = self.body["spec"]["resourceAttributes"]
            allowed = (asked["verb"], asked["resource"]) not in self.server.denied
            self._answer(201, {"status": {"allowed": allowed}})
        else:
            root, _, rest = url.path.partition(f"/namespaces/{NAMESPACE}/")
            plural, _, name = rest.partition("/")
            if verb == "get" and not name:
                verb = "watch" if self.query.get("watch") == "true" else "list"
            self._checked(verb, root, plural, name)

    def _checked(self, verb, root, plural, name):
        server = self.server
        with server.changed:
            server.asked.append((verb, plural, name))
            server.changed.notify_all()
            fault = next(iter(server.faults.get((verb, plural), [])), None)
            if fault is not None:
                server.faults[verb, plural].pop(0)
        if fault == DROP:
            self.close_connection = True
        elif fault == LOSE_ANSWER:
            self.wfile = open("/dev/null", "wb")  # noqa: SIM115, PTH123  # closed with the connection
            self.close_connection = True
            getattr(self, f"_{verb}")(plural, name)
        elif fault is not None:
            status, headers = fault if isinstance(fault, tuple) else (fault, {})
            self._status(status, "Fault", "as the test wants", headers)
        elif plural not in server.kinds.get(root, ()):
            self._answer(404, "404 page not found")
        elif (verb, plural) in server.denied:
            message = f'{plural} is forbidden: User "someone" cannot {verb} resource "{plural}"'
            self._status(403, "Forbidden", message)
        else:
            getattr(self, f"_{verb}")(plural, name)

    def _get(self, plural, name):
        with self.server.changed:
            found = self.server.objects.get((plural, name))
        if found:
            self._answer(200, found)
        else:
            self._status(404, "NotFound", f'{plural} "{name}" not found')

    def _list(self, plural, _):
        labels, fields = self._selector("labelSelector"), self._selector("fieldSelector")
        with self.server.changed:
            items = [o for (p, _), o in self.server.objects.items() if p == plural]
        items = [o for o in items if labels.items() <= o["metadata"].get("labels", {}).items()]
        items = [o for o in items if all(_field(o, path) == value for path, value in fields.items())]
        self._answer(200, {"items": items})

    def _selector(self, name):
        return dict(part.split("=") for part in self.query.get(name, "").split(",") if part)

    def _create(self, plural, _):
        name = self.body["metadata"]["name"]
        if plural in self.server.quota:
            self._status(403, "Forbidden", f'{plural} "{name}" is forbidden: exceeded quota: small')
            return
        if self.server.webhook:
            self._status(400, "", f'admission webhook "validate" denied the request: {self.server.webhook}')
            return
        with self.server.changed:
            exists = (plural, name) in self.server.objects
            made = None if exists else self.server.put(plural, name, **copy.deepcopy(self.body))
        if exists:
            self._status(409, "AlreadyExists", f'{plural} "{name}" already exists')
        else:
            self._answer(201, made)

    def _delete(self, plural, name):
        with self.server.changed:
            found = self.server.objects.get((plural, name))
            right = found and found["metadata"]["uid"] == self.body["preconditions"]["uid"]
            if right:
                self.server.remove(plural, name)
        if right:
            self._answer(200, {"kind": "Status", "status": "Success"})
        else:
            self._status(409 if found else 404, "Conflict" if found else "NotFound", "another uid" if found else "gone")

    def _watch(self, plural, _):
        """Stream what happens to one object after a version, until timeoutSeconds."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        name = self.query["fieldSelector"].removeprefix("metadata.name=")
        after = int(self.query["resourceVersion"])
        server = self.server

        def news():
            of_one = (e for e in server.events if e[1] == plural and e[2]["metadata"]["name"] == name)
            return [e for e in of_one if int(e[2]["metadata"]["resourceVersion"]) > after]

        with server.changed:
            if after < server.oldest:
                expired = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
                found = [("ERROR", plural, expired)]
            else:
                server.changed.wait_for(lambda: news() or server.closing, float(self.query["timeoutSeconds"]))
                found = news()
        lines = b"".join(json.dumps({"type": kind, "object": body}).encode() + b"\n" for kind, _, body in found)
        self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(lines), lines) if lines else b"0\r\n\r\n")

    def _status(self, status, reason, message, headers=()):
        body = {"kind": "Status", "status": "Failure", "code": status, "message": message}
        self._answer(status, body | ({"reason": reason} if reason else {}), headers)

    def _answer(self, status, body, headers=()):
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _field(found, path):
    """Return the field of an object that a dotted path names."""
    for part in path.split("."):
        found = found.get(part, {})
    return found


def kubeconfig(directory, api, *, namespace=NAMESPACE):
    """Write a kubeconfig for the server; return the variables that name it."""
    file = directory / "kubeconfig"
    context = {"cluster": "c", "user": "u"} | ({"namespace": namespace} if namespace else {})
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": context}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{api.server_port}"}}],
        "users": [{"name": "u", "user": {"token": api.token} if api.token else {}}],
    }
    file.write_text(json.dumps(config))
    return {"KUBECONFIG": str(file)}
