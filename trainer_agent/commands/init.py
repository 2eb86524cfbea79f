"""`init`: fetch dataset and model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainer_agent.commands.preflight import Names
from trainer_agent.errors import ExitCode, FatalError
from trainer_agent.initializers import open_source
from trainer_agent.initializers.fetch import fetch
from trainer_agent.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = ("dataset", "model")


@click.group()
def init() -> None:
    """
    Fetch what STORAGE_URI names into OUTPUT_PATH, whole files only.

    \b
    trainer-agent init dataset --storage-uri s3://bucket/prefix
    trainer-agent init all
    """


def fetch_options(kind: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options of one kind; Kubeflow's own variables come after ours."""

    def variables(name: str) -> list[str]:
        return [f"TRAINER_AGENT_INIT_{kind.upper()}_{name}", name]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        uri = click.option(
            "--storage-uri",
            envvar=variables("STORAGE_URI"),
            show_envvar=True,
            help="s3://bucket/prefix or file:///path.",
        )
        path = click.option(
            "--output-path",
            envvar=variables("OUTPUT_PATH"),
            default=f"/workspace/{kind}",
            show_default=True,
            show_envvar=True,
            help="Where the files go.",
        )
        ignore = click.option(
            "--ignore-patterns",
            type=Names(),
            envvar=variables("IGNORE_PATTERNS"),
            default="",
            show_envvar=True,
            help="Leave out what these match, such as *.md,docs/*.",
        )
        return uri(path(ignore(function)))

    return decorate


@init.command()
@fetch_options("dataset")
def dataset(storage_uri: str | None, output_path: str, ignore_patterns: tuple[str, ...]) -> int:
    """Fetch the dataset."""
    return _fetch("dataset", storage_uri, output_path, ignore_patterns=ignore_patterns)


@init.command()
@fetch_options("model")
def model(storage_uri: str | None, output_path: str, ignore_patterns: tuple[str, ...]) -> int:
    """Fetch the model."""
    return _fetch("model", storage_uri, output_path, ignore_patterns=ignore_patterns)


@init.command(name="all")
def all_() -> int:
    """Fetch both, from TRAINER_AGENT_INIT_DATASET_STORAGE_URI and TRAINER_AGENT_INIT_MODEL_STORAGE_URI."""
    return init_all(required=True)


def init_all(*, required: bool) -> int:
    """Fetch whatever of dataset and model has a URI of its own; when `required`, there must be one."""
    named = [kind for kind in KINDS if os.environ.get(f"TRAINER_AGENT_INIT_{kind.upper()}_STORAGE_URI", "").strip()]
    if not named and required:
        raise FatalError(
            "storage-uri-missing",
            "neither TRAINER_AGENT_INIT_DATASET_STORAGE_URI nor TRAINER_AGENT_INIT_MODEL_STORAGE_URI is set",
            hint="set one of them; STORAGE_URI alone does not say which of the two it is",
        )
    if not named:
        get_logger().info(
            "nothing to fetch",
            why="no TRAINER_AGENT_INIT_DATASET_STORAGE_URI or TRAINER_AGENT_INIT_MODEL_STORAGE_URI is set",
        )
    for kind in named:
        command = {"dataset": dataset, "model": model}[kind]
        with command.make_context(kind, [], auto_envvar_prefix="TRAINER_AGENT_INIT_" + kind.upper()) as inner:
            command.invoke(inner)
    return ExitCode.PASS


def _fetch(kind: str, uri: str | None, output_path: str, *, ignore_patterns: tuple[str, ...]) -> int:
    if not uri:
        raise FatalError(
            "storage-uri-missing", "STORAGE_URI is not set", hint="set it, or give --storage-uri s3://bucket/prefix"
        )
    get_logger().info("fetching", kind=kind, uri=uri, to=output_path)
    done = fetch(open_source(uri, os.environ), Path(output_path), ignore=ignore_patterns)
    rate = done.size / max(done.seconds, 1e-3) / 1e6
    get_logger().info(
        "fetched", kind=kind, files=done.files, bytes=done.size, seconds=round(done.seconds, 2), mb_per_s=round(rate, 1)
    )
    return ExitCode.PASS
