"""Waiting for sshd: real sockets that are late, silent, somebody else's, or nobody's."""

import socket
import threading
import time
from contextlib import contextmanager

import pytest
from structlog.testing import capture_logs

from trainer_agent.host import Host
from trainer_agent.mpi.ready import WorkersMissingError, greeting_missing, wait_for_sshd
from trainer_agent.testing import FakeHost


@contextmanager
def server(address="127.0.0.1", *, port=0, says=b"SSH-2.0-OpenSSH_9.2\r\n", hangs_up=False):
    """Answer every connection with some words, at once; yield the port."""
    over = threading.Event()

    def serve(listener):
        links = []
        while not over.is_set():
            try:
                links.append(listener.accept()[0])
            except OSError:
                continue
            links[-1].sendall(says)
            if hangs_up:
                links[-1].close()
        for link in links:
            link.close()

    with socket.create_server((address, port)) as listener:
        listener.settimeout(0.05)
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            over.set()
            thread.join()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def missing(addresses, port, *, timeout_s=0.0):
    """Return the error of a wait that ends without all."""
    with pytest.raises(WorkersMissingError) as error:
        wait_for_sshd(addresses, port, Host(), timeout_s=timeout_s)
    return error.value


@pytest.mark.parametrize(
    "settings, reason",
    [
        ({}, ""),
        ({"says": b"SSH-2.0-Go\r\n"}, ""),
        ({"says": b"SSH-1.5-old\r\n"}, "127.0.0.1 port {port} says b'SSH-1.5-old', which is no SSH"),
        (
            {"says": b"HTTP/1.1 400 Bad Request\r\nServer: nginx\r\n\r\n"},
            "127.0.0.1 port {port} says b'HTTP/1.1 400 Bad Request', which is no SSH",
        ),
        ({"says": b"", "hangs_up": True}, "127.0.0.1 port {port} hangs up"),
        ({"says": b""}, "127.0.0.1 port {port} gives no answer"),
    ],
)
def test_what_answers(settings, reason):
    """Only the banner of SSH is an answer; a port that a proxy or a half-started sshd holds open is none."""
    with server(**settings) as port:
        assert reason.format(port=port) == greeting_missing("127.0.0.1", port=port, timeout_s=0.3)


def test_nobody_listens():
    """The kernel's reason is told."""
    port = free_port()
    assert f"127.0.0.1 port {port}: Connection refused" == greeting_missing("127.0.0.1", port=port, timeout_s=1)


def test_an_address_that_is_none():
    """A name that slipped through is an error of that host, not of ours."""
    assert greeting_missing("no.such.host.invalid", port=22, timeout_s=1).startswith("no.such.host.invalid port 22: ")


def test_a_late_listener():
    """The wait goes on until it is there."""
    port = free_port()
    done = threading.Event()

    def wait():
        wait_for_sshd({"a": "127.0.0.1"}, port, Host(), timeout_s=20)
        done.set()

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.3)
    assert not done.is_set()
    with server(port=port):
        thread.join(60)
    assert done.is_set()


def test_all_that_are_missing_are_named():
    """The message has each host with its reason, and not those that answer."""
    with server() as port:
        error = missing({"n-0": "127.0.0.1", "n-1": "127.0.0.2", "n-2": "127.0.0.3"}, port)
    refused = f"n-1: 127.0.0.2 port {port}: Connection refused, n-2: 127.0.0.3 port {port}: Connection refused"
    assert f"2 of 3 workers do not answer ssh after 0 s: {refused}" == error.message
    assert ("mpi-workers-missing", 20, {"n-1", "n-2"}) == (error.code, error.exit_code, set(error.missing))


def test_many_that_are_missing_are_counted():
    """A message may not be longer than a termination log."""
    addresses = {f"job-node-0-{number}.job": f"127.0.1.{number}" for number in range(200)}
    error = missing(addresses, free_port())
    assert (200, True) == (len(error.missing), error.message.endswith(" and 192 more"))
    assert len(error.message) < 2000


def test_the_wait_is_bounded():
    """Silence everywhere takes as long as was allowed, and a moment."""
    with server(says=b"") as port:
        began = time.monotonic()
        missing(dict.fromkeys("abc", "127.0.0.1"), port, timeout_s=0.5)
        assert 0.5 <= time.monotonic() - began < 20


def test_nobody_to_wait_for():
    """A job whose only host is this one."""
    assert wait_for_sshd({}, 22, Host(), timeout_s=0) is None


def test_progress(tmp_path):
    """Every ten seconds a line says whom we wait for."""
    port = free_port()
    with capture_logs() as logs, pytest.raises(WorkersMissingError):
        wait_for_sshd({"n-0": "127.0.0.1"}, port, FakeHost(tmp_path), timeout_s=25)
    lines = [(line["event"], line["waited_s"], line["missing"]) for line in logs]
    refused = {"n-0": f"127.0.0.1 port {port}: Connection refused"}
    assert [("waiting for sshd", 10, refused), ("waiting for sshd", 20, refused)] == lines
