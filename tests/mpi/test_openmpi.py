"""Open MPI's command: hosts, ssh and variables by words that versions 4 and 5 understand."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_agent.hostfile import Entry, Hostfile
from trainer_agent.mpi import words
from trainer_agent.mpi.implementation import Implementation
from trainer_agent.mpi.openmpi import argv, env, ssh_args
from trainer_agent.mpi.plan import SHIM, Place, Plan

HOSTS = Hostfile((Entry("n-0.job", 2),))
PLACE = Place("/shm/hostfile", ("-o", "A=b", "-p", "22"))
SSH = ("--mca", "plm_rsh_args", "-o A=b -p 22", "--prtemca", "rml_base_radix", "1")
SSH_4 = (*SSH[:3], "--mca", "routed_radix", "1")
FQDN = ("--mca", "orte_keep_fqdn_hostnames", "true")
RANKS = ("-x", "TRAINER_AGENT_RANKS")
START = ("python3", "-IS", str(SHIM))


def plan(line, *, version="5.0.11", environ=None, **settings):
    asked = words.parse(line.split() if isinstance(line, str) else line)
    return Plan(Implementation("openmpi", version), HOSTS, asked, (), "python3", environ or {}, **settings)


@pytest.mark.parametrize(
    "line, settings, expected",
    [
        ("mpirun app", {}, ("--hostfile", "/shm/hostfile", *SSH, "--bind-to", "none", *RANKS, *START, "app")),
        ("mpirun app", {"verified": False}, ("--hostfile", "/shm/hostfile", *SSH, "--bind-to", "none", "app")),
        (
            "mpirun app",
            {"version": "4.1.4", "root": True},
            (
                *("--allow-run-as-root", "--hostfile", "/shm/hostfile", *SSH_4, *FQDN, "--bind-to", "none", *RANKS),
                *(*START, "app"),
            ),
        ),
        (
            "mpirun --allow-run-as-root --hostfile /etc/mpi/hostfile -np 4 bash -c true",
            {"root": True},
            (
                *("--hostfile", "/shm/hostfile", *SSH, "--bind-to", "none", *RANKS),
                *("--allow-run-as-root", "-np", "4", *START, "bash", "-c", "true"),
            ),
        ),
        (
            "mpirun --bind-to core --mca plm_rsh_args -v --mca btl tcp --machinefile=h app",
            {},
            ("--hostfile", "/shm/hostfile", *SSH, *RANKS, "--bind-to", "core", "--mca", "btl", "tcp", *START, "app"),
        ),
        (
            "mpirun -np 1 -hostfile a x : -np 2 -hostfile b y z",
            {},
            (
                *("--hostfile", "/shm/hostfile", *SSH, "--bind-to", "none", *RANKS),
                *("-np", "1", *START, "x", ":", "-np", "2", *START, "y", "z"),
            ),
        ),
        (
            "mpirun -x A -x NCCL_DEBUG=INFO app",
            {"environ": {"A": "1", "NCCL_DEBUG": "WARN", "UCX_TLS": "tcp"}},
            (
                *("--hostfile", "/shm/hostfile", *SSH, "--bind-to", "none", "-x", "UCX_TLS", *RANKS),
                *("-x", "A", "-x", "NCCL_DEBUG=INFO", *START, "app"),
            ),
        ),
        (
            "mpirun --hostfile h --new --allow-run-as-root --bind-to none app",
            {"root": True, "verified": False},
            ("--hostfile", "/shm/hostfile", *SSH, "--new", "--allow-run-as-root", "--bind-to", "none", "app"),
        ),
    ],
)  # fmt: skip
def test_the_command(line, settings, expected):
    """Ours first, the user's own after it; what both say is said once, and hostfiles are ours."""
    assert ("mpirun", *expected) == argv(plan(line, **settings), PLACE)


def test_no_words_for_ssh():
    """Where all ranks are here, nothing is said of ssh."""
    command = argv(plan("mpirun app"), Place("/h", ()))
    assert {"plm_rsh_args", "rml_base_radix"}.isdisjoint(command)


@pytest.mark.parametrize(
    "words",
    [
        *("--bind-to core", "--bind-to=core", "--bind-to-socket", "--cpu-set 1", "-rf file", "--cpus-per-proc 4"),
        *("--map-by slot:PE=4", "-map-by ppr:2:node:pe=8", "--map-by=node:PE=2"),
        *("--mca hwloc_base_binding_policy core", "--prtemca hwloc_default_binding_policy core"),
        "--mca rmaps_base_mapping_policy slot:PE=2",
    ],
)
def test_a_user_who_binds(words):
    """Whoever says where his ranks run knows why; version 5 refuses PE= beside another word about it."""
    assert "none" not in argv(plan(f"mpirun {words} app"), PLACE)


@pytest.mark.parametrize(
    "environ",
    [
        {"OMPI_MCA_hwloc_base_binding_policy": "core"},
        {"PRTE_MCA_hwloc_default_binding_policy": "core"},
        {"PRTE_MCA_rmaps_default_mapping_policy": "slot:PE=2"},
    ],
)
def test_a_job_that_binds(environ):
    assert "none" not in argv(plan("mpirun app", environ=environ), PLACE)


@pytest.mark.parametrize(
    "words", ["", "--map-by node", "--map-by", "--mca btl tcp", "--mca rmaps_base_mapping_policy node"]
)
def test_a_user_who_does_not_bind(words):
    """Ranks would share one core."""
    environ = {"OMPI_MCA_btl": "tcp", "PRTE_MCA_rmaps_default_mapping_policy": "node"}
    assert "none" in argv(plan(f"mpirun {words} app", environ=environ), PLACE)


