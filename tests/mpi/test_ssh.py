"""How ssh is called, against real sshd."""

import os
import subprocess

import pytest

from trainer_agent.errors import FatalError
from trainer_agent.mpi.ssh import ALIAS, arguments, port_of, run

ENVIRON = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
with_ssh = pytest.mark.usefixtures("ssh")


def options_of(words):
    """Return what ssh itself makes of the words."""
    done = subprocess.run(["ssh", "-G", *words, "host"], capture_output=True, text=True, check=True, env=ENVIRON)
    return dict(line.partition(" ")[::2] for line in done.stdout.splitlines())


def test_the_words(tmp_path):
    """The user's own come first, as ssh takes the first of two; then ours, then port and key."""
    common = ["BatchMode=yes", "LogLevel=ERROR", "ConnectTimeout=10", "ConnectionAttempts=10"]
    common += ["GlobalKnownHostsFile=/dev/null", "ServerAliveInterval=15", "ServerAliveCountMax=4"]

    def words(*options):
        return tuple(word for option in (*common, *options) for word in ("-o", option))

    trusting = words("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null")
    assert ("-v", *trusting, "-p", "2222") == arguments(("-v",), port=2222, key=None, known_hosts=None)
    known = tmp_path / "known_hosts"
    checking = words("StrictHostKeyChecking=yes", f"UserKnownHostsFile={known}", f"HostKeyAlias={ALIAS}")
    identity = ("-o", "IdentitiesOnly=yes", "-i", "/shm/id_rsa")
    assert (*checking, "-p", "22", *identity) == arguments((), port=22, key="/shm/id_rsa", known_hosts=known)


@with_ssh
def test_the_users_words_win():
    """ssh itself says what it makes of both."""
    own = ("-o", "ConnectTimeout=3", "-o", "LogLevel=DEBUG", "-p", "2222", "-o", "ConnectionAttempts=2")
    found = options_of(arguments(own, port=22, key=None, known_hosts=None))
    wanted = {"connecttimeout": "3", "loglevel": "DEBUG", "port": "2222", "connectionattempts": "2", "batchmode": "yes"}
    assert wanted == {name: found[name] for name in wanted}


@with_ssh
@pytest.mark.parametrize(
    "words, port",
    [((), 22), (("-p", "2222"), 2222), (("-o", "Port=2200"), 2200), (("-p", "1", "-p", "2"), 1), (("-v",), 22)],
)
def test_port_of(words, port):
    """The port that ssh would take."""
    assert port == port_of(("-F", "none", *words), "n-0.job", ENVIRON)


@with_ssh
def test_the_port_of_a_configuration(tmp_path):
    """Images name the port in ssh_config."""
    config = tmp_path / "config"
    config.write_text("Host *\n  Port 2222\n")
    assert 2222 == port_of(("-F", str(config)), "n-0.job", ENVIRON)


@with_ssh
@pytest.mark.parametrize(
    "words, said",
    [
        (("-o", "NoSuchOption=1"), "command-line: line 0: Bad configuration option: nosuchoption"),
        (("-p", "0"), "Bad port '0'"),
        (("-F", "/no/such"), "Can't open user config file /no/such: No such file or directory"),
        (("--bogus",), ""),
        (("-o",), ""),
    ],
)
def test_words_that_ssh_refuses(words, said):
    """ssh's own complaint, and where the words come from."""
    with pytest.raises(FatalError) as error:
        port_of(words, "n-0.job", ENVIRON)
    assert "ssh-args-invalid" == error.value.code
    assert error.value.message.startswith(f"ssh refuses the words {' '.join(words)!r}: ")
    assert said in error.value.message
    assert error.value.hint.startswith("correct OMPI_MCA_plm_rsh_args")


def test_no_ssh():
    """The image lacks it."""
    with pytest.raises(FatalError) as error:
        run(("ssh", "-G", "x"), {"PATH": "/nowhere"}, timeout_s=5)
    assert ("ssh-missing", "cannot start ssh: No such file or directory") == (error.value.code, error.value.message)


def test_an_ssh_that_hangs(tmp_path):
    """Every question has an end."""
    (tmp_path / "ssh").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "ssh").chmod(0o755)
    with pytest.raises(FatalError) as error:
        run((str(tmp_path / "ssh"),), ENVIRON, timeout_s=0.2)
    assert ("ssh-stuck", f"{tmp_path}/ssh gave no answer within 0.2 s") == (error.value.code, error.value.message)
