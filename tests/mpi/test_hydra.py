"""hydra's command and environment, as MPICH and Intel MPI want it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_agent.hostfile import Entry, Hostfile
from trainer_agent.mpi import words
from trainer_agent.mpi.hydra import PINNING, argv, env, ssh_args
from trainer_agent.mpi.implementation import Implementation
from trainer_agent.mpi.plan import SHIM, Place, Plan

HOSTS = Hostfile((Entry("n-0.job", 2),))
PLACE = Place("/shm/hostfile", ("-o", "A=b"), "eth0")
START = ("python3", "-IS", str(SHIM))
OURS = ("mpiexec", "-machinefile", "/shm/hostfile", "-iface", "eth0")


def plan(line="mpiexec app", *, kind="mpich", environ=None, **settings):
    asked = words.parse(line.split() if isinstance(line, str) else line)
    return Plan(Implementation(kind, "4.0.2"), HOSTS, asked, (), "python3", environ or {}, **settings)


@pytest.mark.parametrize(
    "line, settings, expected",
    [
        ("mpiexec app", {}, (*OURS, *START, "app")),
        ("mpiexec app -f x", {"verified": False, "root": True}, (*OURS, "app", "-f", "x")),
        ("mpiexec -f h -n 4 -ppn 2 app", {}, (*OURS, "-n", "4", "-ppn", "2", *START, "app")),
        ("mpiexec -machinefile h -genv A=1 app", {}, (*OURS, "-genv", "A=1", *START, "app")),
        ("mpiexec -iface ib0 app", {}, (*OURS[:3], "-iface", "ib0", *START, "app")),
        ("mpiexec -localhost me app", {}, (*OURS[:3], "-localhost", "me", *START, "app")),
        ("mpiexec -n 1 a : -n 2 b c", {}, (*OURS, "-n", "1", *START, "a", ":", "-n", "2", *START, "b", "c")),
        ("mpiexec -f h --new app", {"verified": False}, (*OURS, "--new", "app")),
        ("mpiexec --new -hosts app", {"verified": False}, (*OURS, "--new", "-hosts", "app")),
        ("mpiexec -hosts a,b app", {}, ("mpiexec", "-iface", "eth0", "-hosts", "a,b", *START, "app")),
    ],
)
def test_the_command(line, settings, expected):
    """Ours first, the user's own after it, but for hostfiles."""
    assert expected == argv(plan(line, **settings), PLACE)


def test_an_interface_that_nobody_knows():
    """Then hydra chooses."""
    assert ("mpiexec", "-machinefile", "/h", *START, "app") == argv(plan(), Place("/h", ()))


