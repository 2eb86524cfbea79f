"""
Kubernetes' API, as far as a data cache needs it: get, list, create, delete, and wait for a change.

The official client says where the cluster is and who we are; it reads kubeconfigs and refreshes tokens.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trainer_agent.errors import FatalError, RetryError
from trainer_agent.initializers import PATIENCE_S, STALL_S, TransientError
from trainer_agent.initializers.http import retry_after
from trainer_agent.initializers.retry import persist
from trainer_agent.initializers.wire import CONNECT_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from urllib3 import BaseHTTPResponse

T = TypeVar("T")
# Where Kubernetes puts a pod's token, authority and namespace.
POD_CREDENTIALS = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# A request gets at least this long, also at the very end.
SHORTEST_TIMEOUT_S = 0.5
TRANSIENT = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS}


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object: its name, API group (empty for the core), version, and plural in URLs."""

    name: str
    group: str
    version: str
    plural: str

    def path(self, namespace: str, name: str = "") -> str:
        """Return the path of one object, or of all in the namespace."""
        root = f"/apis/{self.group}" if self.group else "/api"
        return f"{root}/{self.version}/namespaces/{namespace}/{self.plural}" + (f"/{name}" if name else "")


TRAIN_JOB = Kind("TrainJob", "trainer.kubeflow.org", "v1alpha1", "trainjobs")
LEADER_WORKER_SET = Kind("LeaderWorkerSet", "leaderworkerset.x-k8s.io", "v1", "leaderworkersets")
SERVICE_ACCOUNT = Kind("ServiceAccount", "", "v1", "serviceaccounts")
SERVICE = Kind("Service", "", "v1", "services")
POD = Kind("Pod", "", "v1", "pods")
EVENT = Kind("Event", "", "v1", "events")
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class MissingError(FatalError):
    """There is no such object, or no such kind (404)."""


class ExistsError(FatalError):
    """There is one of that name already, or another one than was to be deleted (409)."""


class ForbiddenError(FatalError):
    """It was refused (403): by access rules, or by what checks objects as they are made, such as a quota."""


