"""Help, README and docs say the same."""

import ast
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
INITIALIZE = (ROOT / "docs" / "initialize.md").read_text()
CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")
# What takes an error's code first, and the exit code that it means; derived classes are found.
MAKERS = {"AgentError": 20, "RetryError": 20, "FatalError": 30, "Finding": 30, "_error": 30, "_warn": 0}


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


@pytest.mark.parametrize("program", ["fault_cases.py", "kubeflow_cases.py"])
def test_tables_of_what_was_tried_are_those_of_the_cases(program):
    """What goes wrong and what becomes of it; what differs from Kubeflow's initializers."""
    script = ROOT / "tests" / "servers" / program
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=30, check=True)

    assert done.stdout in INITIALIZE


def test_every_error_is_documented():
    """A line in docs/errors.md for each code, with its exit codes, and no line for a code that is gone."""
    files = [path for folder in ("trainer_agent", "preflight_checks") for path in sorted((ROOT / folder).rglob("*.py"))]
    trees = [ast.parse(path.read_text()) for path in files]
    known = makers(trees)
    made = [error for tree in trees for error in raised(tree, known)]
    rows = re.findall(r"^\| `(\S+)` \| ([0-9, ]+) \|", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE)

    assert sorted({code for code, _ in made}) == sorted(code for code, _ in rows)
    assert [(code, exits) for code, exits in made if not exits <= {int(n) for n in dict(rows)[code].split(", ")}] == []


def makers(trees):
    """Return {name: exit code} of all that makes errors."""
    found = dict(MAKERS)
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    while more := [c for c in classes if c.name not in found and names(*c.bases) & found.keys()]:
        found |= {c.name: found[base] for c in more for base in names(*c.bases) & found.keys()}
    return found


def raised(tree, known):
    """Yield (code, exit codes) of every error that a module makes with a code of its own."""
    chosen = {  # kind = FatalError if … else RetryError
        target.id: names(node.value) & known.keys()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.IfExp)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    classes = {id(below): c.name for c in ast.walk(tree) if isinstance(c, ast.ClassDef) for below in ast.walk(c)}
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args):
        called = names(call.func)
        if called == {"super", "__init__"}:
            called = {classes[id(call)]}
        called = {name for it in called for name in chosen.get(it, {it})} & known.keys()
        code = getattr(call.args[0], "value", None)
        if called and isinstance(code, str):
            yield code, {known[name] for name in called}


def names(*nodes):
    """Return the names in some expressions."""
    every = [below for node in nodes for below in ast.walk(node)]
    return {n.id for n in every if isinstance(n, ast.Name)} | {n.attr for n in every if isinstance(n, ast.Attribute)}


@pytest.mark.parametrize("page", sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "CONTRIBUTING.md"]))
def test_links_lead_somewhere(page):
    """Every relative link of every page."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())

    assert [link for link in links if not (page.parent / link).exists()] == []
