"""`install`: copy this program into a directory, from which any image can run it."""

from __future__ import annotations

import time
from pathlib import Path

import click


@click.command()
@click.option(
    "--to",
    required=True,
    type=click.Path(path_type=Path),
    show_envvar=True,
    help="A directory on a volume that the other containers mount, too. Made if it is not there.",
)
def install(to: Path) -> None:
    """
    Copy this program, with all that it needs, into a directory from which any image can run it.

    It brings its own Python and libraries: the other image needs /bin/sh alone. The same version again costs nothing;
    another one replaces it.

    \b
    In an init container:        trainer-agent install --to /agent
    In the training container:   /agent/bin/trainer-agent run -- train.py
    """
    from trainer_agent.bundle.contents import find_contents
    from trainer_agent.bundle.install import install as put
    from trainer_agent.log import get_logger

    began = time.monotonic()
    done = put(find_contents(), to)
    facts = {"files": done.files, "mb": round(done.size / 1e6, 1), "seconds": round(time.monotonic() - began, 2)}
    get_logger().info("installed" if done.copied else "already installed", to=str(to), version=done.name, **facts)
