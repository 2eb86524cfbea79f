"""`preflight`: run the checks, print the report, exit with the verdict."""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import click

from trainer_agent import policy
from trainer_agent.accelerators import find_accelerators, given
from trainer_agent.catalogue import Listed, list_checks
from trainer_agent.cgroup import read_limits
from trainer_agent.check import PROFILES, CheckResult, Context, Options, Status
from trainer_agent.commands.names import Names
from trainer_agent.commands.seconds import Seconds
from trainer_agent.env import redact_all, secrets_in, wants_colour
from trainer_agent.errors import AgentError, ExitCode, FatalError
from trainer_agent.executable_checks import add_programs
from trainer_agent.formats import FORMATS, writer
from trainer_agent.gang.peers import at_rank_zero
from trainer_agent.host import Host
from trainer_agent.isolation import IsolatedError, contained
from trainer_agent.log import get_logger
from trainer_agent.nproc import decide
from trainer_agent.report import Report, compact, write_whole
from trainer_agent.runner import run_checks
from trainer_agent.status import reporting
from trainer_agent.termination import TERMINATION_LOG, tell
from trainer_agent.topology import MAX_PORT, read_topology
from trainer_agent.wrappers import unwrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from trainer_agent.topology import Topology

# Seconds for the whole preflight of one node, by profile.
BUDGET_S = {"quick": 15.0, "standard": 60.0, "deep": 300.0}
ROLL_CALL = "roll-call"  # the check in which all nodes take part
# What is left for the checks when the driver has used up all of it by hanging.
LEAST_S = 2.0
# A report is some kilobytes; a file server that has not taken them by then is dead.
SAVE_S = 10.0
OURS = ("/dev/", "/proc/self/")  # such as /dev/stdout, which in a child is another


@dataclass(frozen=True)
class PreflightOptions:
    """The options of `preflight`."""

    checks: tuple[str, ...]
    skip: tuple[str, ...]
    ignore: tuple[str, ...]
    profile: str
    timeout: float | None
    gate: bool
    output: str
    report_file: str | None
    termination_log: str | None
    storage: tuple[str, ...]
    optional_storage: tuple[str, ...]
    require_kube_api: bool
    rendezvous_timeout: float
    python: str | None
    checks_dir: tuple[str, ...]
    scope: str | None
    gang_timeout: float
    port: int
    attempt: str
    node_name: str
    gang_history: str | None


