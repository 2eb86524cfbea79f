"""Every answer of a server can be told from every other, and from none."""

import socket
import subprocess
import threading
import time

import pytest
from authority import server_context
from hostile_s3 import BODY as S3_BODY
from hostile_s3 import HostileS3
from origin import BODY, Origin, Proxy, served

from trainer_agent.errors import FatalError, RetryError
from trainer_agent.initializers import TransientError
from trainer_agent.initializers.http import HttpClient, authorities
from trainer_agent.isolation import isolated

ADDRESS_HINT = "check the address, and that this pod may reach it (NetworkPolicy, proxy)"
BUNDLE_HINT = "check that the certificate is mounted in this container"


@pytest.fixture
def origin():
    with served(Origin) as server:
        yield server


@pytest.fixture
def proxy():
    with served(Proxy) as server:
        yield server


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Return a file with a key and the certificate that it signs itself."""
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    subprocess.run(
        ["openssl", "req", "-x509", *kind, *subject, "-keyout", file, "-out", file.with_suffix(".crt")],
        check=True,
        capture_output=True,
    )
    file.write_text(file.read_text() + file.with_suffix(".crt").read_text())
    return file


@pytest.fixture
def secure(certificate):
    with served(Origin, certificate=certificate) as server:
        yield server


@pytest.fixture(params=["wire", "urllib3"])
def client(request, origin):
    """Return a client that asks `origin` by our own wire, and one that has found that only urllib3 will do there."""
    made = HttpClient({}, stall_s=2)
    if request.param == "urllib3":
        read(made, f"{origin.url}/unframed")
        origin.asked.clear()
        origin.connections = 0
    made.kind = request.param
    return made


def failure(function, *args):
    """Return type, code, message and hint of the error."""
    with pytest.raises((RetryError, FatalError)) as caught:
        function(*args)
    return type(caught.value), caught.value.code, caught.value.message, caught.value.hint


def unavailable(url, reason):
    return TransientError, "source-unavailable", f"{url} does not answer ({reason})", ADDRESS_HINT


def read(client, url):
    with client.stream(url) as stream:
        return b"".join(map(bytes, stream.pieces()))


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.parametrize(
    "path,status,data",
    [
        ("whole", 200, BODY),
        ("chunked", 200, BODY),
        ("empty", 200, b""),
        ("moved", 302, b""),
        ("busy", 503, b"<Error>SlowDown</Error>"),
        ("absent", 404, b"x" * 100_000),
        ("zipped", 200, b"not gzip at all"),
    ],
)
def test_an_answer_is_returned_as_it_came(client, origin, path, status, data):
    """Whatever its status: nothing is redirected, repeated or unpacked here."""
    answer = client.request("GET", f"{origin.url}/{path}", headers={"X-Own": "mine"})

    assert (status, data) == (answer.status, answer.data)
    assert [(f"/{path}", "mine")] == origin.asked


def test_headers_are_found_in_any_case(client, origin):
    answer = client.request("GET", f"{origin.url}/busy")

    assert "7" == answer.headers["retry-after"] == answer.headers["Retry-After"]


def test_other_methods(client, origin):
    head = client.request("HEAD", f"{origin.url}/whole")
    post = client.request("POST", f"{origin.url}/echo", body=b"sent")

    assert (200, str(len(BODY)), b"") == (head.status, head.headers["Content-Length"], head.data)
    assert (200, b"sent") == (post.status, post.data)


@pytest.mark.parametrize("path", ["whole", "chunked"])
def test_a_stream_comes_in_pieces(client, origin, path):
    with client.stream(f"{origin.url}/{path}", headers={"X-Own": "mine"}) as stream:
        pieces = [bytes(piece) for piece in stream.pieces()]

    assert 200 == stream.status
    assert BODY == b"".join(pieces)
    assert len(pieces) >= 4
    assert [(f"/{path}", "mine")] == origin.asked


def test_what_only_a_whole_client_understands_is_asked_for_again(origin):
    """Once; from then on it asks that origin without detours."""
    client = HttpClient({})
    assert BODY == read(client, f"{origin.url}/unframed")
    assert BODY == read(client, f"{origin.url}/whole")

    assert ["/unframed", "/unframed", "/whole"] == [path for path, _ in origin.asked]


def test_of_an_error_only_the_beginning_is_read(client, origin):
    with client.stream(f"{origin.url}/absent") as stream:
        assert (404, b"x" * 65536) == (stream.status, stream.error_body())


def test_connections_are_used_again(client, origin):
    """After whole bodies, of any form and length."""
    for path in ("whole", "chunked", "empty", "moved", "busy"):
        client.request("GET", f"{origin.url}/{path}")
    client.request("HEAD", f"{origin.url}/whole")
    for path in ("whole", "chunked", "empty"):
        read(client, f"{origin.url}/{path}")
    with client.stream(f"{origin.url}/empty") as stream:
        assert 200 == stream.status  # there is no body to read
    client.request("GET", f"{origin.url}/empty")

    assert 1 == origin.connections


@pytest.mark.parametrize("path", ["whole", "chunked", "stalled"])
def test_a_body_left_unread_closes_its_connection(client, origin, path):
    """It may be long; nobody waits for its end."""
    with client.stream(f"{origin.url}/{path}") as stream:
        next(stream.pieces())
    client.request("GET", f"{origin.url}/empty")

    assert 2 == origin.connections


def test_threads_have_connections_of_their_own(client, origin):
    together = threading.Barrier(4)
    bodies = []

    def work():
        with client.stream(f"{origin.url}/whole") as stream:
            together.wait()
            bodies.append(b"".join(map(bytes, stream.pieces())))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [BODY] * 4 == bodies
    assert 4 == origin.connections


def test_a_forked_process_has_connections_of_its_own(client, origin):
    """Else the two would take each other's answers; it works in threads, as a transfer does."""

    def in_thread():
        thread = threading.Thread(target=read, args=[client, f"{origin.url}/whole"])
        thread.start()
        thread.join()

    read(client, f"{origin.url}/whole")
    isolated(in_thread, timeout_s=10)
    assert BODY == read(client, f"{origin.url}/whole")

    assert 2 == origin.connections


