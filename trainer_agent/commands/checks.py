"""`checks`: list them, or explain one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from trainer_agent.catalogue import Listed, list_checks
from trainer_agent.commands.preflight import refuse_unknown
from trainer_agent.errors import AgentError, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainer_agent.check import Check, Rule


@click.command()
@click.argument("name", required=False)
def checks(name: str | None) -> None:
    """
    List the installed checks, or explain one: its question, what it can find, thresholds, what to do.

    \b
    trainer-agent checks
    trainer-agent checks shm
    """
    installed = list_checks()
    if name is None:
        click.echo(table(installed), nl=False)
        return
    refuse_unknown([name], installed)
    click.echo(explain(installed[name].load(), installed[name].provider), nl=False)


def table(installed: dict[str, Listed]) -> str:
    """Return one line for each check: name and question."""
    width = max(map(len, installed), default=0)
    return "".join(f"{name.ljust(width)}  {_question(entry)}\n" for name, entry in installed.items())


def _question(entry: Listed) -> str:
    """Return its question, or why it has none: one broken package must not hide the others' checks."""
    try:
        return entry.load().question
    except AgentError as error:
        return f"({error.message})"


def explain(check: Check, provider: str) -> str:
    """Return all that is known of a check."""
    lines = [
        check.name,
        f"  {check.question}",
        f"  provided by {provider}, from profile {check.profile} on",
        "",
        "can find:",
    ]
    return "\n".join([*lines, *(line for rule in check.rules for line in _rule(rule))]) + "\n"


def _rule(rule: Rule) -> Iterator[str]:
    yield f"  {rule.code} ({rule.severity})"
    yield f"    when    {rule.when}"
    if rule.source:
        yield f"    source  {rule.source}"
    yield f"    do      {rule.hint}"
    if rule.severity is Severity.ERROR:
        yield f"    action  {rule.action}"