OPTIONS = (
    click.option("--checks", type=Names(), default="", show_envvar=True, help="Run only these checks."),
    click.option(
        "--skip", type=Names(), default="", show_envvar=True, help="Leave these checks out; the report says so."
    ),
    click.option(
        "--ignore",
        type=Names(),
        default="",
        show_envvar=True,
        help="Show failures of these checks as warnings. 'all' names every check.",
    ),
    click.option(
        "--profile",
        type=click.Choice(PROFILES),
        default="standard",
        show_default=True,
        show_envvar=True,
        help="How thorough: 15 s, 60 s, 5 min at most.",
    ),
    click.option(
        "--timeout",
        type=Seconds(min=0.1),
        show_envvar=True,
        help="Seconds for all checks together, instead of the profile's; the wait for rank 0's name has its own.",
    ),
    click.option(
        "--gate", is_flag=True, show_envvar=True, help="Exit 0 instead of 10 on warnings, for init containers."
    ),
    click.option(
        "--output",
        type=click.Choice(list(FORMATS)),
        default="text",
        show_default=True,
        show_envvar=True,
        help="What goes to standard output: text for people, JSON for programs, JUnit XML for CI, one HTML page.",
    ),
    click.option(
        "--report-file", type=click.Path(dir_okay=False), show_envvar=True, help="Write the JSON report here, too."
    ),
    click.option(
        "--termination-log",
        type=click.Path(dir_okay=False),
        show_envvar=True,
        help=f"Default: {TERMINATION_LOG} if it exists.",
    ),
    click.option(
        "--storage",
        multiple=True,
        show_envvar=True,
        metavar="PATH",
        help="A path that must be writable. Repeat for several.",
    ),
    click.option(
        "--optional-storage",
        multiple=True,
        show_envvar=True,
        metavar="PATH",
        help="A path that should be writable.",
    ),
    click.option(
        "--require-kube-api", is_flag=True, show_envvar=True, help="Fail when the API server does not answer."
    ),
    click.option(
        "--rendezvous-timeout",
        type=Seconds(min=0),
        default=600.0,
        show_default=True,
        show_envvar=True,
        help="Seconds to wait for rank 0's name to appear.",
    ),
    click.option(
        "--python",
        show_envvar=True,
        help="Interpreter of the training environment, which has torch. Default: the one this program runs on; of a"
        " copy that `install` made, the image's python or python3.",
    ),
    click.option(
        "--checks-dir",
        type=click.Path(),
        multiple=True,
        show_envvar=True,
        help="A directory whose executable files are checks, too. Repeat for several.",
    ),
    click.option(
        "--scope",
        type=click.Choice(["node", "gang"]),
        show_envvar=True,
        help="This node alone, or all nodes of the job together. Default: gang when the job has several.",
    ),
    click.option(
        "--gang-timeout",
        type=Seconds(min=1),
        default=600.0,
        show_default=True,
        show_envvar=True,
        help="Seconds that the nodes wait for each other.",
    ),
    click.option(
        "--port",
        type=click.IntRange(min=0, max=MAX_PORT - 1),
        default=0,
        show_envvar=True,
        help="Where the nodes meet, on rank 0. Default: the port after the master port; the one after it is used, too.",
    ),
    click.option(
        "--attempt",
        default="",
        show_envvar=True,
        help="Nodes meet only those of the same attempt, such as JobSet's restart-attempt.",
    ),
    click.option(
        "--node-name",
        default="",
        envvar=["TRAINER_AGENT_PREFLIGHT_NODE_NAME", "NODE_NAME"],
        show_envvar=True,
        help="Name of this machine in the cluster, for the list of those to avoid.",
    ),
    click.option(
        "--gang-history",
        type=click.Path(dir_okay=False),
        show_envvar=True,
        help="A file of JSON lines: rank 0 compares the rates of the collective with those, and adds them.",
    ),
)


def preflight_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `preflight` to a command."""
    return reduce(lambda wrapped, option: option(wrapped), reversed(OPTIONS), function)


@click.command()
@preflight_options
def preflight(**settings: Any) -> int:
    """
    Check this node and exit with the verdict: 0 pass, 10 warn, 20 retry or elsewhere, 30 stop.

    \b
    trainer-agent preflight
    trainer-agent preflight --profile quick --output json
    trainer-agent preflight --skip kube-api --ignore limits
    """
    options = PreflightOptions(**settings)
    with reporting(os.environ) as tell:
        report = examine(options, unwrapped(os.environ), Host(), tell=tell)
    return publish(report, options, os.environ)


def publish(report: Report, options: PreflightOptions, environ: Mapping[str, str], *, to_stderr: bool = False) -> int:
    """Write a report wherever it is wanted, return the exit code."""
    clean = redact_all(report.as_dict(), secrets_in(environ))
    text = writer("json")(clean)
    data = json.loads(text)
    stream = sys.stderr if to_stderr else sys.stdout
    shown = writer(options.output)(data, colour=wants_colour(stream, environ))
    tell(options.termination_log, compact(data))
    try:
        if options.report_file:
            _save(options.report_file, text)
    finally:  # last, as whoever reads it may be gone
        click.echo(shown, file=stream, nl=False)
    warned = report.verdict is policy.Verdict.WARN and options.gate
    return int(ExitCode.PASS if warned else report.verdict.exit_code)


def _save(path: str, text: str) -> None:
    """Write the report to a file; the verdict is about this node, and counts where that volume is full or dead, too."""
    try:
        if path.startswith(OURS):
            write_whole(path, text)
        else:
            contained(lambda: write_whole(path, text), grace_s=0, timeout_s=SAVE_S)
    except FatalError as error:
        get_logger().warning(error.message, code=error.code, hint=error.hint)
    except (IsolatedError, OSError) as error:  # or no process is left
        hint = "look at the volume; the report is on standard output"
        get_logger().warning(f"cannot write {path}: {error}", code="not-writable", hint=hint)


def examine(
    options: PreflightOptions, environ: Mapping[str, str], host: Host, *, tell: Callable[..., None] = lambda **_: None
) -> Report:
    """
    Run the selected checks and return the report.

    Args:
        tell: takes how far they are.
    """
    started, began = host.now(), host.monotonic()
    context = gather(options, environ, host)
    topology = context.topology
    left_s = max(LEAST_S, budget_s(options) - (host.monotonic() - began))
    results, gang = _met(options, context, left_s, tell=tell)
    results = policy.ignore(results, options.ignore)
    verdict, action = policy.decide(results)
    tell(preflight_exit_code=int(verdict.exit_code))
    found = policy.suspects(results, hostname=topology.hostname, node_rank=topology.node_rank)
    return Report(
        verdict=verdict,
        action=action,
        hostname=topology.hostname,
        node_rank=topology.node_rank,
        nnodes=topology.max_nodes,
        suspects=policy.with_gang(found, gang["suspects"] if gang else ()),
        checks=results,
        started_at=dt.datetime.fromtimestamp(started, dt.UTC).isoformat(timespec="milliseconds"),
        duration_s=host.monotonic() - began,
        gang=gang,
    )


def _met(
    options: PreflightOptions, context: Context, left_s: float, *, tell: Callable[..., None]
) -> tuple[list[CheckResult], dict[str, Any] | None]:
    """Run this node's own checks, and meet the other nodes where there are any."""
    chosen = _chosen(options)
    run = [entry for entry in chosen if entry.name not in options.skip]
    skipped = [CheckResult(c.name, Status.SKIP, "left out by --skip") for c in chosen if c.name in options.skip]
    context = replace(context, options=replace(context.options, running=tuple(entry.name for entry in run)))
    program = next((entry.load().program for entry in run if entry.name == ROLL_CALL), "")
    if not (context.options.gang and program):
        return [*run_checks(run, context, timeout_s=left_s, tell=tell), *skipped], None
    from trainer_agent.gang.meet import Asked, gathering  # 20 ms that one node alone does not need

    asked = Asked(options.gang_timeout, options.port, options.attempt, options.node_name, options.gang_history)
    with gathering(context, asked, program=program, tell=tell) as meeting:
        results = policy.ignore(run_checks(run, context, timeout_s=left_s, tell=tell), options.ignore)
        return meeting.meet([*results, *skipped])


