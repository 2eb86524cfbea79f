"""`trainer-agent hostfile` as a process: its sources, its formats, and what it refuses."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from trainer_agent.commands.hostfile import HostfileOptions, written
from trainer_agent.hostfile import parse
from trainer_agent.testing import FakeHost

pytestmark = pytest.mark.lab

AGENT = (sys.executable, "-m", "trainer_agent", "hostfile")
OPTIONS = HostfileOptions(
    hostfile=None,
    job=None,
    nnodes=None,
    subdomain=None,
    launcher_as_node=False,
    slots=None,
    implementation="openmpi",
    resolve=True,
    timeout=60,
    output=None,
)


def agent(*words, **environ):
    return subprocess.run([*AGENT, *words], env=environ, capture_output=True, text=True, timeout=30, check=False)


def said(done):
    """Return the log lines of a run."""
    return [json.loads(line) for line in done.stderr.splitlines()]


@pytest.fixture
def controllers(tmp_path):
    """A file as Trainer's MPI plugin writes it."""
    path = tmp_path / "hostfile"
    path.write_text("j-node-0-0.j slots=4\nj-node-0-1.j slots=4\nj-launcher-0-0.j slots=2\n")
    return str(path)


def test_from_a_file(controllers):
    """Order and slots are those of the file; nothing but the hostfile is printed."""
    done = agent("--hostfile", controllers, "--implementation", "mpich")
    assert (0, "j-node-0-0.j:4\nj-node-0-1.j:4\nj-launcher-0-0.j:2\n", "") == (
        done.returncode,
        done.stdout,
        done.stderr,
    )


def test_from_the_variables(controllers):
    """Every option has one, and the command line wins."""
    environ = {"TRAINER_AGENT_HOSTFILE_HOSTFILE": controllers, "TRAINER_AGENT_HOSTFILE_SLOTS": "8"}
    expected = "j-node-0-0.j slots=8\nj-node-0-1.j slots=8\nj-launcher-0-0.j slots=8\n"
    assert expected == agent(**environ).stdout
    assert "slots=3" in agent("--slots", "3", **environ).stdout


@pytest.mark.skipif(os.path.exists("/etc/mpi/hostfile"), reason="this machine has a hostfile of its own")  # noqa: PTH110  # evaluated at import
def test_from_the_injected_file():
    """Without a source it is the file that controllers mount."""
    done = agent()
    assert (30, "") == (done.returncode, done.stdout)
    assert ["hostfile-unreadable"] == [line["code"] for line in said(done)]
    assert "cannot read /etc/mpi/hostfile: No such file or directory" == said(done)[0]["event"]


def test_from_a_job():
    """The names that JobSet gives, with the job's name as the subdomain unless another is given."""
    assert "j-node-0-0.j slots=1\nj-node-0-1.j slots=1\n" == agent("--job", "j", "--nnodes", "2").stdout
    done = agent("--job", "j", "--nnodes", "1", "--subdomain", "s", "--slots", "8", "--implementation", "intel")
    assert "j-node-0-0.s:8\n" == done.stdout


def test_from_a_list():
    """Hosts as arguments, in their order; without slots 1."""
    assert "b slots=4\na slots=1\n" == agent("b:4", "a").stdout


@pytest.mark.parametrize(
    "words, message",
    [
        (["--hostfile", "f", "a"], "Give one of --hostfile, --job and HOSTS, not --hostfile and HOSTS."),
        (["--job", "j", "--nnodes", "1", "a"], "Give one of --hostfile, --job and HOSTS, not --job and HOSTS."),
        (["--hostfile", "f", "--job", "j"], "Give one of --hostfile, --job and HOSTS, not --hostfile and --job."),
        (["--job", "j"], "--job needs --nnodes."),
        (["--nnodes", "2"], "--nnodes needs --job."),
        (["--subdomain", "s", "a"], "--subdomain needs --job."),
        (["--launcher-as-node", "a"], "--launcher-as-node needs --job."),
        (["--nnodes", "0", "--job", "j"], "Invalid value for '--nnodes'"),
        (["--slots", "0", "a"], "Invalid value for '--slots'"),
        (["--timeout", "nan", "a"], "Invalid value for '--timeout'"),
        (["--job", "j k", "--nnodes", "1"], "Invalid value for '--job': 'j k' is not a name of letters, digits,"),
        (["--job", "j", "--nnodes", "1", "--subdomain", "s:2"], "Invalid value for '--subdomain': 's:2' is not a name"),
        (["--implementation", "lam", "a"], "Invalid value for '--implementation'"),
    ],
)
def test_wrong_usage(words, message):
    """Exactly one source, all of it; the options are named."""
    done = agent(*words)
    assert (2, "") == (done.returncode, done.stdout)
    assert message in " ".join(done.stderr.split())


