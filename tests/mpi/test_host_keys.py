"""Host keys: real sshds with the job's key, with keys of their own, and none."""

import os

import pytest
from mpi_sshd import make_key, public_of
from structlog.testing import capture_logs

from trainer_agent.errors import FatalError
from trainer_agent.mpi.host_keys import STRICT_HINT, known_hosts, scan
from trainer_agent.mpi.ready import WorkersMissingError
from trainer_agent.mpi.ssh import ALIAS, arguments, run

ENVIRON = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}


def test_off_checks_nothing(tmp_path):
    """Nobody is asked."""
    assert known_hosts("off", "key", {"a": "127.0.0.1"}, port=1, folder=tmp_path, environ=ENVIRON) is None
    assert known_hosts("auto", "", {"a": "127.0.0.1"}, port=1, folder=tmp_path, environ=ENVIRON) is None


def test_strict_without_a_key(tmp_path):
    """There is nothing to check against."""
    with pytest.raises(FatalError) as error:
        known_hosts("strict", "", {"a": "127.0.0.1"}, port=1, folder=tmp_path, environ=ENVIRON)
    assert ("mpi-key-absent", STRICT_HINT) == (error.value.code, error.value.hint)


def test_strict_asks_nobody_beforehand(tmp_path):
    """ssh checks each host when it connects."""
    path = known_hosts("strict", "kind key", {"a": "127.0.0.1"}, port=1, folder=tmp_path, environ=ENVIRON)
    assert f"{ALIAS} kind key\n" == path.read_text()


@pytest.mark.lab
class TestRealServers:
    """Workers that share the job's key, and others."""

    def test_all_show_the_jobs_key(self, servers, key, tmp_path):
        """Then ssh checks it, by one name for all hosts, and gets in."""
        authorized = key.with_name("id_rsa.pub")
        hosts = {name: servers.start(key, authorized=authorized) for name in ("n-0", "n-1")}
        public = public_of(key)
        assert dict.fromkeys(hosts, public) == scan(public, hosts, port=servers.port, environ=ENVIRON)
        path = known_hosts("auto", public, hosts, port=servers.port, folder=tmp_path, environ=ENVIRON)
        words = arguments(("-F", "none"), port=servers.port, key=key, known_hosts=path)
        for address in hosts.values():
            done = run(("ssh", *words, address, "echo in"), ENVIRON, timeout_s=20)
            assert (0, "in\n", "") == (done.returncode, done.stdout, done.stderr)

    def test_somebody_else_at_an_address(self, servers, key, tmp_path):
        """ssh refuses to speak with a host that has another key, also when nobody asked beforehand."""
        other = make_key(tmp_path / "other")
        hosts = {"n-0": servers.start(other, authorized=key.with_name("id_rsa.pub"))}
        path = known_hosts("strict", public_of(key), hosts, port=servers.port, folder=tmp_path, environ=ENVIRON)
        words = arguments(("-F", "none"), port=servers.port, key=key, known_hosts=path)
        done = run(("ssh", *words, hosts["n-0"], "true"), ENVIRON, timeout_s=20)
        assert (255, True) == (done.returncode, "Host key verification failed." in done.stderr)

    def test_some_show_another_key(self, servers, key, tmp_path):
        """That is an error, which names them."""
        other = make_key(tmp_path / "other")
        hosts = {"n-0": servers.start(key), "n-1": servers.start(other), "n-2": servers.start(other)}
        shown = scan(public_of(key), hosts, port=servers.port, environ=ENVIRON)
        assert {"n-0": public_of(key), "n-1": public_of(other), "n-2": public_of(other)} == shown
        with pytest.raises(FatalError) as error:
            known_hosts("auto", public_of(key), hosts, port=servers.port, folder=tmp_path, environ=ENVIRON)
        message = "the sshd of n-1, n-2 does not show the key that the other workers share"
        assert ("mpi-host-key-differs", message) == (error.value.code, error.value.message)

    @pytest.mark.parametrize("kind", ["ecdsa", "ed25519", "rsa"])
    def test_none_shows_the_jobs_key(self, servers, key, tmp_path, kind):
        """The sshd of most images has a key of the image; that is told, and accepted."""
        hosts = {"n-0": servers.start(make_key(tmp_path / "image", kind))}
        with capture_logs() as logs:
            found = known_hosts("auto", public_of(key), hosts, port=servers.port, folder=tmp_path, environ=ENVIRON)
        assert (None, 1) == (found, len(logs))

    @pytest.mark.parametrize("kind", ["ed25519", "rsa"])
    def test_other_kinds_of_keys(self, servers, tmp_path, kind):
        """A user's own key pair may be of any kind."""
        key = make_key(tmp_path / "key", kind)
        hosts = {"n-0": servers.start(key)}
        assert {"n-0": public_of(key)} == scan(public_of(key), hosts, port=servers.port, environ=ENVIRON)

    def test_without_ssh_keyscan(self, servers, key, tmp_path):
        """Nobody can be asked, so nothing is checked."""
        hosts = {"n-0": servers.start(key)}
        bare = {"PATH": str(tmp_path)}
        assert scan(public_of(key), hosts, port=servers.port, environ=bare) is None
        assert known_hosts("auto", public_of(key), hosts, port=servers.port, folder=tmp_path, environ=bare) is None

    def test_a_worker_that_has_just_gone(self, servers, key, tmp_path):
        """It is missed, and neither taken for somebody else nor a reason to check nobody."""
        hosts = {"n-0": servers.start(key), "n-1": "127.0.0.99"}
        with pytest.raises(WorkersMissingError) as error:
            known_hosts("auto", public_of(key), hosts, port=servers.port, folder=tmp_path, environ=ENVIRON)
        assert ["n-1"] == list(error.value.missing)