def gather(options: PreflightOptions, environ: Mapping[str, str], host: Host) -> Context:
    """Return what all checks need to know, read once."""
    topology, limits = read_topology(environ, hostname=host.hostname()), read_limits(host)
    accelerators = find_accelerators(host, environ)
    nproc, refusal = 1, None
    try:
        decided = decide(topology.nproc, accelerators, cpus=limits.cpus).value
        nproc = decided if isinstance(decided, int) else accelerators.count
    except AgentError as error:
        refusal = error
    chosen = Options(
        profile=options.profile,
        storage=options.storage,
        optional_storage=options.optional_storage,
        require_kube_api=options.require_kube_api,
        rendezvous_timeout_s=options.rendezvous_timeout,
        budget_s=budget_s(options),
        python=options.python or "",
        gang=_meets(options, topology),
        scope=options.scope or "gang",
    )
    accelerators = given(accelerators, host, environ, topology.nproc)
    return Context(environ, topology, limits, accelerators, host, chosen, nproc, refusal)


def _meets(options: PreflightOptions, topology: Topology) -> bool:
    """Whether all nodes of the job meet: when there are several, and it is known how many, where and which is which."""
    known = topology.runtime == "torch" and not (topology.single_node or topology.elastic)
    return known and bool(at_rank_zero(topology).master_addr) and topology.rank_known and options.scope != "node"


def _chosen(options: PreflightOptions) -> list[Listed]:
    """Return the checks that are asked for, those that are to be skipped among them."""
    installed = add_programs(list_checks(), options.checks_dir)
    refuse_unknown((*options.checks, *options.skip, *(n for n in options.ignore if n != "all")), installed)
    return [c for c in installed.values() if not options.checks or c.name in options.checks]


def budget_s(options: PreflightOptions) -> float:
    """Return the seconds for all checks together."""
    return options.timeout or BUDGET_S[options.profile]


def refuse_unknown(names: Collection[str], installed: Mapping[str, Listed]) -> None:
    """Raise a usage error for a name that no check has."""
    unknown = sorted(set(names) - set(installed))
    if unknown:
        raise click.UsageError(f"There is no check {', '.join(unknown)}. There are: {', '.join(installed)}.")
