"""The command line: a table of commands, imported when they are used."""

from __future__ import annotations

import difflib
import importlib
import os
from typing import TYPE_CHECKING, Any

import click

from trainer_agent import __version__
from trainer_agent.errors import AgentError, ConfigurationError, ExitCode, Terminated, exhausted
from trainer_agent.isolation import CrashedError

if TYPE_CHECKING:
    from collections.abc import Sequence

# name: (module:attribute, what it does). The order is that of `--help`.
COMMANDS = {
    "run": ("trainer_agent.commands.run:run", "Go the whole way: preflight, initialize, launch."),
    "preflight": (
        "trainer_agent.commands.preflight:preflight",
        "Check this node, print a report, exit with the verdict.",
    ),
    "init": ("trainer_agent.commands.init:init", "Fetch dataset and model."),
    "hostfile": ("trainer_agent.commands.hostfile:hostfile", "Write the hostfile of an MPI job."),
    "launch": (
        "trainer_agent.commands.launch:launch",
        "Become torchrun, mpirun or the command, with the right number of processes.",
    ),
    "worker": ("trainer_agent.commands.worker:worker", "Serve the ranks of an MPI job: sshd, with time at the end."),
    "explain": ("trainer_agent.commands.explain:explain", "Print every setting that was read, its origin and effect."),
    "checks": ("trainer_agent.commands.checks:checks", "List the checks, or explain one."),
    "report": ("trainer_agent.commands.report:report", "Render a saved preflight report."),
    "wrap": ("trainer_agent.commands.wrap:wrap", "Stand behind torchrun and mpirun, and run them the whole way."),
    "local": ("trainer_agent.commands.local:local", "Rehearse a job of several nodes on this machine."),
    "install": ("trainer_agent.commands.install:install", "Copy this program to where any image can run it."),
}
PREFIX = "TRAINER_AGENT"
LOG_FORMATS = ("auto", "json", "console")


class Table(click.Group):
    """A group that knows its commands' summaries without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # click's signature
        """Return the names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command, or suggest the nearest name."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            more = f" Did you mean {near[0]!r}?" if near else f" There are: {', '.join(COMMANDS)}."
            raise click.UsageError(f"There is no command {args[0]!r}.{more}", ctx)
        return super().resolve_command(ctx, args)


@click.command(
    cls=Table,
    context_settings={"auto_envvar_prefix": PREFIX, "help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="trainer-agent")
@click.option(
    "--log-format",
    type=click.Choice(LOG_FORMATS),
    default="auto",
    show_default=True,
    show_envvar=True,
    help="auto: readable on a terminal, JSON lines elsewhere.",
)
def main(log_format: str) -> None:
    """
    Prove that the nodes of a training job can train, fetch its data, launch it.

    \b
    By hand:        trainer-agent preflight
    In a container: trainer-agent run -- train.py --epochs 3

    Every option can be set by an environment variable, TRAINER_AGENT_<COMMAND>_<OPTION>; the command line wins.
    """
    from trainer_agent import log

    log.configure(os.environ, form=log_format)


def run(argv: Sequence[str]) -> int:
    """Run the command line and return its exit code; errors become one message, only bugs a traceback."""
    try:
        result = main.main(list(argv), prog_name="trainer-agent", standalone_mode=False)
        return int(result or 0)
    except click.UsageError as error:
        _with_variable(error).show()
        return ExitCode.USAGE
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except Terminated as error:
        return 128 + error.signum
    except AgentError as error:
        return _report(error)
    except SystemExit:
        # click's only answer to a broken pipe, as `| head` leaves one; its own code for it, 1, says nothing.
        return 128 + 13
    except Exception as error:  # noqa: BLE001  # the last door: nothing left of this machine, or a bug of ours
        return _report(known) if (known := exhausted(error)) else _bug(error)


def _with_variable(error: click.UsageError) -> click.UsageError:
    """Return the error with the variable that a bad value comes from: it may be set far away, in a runtime."""
    if not (isinstance(error, click.BadParameter) and isinstance(error.param, click.Option) and error.ctx):
        return error
    from trainer_agent.commands.variables import variables_of

    option, context = error.param, error.ctx
    if context.get_parameter_source(option.name or "") is not click.core.ParameterSource.ENVIRONMENT:
        return error
    given = next((name for name in variables_of(option, context) if os.environ.get(name)), "the environment")
    return click.BadParameter(f"{error.message.removesuffix('.')} (from {given}).", context, option, error.param_hint)


def _logger() -> Any:
    from trainer_agent import log

    if not log.structlog.is_configured():  # `--help` ends before `main`
        log.configure(os.environ)
    return log.get_logger()


def _report(error: AgentError) -> int:
    findings = error.findings if isinstance(error, ConfigurationError) else ()
    for finding in findings[1:]:
        _logger().error(finding.message, code=finding.code, hint=finding.hint)
    message = findings[0].message if findings else error.message
    _logger().error(message, code=error.code, hint=error.hint, exit_code=int(error.exit_code))
    return int(error.exit_code)


def _bug(error: Exception) -> int:
    hint = "this is a bug of trainer-agent; please report it with this log"
    facts = {"code": "bug", "hint": hint, "version": __version__, "exit_code": int(ExitCode.BUG)}
    if isinstance(error, CrashedError) and error.trace:
        _logger().error("unexpected error", exception=error.trace, **facts)  # as the child saw it
    else:
        _logger().error("unexpected error", exc_info=error, **facts)
    return ExitCode.BUG
