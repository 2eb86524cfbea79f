"""torchrun: flags for everything that the environment says, and an environment without it."""

import subprocess
import sys

import pytest

from trainer_agent.errors import FatalError
from trainer_agent.launchers import Command, Job, torchrun
from trainer_agent.launchers.torchrun_flags import told
from trainer_agent.nproc import Decision
from trainer_agent.topology import read_topology

SINGLE = {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "2", "PET_MASTER_ADDR": "j-0.j", "PET_MASTER_PORT": "29500"}
STATIC = {**SINGLE, "PET_NNODES": "2", "PET_NODE_RANK": "1"}
ELASTIC = {**SINGLE, "PET_NNODES": "1:4", "PET_NODE_RANK": "3"}
STATIC_FLAGS = (
    *("--nnodes", "2", "--node-rank", "1", "--master-addr", "j-0.j", "--master-port", "29500"),
    *("--rdzv-conf", "timeout=900"),
)
ELASTIC_FLAGS = (
    *("--nnodes", "1:4", "--rdzv-backend", "c10d", "--rdzv-endpoint", "j-0.j:29500", "--rdzv-id", "j-0"),
    *("--rdzv-conf", "join_timeout=900,read_timeout=900"),
)
NPROC = ("--nproc-per-node", "2")


def job(environ, *script, nproc=None, keep=False):
    return Job(
        topology=read_topology(environ, hostname="box"),
        nproc=nproc or Decision(2, "2", omp_threads=4),
        script=script or ("train.py", "--epochs", "3"),
        environ=environ,
        python="/venv/bin/python",
        torchrun=("/venv/bin/torchrun",),
        rendezvous_timeout_s=900.0,
        keep_pet_env=keep,
    )


def argv(environ, *script, **settings):
    return torchrun.command(job(environ, *script, **settings)).argv


@pytest.mark.parametrize(
    "script, suits",
    [
        (("train.py",), True),
        (("-m", "pkg.train"), True),
        (("torchrun", "x"), True),
        (("/opt/bin/torchrun", "x"), True),
        (("-c", "pass"), False),
        (("python", "train.py"), False),
        (("./train.sh",), False),
    ],
)
def test_what_it_suits(script, suits):
    """Scripts and modules of a torch job, and torchrun itself in any."""
    assert suits == torchrun.suits(job(SINGLE, *script))
    assert (script[0].endswith("torchrun")) == torchrun.suits(job({}, *script))