@dataclass(frozen=True, slots=True)
class Api:
    """
    One namespace of a cluster. Each call is one attempt; `persist` repeats what may pass.

    Args:
        client: the official client's `ApiClient`.
        deadline: on the monotonic clock; nothing is tried after it.
        stall_s: a connection that brings no byte for so long is given up.
        patience_s: how long `persist` repeats.
    """

    client: Any
    namespace: str
    deadline: float
    stall_s: float = STALL_S
    patience_s: float = PATIENCE_S

    @property
    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    def persist(self, function: Callable[[], T]) -> T:
        """
        Return what `function` returns, repeating it after a `TransientError`.

        Raises:
            RetryError: it did not pass in time; never later than the deadline.
        """

        def attempt() -> T:
            try:
                return function()
            except TransientError as error:
                if self.left_s <= (error.retry_after_s or 0):
                    raise RetryError(error.code, error.message, hint=error.hint) from error
                raise

        return persist(attempt, patience_s=min(self.patience_s, self.left_s))

    def get(self, kind: Kind, name: str) -> dict[str, Any]:
        """Return one object."""
        found: dict[str, Any] = self._ask("GET", kind, name, verb="get")
        return found

    def list(self, kind: Kind, *, labels: str = "", fields: str = "") -> list[dict[str, Any]]:
        """Return the objects that both selectors choose; an empty one chooses all."""
        query = {"labelSelector": labels, "fieldSelector": fields}
        items: list[dict[str, Any]] = self._ask("GET", kind, verb="list", query=query)["items"]
        return items

    def create(self, kind: Kind, body: Mapping[str, Any]) -> dict[str, Any]:
        """Make an object and return it as the server completed it."""
        made: dict[str, Any] = self._ask("POST", kind, verb="create", body=body)
        return made

    def delete(self, kind: Kind, name: str, uid: str) -> None:
        """Delete exactly the object with that uid; what it owns goes in the background."""
        precise = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", **precise}
        self._ask("DELETE", kind, name, verb="delete", body=body)

    def await_change(self, kind: Kind, name: str, *, version: str, seconds: int) -> None:
        """
        Return when something happens to an object after resource version `version`, or after about `seconds`.

        What happened is for a new `get` to tell, which an expired version asks for anyway.
        """
        query = {"fieldSelector": f"metadata.name={name}", "resourceVersion": version, "watch": "true"}
        self._ask("GET", kind, verb="watch", query=query | {"timeoutSeconds": str(seconds)}, seconds=seconds)

    def _ask(self, method: str, kind: Kind, name: str = "", *, verb: str, **details: Any) -> Any:
        from urllib3.exceptions import HTTPError

        try:
            answer = self._open(method, kind.path(self.namespace, name), **details)
            if verb == "watch" and answer.status == HTTPStatus.OK:
                next(iter(answer), b"")
                answer.close()
                return None
            data = answer.data
            if answer.status < HTTPStatus.MULTIPLE_CHOICES:
                return json.loads(data)
        except (HTTPError, OSError, ValueError) as error:  # ValueError: no JSON, so no API server
            what = f"{verb} {kind.plural}: {type(error).__name__}: {error}"
            raise TransientError("kube-api-unreachable", what) from error
        raise self._refusal(answer, verb, kind)

    def _open(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        seconds: float = 0,
    ) -> BaseHTTPResponse:
        """Send a request and return its answer, whose body is still to be read; `seconds` is how long it may take."""
        from urllib.parse import urlencode

        from urllib3 import Timeout

        left = max(SHORTEST_TIMEOUT_S, self.left_s)
        timeout = Timeout(connect=min(CONNECT_TIMEOUT_S, left), read=min(seconds + self.stall_s, left))
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        headers |= {key["key"]: key["value"] for key in self.client.configuration.auth_settings().values()}
        answer: BaseHTTPResponse = self.client.rest_client.pool_manager.request(
            method,
            f"{self.client.configuration.host}{path}" + (f"?{urlencode(query)}" if query else ""),
            body=json.dumps(body) if body else None,
            headers=headers,
            timeout=timeout,
            retries=False,  # `persist` repeats, and knows Retry-After
            preload_content=False,
        )
        return answer

    def _refusal(self, answer: BaseHTTPResponse, verb: str, kind: Kind) -> FatalError | TransientError:
        """Return what a status other than success means."""
        status = answer.status
        reason, message = _said(answer)
        what = f"{verb} {kind.plural} in namespace {self.namespace}: {message}"
        if status == HTTPStatus.FORBIDDEN:
            return self._forbidden(verb, kind, message)
        if status == HTTPStatus.NOT_FOUND:
            return MissingError("kube-not-found", what)
        if status == HTTPStatus.CONFLICT and (reason == "AlreadyExists" or verb == "delete"):
            return ExistsError("kube-exists", what)
        if status == HTTPStatus.UNAUTHORIZED:
            return FatalError(
                "kube-unauthorized",
                f"The API server does not know who asks to {what}",
                hint="look at the pod's serviceAccountName, or log in again",
            )
        said = f"The API server answers {status} to {what}"
        if status in TRANSIENT or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return TransientError("kube-api-busy", said, retry_after_s=retry_after(answer.headers))
        return FatalError("kube-refused", said)

    def _forbidden(self, verb: str, kind: Kind, message: str) -> ForbiddenError:
        """Ask whether access rules allow it: both refusals look the same but for their prose."""
        where = f"{verb} {kind.plural} in namespace {self.namespace}"
        if self._allowed(verb, kind):
            return ForbiddenError(
                "kube-admission-refused",
                f"A quota or another admission rule refuses to {where}: {message}",
                hint="raise the quota, or lower CLUSTER_SIZE, HEAD_CPU, HEAD_MEM, WORKER_CPU, WORKER_MEM",
            )
        rule = f'{{apiGroups: ["{kind.group}"], resources: ["{kind.plural}"], verbs: ["{verb}"]}}'
        return ForbiddenError(
            "kube-forbidden",
            f"This pod's service account may not {where}: {message}",
            hint=f"add to a Role bound to it: {rule}",
        )

    def _allowed(self, verb: str, kind: Kind) -> bool:
        from urllib3.exceptions import HTTPError

        asked = {"namespace": self.namespace, "verb": verb, "group": kind.group, "resource": kind.plural}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }
        try:
            return bool(json.loads(self._open("POST", REVIEWS, body=review).data)["status"]["allowed"])
        except (HTTPError, OSError, ValueError, KeyError):
            return False


def connect(environ: Mapping[str, str], *, deadline: float, credentials: Path = POD_CREDENTIALS) -> Api:
    """
    Return the cluster that this pod is in, else the one of KUBECONFIG's current context.

    Raises:
        FatalError: no client is installed, or nothing says which cluster.
    """
    try:
        from kubernetes import client, config
        from kubernetes.config.incluster_config import InClusterConfigLoader
    except ImportError as error:
        raise FatalError(
            "kubernetes-not-installed",
            "cache:// needs the Kubernetes client, which is not installed",
            hint="pip install 'trainer-agent[cache]'",
        ) from error
    settings = client.Configuration()
    token, authority = credentials / "token", credentials / "ca.crt"
    try:
        if token.exists():
            InClusterConfigLoader(str(token), str(authority), environ=dict(environ)).load_and_set(settings)
            namespace = (credentials / "namespace").read_text().strip()
        else:
            file = environ.get("KUBECONFIG") or None
            config.load_kube_config(file, client_configuration=settings, persist_config=False)
            namespace = config.list_kube_config_contexts(file)[1]["context"].get("namespace", "default")
    except (config.ConfigException, OSError) as error:
        raise FatalError(
            "kube-config-missing",
            f"Neither a pod's service account nor KUBECONFIG says which cluster: {error}",
            hint="mount the service account's token, or set KUBECONFIG",
        ) from error
    return Api(client.ApiClient(settings), namespace, deadline)


def _said(answer: BaseHTTPResponse) -> tuple[str, str]:
    """Return the reason and message of the server's Status object; an admission webhook may give no reason."""
    try:
        status = json.loads(answer.data)
        return str(status.get("reason", "")), str(status["message"])
    except (AttributeError, ValueError, KeyError):
        return "", answer.reason or "no reason given"
