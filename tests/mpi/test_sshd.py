"""What stands in a worker's sshd_config, which variables sessions get, and who answers as an sshd."""

import os
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest
from podlab import PATH, without

from trainer_agent.mpi.sshd import (
    MOST_BYTES,
    MOST_VARIABLES,
    Sshd,
    banner,
    configuration,
    session_environment,
    version_in,
)

OLD, NEW = (8, 6), (9, 2)
WHOLE = """\
Port 2222
HostKey "/dev/shm/a/id_rsa"
AuthorizedKeysFile "/mnt/100%%/my keys"
AuthenticationMethods publickey
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UsePAM no
StrictModes no
PidFile none
UseDNS no
PrintMotd no
PermitUserRC no
LogLevel INFO
DisableForwarding yes
X11Forwarding no
AllowTcpForwarding no
AllowAgentForwarding no
MaxStartups 1000
MaxSessions 1000
ClientAliveInterval 30
ClientAliveCountMax 4
SetEnv "A=b c" "Q=\\"x\\\\y\\""
"""


def sshd(tmp_path="/dev/shm/a", *, environ=(), version=NEW, port=2222):
    return Sshd(port, Path(tmp_path) / "id_rsa", Path("/mnt/100%/my keys"), dict(environ), version)


def test_the_whole_configuration():
    """Only the job's key, only sessions, and as many of them as come."""
    assert configuration(sshd(environ={"A": "b c", "Q": '"x\\y"'})).decode() == WHOLE


@pytest.mark.parametrize("version,there", [((9, 7), False), ((9, 8), True), ((10, 0), True), (None, False)])
def test_who_connects_often_is_not_shut_out(version, there):
    """From 9.8 on sshd punishes probes; versions before do not know the word, and would not start."""
    assert (b"PerSourcePenalties no" in configuration(sshd(version=version))) == there


def test_without_variables_there_is_no_line_for_them():
    """It would be an error."""
    assert b"SetEnv" not in configuration(sshd())


def test_bytes_that_are_no_utf_8():
    """They go as they came."""
    assert b'SetEnv "A=\xff"\n' in configuration(sshd(environ={"A": os.fsdecode(b"\xff")}))


def test_an_sshd_accepts_it(tmp_path):
    """The real one, with all that a variable may hold but a newline."""
    program = shutil.which("sshd", path=PATH) or without("there is no sshd")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "id_rsa"], check=True, timeout=60)
    environ = {"A": "".join(map(chr, range(1, 127))).replace("\n", ""), "B": "\\", "C": "\\\\", "D": '"', "E": ""}
    kept, left_out = session_environment(environ, NEW)
    (tmp_path / "config").write_bytes(configuration(sshd(tmp_path, environ=kept, version=NEW)))
    done = subprocess.run([program, "-T", "-f", tmp_path / "config"], capture_output=True, check=False, timeout=60)
    if b"Missing privilege separation directory" in done.stderr:
        without("there is no /run/sshd")

    assert left_out == []
    assert done.returncode == 0, done.stderr
    shown = [line.split(b" ", 1)[1].decode() for line in done.stdout.split(b"\n") if line.startswith(b"setenv ")]
    assert shown == [f"{name}={value}" for name, value in kept.items()]


def test_what_belongs_to_a_session_stays_away():
    """And what was said to this program only."""
    own = ("HOME", "USER", "LOGNAME", "SHELL", "MAIL", "PWD", "OLDPWD", "SHLVL", "_", "TERM", "SSH_AUTH_SOCK")
    environ = dict.fromkeys((*own, "TRAINER_AGENT_WORKER_PORT", "HOSTNAME", "USERS", "_X", "PATH", "HOME_OF"), "x")

    kept, left_out = session_environment(environ)

    assert kept == dict.fromkeys(("PATH", "HOME_OF", "HOSTNAME", "USERS", "_X"), "x")
    assert left_out == []


