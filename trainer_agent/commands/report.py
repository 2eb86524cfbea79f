"""`report`: render a saved report."""

from __future__ import annotations

import os
import sys
from functools import partial

import click

from trainer_agent.env import wants_colour
from trainer_agent.formats import FORMATS, writer
from trainer_agent.report import show


@click.command()
@click.option(
    "--output",
    type=click.Choice(list(FORMATS)),
    default="text",
    show_default=True,
    show_envvar=True,
    help="The form: text for people, JSON for programs, JUnit XML for CI, one HTML page.",
)
@click.argument("file", type=click.Path(dir_okay=False))
def report(file: str, output: str) -> None:
    """
    Render a report that `preflight --report-file` saved.

    \b
    trainer-agent report preflight.json
    trainer-agent report preflight.json --output html > preflight.html
    """
    write = partial(writer(output), colour=wants_colour(sys.stdout, os.environ))
    click.echo(show(file, write), nl=False)
