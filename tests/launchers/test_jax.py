"""jax: initialize() before the user's script, which then is the main program as Python itself would start it."""

import json
import os
import subprocess
import sys

import pytest

from trainer_agent.errors import FatalError
from trainer_agent.launchers import Command, Job, build, jax
from trainer_agent.nproc import Decision
from trainer_agent.topology import read_topology

JAX = {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1", "JAX_COORDINATOR_ADDRESS": "job-node-0-0.job:29500"}
# Says what a script sees of itself; a child that multiprocessing spawns must find the script again.
SCRIPT = """
import json, multiprocessing, sys

def square(n):
    return n * n

if __name__ == "__main__":
    import jax
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        squares = pool.map(square, [3])
    names = {"argv": sys.argv, "path": sys.path[0], "file": __file__, "name": __name__}
    print(json.dumps({**names, "squares": squares, "calls": jax.distributed.calls, "last": sys.path[-1]}))
    sys.exit(7)
"""
# Stands for the package: what initialize() is given is all that matters here.
STANDS_FOR_JAX = """
class distributed:
    calls = []
    @classmethod
    def initialize(cls, **given):
        cls.calls.append(given)
"""


def job(environ, *script, nproc=1, omp=None):
    topology = read_topology(environ, hostname="box")
    return Job(topology, Decision(nproc, "", omp_threads=omp), script, environ, "/venv/python", ("torchrun",), 900.0)


@pytest.fixture
def project(tmp_path):
    """Return a directory with a script, a package, and a place where jax can be imported from."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax/jax.py").write_text(STANDS_FOR_JAX)
    (tmp_path / "work/pkg").mkdir(parents=True)
    for name in ("train.py", "pkg/train.py"):
        (tmp_path / "work" / name).write_text(SCRIPT)
    # What multiprocessing spawns does not find functions of a package's __main__.py, without us neither.
    (tmp_path / "work/pkg/__main__.py").write_text(SCRIPT.replace('"spawn"', '"fork"'))
    return tmp_path


def start(project, *words, python=(sys.executable,), **more):
    """Run jax_start.py; return its exit code and what the script told."""
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(project / "jax"), **JAX, **more}
    done = subprocess.run(
        [*python, jax.START, *words],
        cwd=project / "work",
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr


@pytest.mark.parametrize(
    "script, argv",
    [
        (("train.py", "--lr", "1"), ("/venv/python", jax.START, "train.py", "--lr", "1")),
        (("-m", "pkg", "-m", "x"), ("/venv/python", jax.START, "-m", "pkg", "-m", "x")),
        (("python3", "train.py"), ("python3", jax.START, "train.py")),
        (("python", "-u", "-X", "dev", "t.py", "-u"), ("python", "-u", "-X", "dev", jax.START, "t.py", "-u")),
        (("-u", "-m", "pkg"), ("/venv/python", "-u", jax.START, "-m", "pkg")),
        (("/opt/bin/python3.12", "-m", "pkg"), ("/opt/bin/python3.12", jax.START, "-m", "pkg")),
    ],
)
def test_commands(script, argv):
    """Scripts and modules, with the interpreter that was named, and with its options."""
    assert Command(argv, JAX) == jax.command(job(JAX, *script))


@pytest.mark.parametrize("environ", [{}, {**JAX, "JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0"}, {"PET_NNODES": "1"}])
def test_a_process_without_others_is_started_as_it_is(environ):
    """JAX needs nobody to tell it so."""
    assert Command(("/venv/python", "train.py"), environ) == jax.command(job(environ, "train.py"))


def test_threads():
    """A decided number of threads is in the environment."""
    assert {**JAX, "OMP_NUM_THREADS": "3"} == jax.command(job(JAX, "train.py", omp=3)).env


def test_it_is_asked_for_by_name():
    """A script that calls initialize() itself, as most do, would fail on the second call."""
    assert "python" == build(job(JAX, "train.py"))[0]
    assert jax.START == build(job(JAX, "train.py"), "jax")[1].argv[1]


@pytest.mark.parametrize(
    "script", [("bash", "-c", "x"), ("-c", "pass"), ("-m",), ("python",), ("python", "-i", "t.py"), ("python", "-u")]
)
def test_a_command_that_is_no_script(script):
    """Nothing can be done before a program that is not ours to import."""
    with pytest.raises(FatalError) as refused:
        jax.command(job(JAX, *script))
    error = refused.value
    message = f"--launcher jax starts a Python script or `-m MODULE`, not {' '.join(script[:2])!r}"
    hint = (
        "give it as train.py or -m MODULE; any other command starts with --launcher python, "
        "and has to call jax.distributed.initialize() with the values of JAX_* itself"
    )
    assert ("jax-not-a-script", message, hint) == (error.code, error.message, error.hint)


@pytest.mark.parametrize(
    "words, argv, file, path",
    [
        (("train.py", "--lr", "a b"), ["train.py", "--lr", "a b"], "train.py", "."),
        (("./pkg/train.py",), ["./pkg/train.py"], "./pkg/train.py", "pkg"),
        (("-m", "pkg.train", "-x"), ["{work}/pkg/train.py", "-x"], "{work}/pkg/train.py", "."),
        (("-m", "pkg"), ["{work}/pkg/__main__.py"], "{work}/pkg/__main__.py", "."),
    ],
)
def test_the_script_is_the_main_program(project, words, argv, file, path):
    """Its arguments, its import path and its exit code are as without us, and it is connected already."""
    work = str((project / "work").resolve())
    code, told = start(project, *words)
    given = {"coordinator_address": "job-node-0-0.job:29500", "num_processes": 2, "process_id": 1}
    assert (7, [given], [9], "__main__") == (code, told["calls"], told["squares"], told["name"])
    assert [word.format(work=work) for word in argv] == told["argv"]
    assert file.format(work=work) == told["file"]
    assert os.path.realpath(project / "work" / path) == told["path"]


def test_what_python_itself_does(project):
    """The same script without us: argv, path and file are what the test above wants of us."""
    words = [sys.executable, "pkg/train.py", "x"]
    environ = {"PYTHONPATH": str(project / "jax")}
    done = subprocess.run(words, cwd=project / "work", env=environ, capture_output=True, text=True, check=False)
    without, (_, with_us) = json.loads(done.stdout), start(project, "pkg/train.py", "x")
    assert {**without, "calls": 0, "file": 0} == {**with_us, "calls": 0, "file": 0}


def test_a_safe_path_stays_safe(project):
    """Where Python is told to put nothing first, nothing is replaced."""
    code, told = start(project, "train.py", PYTHONSAFEPATH="1")
    assert (7, str(project / "jax")) == (code, told["path"])


def test_without_jax_it_says_so(project):
    """Our own jax.py beside the start file is not taken for JAX."""
    no_packages = (sys.executable, "-S")
    code, err = start(project, "train.py", python=no_packages, PYTHONPATH="")
    assert (1, "ModuleNotFoundError: No module named 'jax'") == (code, err.splitlines()[-1])
