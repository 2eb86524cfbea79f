"""`Host.https_get`, and inside this process what it does in its child."""

import socket
import time

import pytest

from trainer_agent.host import Host, HttpsError, Reply, _get

NOW = 1_800_000_000.0


def url(api):
    return f"https://127.0.0.1:{api.port}/version"


@pytest.mark.parametrize(
    "date, expected", [("Fri, 15 Jan 2027 08:00:00 GMT", NOW), (None, None), ("yesterday", None), ("", None)]
)
def test_an_answer_has_its_status_and_date(api, date, expected):
    api.answers, api.date = [403], date

    assert Reply(403, expected) == Host().https_get(url(api), ca=None, timeout_s=5)
    assert (Reply(403, expected), "", False) == _get(url(api), None, 5)


def test_a_certificate_that_is_trusted(api):
    authority = str(api.certificates / "server.crt")

    assert Reply(200, NOW) == Host().https_get(url(api), ca=authority, timeout_s=5)
    assert (Reply(200, NOW), "", False) == _get(url(api), authority, 5)


def test_a_certificate_that_is_not_trusted(api):
    authority = str(api.certificates / "stranger.crt")

    with pytest.raises(HttpsError, match="its certificate is refused: self-signed certificate") as caught:
        Host().https_get(url(api), ca=authority, timeout_s=5)

    assert caught.value.untrusted
    assert (None, "its certificate is refused: self-signed certificate", True) == _get(url(api), authority, 5)


def test_a_certificate_for_another_name(api):
    _, reason, untrusted = _get(f"https://localhost:{api.port}/", str(api.certificates / "server.crt"), 5)

    assert ("Hostname mismatch" in reason, untrusted) == (True, True)


def test_a_file_without_certificates_trusts_nobody(api, tmp_path):
    (tmp_path / "ca.crt").write_text("nothing")

    for file, why in (("ca.crt", "no certificate or crl found"), ("gone.crt", "No such file or directory")):
        _, reason, untrusted = _get(url(api), str(tmp_path / file), 5)
        assert untrusted
        assert reason.startswith(f"{tmp_path}/{file} holds no certificates: ")
        assert why in reason


@pytest.mark.parametrize(
    "bad, reason",
    [
        ("https://127.0.0.1:99999999/", "Port out of range 0-65535"),
        ("https://127.0.0.1:1/", "[Errno 111] Connection refused"),
        ("https://[::1/", "Invalid IPv6 URL"),
    ],
)
def test_no_answer_says_why(bad, reason):
    assert (None, reason, False) == _get(bad, None, 5)
    with pytest.raises(HttpsError) as caught:
        Host().https_get(bad, ca=None, timeout_s=5)
    assert (f"{bad} does not answer ({reason})", False) == (caught.value.message, caught.value.untrusted)


def test_a_server_that_hangs_up_says_so(api):
    api.answers = ["drop"]

    assert (None, "Remote end closed connection without response", False) == _get(url(api), None, 5)


def test_a_server_that_is_silent_costs_no_more_than_the_time_given():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with pytest.raises(HttpsError) as caught:
            Host().https_get(f"https://127.0.0.1:{silent.getsockname()[1]}/", ca=None, timeout_s=0.3)

    assert caught.value.untrusted is False
    assert 0.25 < time.monotonic() - began < 20
