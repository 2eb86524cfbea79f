import socket
from types import SimpleNamespace

import pytest

from preflight_checks._kube import version_url
from preflight_checks.kube_api import kube_api
from trainer_agent.check import Options, Outcome, Status
from trainer_agent.errors import Action
from trainer_agent.testing import run_check


def statuses(outcome):
    return (outcome.status, [(f.code, f.action) for f in outcome.findings])


def test_outside_a_cluster_there_is_nothing_to_ask(host):
    assert run_check(kube_api, host) == "KUBERNETES_SERVICE_HOST is not set: this is no pod of a cluster"


@pytest.mark.parametrize("status", [200, 401, 403, 500])
def test_every_http_status_is_an_answer(host, api, status):
    api.answers = [status]
    api.trusted_by(host)

    outcome = run_check(kube_api, host, environ=api.environ)

    expected = Outcome(f"https://127.0.0.1:{api.port}/version answers {status}", (), {"status": status, "answer_ms": 0})
    assert expected == outcome
    assert [("/version", None)] == api.asked, "no token is sent"


@pytest.mark.parametrize("api", ["::1"], indirect=True)
def test_ipv6(host, api):
    api.trusted_by(host)

    outcome = run_check(kube_api, host, environ=api.environ)

    assert f"https://[::1]:{api.port}/version answers 200" == outcome.message


def test_without_a_service_account_the_certificate_is_not_verified_and_the_message_says_so(host, api):
    outcome = run_check(kube_api, host, environ=api.environ)

    expected = "answers 200; its certificate was not verified, as no service account is mounted"
    assert f"https://127.0.0.1:{api.port}/version {expected}" == outcome.message
    assert Status.PASS is outcome.status


def test_two_failures_and_then_an_answer_pass(host, api):
    api.answers = ["drop", "drop", 200]
    api.trusted_by(host)

    outcome = run_check(kube_api, host, environ=api.environ)

    assert (Status.PASS, 3, 1.0) == (outcome.status, len(api.asked), host.slept)


@pytest.mark.parametrize(
    "required, expected",
    [
        (False, (Status.WARN, [("kube-api-unreachable", Action.CONTINUE)])),
        (True, (Status.FAIL, [("kube-api-unreachable", Action.RETRY)])),
    ],
)
def test_no_answer_is_a_warning_unless_it_is_required(host, required, expected):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port)}

    outcome = run_check(kube_api, host, environ=environ, options=Options(require_kube_api=required))

    assert expected == statuses(outcome)
    message = (
        f"https://127.0.0.1:{port}/version does not answer ([Errno 111] Connection refused), "
        "wanted an HTTP answer (any status) within 3 tries of 2 s"
    )
    assert [message] == [f.message for f in outcome.findings]


@pytest.mark.parametrize("required", [False, True])
def test_a_server_that_is_not_trusted_is_told_apart_and_not_tried_again(host, api, required):
    api.trusted_by(host, authority="stranger")

    outcome = run_check(kube_api, host, environ=api.environ, options=Options(require_kube_api=required))

    action = Action.RETRY if required else Action.CONTINUE
    status = Status.FAIL if required else Status.WARN
    assert (status, [("kube-api-untrusted", action)]) == statuses(outcome)
    assert "self-signed certificate" in outcome.findings[0].message
    assert "wanted a certificate signed by /var/run/secrets/" in outcome.findings[0].message
    assert (0.0, []) == (host.slept, api.asked)


def test_a_ca_file_without_a_certificate_means_not_trusted(host, api):
    host.put("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt", "nothing")

    outcome = run_check(kube_api, host, environ=api.environ)

    assert (Status.WARN, [("kube-api-untrusted", Action.CONTINUE)]) == statuses(outcome)


def test_a_proxy_in_the_environment_is_not_used(host, api, monkeypatch):
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    api.trusted_by(host)

    outcome = run_check(kube_api, host, environ=api.environ)

    assert Status.PASS is outcome.status


@pytest.mark.parametrize("port, expected", [("", "443"), (" ", "443"), ("6443", "6443")])
def test_the_port_is_443_unless_another_is_given(port, expected):
    environ = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": port}

    assert f"https://10.96.0.1:{expected}/version" == version_url(SimpleNamespace(environ=environ))


@pytest.mark.parametrize("port", ["tcp://10.0.0.1:443", "99999999"])
def test_a_bad_port_is_a_finding(host, port):
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port}

    outcome = run_check(kube_api, host, environ=environ)

    assert (Status.WARN, [("kube-api-unreachable", Action.CONTINUE)]) == statuses(outcome)


def test_there_are_three_tries(host, api):
    api.answers = ["drop"]
    api.trusted_by(host)

    outcome = run_check(kube_api, host, environ=api.environ)

    assert (Status.WARN, [("kube-api-unreachable", Action.CONTINUE)]) == statuses(outcome)
    assert (3, 1.0) == (len(api.asked), host.slept)


def test_both_are_declared_as_warnings_with_what_they_ask_for_when_required():
    expected = {("kube-api-unreachable", "warning", Action.RETRY), ("kube-api-untrusted", "warning", Action.RETRY)}
    assert expected == {(rule.code, str(rule.severity), rule.action) for rule in kube_api.rules}


def test_all_tries_fit_into_the_time_of_the_check():
    assert 3 * 2 + 2 * 0.5 < kube_api.timeout_s