@pytest.mark.parametrize("path", ["cut", "stalled"])
def test_a_body_that_ends_early_or_stalls_may_pass(client, origin, path):
    url = f"{origin.url}/{path}"
    cut = {"wire": "Cut", "urllib3": "Protocol"}[client.kind]
    reason = {"cut": cut, "stalled": "ReadTimeout"}[path]

    assert unavailable(url, reason) == failure(read, client, url)
    assert unavailable(url, reason) == failure(client.request, "GET", url)


def test_a_stall_over_tls_may_pass_too(secure, certificate):
    url = f"{secure.url}/stalled"
    client = HttpClient({"SSL_CERT_FILE": str(certificate)}, stall_s=2)

    assert unavailable(url, "ReadTimeout") == failure(read, client, url)


def test_what_came_before_the_cut_is_kept(client, origin):
    pieces = []
    with client.stream(f"{origin.url}/cut") as stream, pytest.raises(TransientError):
        pieces.extend(map(bytes, stream.pieces()))

    assert BODY[:1000] == b"".join(pieces)


@pytest.mark.parametrize("path,reason", [("silent", "ReadTimeout"), ("nonsense", "Protocol")])
def test_no_answer_may_pass(client, origin, path, reason):
    url = f"{origin.url}/{path}"
    began = time.monotonic()

    assert unavailable(url, reason) == failure(client.request, "GET", f"{url}?X-Amz-Signature=secret")
    assert time.monotonic() - began < 10 * client.stall_s


def test_nobody_there_may_pass(client):
    refused, unknown = f"http://127.0.0.1:{free_port()}/x", "http://nowhere.invalid/x"

    assert unavailable(refused, "ConnectionRefused") == failure(client.request, "GET", refused)
    assert unavailable(refused, "NewConnection") == failure(client.request, "POST", refused)
    assert unavailable(unknown, "NameResolution") == failure(client.request, "GET", unknown)


@pytest.mark.parametrize(
    "url", ["http://", "http:///x", "http://host:port/x", "http://[::1/x", "nonsense", "ftp://h/x"]
)
def test_what_is_no_address_is_refused(client, url):
    wanted = FatalError, "endpoint-invalid", f"{url!r} is no address", "write it as https://host:port"

    assert wanted == failure(client.request, "GET", url)


def test_an_unknown_authority_is_refused(client, secure):
    hint = "give the authority in SSL_CERT_FILE, that of an S3 server in AWS_CA_BUNDLE, or correct the address"
    message = f"{secure.url}/whole has no trusted certificate: self-signed certificate"

    assert (FatalError, "certificate-refused", message, hint) == failure(client.request, "GET", f"{secure.url}/whole")


@pytest.mark.parametrize(
    "facts, error, why, hint",
    [
        (
            {"since_days": 1},
            (RetryError, "clock-skewed"),
            "certificate is not yet valid",
            "set the clock of this node (chrony, NTP), which is behind",
        ),
        (
            {"since_days": -3},
            (FatalError, "certificate-refused"),
            "certificate has expired",
            "renew the server's certificate; where other nodes take it, set the clock of this one (chrony, NTP)",
        ),
        (
            {"address": "127.0.0.2"},
            (FatalError, "certificate-refused"),
            "IP address mismatch, certificate is not valid for '127.0.0.1'",
            "correct the address, or give the server a certificate with this name",
        ),
    ],
    ids=["too early", "too late", "of another"],
)
def test_what_is_wrong_with_a_certificate_is_told(tmp_path, facts, error, why, hint):
    """With a clock that is behind, another node may pass; an authority in a file would change none of these."""
    file = tmp_path / "both.pem"
    context = server_context(file, **facts)
    with HostileS3({"d/f": S3_BODY}, tls=context) as server:
        client = HttpClient({"SSL_CERT_FILE": str(file)})

        told = failure(client.request, "GET", f"{server.endpoint}/bucket")

    assert (*error, f"{server.endpoint}/bucket has no trusted certificate: {why}", hint) == told


