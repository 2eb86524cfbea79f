"""`init`: fetch dataset and model."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainer_agent.commands.names import Names
from trainer_agent.commands.seconds import Seconds
from trainer_agent.errors import AgentError, ExitCode, FatalError, RetryError
from trainer_agent.initializers import CLEANUP_S, KILLED_HINT, SERVICES, TIMEOUT_HINT, shown_uri
from trainer_agent.isolation import CrashedError, TimedOutError, contained
from trainer_agent.log import get_logger
from trainer_agent.status import reporting
from trainer_agent.termination import TERMINATION_LOG, failures_told

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trainer_agent.initializers import Source
    from trainer_agent.initializers.order import Order
    from trainer_agent.initializers.summary import Summary

KINDS = ("dataset", "model")
VERIFY = ("auto", "size", "full")
FLUSH = ("wait", "later")
# A second less than the two within which SIGTERM is to be obeyed.
GRACE_S = 1.0
# What obeys --timeout has said so by then.
LATE_S = 5.0


@click.group()
def init() -> None:
    """
    Fetch what STORAGE_URI names into OUTPUT_PATH: whole files only, resumed and verified.

    \b
    trainer-agent init dataset --storage-uri s3://bucket/prefix
    trainer-agent init model --storage-uri hf://organisation/name@revision
    trainer-agent init all
    """


# The end of a variable's name: what click is told.
KIND_OPTIONS: dict[str, dict[str, Any]] = {
    "STORAGE_URI": {
        "help": "s3://bucket/prefix, hf://organisation/name[@revision][/path], cache://schema/table or file:///path."
    },
    "OUTPUT_PATH": {"default": "/workspace/{kind}", "show_default": True, "help": "Where the files go."},
    "IGNORE_PATTERNS": {
        "type": Names(),
        "default": "",
        "help": "Leave out what these match, such as *.md,docs/*.",
    },
    "ALLOW_PATTERNS": {
        "type": Names(),
        "help": "Fetch only what these match. A model of the Hub: weights, tokenizer and configuration.",
    },
    "CHECKSUMS": {
        "type": click.Path(path_type=Path),
        "help": "A list as sha256sum writes it, which the files must match.",
    },
    "VERIFY": {
        "type": click.Choice(VERIFY),
        "default": "auto",
        "show_default": True,
        "help": "auto: what is fetched, by checksum. full: also what is there already. size: sizes only.",
    },
    "FLUSH": {
        "type": click.Choice(FLUSH),
        "default": "wait",
        "show_default": True,
        "help": "wait: until all is on disk. later: leave that to the node; the next fetch proves all anew.",
    },
}


# Those that Kubeflow's initializers have; a name such as VERIFY may be anybody's.
KUBEFLOWS = ("STORAGE_URI", "OUTPUT_PATH", "IGNORE_PATTERNS")


def kind_options(kind: str, *, kubeflow: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options of one kind; with `kubeflow`, Kubeflow's own variables come after ours."""
    options = []
    for name, settings in KIND_OPTIONS.items():
        told = {k: v.format(kind=kind) if k == "default" else v for k, v in settings.items()}
        variables = [f"TRAINER_AGENT_INIT_{kind.upper()}_{name}", *([name] if kubeflow and name in KUBEFLOWS else [])]
        flag = f"--{name.lower().replace('_', '-')}"
        options.append(click.option(flag, envvar=variables, show_envvar=True, **told))
    return _all_of(options)


