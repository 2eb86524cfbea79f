"""A stand-in for NVIDIA's library, compiled when a test asks for it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("libnvidia-ml.c")


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a libnvidia-ml.so.1 for LD_LIBRARY_PATH."""
    if shutil.which("gcc") is None:
        missing = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        missing("the stand-in for NVML needs gcc")
    directory = tmp_path_factory.mktemp("nvml")
    flags = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wl,-soname,libnvidia-ml.so.1"]
    library = directory / "libnvidia-ml.so.1"
    subprocess.run(["gcc", *flags, "-o", str(library), str(SOURCE)], check=True, timeout=60)
    return directory