def test_all_that_is_wrong_is_told_at_once(tmp_path):
    """One line each with path and number, exit 30, and nothing is written."""
    path, output = tmp_path / "hostfile", tmp_path / "output"
    path.write_text("a slots=0\nb\nb:2\n")
    done = agent("--hostfile", str(path), "--output", str(output))
    assert (30, "", False) == (done.returncode, done.stdout, output.exists())
    assert {"hostfile-line-invalid", "hostfile-duplicate"} == {line["code"] for line in said(done)}
    assert f"{path}, line 1: found '0' as the number of slots" in said(done)[-1]["event"]


def test_output_is_whole_or_not_at_all(controllers, tmp_path):
    """The file of before is replaced, and standard output stays empty; a failure leaves it as it was."""
    output = tmp_path / "new" / "hostfile"
    first = agent("--hostfile", controllers, "--output", str(output))
    written_first = output.read_text()
    second = agent("[fd00::1]:2", "--implementation", "mpich", "--output", str(output))

    assert (0, "", "") == (first.returncode, first.stdout, first.stderr)
    assert "j-node-0-0.j slots=4\nj-node-0-1.j slots=4\nj-launcher-0-0.j slots=2\n" == written_first
    assert (30, "", written_first) == (second.returncode, second.stdout, output.read_text())
    assert ["hostfile"] == [p.name for p in output.parent.iterdir()]


def test_output_that_cannot_be_written(tmp_path):
    """An error that names the path."""
    (tmp_path / "file").write_text("")
    done = agent("a", "--output", str(tmp_path / "file" / "hostfile"))
    assert (30, "not-writable") == (done.returncode, said(done)[0]["code"])


def test_resolve_for_real():
    """The real machine's own lookups; every name that does not resolve is told when the time is over, with exit 20."""
    done = agent("--resolve", "127.0.0.3", "localhost:2")
    assert (0, "127.0.0.3 slots=1\n127.0.0.1 slots=2\n", "") == (done.returncode, done.stdout, done.stderr)

    done = agent("--resolve", "--timeout", "1", "a.invalid", "localhost", "b.invalid")
    assert (20, "") == (done.returncode, done.stdout)
    assert ["names-missing"] == [line["code"] for line in said(done)]
    event = said(done)[0]["event"]
    assert event.startswith("2 of 3 hosts have no address after 1 s: a.invalid does not resolve (")
    assert "; b.invalid does not resolve (" in event


def test_two_names_of_one_machine():
    """A host that is there twice under two names is told."""
    done = agent("--resolve", "localhost", "127.0.0.1")
    assert (30, "") == (done.returncode, done.stdout)
    assert "localhost and 127.0.0.1 have one address, 127.0.0.1, wanted one each" == said(done)[0]["event"]


def test_names_become_addresses(tmp_path):
    """In the order of the source, with its slots, our own by what this machine knows of itself."""
    host = FakeHost(tmp_path, names_at={"b.j": ["10.0.0.2"], "a.j": [[], ["10.0.0.3"]], "fake-host": ["10.0.0.1"]})
    hosts = parse("b.j slots=2\na.j\nfake-host.j slots=3", path="F")

    assert "10.0.0.2 slots=2\n10.0.0.3 slots=1\n10.0.0.1 slots=3\n" == written(OPTIONS, hosts, host)
    assert "b.j slots=9\na.j slots=9\nfake-host.j slots=9\n" == written(
        replace(OPTIONS, resolve=False, slots=9), hosts, host
    )


def test_the_help_says_what_the_slots_are():
    """And where the injected file lies."""
    text = " ".join(agent("--help").stdout.split())
    assert "Default: what it says, 1 where it says nothing." in text
    assert "Default: /etc/mpi/hostfile." in text
