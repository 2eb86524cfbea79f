"""One update of a TrainJob's status: what is sent, and what comes of any answer."""

import os
import socket
import time

import pytest
from authority import server_context
from status_server import PATH, StatusServer, endpoint

from trainer_agent.status_sender import body_of, post


def sent(server, **changes):
    """Send one update; return why it was not taken."""
    return post(endpoint(server, **changes), body_of({"preflight_checks": 3}, now=time.time()), timeout_s=2)


def test_an_update_is_what_the_server_takes(server):
    """Method, path, token, certificate, body: as Kubeflow's server has them."""
    assert "" == sent(server)
    ((method, path, headers),) = server.asked
    assert ("POST", PATH, "Bearer token-1", "application/json") == (
        method,
        path,
        headers["Authorization"],
        headers["Content-Type"],
    )


def test_nothing_is_said_of_training():
    """Percentage and time left are training's; ours would be taken for its."""
    expected = (
        b'{"trainerStatus": {"metrics": [{"name": "trainer_agent_init_bytes", "value": "70000000000"}], '
        b'"lastUpdatedTime": "2026-08-21T15:25:38Z"}}'
    )

    assert expected == body_of({"init_bytes": 70_000_000_000}, now=1787325938.7)


def test_kubeflow_reads_what_we_send():
    """The models of its API take the request whole."""
    from kubeflow_trainer_api.models import TrainerV1alpha1UpdateTrainJobStatusRequest as Request

    status = Request.from_json(body_of({"init_files": 3, "init_files_done": 1}, now=0)).trainer_status

    expected = [("trainer_agent_init_files", "3"), ("trainer_agent_init_files_done", "1")]
    assert expected == [(metric.name, metric.value) for metric in status.metrics]
    assert (None, None) == (status.progress_percentage, status.estimated_remaining_seconds)


def test_the_token_is_read_for_every_request(server):
    """The kubelet replaces it."""
    assert "" == sent(server)
    server.token.write_text("token-2")
    assert "" == sent(server)

    assert ["Bearer token-1", "Bearer token-2"] == [headers["Authorization"] for _, _, headers in server.asked]


@pytest.mark.parametrize("code", [301, 400, 401, 403, 404, 409, 413, 422, 429, 500, 503])
def test_refusals_are_told(server_that, code):
    """With the code and the server's own words."""
    server = server_that(lambda handler: handler.answer(code, "so it is"))

    assert f"the server answered {code}: so it is" == sent(server)
    assert 1 == len(server.asked)


def test_a_redirect_takes_the_token_nowhere(server_that, tmp_path):
    """The token is for one server."""
    (tmp_path / "other").mkdir()
    with StatusServer(tmp_path / "other") as other:

        def elsewhere(handler):
            handler.send_response(307)
            handler.send_header("Location", other.url)
            handler.end_headers()

        said = sent(server_that(elsewhere))

    assert ("the server answered 307", []) == (said, other.asked)


@pytest.mark.parametrize(
    "body",
    [b"", b"\xff\xfe", b"[" * 4096, b'{"message": ', b"[1]", b'{"code": 1}', b"x" * 10_000_000],
    ids=["empty", "binary", "deep", "cut", "list", "silent", "10MB"],
)
def test_strange_answers_do_no_harm(server_that, body):
    """Of ten megabytes four kilobytes are read."""

    def strange(handler):
        handler.send_response(500)
        handler.end_headers()
        handler.wfile.write(body)

    assert "the server answered 500" == sent(server_that(strange))


def test_the_servers_words_are_shown_without_tricks(server_that):
    """Cut, on one line, and without the token that somebody might send back."""
    server = server_that(lambda handler: handler.answer(403, "Bearer token-1\n\x1b[31m" + "x" * 4000))

    expected = f"the server answered 403: Bearer ***  [31m{'x' * 180}"

    assert expected[:100] == sent(server)[:100]
    assert 230 > len(sent(server))


def test_a_server_that_hangs_is_left(server_that):
    """Before its answer."""
    server = server_that(lambda handler: handler.server.world.over.wait(20))

    began = time.monotonic()
    said = post(endpoint(server), b"{}", timeout_s=0.3)

    assert ("no answer within 0.3 s", True) == (said, time.monotonic() - began < 10)


def test_a_server_that_trickles_is_left(server_that):
    """A byte now and then is no answer, although no read takes long."""

    def trickle(handler):
        for _ in range(200):
            handler.wfile.write(b"H")
            handler.wfile.flush()
            if handler.server.world.over.wait(0.05):
                return

    said = post(endpoint(server_that(trickle)), b"{}", timeout_s=0.4)

    assert "no answer within 0.4 s" == said


def test_a_server_that_hangs_up_is_told(server_that):
    """As Python says it."""
    assert "Remote end closed connection without response" == sent(server_that(lambda _: None))


def test_a_server_that_never_greets_is_left(server):
    """It accepts and says nothing: no TLS."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}/"
        said = post(endpoint(server, url=url), b"", timeout_s=0.3)

    assert said.endswith(("no answer within 0.3 s", "The handshake operation timed out"))


def test_an_ipv6_address_without_a_port_is_asked_at_443(server):
    """Its end is no port: nobody listens there, or it is out of reach."""
    assert "[Errno " in sent(server, url="https://[::ffff:127.0.0.1]/status")


def test_another_certificate_gets_no_token(server, tmp_path):
    """Nothing is sent to who cannot prove who it is."""
    server_context(tmp_path / "other.crt")

    said = sent(server, ca=str(tmp_path / "other.crt"))

    assert ("CERTIFICATE_VERIFY_FAILED", []) == (said.partition("[SSL: ")[2].partition("]")[0], server.asked)


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"ca": "/nowhere"}, "KUBEFLOW_TRAINER_SERVER_CA_CERT=/nowhere holds no certificates: No such file"),
        ({"ca": os.devnull}, "KUBEFLOW_TRAINER_SERVER_CA_CERT=/dev/null holds no certificates"),
        ({"token": "/nowhere"}, "the file that KUBEFLOW_TRAINER_SERVER_TOKEN names cannot be read: No such file"),
        ({"token": "/"}, "the file that KUBEFLOW_TRAINER_SERVER_TOKEN names cannot be read: Is a directory"),
        ({"token": os.devnull}, "the file that KUBEFLOW_TRAINER_SERVER_TOKEN names holds no token"),
        ({"token": "/dev/zero"}, "the file that KUBEFLOW_TRAINER_SERVER_TOKEN names holds no token"),
        ({"url": "https://127.0.0.1:1/"}, "[Errno 111] Connection refused"),
        ({"url": "https://127.0.0.1/a b"}, "URL can't contain control characters"),
    ],
)
def test_what_is_missing_or_broken_is_named(server, changes, expected):
    """The variable, and what it holds where that is no secret."""
    assert expected == sent(server, **changes)[: len(expected)]


def test_a_token_that_is_none_is_not_shown(server):
    """http.client would quote it."""
    server.token.write_text("header.payload\nsignature")

    assert "the file that KUBEFLOW_TRAINER_SERVER_TOKEN names holds no token" == sent(server)
    assert [] == server.asked


def test_a_token_that_nobody_writes_is_not_waited_for(server, tmp_path):
    """A named pipe opens when somebody writes to it."""
    os.mkfifo(tmp_path / "pipe")

    assert "no answer within 0.2 s" in post(endpoint(server, token=str(tmp_path / "pipe")), b"", timeout_s=0.2)
