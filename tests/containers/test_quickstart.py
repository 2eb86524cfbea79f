"""docs/quickstart.md, followed word for word, up to the cluster: all that is to be typed, in one shell of a clone."""

import re
import shlex
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from building import builder
from engine import ROOT, environment, image, podman

pytestmark = pytest.mark.containers

PAGE = ROOT / "docs" / "quickstart.md"
BLOCK = re.compile(r"^```(sh|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
MARK = "=== block of the page ==="
OURS = {  # kind: what the page makes
    "container": ["quickstart-node-0-0", "quickstart-node-0-1"],
    "network": ["quickstart"],
    "volume": ["quickstart-agent"],
    "image": ["localhost/trainer-agent:latest"],
}


def blocks():
    """Return the commands of each step, with the lines that the page shows of what they print."""
    found = [*BLOCK.findall(PAGE.read_text().split("\n## In your cluster")[0]), ("sh", "")]
    return [(words, after if kind == "text" else "") for (sh, words), (kind, after) in pairwise(found) if sh == "sh"]


def left():
    """Return which of the page's things are there."""
    return [
        (kind, name)
        for kind, names in OURS.items()
        for name in names
        if not podman(kind, "exists", name, check=False).code
    ]


def missing(shown, said):
    """
    Return the first line of the page that was not printed, or not after the lines before it.

    Numbers with a decimal point are times and rates, and may differ; an ellipsis is anything, also whole lines.
    """
    lines = iter(said.splitlines())
    for line in filter(None, shown.splitlines()):
        parts = [re.split(r"\d+\.\d+", part) for part in line.split("…")]
        pattern = ".*".join(r"\d+\.\d+".join(map(re.escape, part)) for part in parts)
        if line != "…" and not any(re.fullmatch(pattern, each) for each in lines):
            return line
    return None


@pytest.fixture
def clone(tmp_path):
    """A fresh clone, as far as git would give one, with the times of all files: layers that are there can be used."""
    listed = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split("\0")
    there = [name for name in names if (ROOT / name).is_file()]
    copy = tmp_path / "clone"
    for name in there:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name)
    for folder in {folder for name in there for folder in Path(name).parents}:
        shutil.copystat(ROOT / folder, copy / folder)
    return copy


@pytest.fixture
def environ(tmp_path):
    """A `docker` that is podman, and builds as images are built here; base images that need no registry."""
    build = shlex.join([*builder(), "--build-arg", f"PYTHON_IMAGE={image('python')}"])
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n[ "$1" = build ] || exec podman "$@"\nshift\nexec {build} "$@"\n')
    program.chmod(0o755)
    base = environment()
    return {**base, "PATH": f"{program.parent}:{base['PATH']}", "TRAINING_IMAGE": image("training")}


@pytest.fixture
def _nothing_left():
    """Nobody else's things are touched, and nothing stays, whatever happens."""
    assert [] == left(), "somebody follows docs/quickstart.md here: end that first"
    yield
    for kind, name in left():
        podman(kind, "rm", "--force", *([] if kind == "image" else ["--time", "0"]), name, check=False)
    assert [] == left()


@pytest.mark.usefixtures("_nothing_left")
def test_who_types_what_the_page_says_reads_what_the_page_shows(clone, environ):
    """Every step succeeds and prints, in this order, the lines under it; then nothing is left but the image."""
    steps = blocks()
    script = "".join(f"{words}\necho; echo '{MARK}'\n" for words, _ in steps)

    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=clone,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )

    assert 0 == done.returncode, done.stdout
    said = done.stdout.split(MARK)[:-1]
    assert len(steps) == len(said) == 9
    for (words, shown), each in zip(steps, said, strict=True):
        assert missing(shown, each) is None, f"{words}\n{each}"
    assert [("image", "localhost/trainer-agent:latest")] == left()
    assert not (clone / "quickstart").exists()


@pytest.mark.parametrize(
    "shown,said",
    [
        ("exit 30", "exit 20"),
        ("took 2.4 s\n0", "0\ntook 3.1 s"),
        ("PASS …; all alike", "PASS clock\nall alike"),
    ],
    ids=["another-number", "another-order", "two-lines"],
)
def test_what_was_not_printed_is_noticed(shown, said):
    assert missing(shown, said) is not None
