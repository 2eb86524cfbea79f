"""A worker's parts: who is a rank, how everything ends, what it says when sshd cannot work."""

import os
import time
from pathlib import Path

import pytest
from podlab import eventually
from structlog.testing import capture_logs

from trainer_agent.commands.worker import find_authorized_keys
from trainer_agent.errors import FatalError, RetryError
from trainer_agent.isolation import contained
from trainer_agent.mpi import worker
from trainer_agent.mpi.place import check_account, check_capabilities, check_port, find_sshd, try_out, version_of
from trainer_agent.mpi.worker import ask, end_descendants, ranks, serve
from trainer_agent.process import adopt_orphans, children_left, descendants, spawn
from trainer_agent.testing import FakeHost

pytestmark = pytest.mark.lab

# Two ranks, one with a child of its own, and a daemon below the daemon, as Intel MPI has them.
DAEMON = """#!/bin/sh
[ "$1" = below ] || "${0%/*}/hydra_pmi_proxy" below &
sleep 1000 &
{rank} &
wait
"""
RANK = """#!/bin/sh
trap 'echo told >>"${0%/*}/told"; exit' TERM
(trap 'echo told >>"${0%/*}/told"' TERM; while :; do sleep 0.02; done) &
while :; do sleep 0.02; done
"""


