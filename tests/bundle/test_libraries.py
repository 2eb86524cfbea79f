"""What the loader says of programs, as it is here."""

import os
import subprocess
from pathlib import Path

import pytest

from trainer_agent.bundle.libraries import check_glibc, loader_of, needed_by
from trainer_agent.errors import FatalError


def test_the_loader_starts_what_names_it():
    """It is the one in the program's own head."""
    real = Path("/proc/self/exe").readlink()
    done = subprocess.run([loader_of(real), real, "--version"], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.startswith("Python 3.")


@pytest.mark.parametrize("head", [b"#!/bin/sh\n", b"", b"\x7fELF\x02", b"\x7fELF\x02" + bytes(100)])
def test_what_has_no_loader_is_refused(tmp_path, head):
    """A script, nothing, a static program."""
    (tmp_path / "program").write_bytes(head)
    with pytest.raises(FatalError) as caught:
        loader_of(tmp_path / "program")

    assert "install-static-python" == caught.value.code
    assert f"{tmp_path}/program is no 64-bit program with a dynamic loader" == caught.value.message


def test_all_of_glibc_is_needed():
    """A library of the image that wants libpthread.so.0 must find ours: another version's does not fit our libc."""
    real = Path("/proc/self/exe").readlink()
    found = needed_by([real], loader_of(real))
    folder = found["libc.so.6"].resolve().parent

    assert {folder} == {
        found[name].resolve().parent for name in ("libm.so.6", "libpthread.so.0", "libdl.so.2", "libresolv.so.2")
    }
    assert "libgcc_s.so.1" in found
    assert {True} == {path.is_absolute() and path.exists() for path in found.values()}


def test_what_cannot_be_loaded_needs_nothing(tmp_path):
    """An extension module without its library does not work here either."""
    (tmp_path / "broken.so").write_bytes(b"\x7fELF\x02broken")
    real = Path("/proc/self/exe").readlink()

    assert needed_by([], loader_of(real)) == needed_by([tmp_path / "broken.so"], loader_of(real))


def test_this_glibc_is_new_enough():
    """As every system's is that the tests run on."""
    check_glibc()

    assert os.confstr("CS_GNU_LIBC_VERSION").startswith("glibc 2.")
