"""`hostfile`: write the hostfile of an MPI job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from trainer_agent.addresses import wait_for_addresses
from trainer_agent.commands.seconds import Seconds
from trainer_agent.host import Host
from trainer_agent.hostfile import IMPLEMENTATIONS, MOST_SLOTS, NAME, Hostfile, from_arguments, of_job, read, render
from trainer_agent.mpi.settings import INJECTED
from trainer_agent.report import write_whole

TIMEOUT_S = 60.0


class Name(click.ParamType[str]):
    """A name of the DNS."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse what can be no host."""
        if not NAME.fullmatch(value):
            self.fail(f"{value!r} is not a name of letters, digits, '.', '-' and '_'.", param, ctx)
        return str(value)


@dataclass(frozen=True)
class HostfileOptions:
    """The options of `hostfile`."""

    hostfile: str | None
    job: str | None
    nnodes: int | None
    subdomain: str | None
    launcher_as_node: bool
    slots: int | None
    implementation: str
    resolve: bool
    timeout: float
    output: str | None


@click.command()
@click.option(
    "--hostfile", type=click.Path(dir_okay=False), show_envvar=True, help=f"Read this file. Default: {INJECTED}."
)
@click.option("--job", type=Name(), show_envvar=True, help="Name the pods of this TrainJob; needs --nnodes.")
@click.option("--nnodes", type=click.IntRange(min=1), show_envvar=True, help="How many pods the TrainJob of --job has.")
@click.option(
    "--subdomain", type=Name(), show_envvar=True, help="The subdomain of these pods. Default: the job's name."
)
@click.option(
    "--launcher-as-node",
    is_flag=True,
    show_envvar=True,
    help="The launcher of --job is a node, too: where its runtime has runLauncherAsNode.",
)
@click.option(
    "--slots",
    type=click.IntRange(1, MOST_SLOTS),
    show_envvar=True,
    help="Processes on every host, whatever the source says. Default: what it says, 1 where it says nothing.",
)
@click.option(
    "--implementation",
    type=click.Choice(IMPLEMENTATIONS),
    default="openmpi",
    show_default=True,
    show_envvar=True,
    help="Whose format to write: 'host slots=N' for Open MPI, 'host:N' for the others.",
)
@click.option("--resolve", is_flag=True, show_envvar=True, help="Write addresses instead of names; wait for them.")
@click.option(
    "--timeout",
    type=Seconds(min=0),
    default=TIMEOUT_S,
    show_default=True,
    show_envvar=True,
    help="Seconds that --resolve waits for the names.",
)
@click.option(
    "--output", type=click.Path(dir_okay=False), show_envvar=True, help="Write this file. Default: standard output."
)
@click.argument("hosts", nargs=-1)
def hostfile(hosts: tuple[str, ...], **settings: Any) -> None:
    """
    Write an MPI job's hostfile: from a controller's file, from a TrainJob's name, or from HOSTS.

    \b
    trainer-agent hostfile --resolve --output /tmp/hostfile
    trainer-agent hostfile --job train --nnodes 4 --slots 8 --launcher-as-node
    trainer-agent hostfile --implementation mpich host-a:4 host-b:4
    """
    options = HostfileOptions(**settings)
    text = written(options, source(options, hosts), Host())
    if options.output:
        write_whole(options.output, text)
    else:
        click.echo(text, nl=False)


def source(options: HostfileOptions, hosts: tuple[str, ...]) -> Hostfile:
    """
    Return the hosts of the one source that is named.

    Raises:
        UsageError: there are two sources, or half a one.
        FatalError: the source names no hosts that could be used.
    """
    _check_usage(options, hosts)
    if options.job and options.nnodes:
        as_node = options.launcher_as_node
        return of_job(options.job, nnodes=options.nnodes, subdomain=options.subdomain, launcher=as_node)
    return from_arguments(hosts) if hosts else read(options.hostfile or INJECTED)


def _check_usage(options: HostfileOptions, hosts: tuple[str, ...]) -> None:
    named = {"--hostfile": options.hostfile, "--job": options.job, "HOSTS": hosts}
    sources = [name for name, value in named.items() if value]
    if len(sources) > 1:
        raise click.UsageError(f"Give one of --hostfile, --job and HOSTS, not {' and '.join(sources)}.")
    if options.job and not options.nnodes:
        raise click.UsageError("--job needs --nnodes.")
    of_the_job = {
        "--nnodes": options.nnodes,
        "--subdomain": options.subdomain,
        "--launcher-as-node": options.launcher_as_node,
    }
    for name, value in of_the_job.items():
        if value and not options.job:
            raise click.UsageError(f"{name} needs --job.")


def written(options: HostfileOptions, hosts: Hostfile, host: Host) -> str:
    """
    Return the text of the hostfile.

    Raises:
        RetryError: not all names have addresses in time.
        ConfigurationError: the implementation cannot read it, or two names have one address.
    """
    if options.slots:
        hosts = hosts.with_slots(options.slots)
    if options.resolve:
        hosts = hosts.with_addresses(wait_for_addresses(hosts.names, host, timeout_s=options.timeout))
    return render(hosts, options.implementation)
