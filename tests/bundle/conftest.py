"""A small installation of the agent, and the bundle that it makes, once for all tests here."""

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Everything but the extra `cache`, whose 250 MB would be copied for every test.
NAMES = ("awscrt", "click", "nvidia-ml-py", "psutil", "rich", "markdown-it-py", "mdurl", "Pygments", "structlog")
LEAN = (*NAMES, "urllib3", "hf-xet")


@pytest.fixture(scope="session")
def installation(tmp_path_factory):
    """Return the Python of a virtual environment with the agent, editable, and little else."""
    root = tmp_path_factory.mktemp("installation")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root], check=True, timeout=60)
    site = next(root.glob("lib/python*/site-packages"))
    for name in LEAN:
        link(name, site)
    own = distribution("trainer-agent")
    metadata = site / "trainer_agent-0.dist-info"
    metadata.mkdir()
    for name in ("METADATA", "entry_points.txt", "top_level.txt"):
        (metadata / name).write_text(own.read_text(name) or own.read_text("PKG-INFO"))  # of a checkout's egg-info
    (metadata / "RECORD").write_text("editable.pth,,\n")
    (metadata / "direct_url.json").write_text(json.dumps({"dir_info": {"editable": True}}))
    (site / "editable.pth").write_text(str(ROOT))
    return root / "bin/python3"


def link(name, site):
    """Put a distribution of this environment into another one, by symbolic links."""
    dist = distribution(name)
    for top in {file.parts[0] for file in dist.files} - {"..", "__pycache__"}:
        (site / top).symlink_to(Path(dist.locate_file(top)).absolute())


@pytest.fixture(scope="session")
def run_install(installation, tmp_path_factory):
    """Run `trainer-agent install` of that installation; return the finished process, its last log line as `said`."""

    def run(to, *, program=None, **settings):
        words = [program] if program else [installation, "-m", "trainer_agent"]
        done = subprocess.run(
            [*words, "install", "--to", to],
            cwd=tmp_path_factory.getbasetemp(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            **settings,
        )
        done.said = json.loads(done.stderr.splitlines()[-1])
        return done

    return run


@pytest.fixture(scope="session")
def bundle(run_install, tmp_path_factory):
    """Return the directory of a bundle, which no test changes."""
    directory = tmp_path_factory.mktemp("bundle") / "agent"
    done = run_install(directory)
    assert done.returncode == 0, done.stderr
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def agent(bundle):
    """Run the bundle's program with only the variables that are given; return the finished process."""

    def run(*words, program=None, cwd=None, stdin="", **environ):
        return subprocess.run(
            [program or bundle / "bin/trainer-agent", *words],
            env={"PATH": os.defpath, **environ},
            cwd=cwd,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


@pytest.fixture
def small(tmp_path):
    """Return contents that are quickly copied: a shell script that plays the loader, and says a version."""
    from trainer_agent.bundle.contents import Contents
    from trainer_agent.bundle.scripts import inner

    def make(name="lib-1-a", *, loader="#!/bin/sh\necho version\n", **files):
        here = tmp_path / "source" / name
        here.mkdir(parents=True, exist_ok=True)
        (here / "loader").write_text(loader)
        (here / "loader").chmod(0o755)
        (here / "program").touch()
        places = {"interpreter": "bin/program", "loader": "bin/trainer-agent"}
        found = {places["interpreter"]: here / "program", places["loader"]: here / "loader", **files}
        return Contents(name, found, {"name": name, **places}, inner(**places))

    return make
