"""build: the first launcher of the table that suits, or the one that is named."""

from importlib import import_module

import pytest

from trainer_agent.launchers import LAUNCHERS, Command, Job, build, interpreter_words, is_python_file
from trainer_agent.nproc import Decision
from trainer_agent.topology import read_topology

TORCH = {"PET_NNODES": "1"}
JAX = {"JAX_NUM_PROCESSES": "1"}


def job(environ, *script):
    return Job(read_topology(environ, hostname="box"), Decision(1, ""), script, environ, "python", ("torchrun",), 900.0)


@pytest.mark.parametrize(
    "environ, script, name",
    [
        (TORCH, ("train.py",), "torchrun"),
        (TORCH, ("-m", "pkg"), "torchrun"),
        (TORCH, ("torchrun", "train.py"), "torchrun"),
        (TORCH, ("accelerate", "launch", "train.py"), "accelerate"),
        (TORCH, ("tune", "run", "x"), "tune"),
        (TORCH, ("tune", "ls"), "python"),
        (TORCH, ("bash", "-c", "true"), "python"),
        ({}, ("torchrun", "train.py"), "torchrun"),
        ({}, ("train.py",), "python"),
        (JAX, ("train.py",), "python"),
        ({}, ("",), "python"),
    ],
)
def test_auto(environ, script, name):
    """The command and the runtime decide."""
    assert name == build(job(environ, *script))[0]


def test_a_named_launcher_is_taken():
    """Whoever names a launcher gets it, whatever suits."""
    expected = ("python", Command(("python", "train.py"), TORCH))
    assert expected == build(job(TORCH, "train.py"), "python")
    assert ("torchrun", "--standalone") == build(job({}, "train.py"), "torchrun")[1].argv[:2]


def test_the_table():
    """Every launcher has the two functions, and the last one suits everything."""
    modules = [import_module(module) for module in LAUNCHERS.values()]
    assert all(callable(m.suits) and callable(m.command) for m in modules)
    assert modules[-1].suits(job({}, "anything"))


def test_the_environment_is_not_printed():
    """A command's repr ends up in logs and tracebacks, its environment must not."""
    assert "Command(argv=('a',), elastic_agent=False, note='')" == repr(Command(("a",), {"HF_TOKEN": "secret"}))


@pytest.mark.parametrize("word, is_script", [("train.py", True), ("/a/train.py", True), ("train", False), ("", False)])
def test_is_python_file(word, is_script):
    """A script is what ends in .py."""
    assert is_script == is_python_file(word)


@pytest.mark.parametrize(
    "line, words",
    [
        ("python train.py -u", 1),
        ("/opt/bin/python3.12 -uB -X faulthandler -Wignore -W error -OO t.py", 8),
        ("-u -m pkg", 1),
        ("train.py -u", 0),
        ("python -c pass", 1),
        ("python -X", 2),
        ("", 0),
    ],
)
def test_words_of_the_interpreter(line, words):
    """They end before the script, `-m` or `-c`; a value that is missing is Python's to report."""
    assert words == interpreter_words(line.split())
