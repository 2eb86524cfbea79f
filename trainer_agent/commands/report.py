"""`report`: render a saved report."""

from __future__ import annotations

import sys

import click

from trainer_agent.report import load, render


@click.command()
@click.argument("file", type=click.Path(dir_okay=False))
def report(file: str) -> None:
    """
    Render a report that `preflight --report-file` saved.

    \b
    trainer-agent report preflight.json
    """
    click.echo(render(load(file), colour=sys.stdout.isatty()), nl=False)
