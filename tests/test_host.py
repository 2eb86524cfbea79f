"""host: the real machine's files, names and sockets."""

import os
import resource
import socket
import threading
import time

import pytest

from trainer_agent import host as host_module
from trainer_agent.host import Host, HttpsError, NameLookupError


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_files_below_the_root(host, tmp_path):
    """Every path is taken below the root, and what cannot be read is nothing rather than an error."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/b").write_text("text")
    (tmp_path / "proc/a").write_bytes(b"\xff")
    assert ("text", "\ufffd") == (host.read("/proc/b"), host.read("proc/a"))
    assert (["a", "b"], True) == (host.names("/proc"), host.exists("/proc/a"))
    missing = (host.read("/no"), host.read("/proc"), host.names("/no"), host.exists("/no"))
    assert (None, None, [], False) == missing


def test_space(host, tmp_path):
    """A file system has a size and says whether we may write; a path that is not there has none."""
    space = host.space("/")
    stat = os.statvfs(tmp_path)
    assert (stat.f_blocks * stat.f_frsize, True) == (space.size, space.writable)
    assert 0 <= space.free <= space.size
    assert host.space("/no") is None


def test_the_process_itself(host):
    """Host name, CPUs and limits are those of this process."""
    expected = (socket.gethostname(), os.sched_getaffinity(0))
    assert expected == (host.hostname(), host.affinity())
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    try:
        assert host.rlimit("CORE") == 0
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


def test_an_unlimited_limit(host, monkeypatch):
    """Infinity is no number."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert host.rlimit("NOFILE") is None


def test_clocks(host):
    """Both clocks run, and sleeping takes time."""
    began = (host.now(), host.monotonic())
    host.sleep(0.001)
    assert host.now() > began[0] > 1e9
    assert host.monotonic() >= began[1] + 0.001


def test_resolve(host):
    """A name gives its addresses once each, an address gives itself."""
    assert "127.0.0.1" in host.resolve("localhost", timeout_s=10)
    assert ["10.1.2.3"] == host.resolve("10.1.2.3", timeout_s=10)


@pytest.mark.parametrize("name", ["a..b", "x" * 64 + ".invalid", "\udcff"])
def test_names_that_are_none(host, name):
    """A name that cannot be asked for is a lookup error, not a crash of ours."""
    with pytest.raises(NameLookupError) as refused:
        host.resolve(name, timeout_s=10)
    assert refused.value.message.startswith(f"{name} does not resolve (")


@pytest.mark.parametrize(
    "error, message, published",
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "Name or service not known", False),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure"), "Temporary failure", None),
        (MemoryError("no more"), "the lookup MemoryError: no more", None),
    ],
)
def test_what_the_name_server_says(host, monkeypatch, error, message, published):
    """Only a clear no of the name server means that the name does not exist."""

    def refuse(*_, **__):
        raise error

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with pytest.raises(NameLookupError) as refused:
        host.resolve("peer", timeout_s=10)
    expected = ("name-not-resolved", f"peer does not resolve ({message})", published)
    assert expected == (refused.value.code, refused.value.message, refused.value.published)


