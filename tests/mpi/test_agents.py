"""By which program Open MPI reaches its hosts."""

import pytest

from trainer_agent.errors import FatalError
from trainer_agent.mpi import words
from trainer_agent.mpi.agents import agent_words
from trainer_agent.mpi.implementation import Implementation

FOUR, FIVE = Implementation("openmpi", "4.1.4"), Implementation("openmpi", "5.0.11")
RSH, SSH = "OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent"
KUBEXEC = "/etc/mpi/kubexec.sh"


@pytest.fixture
def path(tmp_path):
    """Return a PATH with ssh and another program."""
    for name in ("ssh", "rsh"):
        (tmp_path / name).touch(mode=0o755)
    return str(tmp_path)


def found(environ, options=(), *, implementation=FOUR, alone=False):
    asked = words.parse(("mpirun", *options, "app"))
    return agent_words(asked, environ, implementation, alone=alone)


@pytest.mark.parametrize(
    "environ, implementation, expected",
    [
        ({}, FOUR, ()),
        ({RSH: " "}, FOUR, ()),
        ({RSH: "ssh -q -p 2222"}, FOUR, ("-q", "-p", "2222")),
        ({SSH: "/usr/bin/ssh -p 2222"}, FIVE, ("-p", "2222")),
        ({RSH: "ssh -p 1 : rsh -x"}, FOUR, ("-p", "1")),
        ({RSH: "/no/such : ssh -p 1"}, FOUR, ("-p", "1")),
        ({RSH: KUBEXEC}, FIVE, ()),
        ({SSH: KUBEXEC}, FOUR, ()),
        ({RSH: KUBEXEC}, Implementation("mpich", "4.0.2"), ()),
    ],
)
def test_words_behind_ssh(environ, implementation, expected, path):
    """They are ssh's; variables that this MPI does not read say nothing."""
    assert expected == found({"PATH": path, **environ}, implementation=implementation)


@pytest.mark.parametrize(
    "option, name, implementation, heard",
    [
        ("--mca", "plm_rsh_agent", FOUR, True),
        ("-gmca", "plm_rsh_agent", FOUR, True),
        ("--mca", "plm_rsh_agent", FIVE, True),
        ("--mca", "plm_ssh_agent", FIVE, True),
        ("--prtemca", "plm_ssh_agent", FIVE, True),
        ("--prtemca", "plm_rsh_agent", FIVE, False),
        ("--mca", "btl", FOUR, False),
    ],
)
def test_an_option(option, name, implementation, heard, path):
    """It wins over the variable, where this version reads it."""
    environ = {"PATH": path, RSH: "ssh -a", SSH: "ssh -a"}
    options = (option, name, "ssh -p 2222")
    assert (("-p", "2222") if heard else ("-a",)) == found(environ, options, implementation=implementation)


@pytest.mark.parametrize(
    "environ, options, source",
    [
        ({RSH: KUBEXEC}, (), RSH),
        ({}, ("--mca", "plm_rsh_agent", KUBEXEC), "--mca plm_rsh_agent"),
    ],
)
def test_another_program(environ, options, source, path):
    """Workers without sshd would be waited for in vain."""
    with pytest.raises(FatalError) as refused:
        found({"PATH": path, **environ}, options)
    error = refused.value
    message = f"{source} is '{KUBEXEC}', wanted ssh, by which all hosts are reached and their ranks verified"
    hint = (
        f"leave {source} out, with an sshd on each host, as `trainer-agent worker` starts it; "
        "or start mpirun as it is, with --launcher python"
    )
    assert ("mpi-agent-unknown", 30, message, hint) == (error.code, error.exit_code, error.message, error.hint)


@pytest.mark.parametrize("value", ["rsh -l me", ":"])
def test_what_is_no_ssh(value, path):
    """Not rsh either, nor what nobody understands."""
    with pytest.raises(FatalError, match="wanted ssh"):
        found({"PATH": path, RSH: value})


def test_a_single_host():
    """mpirun may start its ranks without anybody's help."""
    assert () == found({RSH: KUBEXEC}, alone=True)