@pytest.mark.parametrize("variable", ["AWS_CA_BUNDLE", "SSL_CERT_FILE"])
def test_an_authority_may_be_given(secure, certificate, variable):
    client = HttpClient({variable: str(certificate.with_suffix(".crt"))})

    assert BODY == client.request("GET", f"{secure.url}/whole").data


def test_a_server_without_tls_is_no_matter_of_certificates(client, origin):
    """It may be a proxy that is not ready."""
    url = origin.url.replace("http:", "https:")

    assert unavailable(url, "SSL") == failure(client.request, "GET", url)


def test_the_bundle_of_aws_comes_first(certificate, tmp_path):
    environ = {"AWS_CA_BUNDLE": str(certificate.with_suffix(".crt")), "SSL_CERT_FILE": str(tmp_path / "other")}

    assert certificate.with_suffix(".crt") == authorities(environ)
    assert authorities({"AWS_CA_BUNDLE": "", "SSL_CERT_FILE": ""}) is None


def test_a_bundle_that_cannot_be_used_is_refused(tmp_path):
    (tmp_path / "text").write_text("no certificate")

    def refused(variable, name, reason):
        message = f"{variable}={tmp_path / name} cannot be read: {reason}"
        wanted = FatalError, "bundle-unreadable", message, BUNDLE_HINT
        return wanted == failure(HttpClient({variable: str(tmp_path / name)}).request, "GET", "https://127.0.0.1:1/")

    assert refused("AWS_CA_BUNDLE", "absent", "No such file or directory")
    assert refused("SSL_CERT_FILE", "text", "it holds no certificate")


def test_plain_http_goes_through_its_proxy(origin, proxy):
    client = HttpClient({"HTTP_PROXY": proxy.url})

    assert b"from the proxy" == client.request("GET", f"{origin.url}/whole").data
    assert [("GET", f"{origin.url}/whole", "")] == proxy.asked


def test_https_goes_through_a_tunnel(secure, certificate, proxy):
    """The proxy sees neither path nor headers; the certificate is the server's."""
    environ = {"https_proxy": proxy.url, "AWS_CA_BUNDLE": str(certificate.with_suffix(".crt"))}

    assert BODY == HttpClient(environ).request("GET", f"{secure.url}/whole").data
    assert [("CONNECT", secure.url.removeprefix("https://"), "")] == proxy.asked
    code = failure(HttpClient({"https_proxy": proxy.url}).request, "GET", f"{secure.url}/whole")[1]
    assert "certificate-refused" == code


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_may_want_a_password(origin, secure, certificate, proxy, scheme):
    """Which may hold characters that a URL wants escaped."""
    with_user = proxy.url.replace("//", "//user:p%40ss@")
    environ = {f"{scheme}_proxy": with_user, "AWS_CA_BUNDLE": str(certificate.with_suffix(".crt"))}
    HttpClient(environ).request("GET", f"{(origin if scheme == 'http' else secure).url}/whole")

    assert ["Basic dXNlcjpwQHNz"] == [authorization for _, _, authorization in proxy.asked]


def test_what_no_proxy_names_is_asked_directly(origin, proxy):
    client = HttpClient({"HTTP_PROXY": proxy.url, "NO_PROXY": "example.com,127.0.0.1"})

    assert BODY == client.request("GET", f"{origin.url}/whole").data
    assert [] == proxy.asked


def test_a_proxy_that_is_not_there_may_pass(client, origin):
    url = f"{origin.url}/whole"
    environ = {"HTTP_PROXY": f"http://user:password@127.0.0.1:{free_port()}"}

    assert unavailable(url, "Proxy") == failure(HttpClient(environ).request, "GET", url)


@pytest.mark.parametrize("proxy", ["socks5://user:password@127.0.0.1:1", "http://user:password@127.0.0.1:port"])
def test_a_proxy_that_nobody_can_use_is_refused(proxy):
    message = f"the proxy {proxy.replace('user:password@', '')!r} is none that can be used"
    hint = "write it as http://host:port in HTTPS_PROXY or HTTP_PROXY"
    client = HttpClient({"HTTP_PROXY": proxy})

    assert (FatalError, "proxy-invalid", message, hint) == failure(client.request, "GET", "http://127.0.0.1:1/")


def test_a_token_with_a_line_break_is_refused_and_not_shown(client, origin):
    """As one that was pasted into a Secret with its newline."""
    headers = {"Authorization": "Bearer hf_secret\nmore"}
    with pytest.raises(FatalError) as asked:
        client.request("GET", f"{origin.url}/whole", headers=headers)
    with pytest.raises(FatalError) as streamed, client.stream(f"{origin.url}/whole", headers=headers):
        pass

    for error in (asked.value, streamed.value):
        assert error.code == "header-invalid"
        assert "hf_secret" not in f"{error.message} {error.hint} {error.__cause__}"
