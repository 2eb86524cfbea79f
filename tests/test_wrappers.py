"""The wrappers: which files are ours, and what is behind them."""

import os

import pytest

from trainer_agent.bundle.scripts import WRAPPED, outer
from trainer_agent.errors import FatalError
from trainer_agent.wrappers import find_real, is_wrapper, need_real, unwrapped, wanted

OURS = {name: text for name, text in outer("v1", "lib/python", "lib/ld.so").items() if name.startswith("wrappers/")}


@pytest.fixture
def image(tmp_path):
    """Give an image with our wrappers, a real torchrun, and links and copies of ours between."""

    def write(place, text):
        file = tmp_path / place
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)
        return file

    for place, text in OURS.items():
        write(place, text)
    write("copied/torchrun", OURS["wrappers/torchrun"])
    write("copied/other", "#!/bin/sh\n")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/torchrun").symlink_to(tmp_path / "wrappers/torchrun")
    (tmp_path / "linked/dangling").symlink_to(tmp_path / "nothing")
    write("real/torchrun", "#!/usr/bin/python3\nimport trainer_agent  # wrap \nexec('')\n")
    write("later/torchrun", "#!/bin/sh\nexec true\n")
    write("plain/torchrun", "no program").chmod(0o644)
    (tmp_path / "folder/torchrun").mkdir(parents=True)
    return tmp_path


def path(image, *names):
    return {"PATH": os.pathsep.join(str(image / name) for name in names)}


def test_the_scripts_of_a_bundle_are_wrappers(image):
    """Those that `install` writes, wherever they lie; programs, directories and what is not there are none."""
    assert {f"wrappers/{name}" for name in WRAPPED} == set(OURS)
    for place in (*OURS, "copied/torchrun", "linked/torchrun"):
        assert is_wrapper(str(image / place)), place
    for place in ("real/torchrun", "later/torchrun", "folder/torchrun", "linked/dangling", "copied/other"):
        assert not is_wrapper(str(image / place)), place


def test_the_real_program_is_the_next_that_is_no_wrapper(image):
    """Copies, links and a second mention on PATH are passed over, and so is what cannot be started."""
    environ = path(image, "wrappers", "plain", "folder", "copied", "linked", "wrappers", "nothing", "real", "later")
    assert str(image / "real/torchrun") == find_real("torchrun", environ) == need_real("torchrun", environ)


def test_a_program_with_a_path_is_that_one(image):
    """Unless it is one of ours, behind which nobody knows a path."""
    assert str(image / "later/torchrun") == find_real(str(image / "later/torchrun"), {})
    assert find_real(str(image / "linked/torchrun"), path(image, "real")) is None


def test_an_empty_entry_is_the_working_directory(image, monkeypatch):
    """As shells and the kernel have it, and the path is absolute."""
    monkeypatch.chdir(image / "later")
    assert str(image / "later/torchrun") == find_real("torchrun", {"PATH": f"{image}/wrappers:"})


def test_nothing_behind_the_wrapper(image):
    """The message names PATH and says what to do."""
    environ = path(image, "wrappers", "linked")
    with pytest.raises(FatalError) as refused:
        need_real("torchrun", environ)
    error = refused.value
    message = f"there is no torchrun behind the wrapper: PATH={environ['PATH']!r} leads to none but ours"
    hint = "install torchrun in the image, or put its directory on PATH"
    assert ("wrap-program-missing", message, hint) == (error.code, error.message, error.hint)


def test_what_we_start_does_not_find_the_wrappers(image):
    """Their directory leaves PATH and a mark comes; a directory with anything else stays."""
    env = unwrapped({**path(image, "wrappers", "linked", "copied", "nothing", "real", "wrappers"), "A": "b"})
    assert {**path(image, "linked", "copied", "nothing", "real"), "A": "b", "TRAINER_AGENT_WRAPPED": "1"} == env
    assert env == unwrapped(env)
    assert {"TRAINER_AGENT_WRAPPED": "1"} == unwrapped({})
    assert path(image, "wrappers")["PATH"] == unwrapped(path(image, "wrappers"))["PATH"]


@pytest.mark.parametrize(
    "value, on",
    [("", 1), ("1", 1), ("true", 1), (" Yes ", 1), ("on", 1), ("0", 0), ("False", 0), ("no", 0), ("OFF", 0)],
)
def test_the_switch(value, on):
    """It is written as people write it; below the agent it is off whatever it says."""
    assert bool(on) == wanted({"TRAINER_AGENT_WRAP": value})
    assert not wanted({"TRAINER_AGENT_WRAP": value, "TRAINER_AGENT_WRAPPED": "1"})


@pytest.mark.parametrize("value", ["maybe", "2", "-1", "nein"])
def test_a_switch_that_is_none(value):
    """The message names the variable and its value."""
    with pytest.raises(FatalError) as refused:
        wanted({"TRAINER_AGENT_WRAP": value})
    message = f"TRAINER_AGENT_WRAP={value!r} is neither 1 nor 0 (true, false, yes, no, on, off)"
    assert ("wrap-invalid", message) == (refused.value.code, refused.value.message)
