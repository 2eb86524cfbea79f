"""From what user, controller and image say to a plan."""

import os

import pytest

from trainer_agent.errors import FatalError
from trainer_agent.hostfile import Entry
from trainer_agent.mpi import hydra, openmpi
from trainer_agent.mpi.implementation import Implementation
from trainer_agent.mpi.plan import SHIM
from trainer_agent.mpi.prepare import module, read_plan

SAYS = {"openmpi": "mpirun (Open MPI) 5.0.11", "mpich": "HYDRA build details:\\n  Version: 4.0.2"}


@pytest.fixture
def image(tmp_path):
    """Return the environment of an image with an MPI and a hostfile."""

    def make(kind="openmpi", text="a slots=1\nb slots=1\n"):
        for name in ("mpirun", "mpiexec"):
            (tmp_path / name).write_text(f"#!/bin/sh\nprintf '{SAYS[kind]}\\n'\n")
            (tmp_path / name).chmod(0o755)
        (tmp_path / "hostfile").write_text(text)
        return {"PATH": f"{tmp_path}:/usr/bin:/bin", "OMPI_MCA_orte_default_hostfile": str(tmp_path / "hostfile")}

    return make


def plan(script, environ, **settings):
    return read_plan(tuple(script.split()), environ, python="py", **settings)


@pytest.mark.parametrize(
    "script, command",
    [
        ("train.py --x", ("py", "train.py", "--x")),
        ("-m pkg", ("py", "-m", "pkg")),
        ("./app -np 3", ("./app", "-np", "3")),
        ("mpirun -np 2 app", ("app",)),
    ],
)
def test_what_each_rank_runs(image, script, command):
    """A script gets its interpreter, a program is itself; of the user's mpirun, what it would start."""
    found = plan(script, image())
    assert (command, "mpirun", True) == (found.asked.parts[0].command, found.asked.program, found.verified)
    assert (Implementation("openmpi", "5.0.11"), os.geteuid() == 0) == (found.implementation, found.root)


def test_which_hostfile(image, tmp_path):
    """The option, else the last of the command's, else the controller's."""
    environ = image()
    for name in "cd":
        (tmp_path / name).write_text(f"{name}:3\n")
    last = f"mpirun --hostfile /no/such --machinefile={tmp_path / 'c'} app"
    assert (Entry("c", 3),) == plan(last, environ).hosts.entries
    assert (Entry("d", 3),) == plan(last, environ, path=str(tmp_path / "d")).hosts.entries
    assert ("a", "b") == plan("app", environ).hosts.names


@pytest.mark.parametrize(
    "text, slots, expected",
    [
        ("a\nb\n", "4", [4, 4]),
        ("a\nb\n", "", [1, 1]),
        ("a\nb\n", "1", [1, 1]),
        ("a slots=2\nb\n", "4", [2, 1]),
        ("a\n", "x", [1]),
    ],
)
def test_slots_of_a_variable(image, text, slots, expected):
    """They are those of hosts without a number."""
    environ = {**image(text=text), "OMPI_MCA_orte_set_default_slots": slots}
    assert expected == [entry.slots for entry in plan("app", environ).hosts.entries]


def test_words_for_ssh(image):
    """The user's command comes before the controller's variable."""
    environ = {**image(), "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10"}
    line = "mpirun --mca plm_rsh_args -v app"
    assert ("-v", "-o", "ConnectionAttempts=10") == plan(line, environ).ssh_args


def test_words_of_the_agent(image):
    """As in mpirun they come before all others; another program than ssh ends it before anybody is waited for."""
    environ = {**image(), "PRTE_MCA_plm_ssh_args": "-v"}
    assert ("-p", "2222", "-v") == plan("app", {**environ, "PRTE_MCA_plm_ssh_agent": "ssh -p 2222"}).ssh_args
    with pytest.raises(FatalError, match="PRTE_MCA_plm_ssh_agent"):
        plan("app", {**environ, "PRTE_MCA_plm_ssh_agent": "/etc/mpi/kubexec.sh"})
    alone = image(text="a slots=2")
    assert () == plan("app", {**alone, "PRTE_MCA_plm_ssh_agent": "/etc/mpi/kubexec.sh"}).ssh_args


@pytest.mark.parametrize(
    "line, settings, verified",
    [
        ("mpirun app", {"verified": False}, False),
        ("mpirun --new app", {}, False),
        ("mpirun -genvnone app", {}, False),
        ("mpirun -n 1 a : -envlist A b", {}, False),
    ],
)
def test_when_ranks_do_not_report(image, line, settings, verified):
    """Not when nobody wants it, nor where they could not get the variable or the shim has no place."""
    found = plan(line, image(), **settings)
    assert (verified, ()) == (found.verified, found.shim)


def test_the_shim(image):
    """In a command that is shown it is a path, in one that is run its text: workers may lack the file."""
    found = plan("app", image())
    assert ("py", "-IS", str(SHIM)) == found.shim
    assert SHIM.is_file()


@pytest.mark.parametrize(
    "line", ["mpirun", "mpirun -np 4", "mpirun --mca plm_rsh_args", "mpirun a : -np 2", "mpirun :"]
)
def test_no_program(image, line):
    """Options alone start nothing."""
    with pytest.raises(FatalError) as error:
        plan(line, image())
    message = "mpirun is given options and no program to start"
    assert ("mpirun-empty", message) == (error.value.code, error.value.message)


def test_module(image):
    """Two ways to talk to three implementations."""
    assert (openmpi, hydra) == (module(plan("app", image())), module(plan("app", image("mpich"))))