def test_a_silent_name_server(host, monkeypatch):
    """A lookup that hangs is given up at its deadline."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: threading.Event().wait())
    began = time.monotonic()
    with pytest.raises(NameLookupError) as refused:
        host.resolve("peer", timeout_s=0.1)
    expected = ("peer does not resolve (the name server gave no answer within 0.1 s)", None)
    assert expected == (refused.value.message, refused.value.published)
    assert time.monotonic() - began < 40


def test_resolve_all(host, monkeypatch):
    """All names are asked for at the same time; each gets its addresses, or what the name server said of it."""
    together = threading.Barrier(3)

    def answer(name, *_, **__):
        together.wait(30)
        if name == "lost":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"10.0.0.{len(name)}", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    found = host.resolve_all(["peer", "other", "lost"], timeout_s=30)
    error = found.pop("lost")
    assert {"peer": ["10.0.0.4"], "other": ["10.0.0.5"]} == found
    assert ("lost does not resolve (Name or service not known)", False) == (error.message, error.published)


def test_resolve_all_with_a_silent_name_server(host, monkeypatch):
    """What hangs is given up at the deadline; what has been answered is kept."""

    def answer(name, *_, **__):
        return [(0, 0, 0, "", ("10.0.0.1", 0))] if name == "peer" else threading.Event().wait()

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    found = host.resolve_all(["silent", "peer"], timeout_s=1)
    assert ["10.0.0.1"] == found["peer"]
    expected = ("silent does not resolve (the name server gave no answer within 1 s)", None)
    assert expected == (found["silent"].message, found["silent"].published)


def test_resolve_all_when_the_lookup_breaks(host, monkeypatch):
    """A lookup that crashes says nothing about any name."""

    def refuse(*_, **__):
        raise MemoryError("no more")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    found = host.resolve_all(["a", "b"], timeout_s=10)
    message = "does not resolve (the lookup MemoryError: no more)"
    assert {"a": (f"a {message}", None), "b": (f"b {message}", None)} == {
        name: (error.message, error.published) for name, error in found.items()
    }


def test_claim(host, listener):
    """A port is free, taken, or the address belongs to somebody else; other answers are named."""
    port = listener.getsockname()[1]
    with socket.create_server(("127.0.0.1", 0)) as other:
        free = other.getsockname()[1]
    # 192.0.2.1 is reserved for documentation, so no machine has it.
    answers = [host.claim("127.0.0.1", free), host.claim("127.0.0.1", port), host.claim("192.0.2.1", free)]
    assert ["free", "taken", "elsewhere"] == answers


def test_claim_without_ipv6(host, monkeypatch):
    """A kernel without IPv6 refuses the socket itself."""

    def refuse(*_):
        raise OSError(97, "Address family not supported")

    monkeypatch.setattr(socket, "socket", refuse)
    assert host.claim("::1", 1) == "EAFNOSUPPORT"


def test_https_refused(host, listener):
    """A port that nobody serves is said with its URL."""
    port = listener.getsockname()[1]
    listener.close()
    with pytest.raises(HttpsError) as refused:
        host.https_get(f"https://127.0.0.1:{port}/x", ca=None, timeout_s=5)
    message = f"https://127.0.0.1:{port}/x does not answer ([Errno 111] Connection refused)"
    assert ("https-failed", message, False) == (refused.value.code, refused.value.message, refused.value.untrusted)


def test_https_without_a_port_at_an_ipv6_address(host):
    """Its end is no port: 443 is asked, where nobody listens, or which is out of reach."""
    with pytest.raises(HttpsError) as refused:
        host.https_get("https://[::ffff:127.0.0.1]/readyz", ca=None, timeout_s=5)
    assert "does not answer ([Errno " in refused.value.message


def test_https_silent(host, listener):
    """A server that accepts and says nothing is given up at the deadline."""
    url = f"https://127.0.0.1:{listener.getsockname()[1]}/x"
    with pytest.raises(HttpsError) as refused:
        host.https_get(url, ca=None, timeout_s=0.1)
    assert url in refused.value.message


def test_https_with_an_authority_that_is_none(host, tmp_path, listener):
    """A file without certificates trusts nobody."""
    (tmp_path / "ca.crt").write_text("nonsense")
    with pytest.raises(HttpsError) as refused:
        host.https_get(f"https://127.0.0.1:{listener.getsockname()[1]}/x", ca="/ca.crt", timeout_s=5)
    assert refused.value.untrusted


@pytest.mark.parametrize("header, seconds", [(None, None), ("x", None), ("Thu, 01 Jan 1970 00:01:00 GMT", 60.0)])
def test_the_date_of_an_answer(header, seconds):
    """A header that is absent or nonsense is no date."""
    assert seconds == host_module._date(header)