def bound_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a whole fetch: what bounds it, and where its failure is told."""
    return _all_of(
        (
            click.option(
                "--streams",
                type=click.IntRange(1, 256),
                default=128,
                show_default=True,
                show_envvar=True,
                help="Most connections at once; fewer are used where more do not help.",
            ),
            click.option(
                "--timeout",
                type=Seconds(min=1, max=365 * 86_400),
                default=6 * 3600,
                show_default=True,
                show_envvar=True,
                help="Seconds for everything, waiting for another agent included.",
            ),
            click.option(
                "--stall-timeout",
                # Waiting for a socket is counted in milliseconds, in 32 bits.
                type=Seconds(min=0.1, max=86_400),
                default=30,
                show_default=True,
                show_envvar=True,
                help="Seconds without a byte after which a connection is given up.",
            ),
            click.option(
                "--termination-log",
                type=click.Path(dir_okay=False),
                show_envvar=True,
                help=f"Where to say why it failed. Default: {TERMINATION_LOG} if it exists.",
            ),
        )
    )(function)


def _all_of(
    options: Sequence[Callable[[Callable[..., Any]], Callable[..., Any]]],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


@init.command()
@kind_options("dataset", kubeflow=True)
@bound_options
def dataset(**options: Any) -> int:
    """Fetch the dataset."""
    return _fetch_told({"dataset": options}, options)


@init.command()
@kind_options("model", kubeflow=True)
@bound_options
def model(**options: Any) -> int:
    """Fetch the model."""
    return _fetch_told({"model": options}, options)


@init.command(name="all")
@bound_options
def all_(**bounds: Any) -> int:
    """
    Fetch both side by side, from TRAINER_AGENT_INIT_DATASET_STORAGE_URI and TRAINER_AGENT_INIT_MODEL_STORAGE_URI.

    What belongs to one of them is set by its own variables, TRAINER_AGENT_INIT_DATASET_… or TRAINER_AGENT_INIT_MODEL_….
    """
    return _fetch_told(_named_kinds(), bounds)


def init_named(tell: Callable[..., None]) -> int:
    """Fetch whatever of dataset and model has a URI of its own, as `init all` does; nothing when neither has."""
    kinds = _named_kinds()
    if not kinds:
        get_logger().info(
            "nothing to fetch",
            why="no TRAINER_AGENT_INIT_DATASET_STORAGE_URI or TRAINER_AGENT_INIT_MODEL_STORAGE_URI is set",
        )
        return ExitCode.PASS
    with all_.make_context("all", [], auto_envvar_prefix="TRAINER_AGENT_INIT_ALL") as context:
        bounds = context.params
        with failures_told(bounds["termination_log"], os.environ):
            return _fetch(kinds, bounds, tell)


def _named_kinds() -> dict[str, dict[str, Any]]:
    """Return the options of the kinds that have a URI of their own."""
    found = {}
    for kind in KINDS:
        command = click.command(kind)(kind_options(kind, kubeflow=False)(lambda **_: None))
        with command.make_context(kind, []) as context:
            if (context.params["storage_uri"] or "").strip():
                found[kind] = context.params
    return found


def _fetch_told(kinds: Mapping[str, Mapping[str, Any]], bounds: Mapping[str, Any]) -> int:
    with failures_told(bounds["termination_log"], os.environ), reporting(os.environ) as tell:
        if not kinds:
            raise FatalError(
                "storage-uri-missing",
                "neither TRAINER_AGENT_INIT_DATASET_STORAGE_URI nor TRAINER_AGENT_INIT_MODEL_STORAGE_URI is set",
                hint="set one of them; STORAGE_URI alone does not say which of the two it is",
            )
        return _fetch(kinds, bounds, tell)


def _fetch(kinds: Mapping[str, Mapping[str, Any]], bounds: Mapping[str, Any], tell: Callable[..., None]) -> int:
    for kind, options in kinds.items():
        if not (options["storage_uri"] or "").strip():
            hint = "set it, or give --storage-uri s3://bucket/prefix"
            raise FatalError("storage-uri-missing", "STORAGE_URI is not set", hint=hint)
        get_logger().info("fetching", kind=kind, uri=shown_uri(options["storage_uri"]), to=options["output_path"])
    paths = {os.path.realpath(options["output_path"]) for options in kinds.values()}
    if len(paths) < len(kinds):
        hint = "set TRAINER_AGENT_INIT_DATASET_OUTPUT_PATH and TRAINER_AGENT_INIT_MODEL_OUTPUT_PATH to different ones"
        raise FatalError("output-path-shared", f"dataset and model would both go to {paths.pop()}", hint=hint)
    try:
        done = _fetch_contained(kinds, bounds, tell)
    except AgentError as error:
        tell(init_exit_code=int(error.exit_code))
        raise
    if done.fetched_files:
        facts = {"init_bytes_done": done.fetched_size, "init_files_done": done.fetched_files}
        tell(**facts, init_seconds_left=0, init_exit_code=0)
    rate = done.fetched_size / max(done.phases.get("transfer", 0), 1e-3) / 1e6
    get_logger().info(
        "fetched",
        kind=",".join(kinds),
        files=done.files,
        bytes=done.size,
        fetched_files=done.fetched_files,
        fetched_bytes=done.fetched_size,
        seconds=round(sum(done.phases.values()), 2),
        mb_per_s=round(rate, 1),
        phases=done.phases,
    )
    return ExitCode.PASS


def _fetch_contained(
    kinds: Mapping[str, Mapping[str, Any]], bounds: Mapping[str, Any], tell: Callable[..., None]
) -> Summary:
    """
    Fetch in a child, so that it ends with --timeout whatever it waits for.

    Raises:
        RetryError: it did not end by itself, or somebody killed it.
    """
    served = any(options["storage_uri"].strip().partition(":")[0] in SERVICES for options in kinds.values())
    timeout_s = bounds["timeout"] + LATE_S + CLEANUP_S * served
    try:
        done: Summary = contained(lambda: _fetch_here(kinds, bounds, tell), grace_s=GRACE_S, timeout_s=timeout_s)
    except TimedOutError as error:
        raise RetryError("fetch-timeout", f"the time is up: {error}", hint=TIMEOUT_HINT) from error
    except CrashedError as error:
        if error.trace:
            raise
        message = f"the fetch was ended from outside: {error}"
        raise RetryError("fetch-killed", message, hint=KILLED_HINT) from error
    return done


def _fetch_here(
    kinds: Mapping[str, Mapping[str, Any]], bounds: Mapping[str, Any], tell: Callable[..., None]
) -> Summary:
    """In a child of our own, which takes the libraries' threads and memory with it."""
    from trainer_agent.host import Host
    from trainer_agent.initializers import PATIENCE_S, Service, open_source
    from trainer_agent.initializers.fetch import Bounds, fetch
    from trainer_agent.initializers.services import Setup

    started = time.monotonic()
    orders, services = [], []
    for kind, options in kinds.items():
        uri, patience_s = options["storage_uri"].strip(), min(PATIENCE_S, bounds["timeout"])
        source = open_source(uri, os.environ, kind=kind, stall_s=bounds["stall_timeout"], patience_s=patience_s)
        if isinstance(source, Service):
            services.append(source)
        else:
            orders.append(_order(kind, source, options))
    _refuse_circles(orders)
    setup = Setup(services, deadline=started + bounds["timeout"])
    limits = Bounds(streams=bounds["streams"], timeout_s=bounds["timeout"])
    done = fetch(orders, host=Host(), bounds=limits, meanwhile=setup.check, tell=tell)
    with done.phase("serve"):
        setup.finish()
    return done


def _refuse_circles(orders: Sequence[Order]) -> None:
    """Refuse a destination that is part of a source, its own or the other's."""
    from trainer_agent.initializers.file import FileSource
    from trainer_agent.initializers.patterns import leaves_out

    places = [order.destination for order in orders]
    for order in orders:
        if isinstance(order.source, FileSource):
            order.source.keep_out(places, left_out=partial(leaves_out, allow=order.allow, ignore=order.ignore))


def _order(kind: str, source: Source, options: Mapping[str, Any]) -> Order:
    from trainer_agent.initializers.checksums import read_checksums
    from trainer_agent.initializers.order import Order

    return Order(
        kind=kind,
        source=source,
        destination=Path(options["output_path"]),
        allow=options["allow_patterns"],
        ignore=options["ignore_patterns"],
        checksums=read_checksums(options["checksums"]) if options["checksums"] else {},
        verify=options["verify"],
        flush=options["flush"],
    )
