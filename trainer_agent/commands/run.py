"""`run`: preflight, initialize, launch."""

from __future__ import annotations

import json
import os
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from trainer_agent.commands.init import init_named
from trainer_agent.commands.launch import read_environ, start
from trainer_agent.commands.launch_options import LaunchOptions, launch_options
from trainer_agent.commands.names import Names
from trainer_agent.commands.preflight import PreflightOptions, examine, preflight, publish
from trainer_agent.errors import ExitCode, FatalError
from trainer_agent.host import Host
from trainer_agent.log import get_logger
from trainer_agent.status import reporting
from trainer_agent.topology import LAUNCHER
from trainer_agent.wrappers import unwrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

STEPS = ("preflight", "initialize", "launch")
# How long nodes wait for each other that have met in the preflight: the slowest has torch to import once more.
MET_S = 120.0


def _valid_steps(_ctx: click.Context, _param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    unknown = [step for step in value if step not in STEPS]
    if unknown or not value:
        raise click.BadParameter(f"{', '.join(unknown) or 'nothing'} is not among {', '.join(STEPS)}")
    return value


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--steps",
    type=Names(),
    default=",".join(STEPS),
    show_default=True,
    show_envvar=True,
    callback=_valid_steps,
    help="Which steps to take.",
)
@click.option(
    "--timeline",
    type=click.Path(dir_okay=False),
    show_envvar=True,
    help="Append a JSON line for each step: its name, exit code, seconds. Under --exec the launch leaves none.",
)
@launch_options
@click.argument("script", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def run(
    ctx: click.Context, /, steps: tuple[str, ...], timeline: str | None, script: tuple[str, ...], **settings: Any
) -> int:
    """
    Go the whole way: check this node, fetch dataset and model, launch the script.

    Preflight and initialize take their options from TRAINER_AGENT_PREFLIGHT_… and TRAINER_AGENT_INIT_….

    \b
    trainer-agent run -- train.py --epochs 3
    trainer-agent run --steps preflight,launch -- train.py
    """
    if "launch" in steps and not script:
        raise click.UsageError(
            "The step launch needs a script. Give it after --, in a TrainJob as spec.trainer.args (the image's own "
            "entrypoint is not run here), or choose --steps preflight,initialize."
        )
    environ = read_environ(script, os.environ, hostfile=settings["hostfile"])
    if settings["dry_run"]:
        if "launch" not in steps:
            raise click.UsageError("--dry-run prints the command of the step launch, which is not among --steps.")
        return start(LaunchOptions(**settings), script, environ, Host())
    if timeline:
        _check_writable(timeline)
    met: list[bool] = []  # whether all nodes have just met
    told = ExitStack()
    takes: dict[str, Callable[[], int]] = {
        "preflight": lambda: _preflight(
            ctx, met, {**environ, LAUNCHER: settings["launcher"]}, python=settings["python"], tell=tell
        ),
        "initialize": lambda: init_named(tell),
        "launch": lambda: start(LaunchOptions(**_sooner(ctx, settings, met, steps)), script, environ, Host()),
    }
    with told:
        tell = told.enter_context(reporting(environ))
        if ctx.obj:
            told.enter_context(ctx.obj)  # what `wrap` keeps up until the launch
        return _take({step: takes[step] for step in STEPS if step in steps}, timeline, told)


def _take(steps: Mapping[str, Callable[[], int]], timeline: str | None, told: ExitStack) -> int:
    """Take steps until one fails; return the exit code of the last."""
    code = int(ExitCode.PASS)
    for name, step in steps.items():
        if name == "launch":
            told.close()  # from here on the status is the training's
        with _timed(name, timeline) as outcome:
            code = outcome["exit_code"] = int(step())
        if code not in (ExitCode.PASS, ExitCode.WARN):
            break
    return code


def _preflight(
    ctx: click.Context, met: list[bool], environ: Mapping[str, str], *, python: str | None, tell: Callable[..., None]
) -> int:
    """Run the checks with the options that preflight's own variables set; the report goes where the logs go."""
    with preflight.make_context("preflight", [], parent=ctx.parent) as inner:
        options = PreflightOptions(**inner.params)
        report = examine(replace(options, python=options.python or python), unwrapped(environ), Host(), tell=tell)
        met.append(report.gang is not None and report.gang["verdict"] in ("pass", "warn"))
        return publish(report, options, environ, to_stderr=True)


def _sooner(ctx: click.Context, settings: dict[str, Any], met: list[bool], steps: tuple[str, ...]) -> dict[str, Any]:
    """Return the settings of `launch`: nodes that have just met need not wait for each other as long as strangers."""
    given = ctx.get_parameter_source("rendezvous_timeout") is not ParameterSource.DEFAULT
    if not any(met) or given or "initialize" in steps:  # fetching may take one node longer than another
        return settings
    return settings | {"rendezvous_timeout": MET_S}


@contextmanager
def _timed(step: str, timeline: str | None) -> Iterator[dict[str, Any]]:
    started = time.monotonic()
    outcome: dict[str, Any] = {"exit_code": None}
    get_logger().info("step begins", step=step)
    try:
        yield outcome
    finally:
        seconds = round(time.monotonic() - started, 3)
        get_logger().info("step ended", step=step, seconds=seconds, **outcome)
        if timeline:
            _append(timeline, {"step": step, "seconds": seconds, **outcome})


def _check_writable(timeline: str) -> None:
    """
    Make sure that the timeline can be written.

    Raises:
        FatalError: it cannot, said before anything is done.
    """
    try:
        Path(timeline).open("a").close()
    except OSError as error:
        reason = f"cannot write the timeline to {timeline}: {error.strerror}"
        raise FatalError("not-writable", reason, hint="give a path on a writable volume") from error


def _append(timeline: str, line: Mapping[str, Any]) -> None:
    """Add a line to the timeline; a volume that has filled up since changes nothing about how the step ended."""
    try:
        with Path(timeline).open("a") as file:
            file.write(json.dumps(line) + "\n")
    except OSError as error:
        get_logger().warning(f"cannot write the timeline to {timeline}: {error.strerror}", code="not-writable")
