"""Which cluster a data cache is made in, and what the API server's refusals become."""

import subprocess
import sys
import time

import pytest
from authority import server_context
from kube_api import KubeApi, kubeconfig

from trainer_agent.errors import FatalError, RetryError
from trainer_agent.initializers.cache_api import SERVICE, connect

TOKEN = "a-token-of-the-pod"
MISSING = """
import sys
sys.modules["kubernetes"] = None
from trainer_agent.errors import FatalError
from trainer_agent.initializers.cache_api import connect
try:
    connect({}, deadline=0)
except FatalError as error:
    print(error.code)
"""


def soon():
    return time.monotonic() + 10


def test_in_a_pod_its_service_account_says_which_cluster(tmp_path):
    """Over TLS, with the pod's own authority, token and namespace; KUBECONFIG does not count."""
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "namespace").write_text("team\n")
    with KubeApi(token=TOKEN, context=server_context(tmp_path / "ca.crt")) as server:
        service = server.put("services", "s")
        pod = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.server_port)}
        api = connect(pod | {"KUBECONFIG": "/nowhere"}, deadline=soon(), credentials=tmp_path)

        assert api.get(SERVICE, "s") == service


def test_elsewhere_the_current_context_does(tmp_path):
    with KubeApi(token=TOKEN) as server:
        service = server.put("services", "s")
        api = connect(kubeconfig(tmp_path, server), deadline=soon(), credentials=tmp_path)

        assert (api.namespace, api.get(SERVICE, "s")) == ("team", service)


def test_a_context_without_namespace_means_default(tmp_path):
    with KubeApi() as server:
        api = connect(kubeconfig(tmp_path, server, namespace=""), deadline=soon(), credentials=tmp_path)

    assert api.namespace == "default"


def test_no_cluster_at_all(tmp_path):
    with pytest.raises(FatalError) as caught:
        connect({"KUBECONFIG": str(tmp_path / "none")}, deadline=soon(), credentials=tmp_path)

    assert caught.value.code == "kube-config-missing"


def test_no_client_installed():
    done = subprocess.run([sys.executable, "-c", MISSING], capture_output=True, text=True, check=True, timeout=30)

    assert done.stdout == "kubernetes-not-installed\n"


@pytest.mark.parametrize(
    "fault,error,code",
    [
        (400, FatalError, "kube-refused"),
        (401, FatalError, "kube-unauthorized"),
        (422, FatalError, "kube-refused"),
        (429, RetryError, "kube-api-busy"),
        (500, RetryError, "kube-api-busy"),
        ("drop", RetryError, "kube-api-unreachable"),
    ],
)
def test_refusals(tmp_path, fault, error, code):
    with KubeApi() as server:
        server.faults["get", "services"] = [fault]
        api = connect(kubeconfig(tmp_path, server), deadline=soon(), credentials=tmp_path)
        with pytest.raises(error) as caught:
            api.get(SERVICE, "s")

    assert caught.value.code == code


def test_a_retry_after_beyond_the_deadline_is_not_slept(tmp_path):
    started = time.monotonic()
    with KubeApi() as server:
        server.faults["get", "services"] = [(429, {"Retry-After": "60"})]
        api = connect(kubeconfig(tmp_path, server), deadline=soon(), credentials=tmp_path)
        with pytest.raises(RetryError):
            api.persist(lambda: api.get(SERVICE, "s"))

    assert time.monotonic() - started < 20


def test_a_server_that_accepts_and_says_nothing_ends_at_the_deadline(tmp_path):
    with KubeApi() as server:
        environ = kubeconfig(tmp_path, server)
        server.changed.acquire()
        api = connect(environ, deadline=time.monotonic() + 0.5, credentials=tmp_path)
        started = time.monotonic()
        with pytest.raises(RetryError):
            api.persist(lambda: api.get(SERVICE, "s"))
        server.changed.release()

    assert time.monotonic() - started < 20
