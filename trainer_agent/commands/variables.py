"""The environment variables that options are set by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

# What is read beside the options of commands.
OTHERS = (
    "TRAINER_AGENT_GPU_THRESHOLDS",
    "TRAINER_AGENT_INIT_CACHE_ENDPOINT",
    "TRAINER_AGENT_RANKS",
    "TRAINER_AGENT_RDMA_EXCLUDE",
    "TRAINER_AGENT_STATUS",
    "TRAINER_AGENT_WRAP",
    "TRAINER_AGENT_WRAPPED",
)


def variables_of(option: click.Parameter, context: click.Context) -> list[str]:
    """Return the variables that set an option of a command; the first that is set counts."""
    own = option.envvar or f"{context.auto_envvar_prefix}_{option.name}".upper()
    return [own] if isinstance(own, str) else list(own)


def all_variables(context: click.Context) -> Iterator[str]:
    """Yield the variables of all options of a command and of those below it."""
    for option in context.command.params:
        if isinstance(option, click.Option):
            yield from variables_of(option, context)
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            if below := context.command.get_command(context, name):
                yield from all_variables(click.Context(below, info_name=name, parent=context))