@pytest.mark.parametrize(
    "environ, flags",
    [
        (SINGLE, ("--standalone",)),
        (STATIC, STATIC_FLAGS),
        (ELASTIC, ELASTIC_FLAGS),
        (
            {**STATIC, "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ID": " my-id "},
            (*("--nnodes", "2:2"), *ELASTIC_FLAGS[2:6], "--rdzv-id", "my-id", *ELASTIC_FLAGS[8:]),
        ),
        (
            {**STATIC, "PET_MASTER_ADDR": "[fd00::1]", "PET_RDZV_BACKEND": "c10d"},
            (
                *("--nnodes", "2:2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "[fd00::1]:29500"),
                *("--rdzv-id", "fd00::1", *ELASTIC_FLAGS[8:]),
            ),
        ),
        ({**STATIC, "PET_MASTER_ADDR": "fd00::1"}, (*STATIC_FLAGS[:5], "fd00::1", *STATIC_FLAGS[6:])),
        ({**STATIC, "PET_RDZV_CONF": "timeout=5"}, (*STATIC_FLAGS[:-1], "timeout=5")),
        ({**STATIC, "PET_RDZV_CONF": " a=1 , ,b = 2,"}, (*STATIC_FLAGS[:-1], "timeout=900,a=1,b=2")),
        (
            {**ELASTIC, "PET_RDZV_CONF": "read_timeout=7,x=y=z"},
            (*ELASTIC_FLAGS[:-1], "join_timeout=900,read_timeout=7,x=y=z"),
        ),
    ],
)
def test_how_the_nodes_meet(environ, flags):
    """One node needs no name; the others get address, port and timeouts, where the user's own timeouts win."""
    expected = ("/venv/bin/torchrun", *flags, *NPROC, "train.py", "--epochs", "3")
    assert expected == argv(environ)


@pytest.mark.parametrize("value", ["timeout", "=5", "timeout=", "a=1,b"])
def test_a_rendezvous_configuration_that_is_none(value):
    """Everything in PET_RDZV_CONF is key=value."""
    with pytest.raises(FatalError) as refused:
        argv({**STATIC, "PET_RDZV_CONF": value})
    message = f"PET_RDZV_CONF={value!r} is not a list of key=value"
    error = refused.value
    assert ("pet-invalid", message, "write it as timeout=900") == (error.code, error.message, error.hint)


def test_modules_and_their_options():
    """`-m` is torchrun's own flag, and a module's options are not torchrun's, whatever their names."""
    expected = ("/venv/bin/torchrun", *STATIC_FLAGS, *NPROC, "-m", "pkg", "--master-weights", "--nnodes", "9")
    assert expected == argv(STATIC, "-m", "pkg", "--master-weights", "--nnodes", "9")


def test_virtual_local_rank():
    """Each rank must see its own MIG instance as device 0."""
    expected = ("/venv/bin/torchrun", "--standalone", *NPROC, "--virtual-local-rank", "t.py")
    assert expected == argv(SINGLE, "t.py", nproc=Decision(2, "", virtual_local_rank=True))


def test_a_number_that_only_torch_knows():
    """Intel's devices are left to torchrun's `auto`."""
    expected = ("/venv/bin/torchrun", "--standalone", "--nproc-per-node", "auto", "t.py")
    assert expected == argv(SINGLE, "t.py", nproc=Decision("auto", ""))


THREE = ("--nnodes", "3", *STATIC_FLAGS[2:])
IN_5_S = (*STATIC_FLAGS[:-1], "timeout=5")


@pytest.mark.parametrize(
    "environ, own, meeting, rest",
    [
        (STATIC, ("--nproc-per-node", "8", "t.py"), STATIC_FLAGS, ("t.py",)),
        (STATIC, ("--nnodes", "3", "t.py"), THREE, ("t.py",)),
        (STATIC, ("--nnodes=3", "--rdzv_conf=timeout=5", "-m", "t"), (*THREE[:-1], "timeout=5"), ("-m", "t")),
        (STATIC, ("--rdzv-conf", "timeout=5", "t.py"), IN_5_S, ("t.py",)),
        (STATIC, ("--tee", "3", "--rdzv-conf", "timeout=5", "t.py"), IN_5_S, ("--tee", "3", "t.py")),
        (STATIC, ("--rdzv-id=7", "t.py"), (*STATIC_FLAGS[:8], "--rdzv-id", "7", *STATIC_FLAGS[8:]), ("t.py",)),
        (STATIC, ("--master-addr=[fd00::1]", "t.py"), (*STATIC_FLAGS[:5], "fd00::1", *STATIC_FLAGS[6:]), ("t.py",)),
        (STATIC, ("--standalone", "t.py"), ("--standalone",), ("t.py",)),
        (STATIC, ("--tee", "3", "--standalone", "t.py"), ("--standalone",), ("--tee", "3", "t.py")),
        (STATIC, ("--role", "--standalone", "t.py"), STATIC_FLAGS, ("--role", "--standalone", "t.py")),
        (STATIC, ("t.py", "--standalone"), STATIC_FLAGS, ("t.py", "--standalone")),
        (STATIC, ("-m", "t", "--standalone"), STATIC_FLAGS, ("-m", "t", "--standalone")),
        (STATIC, ("--no-python", "./t", "--standalone"), STATIC_FLAGS, ("--no-python", "./t", "--standalone")),
        (STATIC, ("--", "t.py"), STATIC_FLAGS, ("--", "t.py")),
        (STATIC, ("--what", "--nnodes", "3", "t.py"), STATIC_FLAGS, ("--what", "--nnodes", "3", "t.py")),
        (SINGLE, ("--nnodes", "1", "t.py"), ("--nnodes", "1"), ("t.py",)),
        (SINGLE, ("--node_rank=0", "--master_port=1", "t.py"), ("--node_rank=0", "--master_port=1"), ("t.py",)),
        (SINGLE, ("t.py", "--nnodes", "1"), ("--standalone",), ("t.py", "--nnodes", "1")),
        (SINGLE, ("-m", "t", "--master", "1"), ("--standalone",), ("-m", "t", "--master", "1")),
        (SINGLE, ("--max-restarts", "1", "t.py"), ("--standalone",), ("--max-restarts", "1", "t.py")),
    ],
)
def test_flags_of_the_users_own_torchrun_win(environ, own, meeting, rest):
    """What they say of the topology counts, once; all others stay as they are, and no node forgets the others."""
    environ = told(("torchrun", *own), environ)
    assert ("/venv/bin/torchrun", *meeting, *NPROC, *rest) == argv(environ, "torchrun", *own)


def test_torchrun_as_a_module_is_torchrun():
    """`python -m torch.distributed.run` is how images without a torchrun on PATH start it."""
    own = ("python3", "-m", "torch.distributed.run", "--max-restarts", "2", "train.py")

    assert torchrun.suits(job(STATIC, *own))
    assert (*own[:3], *STATIC_FLAGS, *NPROC, *own[3:]) == argv(STATIC, *own)


def test_a_torchrun_with_a_path_is_taken():
    """Whoever names a torchrun wants that one."""
    expected = ("/opt/bin/torchrun", "--standalone", *NPROC, "t.py")
    assert expected == argv(SINGLE, "/opt/bin/torchrun", "t.py")


NEWER = {
    "PET_SHUTDOWN_TIMEOUT": "20",
    "PET_EVENT_LOG_HANDLER": "console",
    "PET_DUPLICATE_STDOUT_FILTERS": "a",
    "PET_DUPLICATE_STDERR_FILTERS": "b",
    "PET_SIGNALS_TO_HANDLE": "SIGTERM",
}
OPTIONS = {
    **NEWER,
    "PET_MAX_RESTARTS": "3",
    "PET_MONITOR_INTERVAL": "0.5",
    "PET_START_METHOD": "fork",
    "PET_ROLE": "trainer",
    "PET_LOG_DIR": "/logs",
    "PET_REDIRECTS": "3",
    "PET_TEE": "0:1,1:3",
    "PET_LOCAL_RANKS_FILTER": "0",
    "PET_LOCAL_ADDR": "10.0.0.1",
}
OPTION_FLAGS = (
    *("--max-restarts", "3", "--monitor-interval", "0.5", "--start-method", "fork", "--role", "trainer"),
    *("--log-dir", "/logs", "--redirects", "3", "--tee", "0:1,1:3", "--local-ranks-filter", "0"),
    *("--local-addr", "10.0.0.1"),
)


def test_all_options():
    """Every PET_ variable becomes the flag that all torchruns know."""
    assert ("/venv/bin/torchrun", "--standalone", *NPROC, *OPTION_FLAGS, "t.py") == argv({**SINGLE, **OPTIONS}, "t.py")
    assert [] == torchrun.options(dict.fromkeys(OPTIONS, " "))


@pytest.mark.parametrize(
    "value, on", [("1", 1), ("true", 1), ("YES", 1), (" on ", 1), ("", 0), ("0", 0), ("False", 0), ("off", 0)]
)
def test_flags_of_the_environment(value, on):
    """Flags may be written as people write them; torchrun itself knows only numbers."""
    names = ("PET_MODULE", "PET_NO_PYTHON", "PET_RUN_PATH")
    expected = ["--module", "--no-python", "--run-path"] if on else []
    assert expected == torchrun.options(dict.fromkeys(names, value))
    kept = torchrun.elastic_env(job({"PET_VIRTUAL_LOCAL_RANK": value})).get("PET_VIRTUAL_LOCAL_RANK")
    assert kept == ("1" if on else None)


# The command lines of torchrun 2.4 and 2.7, which have the same options.
OLD_TORCHRUN = """
import sys
known = {known}
unknown = [word for word in sys.argv[1:-1] if word.startswith("--") and word not in known]
sys.exit(f"torchrun: error: unrecognized arguments: {{unknown}}" if unknown else 0)
"""
KNOWN = """
--nnodes --nproc-per-node --rdzv-backend --rdzv-endpoint --rdzv-id --rdzv-conf --standalone --max-restarts
--monitor-interval --start-method --role --module --no-python --run-path --log-dir --redirects --tee
--local-ranks-filter --node-rank --master-addr --master-port --local-addr --logs-specs
"""


def test_an_old_torchrun_refuses_no_flag(tmp_path):
    """What it ignores as a variable it would not take as a flag, and the job of many months would start no more."""
    old = tmp_path / "torchrun"
    old.write_text(OLD_TORCHRUN.format(known=KNOWN.split()))
    _, *words = argv({**SINGLE, **OPTIONS, "PET_VIRTUAL_LOCAL_RANK": "1"}, "t.py")
    done = subprocess.run([sys.executable, old, *words], capture_output=True, text=True, check=False)
    assert (0, "") == (done.returncode, done.stderr)


@pytest.mark.parametrize("name", NEWER)
def test_a_variable_without_a_value(name):
    """torchrun would stop at an empty number."""
    assert name not in torchrun.elastic_env(job({**SINGLE, name: " "}))


@pytest.mark.parametrize("name", ["PET_MODULE", "PET_NO_PYTHON", "PET_RUN_PATH", "PET_VIRTUAL_LOCAL_RANK"])
@pytest.mark.parametrize("value", ["maybe", "2", "-1"])
def test_a_flag_that_is_none(name, value):
    """What is neither yes nor no would be a traceback of torchrun."""
    with pytest.raises(FatalError) as refused:
        torchrun.options({name: value})
    error = refused.value
    expected = ("pet-invalid", f"{name}={value!r} is neither 1 nor 0", f"set {name}=1, or remove it")
    assert expected == (error.code, error.message, error.hint)


@pytest.mark.parametrize(
    "name, value",
    [
        ("PET_MAX_RESTARTS", "x"),
        ("PET_MAX_RESTARTS", "-1"),
        ("PET_MAX_RESTARTS", "1.5"),
        ("PET_MAX_RESTARTS", "٣"),
        ("PET_MONITOR_INTERVAL", "1."),
        ("PET_MONITOR_INTERVAL", "nan"),
        ("PET_SHUTDOWN_TIMEOUT", "²"),
        ("PET_SHUTDOWN_TIMEOUT", "9" * 5000),
    ],
)
def test_a_number_that_is_none(name, value):
    """Numbers are checked before torchrun sees them."""
    with pytest.raises(FatalError) as refused:
        torchrun.options({name: value})
    error = refused.value
    expected = ("pet-invalid", f"{name}={value!r} is not a number", f"set {name} to a number such as 3, or remove it")
    assert expected == (error.code, error.message, error.hint)


def test_the_environment_of_the_ranks():
    """torch's own PET_ variables go, so that a nested torchrun is not fooled; the user's stay, and the newer ones."""
    environ = {**STATIC, **OPTIONS, "PET_MODULE": "0", "PET_STANDALONE": "0", "PET_FOO": "bar", "PATH": "/bin"}
    expected = Command(
        argv=("/venv/bin/torchrun", *STATIC_FLAGS, *NPROC, *OPTION_FLAGS, "t.py"),
        env={"PET_FOO": "bar", "PATH": "/bin", "OMP_NUM_THREADS": "4", **NEWER},
        elastic_agent=True,
    )
    assert expected == torchrun.command(job(environ, "t.py"))


def test_the_environment_may_be_kept():
    """--keep-pet-env leaves everything, for scripts that read PET_ variables themselves."""
    assert {**STATIC, "OMP_NUM_THREADS": "4"} == torchrun.command(job(STATIC, "t.py", keep=True)).env