def test_words_for_ssh_are_variables():
    """hydra has no options for them."""
    assert () == ssh_args(plan())
    mpich = {"HYDRA_LAUNCHER": "ssh", "HYDRA_LAUNCHER_EXTRA_ARGS": "-o A=b"}
    intel = {"I_MPI_HYDRA_BOOTSTRAP": "ssh", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": "-o A=b", "I_MPI_PIN": "0"}
    intel["I_MPI_HYDRA_BRANCH_COUNT"] = "1"
    assert (mpich, intel) == (env(plan(), PLACE), env(plan(kind="intel"), PLACE))


@pytest.mark.parametrize("name", PINNING)
def test_a_user_who_pins(name):
    """Whoever pins his ranks knows why."""
    pinned = plan(kind="intel", environ={name: "7"})
    assert {name: "7"} == {key: value for key, value in env(pinned, PLACE).items() if key in PINNING}


@pytest.mark.parametrize(
    "words",
    [
        "-genv I_MPI_PIN_DOMAIN=omp app",
        "-genv I_MPI_PIN_DOMAIN omp app",
        "-n 1 a : -env I_MPI_PIN_PROCS 0 b",
        "--new x -genv I_MPI_PIN_DOMAIN=omp app",
        "-binding pin=yes;domain=omp app",
    ],
)
def test_a_user_who_pins_in_the_command(words):
    """That is how Intel's manual writes it."""
    assert "I_MPI_PIN" not in env(plan(f"mpirun {words}", kind="intel"), PLACE)


def test_other_variables_in_the_command_pin_nothing():
    """Nor does a program's word."""
    assert "0" == env(plan("mpirun -genv A=1 app I_MPI_PIN_DOMAIN=omp", kind="intel"), PLACE)["I_MPI_PIN"]


@pytest.mark.parametrize(
    "kind, environ, line, ours",
    [
        ("mpich", {"HYDRA_IFACE": "ib0"}, "mpiexec app", False),
        ("mpich", {"HYDRA_LOCALHOST": "10.0.0.1"}, "mpiexec app", False),
        ("mpich", {"HYDRA_IFACE": " "}, "mpiexec app", True),
        ("mpich", {"I_MPI_HYDRA_IFACE": "ib0"}, "mpiexec app", True),
        ("mpich", {}, "mpiexec -genv HYDRA_IFACE ib0 app", True),
        ("intel", {"I_MPI_HYDRA_IFACE": "ib0"}, "mpiexec app", False),
        ("intel", {"HYDRA_LOCALHOST": "10.0.0.1"}, "mpiexec app", True),
        ("intel", {}, "mpiexec -genv I_MPI_HYDRA_IFACE ib0 app", False),
    ],
)
def test_a_user_who_names_an_interface(kind, environ, line, ours):
    """hydra itself reads a variable only where no option says otherwise, so ours would win."""
    found = plan(line, kind=kind, environ=environ)
    assert ours == ("-iface" in argv(found, PLACE))
    assert environ.items() <= env(found, PLACE).items()


ENVIRON = {
    "PATH": "/bin",
    "MASTER_PORT": "29500",
    "MY_PORT": "80",
    "HF_TOKEN": "secret",
    "CUDA_HOME": "/cuda",
    "MINE": "1",
}
OF_THE_POD = {
    **dict.fromkeys(
        ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HOSTNAME", "HOME", "PWD", "K_MPI_JOB_ROLE"), "x"
    ),
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "KUBERNETES_PORT_443_TCP": "tcp://10.0.0.1:443",
    "DB_SERVICE_HOST": "10.0.0.2",
    "DB_SERVICE_PORT": "1",
    "DB_SERVICE_PORT_SQL": "1",
    "DB_PORT": "tcp://10.0.0.2:1",
    "HYDRA_HOST_FILE": "/h",
    "HYDRA_LAUNCH_EXTRA_ARGS": "-v",
    "I_MPI_PERHOST": "2",
}


def test_what_ranks_get():
    """Whatever mpirun has goes to all ranks, so it has nothing that is this pod's alone; a rank's port stays."""
    ours = {"HYDRA_LAUNCHER": "ssh", "HYDRA_LAUNCHER_EXTRA_ARGS": "-o A=b"}
    assert {**ENVIRON, **ours} == env(plan(environ={**ENVIRON, **OF_THE_POD}), PLACE)


def test_what_the_user_insists_on():
    """--export takes the launcher's value to all ranks."""
    exports = ("HOSTNAME", "KUBERNETES_SERVICE_HOST")
    found = env(plan(environ=OF_THE_POD, exports=exports), PLACE)
    assert set(exports) == set(found) & set(OF_THE_POD)


OPTIONS = st.sampled_from(
    [("-n", "2"), ("-l",), ("-genv", "A=1"), ("-genv", "A", "1"), ("-f", "h"), ("-machinefile", "h")]
)
COMMAND = st.lists(st.sampled_from(["app", "-f", "h", "-genv", "A=1"]), max_size=4)


@given(st.lists(st.tuples(st.lists(OPTIONS, max_size=4), COMMAND), min_size=1, max_size=3))
def test_the_users_words_survive(parts):
    """All of them and in their order, but for hostfiles; the program's words are never touched."""
    line, left = ["mpiexec"], []
    for number, (options, command) in enumerate(parts):
        kept = [each for each in options if "h" not in each]
        line += [":"] * bool(number) + [word for each in options for word in each] + ["run", *command]
        left += [":"] * bool(number) + [word for each in kept for word in each] + [*START, "run", *command]
    assert (*OURS, *left) == argv(plan(line), PLACE)
