"""Which MPI an mpirun belongs to."""

import os
import time
from pathlib import Path

import pytest
from mpi_programs import IMPLEMENTATIONS, MissingError
from podlab import without

from trainer_agent.errors import FatalError
from trainer_agent.mpi.implementation import Implementation, detect, recognise

SAID = {
    "openmpi 4.1.4": "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n",
    "openmpi 4.1.2": "mpirun.openmpi (OpenRTE) 4.1.2\n\nReport bugs to http://www.open-mpi.org/community/help/\n",
    "openmpi 5.0.11": "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/\n",
    "openmpi 3.0.10": "prterun (PRRTE) 3.0.10\n\nReport bugs to https://github.com/openpmix/prrte/\n",
    "openmpi 5.1.0": "mpirun (Open MPI) v5.1.0a1\n",
    "mpich 4.0.2": "HYDRA build details:\n    Version:                                 4.0.2\n    Release Date: x\n",
    "mpich 5.0.2": "HYDRA build details:\n    Version:                                 5.0.2\n",
    "intel 2021.18.1": "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)\n",
    "intel 2019": "Intel(R) MPI Library for Linux* OS, Version 2019 Update 9 Build 20200923 (id: abd58e492)\n",
}


@pytest.mark.parametrize("name", SAID)
def test_recognise(name):
    """Each implementation by what it says of itself."""
    assert Implementation(*name.split()) == recognise(SAID[name])


@pytest.mark.parametrize("said", ["", "slurm 23.11", "mpirun: command not found", "(Open MPI)", "Version: 4.0.2"])
def test_strangers(said):
    """What says something else is none of them."""
    assert recognise(said) is None


@pytest.mark.parametrize("version, major", [("4.1.4", 4), ("5.0.11", 5), ("2021", 2021)])
def test_major(version, major):
    """The first number decides about options."""
    assert major == Implementation("openmpi", version).major


def program(folder, text):
    """Write a program named mpirun."""
    path = folder / "mpirun"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def refused(path, environ=os.environ, **settings):
    with pytest.raises(FatalError) as error:
        detect(path, environ, **settings)
    return error.value


def test_the_version_on_standard_error(tmp_path):
    """Some print it there."""
    assert Implementation("openmpi", "4.1.4") == detect(program(tmp_path, "echo 'mpirun (Open MPI) 4.1.4' >&2"), {})


@pytest.mark.parametrize(
    "text, says",
    [
        ("echo slurm 23.11; echo more; exit 3", "'slurm 23.11' and ended with exit code 3"),
        ("kill -9 $$", "'' and was killed by signal 9"),
        ("true", "'' and ended"),
        ("yes", "'y' and it wrote more than 1 MiB"),
    ],
)
def test_a_program_that_says_something_else(tmp_path, text, says):
    """The message has the command, its first words and how it ended."""
    path = program(tmp_path, text)
    error = refused(path)
    assert ("mpirun-unknown", 30) == (error.code, error.exit_code)
    assert error.message.startswith(f"`{path} --version` says {says}")
    assert error.message.endswith(", wanted Open MPI, MPICH or Intel MPI")
    assert len(error.message) < 500


def test_a_program_that_hangs(tmp_path):
    """It is killed after a while, with all that it started."""
    began = time.monotonic()
    error = refused(program(tmp_path, "sleep 60 & sleep 61"), timeout_s=0.3)
    assert ("mpirun-unknown", True) == (error.code, "no answer within 0.3 s" in error.message)
    assert time.monotonic() - began < 40


@pytest.mark.parametrize("name", ["no-such-mpirun", "/no/such/mpirun"])
def test_no_mpirun(name):
    """The image lacks it."""
    error = refused(name, {"PATH": "/nowhere"})
    hint = "install Open MPI, MPICH or Intel MPI in the image, or put the right mpirun first on PATH"
    expected = ("mpirun-missing", f"cannot start {name!r}: No such file or directory", hint)
    assert expected == (error.code, error.message, error.hint)


def test_a_file_that_may_not_be_run(tmp_path):
    """An mpirun without its bit."""
    Path(program(tmp_path, "true")).chmod(0o644)
    assert "mpirun-missing" == refused(str(tmp_path / "mpirun")).code


@pytest.mark.lab
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_real_ones(name):
    """The five that the lab has, root or not."""
    each = IMPLEMENTATIONS[name]
    try:
        each.make()
    except MissingError as error:
        without(str(error))
    found = detect("mpirun", {**os.environ, "PATH": f"{each.bin}:{os.environ['PATH']}"})
    assert each.kind == found.kind
    assert found.major == int(name.rpartition("-")[2].partition(".")[0]) if "-" in name else found.major >= 2021