def program(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def daemons(tmp_path, monkeypatch):
    """Scripts by the names of MPI's daemons, and their ranks."""
    monkeypatch.setattr(worker, "END_S", 0.1)
    rank = program(tmp_path / "rank", RANK)
    for name in ("hydra_bstrap_proxy", "hydra_pmi_proxy", "orted", "prted"):
        program(tmp_path / name, DAEMON.replace("{rank}", str(rank)))
    return tmp_path


def commands(processes):
    """Return what runs, by the last words of the command lines."""
    return sorted(Path(process.cmdline()[-1]).name for process in processes)


@pytest.mark.parametrize("name", ["orted", "prted", "hydra_bstrap_proxy"])
def test_ranks_are_the_children_of_daemons(daemons, name):
    """Neither daemons, nor what ranks have started."""

    def found():
        spawn([str(daemons / name)], env=os.environ)
        try:
            eventually(lambda: len(ranks()) == 4, what="the ranks run")
            time.sleep(0.05)
            return commands(ranks())
        finally:
            end_descendants()

    assert contained(found, grace_s=5) == ["1000", "1000", "rank", "rank"]


def test_only_ranks_are_asked(daemons):
    """Once each; what they have started, data loaders in the middle of a checkpoint, is theirs."""

    def asked():
        spawn([str(daemons / "orted")], env=os.environ)
        eventually(lambda: len(descendants()) >= 8, what="all run")
        time.sleep(0.1)
        first = ask(set())
        try:
            eventually(lambda: len(ranks()) == 0, what="the ranks have ended")
            return len(first), len(ask(first)), (daemons / "told").read_text()
        finally:
            end_descendants()

    assert contained(asked, grace_s=5) == (4, 0, "told\n" * 2)


def test_nothing_is_left_of_what_ignores_sigterm(tmp_path, monkeypatch):
    """Nor of what has left its session."""
    monkeypatch.setattr(worker, "END_S", 0.1)
    stubborn = program(tmp_path / "stubborn", "#!/bin/sh\ntrap '' TERM\nsetsid sleep 1000 &\nsleep 1000\n")

    def left():
        adopt_orphans()
        spawn([str(stubborn)], env=os.environ)
        eventually(lambda: len(descendants()) == 3, what="all run")
        end_descendants()
        return descendants(), children_left()

    assert contained(left, grace_s=5) == ([], False)


def served(*argv, port=1, ready=lambda _said: None):
    """Serve with another program for sshd, in a process of its own."""
    return contained(lambda: serve(argv, os.environ, port=port, grace_s=1, on_ready=ready), grace_s=5)


def test_an_sshd_that_ends(capfd):
    """With its last words; what it says goes to standard error too."""
    with pytest.raises(RetryError) as error:
        served("sh", "-c", "printf 'one\\r\\ntwo\\r\\nthree\\r\\nfour\\r\\n' >&2; exit 3")
    assert error.value.code == "mpi-sshd-ended"
    assert error.value.message == "sshd ended with exit code 3; its last words: two / three / four"
    assert "one\ntwo\nthree\nfour\n" in capfd.readouterr().err


def test_an_sshd_without_words():
    """The error does not invent any."""
    with pytest.raises(RetryError) as error:
        served("sh", "-c", "kill -9 $$")
    assert error.value.message == "sshd killed by SIGKILL"


def test_an_sshd_that_is_no_program(tmp_path):
    """As when a directory is named."""
    with pytest.raises(FatalError) as error:
        served(str(tmp_path))
    assert error.value.code == "mpi-sshd-missing"


def test_an_sshd_that_does_not_answer(monkeypatch):
    """The wait is bounded."""
    monkeypatch.setattr(worker, "START_S", 0.2)
    with pytest.raises(RetryError) as error:
        served("sleep", "1000")
    assert error.value.code == "mpi-sshd-silent"
    assert error.value.message == "sshd does not answer on 127.0.0.1:1 within 0.2 s"


def test_a_signal_before_it_answers():
    """It ends at once, with the signal's exit code."""
    assert served("sh", "-c", "kill -TERM $PPID; exec sleep 1000") == 143


def test_what_probes_leave_is_not_passed_on(capfd):
    """As sshd 9.2 and 10.0 say it; who tried to log in is passed on."""
    noise = (
        "kex_exchange_identification: Connection closed by remote host",
        "error: kex_exchange_identification: client sent invalid protocol identifier",
        "banner exchange: Connection from 10.0.0.1 port 4: invalid format",
        "send_error: write: Broken pipe",
        "Connection closed by 10.0.0.1 port 41234",
        "Connection reset by fe80::1%eth0 port 41234",
    )
    told = "Connection closed by authenticating user root 10.0.0.1 port 41234 [preauth]"
    with pytest.raises(RetryError) as error:
        served("sh", "-c", 'printf "%s\\r\\n" "$@" >&2', "sh", *noise, told)
    assert error.value.message.endswith(f"; its last words: {told}")
    assert capfd.readouterr().err == f"{told}\n"


ALL = "0000003fffffffff"


@pytest.mark.parametrize(
    "effective,missing",
    [(ALL, ""), ("00000000000400c0", ""), ("00000000000000c0", "SYS_CHROOT"), ("0" * 16, "SETGID, SETUID, SYS_CHROOT")],
)
def test_capabilities(tmp_path, effective, missing):
    """The ones of Docker and containerd are enough, those of CRI-O are not."""
    host = FakeHost(tmp_path)
    host.put("/proc/self/status", f"Name:\tx\nCapInh:\t{'0' * 16}\nCapEff:\t{effective}\n")
    if not missing:
        return check_capabilities(host)
    with pytest.raises(FatalError) as error:
        check_capabilities(host)
    assert error.value.code == "mpi-capability-missing"
    assert error.value.message == (
        f"sshd as root needs the capabilities SETGID, SETUID, SYS_CHROOT, and this container lacks {missing}"
    )
    return None


@pytest.mark.parametrize("shadow,codes", [("root:*:1::", []), ("root:!locked:1::", ["mpi-account-locked"]), (None, [])])
def test_a_locked_root(tmp_path, shadow, codes):
    """As Debian and Red Hat have it, and where there is no such file."""
    host = FakeHost(tmp_path)
    if shadow:
        host.put("/etc/shadow", f"daemon:!:1::\n{shadow}\n")
    with capture_logs() as logs:
        check_account(host)
    assert [line["code"] for line in logs] == codes


def test_a_port_that_somebody_has(tmp_path):
    """The same pod may do better when that is over."""
    check_port(2222, FakeHost(tmp_path, own=("0.0.0.0", "::")))
    with pytest.raises(RetryError) as error:
        check_port(2222, FakeHost(tmp_path, own=("0.0.0.0", "::"), busy=[2222]))
    assert (error.value.code, error.value.message) == ("mpi-port-taken", "port 2222 is taken, wanted it free for sshd")


def test_who_may_come_in(tmp_path):
    """The file that is named, the one beside the key, or nobody's."""
    key = tmp_path / "id_rsa"
    assert find_authorized_keys(None, key) is None
    beside = tmp_path / "authorized_keys"
    beside.touch()
    assert find_authorized_keys(None, key) == beside
    assert find_authorized_keys(str(key.with_name("authorized_keys")), Path("/nowhere/key")) == beside


@pytest.mark.parametrize("name,reason", [("missing", "No such file or directory"), (".", "Is a directory")])
def test_a_file_of_keys_that_cannot_be_read(tmp_path, name, reason):
    """sshd would say nothing, and refuse everybody."""
    with pytest.raises(FatalError) as error:
        find_authorized_keys(str(tmp_path / name), tmp_path / "id_rsa")
    assert error.value.code == "mpi-authorized-keys-unreadable"
    assert error.value.message == f"cannot read {tmp_path / name}: {reason}"


def test_where_sshd_is(tmp_path):
    """Its absolute path: by another one sshd does not run."""
    own = program(tmp_path / "my-sshd", "#!/bin/sh\n")
    assert find_sshd("my-sshd", {"PATH": str(tmp_path)}) == str(own)
    assert find_sshd(str(own), {}) == str(own)
    with pytest.raises(FatalError) as error:
        find_sshd("no-such-sshd", {"PATH": str(tmp_path)})
    assert (error.value.code, error.value.message) == ("mpi-sshd-missing", "no program no-such-sshd")


def test_an_sshd_that_refuses_its_configuration(tmp_path):
    """In its own words."""
    refusing = program(tmp_path / "sshd", "#!/bin/sh\nprintf '%s line 3: Bad option\\r\\n' \"$3\" >&2; exit 255\n")
    with pytest.raises(FatalError) as error:
        try_out(str(refusing), tmp_path / "config")
    assert error.value.code == "mpi-sshd-refuses"
    assert error.value.message == f"{refusing} -t ends with 255: {tmp_path}/config line 3: Bad option"


def test_programs_of_the_system_get_no_libraries_of_the_image(tmp_path, monkeypatch):
    """Those of conda break OpenSSH, which says so in a line about OpenSSL's version."""
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/conda/lib")
    asked = program(tmp_path / "sshd", '#!/bin/sh\n[ -z "$LD_LIBRARY_PATH" ] && echo OpenSSH_9.9p1\n')
    assert version_of(str(asked)) == (9, 9)


def test_a_program_that_hangs(tmp_path, monkeypatch):
    """Nothing waits for ever."""
    monkeypatch.setattr("trainer_agent.mpi.place.CHECK_S", 0.1)
    with pytest.raises(RetryError) as error:
        version_of(str(program(tmp_path / "sshd", "#!/bin/sh\nexec sleep 1000\n")))
    assert error.value.code == "mpi-sshd-silent"


def test_a_program_that_does_not_start(tmp_path):
    """A script without its interpreter."""
    with pytest.raises(FatalError) as error:
        version_of(str(program(tmp_path / "sshd", "#!/no/such/shell\n")))
    assert error.value.code == "mpi-sshd-missing"