ENVIRON = {
    "PATH": "/bin",
    "LD_LIBRARY_PATH": "/lib",
    "NCCL_DEBUG": "INFO",
    "OMP_NUM_THREADS": "2",
    "MASTER_PORT": "29500",
    "PYTHONPATH": "/src",
    "CUDA_HOME": "/cuda",
    "HF_TOKEN": "secret",
    **dict.fromkeys(("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HOSTNAME", "HOME", "MINE", "OTHER"), "x"),
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "KUBERNETES_PORT": "tcp://10.0.0.1:443",
}
ALWAYS = ["CUDA_HOME", "HF_TOKEN", "LD_LIBRARY_PATH", "MASTER_PORT", "NCCL_DEBUG", "OMP_NUM_THREADS"]
ALWAYS += ["PATH", "PYTHONPATH"]


@pytest.mark.parametrize(
    "exports, more", [((), []), (("MINE", "ABSENT"), ["MINE"]), (("CUDA_VISIBLE_DEVICES",), ["CUDA_VISIBLE_DEVICES"])]
)
def test_what_ranks_get(exports, more):
    """What libraries and the user want; nothing that belongs to the launcher's pod unless the user insists."""
    command = argv(plan("mpirun app", environ=ENVIRON, exports=exports), PLACE)
    handed_on = [name for before, name in itertools.pairwise(command) if before == "-x"]
    assert [*sorted([*ALWAYS, *more]), "TRAINER_AGENT_RANKS"] == handed_on


def test_no_value_stands_in_the_command():
    """Command lines can be read by everybody."""
    assert "secret" not in " ".join(argv(plan("mpirun app", environ=ENVIRON), PLACE))


def test_its_environment():
    """mpirun has all that we have, but for the controllers' words that it would read differently by version."""
    controllers = {"OMPI_MCA_orte_default_hostfile": "/h", "OMPI_MCA_plm_rsh_args": "-v", "PRTE_MCA_plm_ssh_args": "-v"}
    kept = {"OMPI_MCA_btl": "tcp", **ENVIRON}
    assert kept == env(plan("mpirun app", environ={**kept, **controllers}), PLACE)


LIST = "OMPI_MCA_mca_base_env_list"


@pytest.mark.parametrize(
    "line, environ, expected",
    [
        ("mpirun app", {LIST: "A=1;B"}, "A=1;B;NCCL_DEBUG;TRAINER_AGENT_RANKS"),
        ("mpirun app", {LIST: "NCCL_DEBUG=WARN"}, "NCCL_DEBUG=WARN;TRAINER_AGENT_RANKS"),
        ("mpirun app", {LIST: "A,B", f"{LIST}_delimiter": ","}, "A,B,NCCL_DEBUG,TRAINER_AGENT_RANKS"),
        ("mpirun --mca mca_base_env_list A=1;B app", {LIST: "C"}, "A=1;B;NCCL_DEBUG;TRAINER_AGENT_RANKS"),
    ],
)
def test_a_list_of_variables_takes_ours_too(line, environ, expected):
    """Version 4 ends a job that has both such a list and an option `-x`."""
    made = plan(line, version="4.1.4", environ={"NCCL_DEBUG": "INFO", **environ})
    command = argv(made, PLACE)
    assert ("-x" in command, "mca_base_env_list" in command) == (False, False)
    assert expected == env(made, PLACE)[LIST]


def test_version_5_takes_a_list_of_variables_beside_options():
    made = plan("mpirun --mca mca_base_env_list A=1 app", environ={LIST: "C"})
    assert {"-x", "mca_base_env_list"} <= set(argv(made, PLACE))
    assert "C" == env(made, PLACE)[LIST]


@pytest.mark.parametrize(
    "line, expected",
    [
        ("mpirun app", ()),
        ("mpirun --mca plm_rsh_args -v app", ("-v",)),
        ("mpirun --mca btl tcp --prtemca plm_ssh_args -4 app", ("-4",)),
        ("mpirun --omca plm_ssh_args -4 app", ("-4",)),
        (("mpirun", "--mca", "plm_rsh_args", "-p 2222 -v", "app"), ("-p", "2222", "-v")),
        ("mpirun --mca=plm_rsh_args app", ()),
    ],
)
def test_the_users_words_for_ssh(line, expected):
    """They are taken out of his command and come before ours."""
    assert expected == ssh_args(plan(line))


OPTIONS = st.sampled_from(
    [
        *(("-np", "2"), ("--report-bindings",), ("-x", "A"), ("--mca", "btl", "self"), ("--map-by", "node")),
        *(("--hostfile", "h"), ("--machinefile=h",)),
        *(("--mca", "plm_rsh_args", "-v"), ("--prtemca", "plm_ssh_args", "-v")),
    ]
)  # fmt: skip
COMMAND = st.lists(st.sampled_from(["app", "--hostfile", "h", "-x", "plm_rsh_args", "--"]), max_size=4)


@given(st.lists(st.tuples(st.lists(OPTIONS, max_size=4), COMMAND), min_size=1, max_size=3))
def test_the_users_words_survive(parts):
    """All of them and in their order, but for hostfiles and words for ssh; the program's words are never touched."""
    line, left = ["mpirun"], []
    for number, (options, command) in enumerate(parts):
        kept = [each for each in options if "h" not in each[1:] and "=h" not in each[0] and "-v" not in each]
        line += [":"] * bool(number) + [word for each in options for word in each] + ["run", *command]
        left += [":"] * bool(number) + [word for each in kept for word in each] + [*START, "run", *command]
    command = argv(plan(line), PLACE)
    assert left == list(command[len(command) - len(left) :])
    assert 1 == command[: len(command) - len(left)].count("--hostfile")