@pytest.mark.parametrize("version,expected", [(OLD, ["HASH", "LINES", "QUOTE"]), (NEW, ["LINES"]), (None, ["LINES"])])
def test_what_cannot_be_written(version, expected):
    """A newline never; before 8.7 `#` began a comment anywhere, and a quote ended what was quoted."""
    environ = {"LINES": "a\nb", "QUOTE": '"', "HASH": "a #b", "PLAIN": "it's 50% \\n"}
    assert session_environment(environ, version)[1] == expected


def test_an_old_sshd_takes_backslashes_as_they_are():
    """It would hand on both of two."""
    assert b'SetEnv "A=\\n"\n' in configuration(sshd(environ={"A": "\\n"}, version=OLD))


def test_too_many_variables():
    """PATH comes first, then all others, the links of Services last."""
    links = ("A_SERVICE_HOST", "A_SERVICE_PORT", "A_SERVICE_PORT_HTTP", "A_PORT", "A_PORT_80_TCP", "A_PORT_80_TCP_ADDR")
    others = [f"X{number}" for number in range(MOST_VARIABLES - 2)]

    kept, left_out = session_environment(dict.fromkeys([*links, "ZZ_PORT_NUMBER", *others, "PATH"], "x"))

    assert len(kept) == MOST_VARIABLES
    assert next(iter(kept)) == "PATH"
    assert left_out == sorted(links)


def test_variables_that_are_too_large():
    """What fits goes, also after one that does not."""
    environ = {"PATH": "x", "A": "x" * 100000, "B": "x" * 100000, "C": "x" * 100000, "D": "x" * 10}

    kept, left_out = session_environment(environ)

    assert (list(kept), left_out) == (["PATH", "A", "B", "D"], ["C"])
    assert len(configuration(sshd(environ=kept))) < MOST_BYTES + 2000 < 256 << 10


@pytest.mark.parametrize(
    "text,version",
    [
        ("OpenSSH_9.2, OpenSSL 3.0.22 25 Aug 2026", (9, 2)),
        ("unknown option -- V\nOpenSSH_8.4p1 Debian-5+deb11u3, OpenSSL 1.1.1w\nusage: sshd", (8, 4)),
        ("OpenSSH_10.0p2 Debian-7+deb13u4", (10, 0)),
        ("Dropbear v2022.83", None),
    ],
)
def test_the_version(text, version):
    """As Debian 12, 11 and 13 say it."""
    assert version_in(text) == version


def server(*chunks, close=True):
    """Answer one connection on a port of loopback; return the port."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    def serve():
        connection, _ = listener.accept()
        for chunk in chunks:
            connection.sendall(chunk)
            time.sleep(0.02)
        if close:
            connection.close()
        else:
            held.append(connection)
        listener.close()

    threading.Thread(target=serve, daemon=True).start()
    return port


held = []


@pytest.mark.parametrize(
    "chunks,said",
    [
        ([b"SSH-2.0-OpenSSH_9.2\r\n"], "SSH-2.0-OpenSSH_9.2"),
        ([b"SSH-", b"2.0-x", b"\n"], "SSH-2.0-x"),
        ([b"HTTP/1.1 400 Bad Request\r\n"], None),
        ([b"SSH-1.5-old\r\n"], None),
        ([], None),
        ([b"x" * 300], None),
    ],
    ids=["whole", "in pieces", "another", "old", "nothing", "endless"],
)
def test_who_answers(chunks, said):
    """Only an SSH server of today counts."""
    assert banner("127.0.0.1", server(*chunks), timeout_s=5) == said


def test_who_does_not_answer(unused_port):
    """A port that nobody has, and one whose owner says nothing."""
    assert banner("127.0.0.1", unused_port, timeout_s=5) is None
    started = time.monotonic()
    assert banner("127.0.0.1", server(close=False), timeout_s=0.1) is None
    assert time.monotonic() - started < 20
    held.pop().close()


@pytest.fixture
def unused_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
