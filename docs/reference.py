"""Print the reference of all commands and options as Markdown; `make docs` writes it to docs/reference.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from trainer_agent.cli import COMMANDS, main

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD = """# Reference

Every command and option, and its variable, made by `make docs` from the program itself.
Every option can be set by an environment variable; the command line wins.
"""


def sections(name: str, command: click.Command, parent: click.Context) -> Iterator[str]:
    """Yield the section of one command, and of those below it."""
    context = click.Context(command, info_name=name, parent=parent, **command.context_settings)
    yield f"\n## {context.command_path}\n\n```\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            if found:
                yield from sections(below, found, context)


def reference() -> str:
    """Return the whole page."""
    root = click.Context(main, info_name="trainer-agent", **{**main.context_settings, "terminal_width": 100})
    commands = ((name, main.get_command(root, name)) for name in COMMANDS)
    head = f"{HEAD}\n```\n{main.get_help(root)}\n```\n"
    return head + "".join(part for name, command in commands if command for part in sections(name, command, root))


if __name__ == "__main__":
    print(reference(), end="")
