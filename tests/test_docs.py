"""Help, README and docs say the same."""

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from preflight_checks import CATALOGUE
from trainer_agent.catalogue import Listed
from trainer_agent.cli import COMMANDS, main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_readme_lists_the_commands():
    """The same names, summaries and order as `--help`."""
    rows = re.findall(r"^\| `trainer-agent (\S+)` \| (.*) \|$", README, re.MULTILINE)

    assert rows == [(name, summary) for name, (_, summary) in COMMANDS.items()]


def test_the_reference_is_what_the_program_says():
    """`make docs` writes it."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "reference.py")], capture_output=True, text=True, timeout=30, check=True
    )

    assert (ROOT / "docs" / "reference.md").read_text() == done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name):
    """An example, and a sentence and a variable for every option."""
    command = main.get_command(click.Context(main), name)
    options = [p for p in command.params if isinstance(p, click.Option)]

    assert f"trainer-agent {name}" in command.help
    assert [o.name for o in options if not o.help] == []
    assert [o.name for o in options if not o.show_envvar] == []


@pytest.mark.parametrize("name,target", CATALOGUE.items())
def test_every_check_is_documented(name, target):
    """A section in docs/checks.md, with each thing it can find."""
    sections = re.split(r"^## ", (ROOT / "docs" / "checks.md").read_text(), flags=re.MULTILINE)
    section = next(s for s in sections if s.startswith(f"{name}\n"))
    check = Listed(name, target, "trainer-agent").load()

    assert [rule.code for rule in check.rules if f"`{rule.code}`" not in section] == []
    assert check.question.endswith("?")
    assert [rule.code for rule in check.rules if not rule.hint or not rule.when] == []


@pytest.mark.parametrize("page", sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "CONTRIBUTING.md"]))
def test_links_lead_somewhere(page):
    """Every relative link of every page."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())

    assert [link for link in links if not (page.parent / link).exists()] == []
